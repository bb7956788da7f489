"""One client's own rows, with its randomness for one exchange."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.randomness import digest, scramble, uniform
from coterie.settings import Local
from coterie.task import Batch


class Repeat(NamedTuple):
    """The same batch `times` times, which lets a local solver work in the dual form."""

    batch: Batch
    times: int


class Data(NamedTuple):
    """One client's own rows, with its randomness for this exchange."""

    all: Batch
    key: Tensor  # int64, from (seed, client, round, exchange or stream)
    client_key: Tensor  # int64, from (seed, client): for what is split once and for all

    @property
    def size(self) -> Tensor:
        """n_i, as a number of the model's dtype."""
        return self.all.mask.sum()

    def weighted(self, weight: Tensor) -> Data:
        """The same rows, each row's loss times weight [n]."""
        return self._replace(all=self.all._replace(weight=self.all.weight * weight))

    def shuffled(self, stream: int | Tensor) -> Tensor:
        """Row numbers in random order, padding last; the same order whatever the padding."""
        rows = torch.arange(self.all.mask.shape[0], device=self.all.mask.device)
        order = scramble(scramble(self.key + stream) + rows)
        return torch.where(self.all.mask > 0, order, torch.iinfo(torch.int64).max).argsort()

    def take(self, rows: Tensor) -> Batch:
        """The rows of these numbers."""
        return Batch(*(v[rows] for v in self.all))

    def sample(self, size: int, stream: int | Tensor) -> Batch:
        """`size` rows drawn without replacement (all, where the client has fewer)."""
        return self.take(self.shuffled(stream)[:size])

    def part(self, p: int, of: int) -> Batch:
        """Part p of the rows split into `of` disjoint random parts, the same for the entire run."""
        order = self._replace(key=self.client_key).shuffled(0)
        n = self.all.mask.sum().long()
        at = n * p // of + torch.arange(len(order) // of + 1, device=order.device)
        batch = self.take(order[at.clamp(max=len(order) - 1)])
        return batch._replace(mask=batch.mask * (at < n * (p + 1) // of))

    def without(self, p: int, of: int) -> Data:
        """The client without part p of its rows, which `part` gives."""
        order = self._replace(key=self.client_key).shuffled(0)
        place = order.argsort()  # of each row in that order
        n = self.all.mask.sum().long()
        is_left = (place < n * p // of) | (place >= n * (p + 1) // of)
        return self._replace(all=self.all._replace(mask=self.all.mask * is_left))

    def uniform(self, tag: str) -> Tensor:
        """A float64 in [0, 1) that belongs to this client, this exchange and the tag."""
        return uniform(self.key + digest(tag))

    def batches(self, how: Local) -> Repeat | Iterator[Batch]:
        """The batches of one local training.

        Without `batch` all rows, again and again; else rows drawn anew for each step, or with
        `local_epochs` passes over the shuffled rows.
        """
        if how.batch is None:
            return Repeat(self.all, how.local_epochs or how.local_steps)
        return (batch for _, batch in self._numbered(how))

    def first_batches(self, how: Local, turns: Tensor) -> Iterator[Batch]:
        """The batches of the first `turns` steps, or passes with `local_epochs`.

        `turns` differs from client to client, and all clients of a vectorised call run one loop: so
        the batches that follow are there, too, as padding, which changes nothing.
        """
        for turn, batch in self._numbered(how):
            yield batch._replace(mask=batch.mask * (turn < turns))

    def _numbered(self, how: Local) -> Iterator[tuple[int, Batch]]:
        """Every batch of a local training with the number of its step, or of its pass."""
        for turn in range(how.local_epochs or how.local_steps):
            if how.batch is None:
                yield turn, self.all
            elif how.local_epochs is None:
                yield turn, self.sample(how.batch, turn)
            else:
                for rows in self.shuffled(turn).split(how.batch):
                    yield turn, self.take(rows)
