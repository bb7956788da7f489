"""One client's own rows, with its randomness for one exchange."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from coterie.core.randomness import digest, scramble, uniform
from coterie.core.settings import Local
from coterie.core.task import Batch

Gram = Tensor | tuple[()]  # XXᵀ of some rows; (), which `vmap` passes over, where it is not known


class Repeat(NamedTuple):
    """The same batch `times` times."""

    batch: Batch
    times: int
    gram: Gram = ()  # of the batch's rows


class Step(NamedTuple):
    """The rows of one local step."""

    rows: Tensor | None  # int64 [b] their numbers, no number twice; None: all rows
    counts: Tensor | None = None  # bool: False where the step is padding; None: it counts


class Sizes(NamedTuple):
    """The numbers of rows of some batches, never written out: there may be very many."""

    of_pass: tuple[int, ...]
    times: int

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return len(self.of_pass) * self.times

    @property
    def rows(self) -> int:
        """How many rows they have in all."""
        return sum(self.of_pass) * self.times

    def each(self) -> Iterator[int]:
        """The sizes one by one."""
        return itertools.chain.from_iterable(itertools.repeat(self.of_pass, self.times))


@dataclass(frozen=True)
class Drawn:
    """Batches of a client's own rows; iterating gives the batches one by one.

    They are known by the numbers of their rows, which lets a local solver work in the dual form.
    """

    own: Batch
    sizes: Sizes  # of the batches
    steps: Callable[[], Iterator[Step]]  # draws the rows as they are needed
    gram: Gram = ()  # of the own rows

    def __iter__(self) -> Iterator[Batch]:
        for step in self.steps():
            yield self.batch(step)

    def batch(self, step: Step) -> Batch:
        """The rows of a step."""
        batch = self.own
        if step.rows is not None:
            batch = take(batch, step.rows)
        if step.counts is not None:
            batch = batch._replace(mask=batch.mask * step.counts)
        return batch


def take(batch: Batch, rows: Tensor) -> Batch:
    """The rows of these numbers."""
    return Batch(*(v[rows] for v in batch))


@dataclass(frozen=True)
class Store:
    """The rows of all clients, of which a client is given the places of its own."""

    x: Tensor
    as_numbers: Callable[[Tensor], Tensor]  # rows as the model takes them

    def rows(self, places: Tensor) -> Tensor:
        """The rows at these places."""
        return self.as_numbers(self.x[places])


# a store has no leaves: `vmap` and `tree_map` pass it on as it is
register_pytree_node(Store, lambda store: ([], store), lambda _, store: store)


class Data(NamedTuple):
    """One client's own rows, with its randomness for this exchange."""

    own: Batch  # its x are rows, or their places where there is a store
    key: Tensor  # int64, from (seed, client, round, exchange or stream)
    client_key: Tensor  # int64, from (seed, client): for what is split once and for all
    gram: Gram = ()  # of all rows, where the engine keeps it: see optim/dual.py
    store: Store | tuple[()] = ()  # where a function only draws rows: no others are copied

    @property
    def all(self) -> Batch:
        """All rows."""
        return self._with_rows(self.own)

    @property
    def size(self) -> Tensor:
        """n_i, as a number of the model's dtype."""
        return self.own.mask.sum()

    def weighted(self, weight: Tensor) -> Data:
        """The same rows, each row's loss times weight [n]."""
        return self._replace(own=self.own._replace(weight=self.own.weight * weight))

    def shuffled(self, stream: int | Tensor) -> Tensor:
        """Row numbers in random order, padding last; the same order whatever the padding."""
        return self._order_keys(stream).argsort()

    def drawn(self, size: int, stream: int | Tensor) -> Tensor:
        """The first `size` of the shuffled row numbers; the others need not be sorted."""
        keys = self._order_keys(stream)
        return keys.topk(min(size, len(keys)), largest=False).indices

    def sample(self, size: int, stream: int | Tensor) -> Batch:
        """`size` rows drawn without replacement (all, where the client has fewer)."""
        return self._with_rows(take(self.own, self.drawn(size, stream)))

    def samples(self, size: int, streams: Iterable[int | Tensor]) -> Drawn:
        """A batch as `sample` draws it for each of the streams."""
        streams = list(streams)
        sizes = Sizes((min(size, len(self.own.mask)),), len(streams))
        return self._drawn(sizes, lambda: (Step(self.drawn(size, s)) for s in streams))

    def part(self, p: int, of: int) -> Batch:
        """Part p of the rows split into `of` disjoint random parts, the same for the entire run."""
        order = self._replace(key=self.client_key).shuffled(0)
        n = self.own.mask.sum().long()
        at = n * p // of + torch.arange(len(order) // of + 1, device=order.device)
        batch = self._with_rows(take(self.own, order[at.clamp(max=len(order) - 1)]))
        return batch._replace(mask=batch.mask * (at < n * (p + 1) // of))

    def without(self, p: int, of: int) -> Data:
        """The client without part p of its rows, which `part` gives."""
        order = self._replace(key=self.client_key).shuffled(0)
        place = order.argsort()  # of each row in that order
        n = self.own.mask.sum().long()
        is_left = (place < n * p // of) | (place >= n * (p + 1) // of)
        return self._replace(own=self.own._replace(mask=self.own.mask * is_left))

    def uniform(self, tag: str) -> Tensor:
        """A float64 in [0, 1) that belongs to this client, this exchange and the tag."""
        return uniform(self.key + digest(tag))

    def batches(self, how: Local) -> Repeat | Drawn:
        """The batches of one local training.

        Without `batch` all rows, again and again; else rows drawn anew for each step, or with
        `local_epochs` passes over the shuffled rows.
        """
        if how.batch is None:
            return self.repeated(how.local_epochs or how.local_steps)
        return self._drawn(self._sizes(how), lambda: (Step(v) for _, v in self._numbered(how)))

    def repeated(self, times: int) -> Repeat:
        """All rows, so many times."""
        return Repeat(self.all, times, self.gram)

    def first_batches(self, how: Local, turns: Tensor) -> Drawn:
        """The batches of the first `turns` steps, or passes with `local_epochs`.

        `turns` differs from client to client, and all clients of a vectorised call run one loop: so
        the batches that follow are there, too, as padding, which changes nothing.
        """

        def steps() -> Iterator[Step]:
            for turn, rows in self._numbered(how):
                yield Step(rows, turn < turns)

        return self._drawn(self._sizes(how), steps)

    def _order_keys(self, stream: int | Tensor) -> Tensor:
        """int64 [n]: a random number for each row, by which they are ordered; padding is last."""
        rows = torch.arange(self.own.mask.shape[0], device=self.own.mask.device)
        keys = scramble(scramble(self.key + stream) + rows)
        return torch.where(self.own.mask > 0, keys, torch.iinfo(torch.int64).max)

    def _with_rows(self, batch: Batch) -> Batch:
        """A batch of own rows with the rows themselves."""
        if isinstance(self.store, Store):
            return batch._replace(x=self.store.rows(batch.x))
        return batch

    def _drawn(self, sizes: Sizes, steps: Callable[[], Iterator[Step]]) -> Drawn:
        return Drawn(self.all, sizes, steps, self.gram)

    def _numbered(self, how: Local) -> Iterator[tuple[int, Tensor | None]]:
        """The number of each step, or of its pass, with the numbers of its rows; None: all rows."""
        for turn in range(how.local_epochs or how.local_steps):
            if how.batch is None:
                yield turn, None
            elif how.local_epochs is None:
                yield turn, self.drawn(how.batch, turn)
            else:
                for rows in self.shuffled(turn).split(how.batch):
                    yield turn, rows

    def _sizes(self, how: Local) -> Sizes:
        """The sizes of the batches that `_numbered` gives."""
        n = len(self.own.mask)
        if how.batch is None:
            return Sizes((n,), how.local_epochs or how.local_steps)
        if how.local_epochs is None:
            return Sizes((min(how.batch, n),), how.local_steps)
        a_pass = tuple(min(how.batch, n - first) for first in range(0, n, how.batch))
        return Sizes(a_pass, how.local_epochs)
