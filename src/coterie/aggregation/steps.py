"""The steps that each update passes between the client function and the sum.

`aggregation/pipeline.py` lists them in order. A step has two halves: `client` works on single
updates, wherever they are (in a worker thread, on a rank, at a site, on the server), and `server`
on the finished aggregate.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from coterie.core.contract import Upload
from coterie.core.trees import tree_map


class UpdateChunk(NamedTuple):
    """Updates of some clients on their way to the sum."""

    positions: Tensor  # int64 [n], the clients' positions in the call
    updates: Upload  # leaves [n, ...]
    norms: dict[str, Tensor]  # [n] update norms, per value name
    rejected: tuple[tuple[int, str], ...] = ()  # position and reason
    clipped: tuple[int, ...] = ()  # positions

    def reject(self, reasons: dict[int, str]) -> UpdateChunk:
        """Return the chunk without some rows.

        A rejected update is removed before any arithmetic, because 0 · NaN is NaN.

        Args:
            reasons: The reason of each rejection, by row.
        """
        if not reasons:
            return self
        is_kept = torch.ones(len(self.positions), dtype=torch.bool)
        is_kept[list(reasons)] = False
        positions, updates, norms = tree_map(
            lambda v: v[is_kept.to(v.device)], (self.positions, self.updates, self.norms)
        )
        rejected = tuple((int(self.positions[i]), reasons[i]) for i in sorted(reasons))
        return self._replace(
            positions=positions,
            updates=updates,
            norms=norms,
            rejected=self.rejected + rejected,
        )


class UpdateStep(Protocol):
    """One step of the pipeline, for one exchange."""

    def client(self, chunk: UpdateChunk) -> UpdateChunk:
        """Reject or change single updates."""
        ...
