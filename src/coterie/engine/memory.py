"""What the simulated clients own: their rows and their private states, in one process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coterie.contract import Data
from coterie.data.federation import Federation, Ragged
from coterie.engine.call import Call, Exam
from coterie.task import Batch, Task


def gather(part: Ragged, starts: Tensor, ids: Tensor, dtype: torch.dtype) -> Batch:
    """The rows of some clients, padded to the largest: leaves [clients, n, ...].

    Padding repeats the client's own last row, so that no model meets a row it never would. Neighbours of equal size
    are a view of the store: nothing is copied.
    """
    sizes, first = part.sizes[ids], starts[ids]
    n = max(int(sizes.max()), 1)
    if bool((sizes == n).all()) and bool((ids.diff() == 1).all()):
        at = slice(int(first[0]), int(first[0]) + n * len(ids))
        x, y = (v[at].view(len(ids), n, *v.shape[1:]) for v in (part.x, part.y))
        mask = torch.ones(len(ids), n, dtype=dtype, device=x.device)
        return Batch(x, y, mask, mask)
    row = torch.arange(n)
    rows = (first[:, None] + torch.minimum(row, (sizes[:, None] - 1).clamp(min=0))).clamp(
        max=len(part.x) - 1
    )
    rows, mask = rows.to(part.x.device), (row < sizes[:, None]).to(dtype).to(part.x.device)
    return Batch(part.x[rows], part.y[rows], mask, torch.ones_like(mask))


class Memory:
    """Rows of all clients, and the private states of those that train: one table per leaf, a row per client."""

    def __init__(self, task: Task, fed: Federation) -> None:
        self.task = task
        parts = {"train": fed.train, "test": fed.test, "valid": fed.valid}
        move = lambda v: (
            v.to(task.device, task.dtype) if v.is_floating_point() else v.to(task.device)
        )
        self.parts = {
            k: Ragged(move(p.x), move(p.y), p.sizes) for k, p in parts.items() if p is not None
        }
        self.starts = {k: p.starts for k, p in self.parts.items()}
        self.private: Any = ()
        self.clients = len(fed)

    @property
    def example(self) -> Batch:
        """Two rows, as a client has them."""
        part = self.parts["train"]
        rows = torch.tensor([0, len(part.x) - 1])
        return Batch.of(part.x[rows], part.y[rows], self.task.dtype)

    # ---- one client, unpadded
    def row(self, call: Call, at: int) -> tuple[Any, Any]:
        """(private, data) of the client at a position of the call."""
        i = int(call.ids[at])
        device = self.task.device
        data = Data(
            self._whole("train", i), call.keys[at].to(device), call.client_keys[at].to(device)
        )
        private = tree_map(lambda v: v[i].clone(), self.private) if call.enrolled else ()
        return private, data if call.exam is None else Exam(data, self._whole(call.exam, i))

    def _whole(self, part: str, i: int) -> Batch:
        p, start = self.parts[part], int(self.starts[part][i])
        end = start + int(p.sizes[i])
        return Batch.of(p.x[start:end], p.y[start:end], self.task.dtype)

    # ---- some clients, padded
    def rows(self, call: Call, at: Tensor) -> tuple[Any, Any]:
        ids, device = call.ids[at], self.task.device
        data = Data(
            self._padded("train", ids), call.keys[at].to(device), call.client_keys[at].to(device)
        )
        private = tree_map(lambda v: v[ids], self.private) if call.enrolled else ()
        return private, data if call.exam is None else Exam(data, self._padded(call.exam, ids))

    def _padded(self, part: str, ids: Tensor) -> Batch:
        return gather(self.parts[part], self.starts[part], ids, self.task.dtype)

    # ---- private states
    def keep(self, ids: Tensor, private: Any) -> None:
        """New private states (leaves [len(ids), ...]); the first ones make the tables."""
        if not tree_leaves(self.private):
            self.private = tree_map(lambda v: v.new_zeros(self.clients, *v.shape[1:]), private)
        tree_map(
            lambda table, rows: table.index_copy_(0, ids.to(table.device), rows),
            self.private,
            private,
        )

    def snapshot(self) -> Any:
        return self.private

    def restore(self, private: Any) -> None:
        self.private = tree_map(lambda v: v.to(self.task.device), private)
