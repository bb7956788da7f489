"""On the server: refuse clients whose tables have other columns than those of most clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from coterie.core.errors import CoterieError, Option
from coterie.data.description import Description

Columns = frozenset[str]
MOST_CLIENTS = 5  # whose columns one sentence describes; of any more it gives the number


def check_columns(clients: Mapping[str, Description]) -> None:
    """Refuse clients whose columns or whose label differ from those of most clients."""
    first, model = next(iter(clients.items()))
    label = model["label"]["name"]
    for client, description in clients.items():
        if description["label"]["name"] != label:
            raise CoterieError(
                f"the label column is {label} for client {first!r} "
                f"and {description['label']['name']} for client {client!r}",
                "it must be one for all",
            )
    columns = {client: frozenset(d["columns"]) for client, d in clients.items()}
    usual = Counter(columns.values()).most_common(1)[0][0]
    if set(columns.values()) != {usual}:
        raise columns_differ(columns, usual)
    if not usual:
        raise CoterieError(f"client {first!r} has no column but the label {label}", "add features")


def columns_differ(columns: Mapping[str, Columns], usual: Columns) -> CoterieError:
    """An error that names each client whose columns are not the usual ones."""
    example = next(client for client, own in columns.items() if own == usual)
    differing = {client: own for client, own in columns.items() if own != usual}
    parts = []
    for client, own in list(differing.items())[:MOST_CLIENTS]:
        lacks = ", ".join(sorted(usual - own)) or "nothing"
        adds = ", ".join(sorted(own - usual)) or "nothing"
        parts.append(
            f"the columns of client {client!r} differ from those of client {example!r}: "
            f"it lacks {lacks} and adds {adds}"
        )
    if len(differing) > MOST_CLIENTS:
        parts.append(f"and {len(differing) - MOST_CLIENTS} more clients")
    what = "; ".join(parts)
    if len(differing) == 1 and lacks != "nothing" and adds != "nothing":
        rename = f"perhaps by renaming {adds} in {client!r} to {lacks}"
        return CoterieError(what, f"give all clients the same columns, {rename}")
    not_shared = Columns().union(*(own ^ usual for own in differing.values()))
    return CoterieError(
        what,
        "give all clients the same columns, or drop what not all have with {}",
        options=[Option("drop", ",".join(sorted(not_shared)), of_data=True)],
    )
