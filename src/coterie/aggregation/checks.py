"""Whether uploads are what the function that was asked for may send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from coterie.core.call import Call
from coterie.core.contract import Declaration, Rows, Upload, UploadContext
from coterie.core.params import count
from coterie.data.roster import Roster


class Checks:
    """The declaration of a call's function, with all that the server knows of the clients asked."""

    def __init__(self, call: Call, roster: Roster) -> None:
        self.call = call
        self.declaration: Declaration = call.fn.declaration  # type: ignore[attr-defined]
        part = call.split or "train"
        self.rows = getattr(roster.rows, part)[call.ids].double()
        self.centres = centres_in(call.shared)

    def faults(self, at: Tensor, up: Upload) -> Iterator[tuple[Tensor, str]]:
        """(bool [n], reason): by weight and report, whose are impossible."""
        context = UploadContext(
            rows=self.rows[at],
            centres=self.centres,
            sent=lambda place: sent_at(self.call.per_client, place, at),
            method=self.call.fn.__self__,  # type: ignore[attr-defined]
        )
        for weight in distinct_weights(up):
            possible = self.declaration.weight.is_valid(weight.cpu(), context)
            yield ~possible, f"its weight is not {self.declaration.weight.description}"
        for name, values in up.report.items():
            kind = self.declaration.report_of(name)
            reason = f"its report {name!r} cannot be {kind.description}"
            yield ~kind.is_valid(values.cpu(), context), reason


def distinct_weights(up: Upload) -> list[Tensor]:
    """The weights of an upload, which may have one for all values."""
    if isinstance(up.weight, dict):
        return list(up.weight.values())
    return [up.weight]


def centres_in(shared: Any) -> int:
    """How many stacked centres were sent: all of `shared`, or its first part; 0 if it has none."""
    if isinstance(shared, tuple):
        return centres_in(shared[0]) if shared else 0
    if not isinstance(shared, dict) or not shared:
        return 0
    is_stack = all(isinstance(v, Tensor) and v.dim() for v in shared.values())
    return count(shared) if is_stack else 0


def sent_at(per_client: Any, place: int, at: Tensor) -> Tensor:
    """What the clients at these positions were sent, at one place of `per_client`."""
    if isinstance(per_client, Rows):
        rows: Tensor = per_client.table[place][per_client.index[at]]
        return rows.cpu()
    sent: Tensor = per_client[place][at]
    return sent.cpu()
