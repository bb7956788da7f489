"""The data of one client as its functions see it: rows, batches and random numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.forward import Draws
from coterie.core.randomness import digest, scramble, uniform
from coterie.core.settings import Local
from coterie.core.task import Batch
from coterie.core.trees import register_pytree_node

Gram = Tensor | tuple[()]  # XXᵀ of some rows; () if unknown, which `vmap` ignores


@dataclass(frozen=True)
class Repeat:
    """The same batch `times` times. Iterating yields it as often.

    Args:
        batch: The rows of every step.
        times: Number of steps.
        gram: XXᵀ of the batch's rows, if known.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> batch = ct.Batch.of(torch.zeros(4, 2), torch.zeros(4), torch.float32)
        >>> len(list(ct.Repeat(batch, times=3)))
        3
    """

    batch: Batch
    times: int
    gram: Gram = ()

    def __iter__(self) -> Iterator[Batch]:
        return (self.batch.at_step(number) for number in range(self.times))


class Step(NamedTuple):
    """The rows of one local step."""

    rows: Tensor | None  # int64 [b], distinct row numbers; None: all rows
    is_real: Tensor | None = None  # bool [], False if the step is padding; None: it is not


class Sizes(NamedTuple):
    """The sizes of many batches: those of one epoch, or of one step, repeated."""

    of_epoch: tuple[int, ...]  # sizes of the batches of one epoch, or of one step
    times: int  # how often they repeat

    @property
    def batches(self) -> int:
        """Number of batches."""
        return len(self.of_epoch) * self.times

    @property
    def rows(self) -> int:
        """Total number of rows."""
        return sum(self.of_epoch) * self.times

    def each(self) -> Iterator[int]:
        """Iterate over the sizes."""
        return itertools.chain.from_iterable(itertools.repeat(self.of_epoch, self.times))


@dataclass(frozen=True)
class Drawn:
    """Batches of a client's own rows. Iterating yields them one by one.

    The row numbers of each batch are known, so a local solver can use the dual form.
    """

    own: Batch
    sizes: Sizes  # of the batches
    steps: Callable[[], Iterator[Step]]  # draws the rows lazily
    gram: Gram = ()  # of the own rows

    def __iter__(self) -> Iterator[Batch]:
        for number, step in enumerate(self.steps()):
            yield self.batch(step).at_step(number)

    def batch(self, step: Step) -> Batch:
        """The batch of a step."""
        batch = self.own
        if step.rows is not None:
            batch = take(batch, step.rows)
        if step.is_real is not None:
            batch = batch._replace(mask=batch.mask * step.is_real)
        return batch


@dataclass(frozen=True)
class PoissonBatches:
    """The batches of a local training under record-level differential privacy.

    Each step takes each row independently with probability `rate`. Only `optim/dp_sgd.py` draws
    them: whoever iterates over them would see rows without noise.

    Args:
        own: The client's rows.
        steps: Number of steps of the client that has the most.
        own_steps: int64 [], this client's number of steps; the others are padding.
        rate: float64 [], the probability q of each row.
        expected: [], the expected batch size q·n.
        key: int64 [], for draws where a run has a seed of privacy.
        noise_multiplier: [], this client's z.
    """

    own: Batch
    steps: int
    own_steps: Tensor
    rate: Tensor
    expected: Tensor
    key: Tensor
    noise_multiplier: Tensor

    def __iter__(self) -> Iterator[Batch]:
        raise private_rows("single batches")


def private_rows(what: str) -> CoterieError:
    """The error of a function that reads rows in a way that has no noise."""
    return CoterieError(
        f"this method reads {what} of a client, and with dp=rows only noised gradients leave the "
        "rows: use another method, other settings, or leave out dp."
    )


def take(batch: Batch, rows: Tensor) -> Batch:
    """The rows with these numbers."""
    return batch.map_rows(lambda v: v[rows])


@dataclass(frozen=True)
class Store:
    """The rows of all clients; a client gets only the positions of its own."""

    x: Tensor
    as_numbers: Callable[[Tensor], Tensor]  # converts stored rows to the model's dtype

    def rows(self, places: Tensor) -> Tensor:
        """The rows at these positions."""
        return self.as_numbers(self.x[places])


# a store has no leaves: `vmap` and `tree_map` pass it unchanged
register_pytree_node(Store, lambda store: ([], store), lambda _, store: store)


class Data(NamedTuple):
    """One client's rows, with its random numbers for this exchange.

    Args:
        own: The rows; with a store, x holds their positions in it.
        key: int64 [], from (seed, client, round, exchange or stream).
        client_key: int64 [], from (seed, client), for splits that stay the same for the entire run.
        gram: XXᵀ of all rows, if the engine caches it (see optim/dual.py).
        store: Rows of all clients, if the function only samples rows and no others are copied.
        noise_multiplier: [], the client's noise z under record-level differential privacy; then
            rows can only be read by local training, which clips and noises their gradients.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> batch = ct.Batch.of(torch.randn(6, 2), torch.zeros(6), torch.float32)
        >>> data = ct.Data(batch, key=torch.tensor(1), client_key=torch.tensor(2))
        >>> data.sample(4, stream=0).x.shape
        torch.Size([4, 2])
        >>> [len(b.y) for b in data.batches(ct.FedAvg(batch=4, local_epochs=1))]
        [4, 2]
    """

    own: Batch
    key: Tensor
    client_key: Tensor
    gram: Gram = ()
    store: Store | tuple[()] = ()
    noise_multiplier: Tensor | tuple[()] = ()

    @property
    def is_private(self) -> bool:
        """Whether only noised gradients and choices may leave the rows."""
        return isinstance(self.noise_multiplier, Tensor)

    @property
    def all(self) -> Batch:
        """All rows."""
        return self._with_rows(self.own, "all")

    @property
    def size(self) -> Tensor:
        """n_i, the number of rows, in the model's dtype."""
        return self.own.mask.sum()

    def weighted(self, weight: Tensor) -> Data:
        """The same rows, with each row's loss multiplied by weight [n]."""
        return self._replace(own=self.own._replace(weight=self.own.weight * weight))

    def shuffled(self, stream: int | Tensor) -> Tensor:
        """Row numbers in random order, padding last. Padding does not change the order."""
        return self._order_keys(stream).argsort()

    def drawn(self, size: int, stream: int | Tensor) -> Tensor:
        """The first `size` of the shuffled row numbers, without a full sort."""
        keys = self._order_keys(stream)
        return keys.topk(min(size, len(keys)), largest=False).indices

    def sample(self, size: int, stream: int | Tensor) -> Batch:
        """`size` rows drawn without replacement, or all rows if there are fewer."""
        return self._with_rows(take(self.own, self.drawn(size, stream)), "sample", stream)

    def samples(self, size: int, streams: Iterable[int | Tensor]) -> Drawn:
        """One batch per stream, as `sample` draws it."""
        streams = list(streams)
        sizes = Sizes((min(size, len(self.own.mask)),), len(streams))
        return self._drawn(sizes, lambda: (Step(self.drawn(size, s)) for s in streams))

    def part(self, p: int, of: int) -> Batch:
        """Part p of `of` disjoint random parts of the rows, which stay the same for the run."""
        order = self._replace(key=self.client_key).shuffled(0)
        n = self.own.mask.sum().long()
        at = n * p // of + torch.arange(len(order) // of + 1, device=order.device)
        rows = order[at.clamp(max=len(order) - 1)]
        batch = self._with_rows(take(self.own, rows), "part", p)
        return batch._replace(mask=batch.mask * (at < n * (p + 1) // of))

    def without(self, p: int, of: int) -> Data:
        """The data without part p of `of`, the complement of `part`."""
        order = self._replace(key=self.client_key).shuffled(0)
        place = order.argsort()  # of each row in that order
        n = self.own.mask.sum().long()
        is_left = (place < n * p // of) | (place >= n * (p + 1) // of)
        return self._replace(own=self.own._replace(mask=self.own.mask * is_left))

    def uniform(self, tag: str) -> Tensor:
        """A random float64 in [0, 1) for this client, exchange and tag."""
        return uniform(self.key + digest(tag))

    def rand(self, shape: Sequence[int], stream: int = 0) -> Tensor:
        """Uniform numbers in [0, 1) for this client and exchange; another stream, other numbers."""
        return Draws(self.key + digest(f"rand {stream}"), self.own.mask).rand(*shape)

    def randn(self, shape: Sequence[int], stream: int = 0) -> Tensor:
        """Standard normal numbers for this client and exchange, as in `rand`."""
        return Draws(self.key + digest(f"randn {stream}"), self.own.mask).randn(*shape)

    def batches(self, how: Local) -> Repeat | Drawn | PoissonBatches:
        """The batches of one local training.

        Without `how.batch` all rows in every step; else a new sample for each step, or with
        `local_epochs` epochs over the shuffled rows. Under record-level differential privacy each
        step takes each row with probability batch/n, and an epoch has n/batch steps, rounded up.
        """
        if self.is_private:
            return self._poisson(how)
        if how.batch is None:
            return self.repeated(how.local_epochs or how.local_steps)
        return self._drawn(self._sizes(how), lambda: (Step(v) for _, v in self._numbered(how)))

    def repeated(self, times: int) -> Repeat:
        """All rows, `times` times."""
        return Repeat(self.all, times, self.gram)

    def first_batches(self, how: Local, turns: Tensor) -> Drawn | PoissonBatches:
        """The batches of the first `turns` steps, or epochs with `local_epochs`.

        All clients of a vectorised call run one loop, and `turns` differs between them, so the
        later batches are included as padding, which changes nothing.
        """

        if self.is_private:
            return self._poisson(how, turns)

        def steps() -> Iterator[Step]:
            for turn, rows in self._numbered(how):
                yield Step(rows, turn < turns)

        return self._drawn(self._sizes(how), steps)

    def _poisson(self, how: Local, turns: Tensor | None = None) -> PoissonBatches:
        """The batches of the first `turns` steps or epochs; None: all."""
        assert isinstance(self.noise_multiplier, Tensor)
        most_rows = len(self.own.mask)
        n = self.own.mask.sum().double()
        b = n if how.batch is None else n.clamp(max=how.batch)
        per_turn, most_per_turn = torch.ones_like(self.key), 1
        if how.local_epochs is not None and how.batch is not None:
            per_turn = (n / how.batch).ceil().long()
            most_per_turn = -(-most_rows // how.batch)
        all_turns = how.local_epochs or how.local_steps
        return PoissonBatches(
            own=self.own._replace(key=self.key + digest("poisson")),
            steps=all_turns * most_per_turn,
            own_steps=per_turn * (all_turns if turns is None else turns.long()),
            rate=b / n.clamp(min=1),
            expected=b.to(self.own.mask),
            key=self.key,
            noise_multiplier=self.noise_multiplier,
        )

    def _order_keys(self, stream: int | Tensor) -> Tensor:
        """A random sort key for each row, int64 [n]; padding sorts last."""
        rows = torch.arange(self.own.mask.shape[0], device=self.own.mask.device)
        keys = scramble(scramble(self.key + stream) + rows)
        return torch.where(self.own.mask > 0, keys, torch.iinfo(torch.int64).max)

    def _with_rows(self, batch: Batch, tag: str, stream: int | Tensor = 0) -> Batch:
        """The batch with a key, and with its rows, read from the store if there is one."""
        if self.is_private:
            raise private_rows("rows")
        batch = batch._replace(key=self.key + digest(tag) + (stream << 20))
        if isinstance(self.store, Store):
            return batch._replace(x=self.store.rows(batch.x))
        return batch

    def _drawn(self, sizes: Sizes, steps: Callable[[], Iterator[Step]]) -> Drawn:
        return Drawn(self.all, sizes, steps, self.gram)

    def _numbered(self, how: Local) -> Iterator[tuple[int, Tensor | None]]:
        """(step or epoch, row numbers) of each step; None for all rows."""
        for turn in range(how.local_epochs or how.local_steps):
            if how.batch is None:
                yield turn, None
            elif how.local_epochs is None:
                yield turn, self.drawn(how.batch, turn)
            else:
                for rows in self.shuffled(turn).split(how.batch):
                    yield turn, rows

    def _sizes(self, how: Local) -> Sizes:
        """The sizes of the batches of `_numbered`."""
        n = len(self.own.mask)
        if how.batch is None:
            return Sizes((n,), how.local_epochs or how.local_steps)
        if how.local_epochs is None:
            return Sizes((min(how.batch, n),), how.local_steps)
        epoch = tuple(min(how.batch, n - first) for first in range(0, n, how.batch))
        return Sizes(epoch, how.local_epochs)
