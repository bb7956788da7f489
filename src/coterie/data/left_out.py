"""Rows and clients that are left out of a federation of tables because the user asked for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from coterie.data.client_table import Table, client_cells
from coterie.errors import CoterieError, Option, unknown

log = logging.getLogger("coterie")
MOST_NAMES = 5  # clients that a line of the log names


def with_client_named(table: Table, column: str | None) -> Table:
    """A table of all clients without the rows that name no client."""
    missing = client_cells(table, column).missing
    if not missing.any():
        return table
    if missing.all():
        raise CoterieError(f"the client column {column} is empty in every row", "name the clients")
    log.info("left out: %d rows whose client column %s is empty", missing.sum(), column)
    return table.part(np.flatnonzero(~missing), table.where)


def with_labels(tables: Mapping[str, Table], label: str) -> dict[str, Table]:
    """The tables without the rows that have no label; a client without any other is left out."""
    complete = {}
    left_out = {}
    for name, table in tables.items():
        if label not in table.columns:
            raise unknown(f"label column of {table.where}:", label, table.columns)
        cells = table.columns[label]
        if cells.empty_cells:
            left_out[name] = cells.empty_cells
            table = table.part(np.flatnonzero(~cells.missing), table.where)
        if table.rows or name not in left_out:
            complete[name] = table
    if not left_out:
        return complete
    if not complete:
        raise CoterieError(f"the label column {label} is empty in every row", "give labels")
    gone = len(tables) - len(complete)
    and_clients = f", with them {gone} clients that have no other" if gone else ""
    log.info(
        "left out: %d rows whose label %s is empty%s (%s)",
        sum(left_out.values()), label, and_clients, most_affected(left_out),
    )  # fmt: skip
    return complete


def large_enough(tables: Mapping[str, Table], min_rows: int) -> dict[str, Table]:
    """The tables of clients with `min_rows` rows or more."""
    if min_rows == 1:
        return dict(tables)  # a client without rows is refused later, and named
    large = {name: table for name, table in tables.items() if table.rows >= min_rows}
    small = {name: table.rows for name, table in tables.items() if table.rows < min_rows}
    if not large:
        most = max(small.values(), default=0)
        raise CoterieError(
            f"no client has {min_rows} rows or more, but at most {most}",
            "lower {}",
            options=[Option("min_rows")],
        )
    if small:
        log.info(
            "left out: %d of %d clients, with %d rows in all, as each has fewer than %d (%s)",
            len(small), len(tables), sum(small.values()), min_rows, most_affected(small),
        )  # fmt: skip
    return large


def most_affected(counts: Mapping[str, int]) -> str:
    """Clients with their counts, the highest first, shortened."""
    ordered = sorted(counts, key=lambda name: -counts[name])
    listed = [f"{name} {counts[name]}" for name in ordered[:MOST_NAMES]]
    if len(ordered) > MOST_NAMES:
        listed.append(f"and {len(ordered) - MOST_NAMES} more clients")
    return ", ".join(listed)
