"""What one client sees of its own rows, with its randomness for one exchange."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.randomness import scramble
from coterie.settings import Local
from coterie.task import Batch


class Repeat(NamedTuple):
    """The same batch `times` times: what lets a local solver work in the dual form."""

    batch: Batch
    times: int


class Data(NamedTuple):
    """One client's own rows, with its randomness for this exchange."""

    all: Batch
    key: Tensor  # int64, from (seed, client, round, exchange or stream)
    client_key: Tensor  # int64, from (seed, client): for what is cut once and for all

    @property
    def size(self) -> Tensor:
        """n_i, as a number of the model's dtype."""
        return self.all.mask.sum()

    def weighted(self, weight: Tensor) -> Data:
        """The same rows, each row's loss times weight [n]."""
        return self._replace(all=self.all._replace(weight=weight))

    def shuffled(self, stream: int) -> Tensor:
        """Row numbers in random order, padding last; the same order whatever the padding."""
        rows = torch.arange(self.all.mask.shape[0], device=self.all.mask.device)
        order = scramble(scramble(self.key + stream) + rows)
        return torch.where(self.all.mask > 0, order, torch.iinfo(torch.int64).max).argsort()

    def take(self, rows: Tensor) -> Batch:
        return Batch(*(v[rows] for v in self.all))

    def sample(self, size: int, stream: int) -> Batch:
        """`size` rows drawn without replacement (all, where the client has fewer)."""
        return self.take(self.shuffled(stream)[:size])

    def part(self, p: int, of: int) -> Batch:
        """Part p of the rows cut into `of` disjoint random parts, the same cut for the whole run."""
        order = self._replace(key=self.client_key).shuffled(0)
        n = self.all.mask.sum().long()
        at = n * p // of + torch.arange(len(order) // of + 1, device=order.device)
        batch = self.take(order[at.clamp(max=len(order) - 1)])
        return batch._replace(mask=batch.mask * (at < n * (p + 1) // of))

    def batches(self, how: Local) -> Repeat | Iterator[Batch]:
        """The batches of one local training: full, or drawn anew each step, or passes over shuffled rows."""
        if how.batch is None:
            return Repeat(self.all, how.local_epochs or how.local_steps)
        if how.local_epochs is None:
            return (self.sample(how.batch, t) for t in range(how.local_steps))
        size = how.batch
        return (
            self.take(rows)
            for e in range(how.local_epochs)
            for rows in self.shuffled(e).split(size)
        )
