"""A federation: the rows of all clients in one flat store, and what is known about the clients."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.data.schema import Schema

Kind = Literal["classification", "regression"]


def rng(seed: int, *purpose: object) -> np.random.Generator:
    """Random numbers that depend on the seed and on what they are for, and on nothing else."""
    key = hashlib.sha256(repr((int(seed), *purpose)).encode()).digest()
    return np.random.default_rng(int.from_bytes(key))


class Ragged(NamedTuple):
    """The rows of all clients, one client after another: the only copy of the data."""

    x: Tensor  # [rows, ...] float, or int64 tokens
    y: Tensor  # [rows] int64 labels, or float targets
    sizes: Tensor  # int64 [clients]

    @property
    def starts(self) -> Tensor:
        """int64 [clients]: the first row of each client."""
        return self.sizes.cumsum(0) - self.sizes

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        """Client i's x and y, as views."""
        start, size = int(self.starts[i]), int(self.sizes[i])
        return self.x[start : start + size], self.y[start : start + size]

    def subset(self, clients: Tensor) -> Ragged:
        """A copy of the rows of these clients (int64 indices), in this order."""
        sizes = self.sizes[clients]
        new_starts = sizes.cumsum(0) - sizes
        rows = torch.arange(int(sizes.sum())) + (
            self.starts[clients] - new_starts
        ).repeat_interleave(sizes)
        return Ragged(self.x[rows], self.y[rows], sizes)


def split(
    data: Ragged, names: Sequence[str], share: float, seed: int, purpose: str
) -> tuple[Ragged, Ragged]:
    """Draw a share of each client's rows, but never all of them: (what is left, what was drawn).

    The draw depends on the client's name, not on its position. Rows keep their order.
    """
    if not 0 <= share < 1:
        raise CoterieError(f"the {purpose} share must be at least 0 and below 1, not {share}.")
    counts = torch.minimum((data.sizes * share).round().long(), (data.sizes - 1).clamp(min=0))
    drawn = np.zeros(len(data.y), dtype=bool)
    for name, start, size, count in zip(
        names, data.starts.tolist(), data.sizes.tolist(), counts.tolist()
    ):
        drawn[start + rng(seed, purpose, name).permutation(size)[:count]] = True
    mask = torch.from_numpy(drawn)
    return Ragged(data.x[~mask], data.y[~mask], data.sizes - counts), Ragged(
        data.x[mask], data.y[mask], counts
    )


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Clients with their training and test rows; the last `unseen` clients never take part in training."""

    names: tuple[str, ...]  # unique, one per client
    train: Ragged
    test: Ragged  # the same clients in the same order; sizes may be 0
    kind: Kind
    classes: int | None  # None for regression
    valid: Ragged | None = None
    truth: Tensor | None = None  # int64 [total] true group, or float [total, K] mixture weights
    unseen: int = 0
    labels: tuple[str, ...] | None = None  # class names where known
    source: str = ""  # how it was made: "rotated:digits?clients=40&…"
    planted: Tensor | None = None  # [K, d] true parameters of synthetic data
    schema: Schema | None = None  # what the columns of x mean, where it came from tables
    blank: bool = False  # zeros stand in for rows that are not here (see coterie.data.facts)

    def __post_init__(self) -> None:
        if not self.names:
            raise CoterieError("a federation needs at least one client, and none was given.")
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise CoterieError(
                f"the client name {twice[0]!r} occurs more than once: give each client its own name."
            )
        for title, part in (("train", self.train), ("test", self.test), ("valid", self.valid)):
            if part is None:
                continue
            if len(part.sizes) != self.total or not int(part.sizes.sum()) == len(part.x) == len(
                part.y
            ):
                raise CoterieError(
                    f"the {title} part has {len(part.sizes)} sizes of {int(part.sizes.sum())} rows in all, for "
                    f"{self.total} clients, {len(part.x)} rows of x and {len(part.y)} of y: they must agree."
                )
        if not self.train.sizes.all():
            empty = self.names[int((self.train.sizes == 0).nonzero()[0])]
            raise CoterieError(
                f"client {empty!r} has no training rows: leave it out, or give it data."
            )
        if not 0 <= self.unseen < self.total:
            raise CoterieError(
                f"unseen={self.unseen} of {self.total} clients: at least one client must train."
            )
        if self.truth is not None and len(self.truth) != self.total:
            raise CoterieError(
                f"truth has {len(self.truth)} entries for {self.total} clients: give one per client."
            )

    def __len__(self) -> int:
        """The number of clients that train."""
        return self.total - self.unseen

    @property
    def total(self) -> int:
        """The number of all clients, the unseen ones too."""
        return len(self.names)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.train.x.shape[1:]))
        return (
            f"Federation({len(self)} clients + {self.unseen} unseen, {len(self.train.y)} train and "
            f"{len(self.test.y)} test rows of {shape}, {self.kind}, source={self.source!r})"
        )

    def fingerprint(self) -> str:
        """Sha256, in hex, of all that training sees: names, sizes, dtypes, shapes and every value."""
        digest = hashlib.sha256(repr((self.names, self.kind, self.classes, self.unseen)).encode())
        for part in (self.train, self.test, self.valid):
            for tensor in part or ():
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def with_valid(self, share: float, seed: int) -> Federation:
        """Move a share of each client's training rows to `valid`; at least one training row stays."""
        if self.valid is not None:
            raise CoterieError(
                "this federation already has a validation part: split the one it was made from."
            )
        if share == 0:
            return self
        train, valid = split(self.train, self.names, share, seed, "valid")
        return replace(self, train=train, valid=valid)

    def with_unseen(self, count: int, seed: int) -> Federation:
        """Move `count` training clients, drawn at random, to the end as unseen.

        Where the true groups are known, each gives up clients in proportion to its size.
        """
        if not 0 <= count < len(self):
            raise CoterieError(
                f"unseen={count} of {len(self)} training clients: at least one client must train."
            )
        if count == 0:
            return self
        chance = np.array([rng(seed, "unseen", name).random() for name in self.names[: len(self)]])
        hard = self.truth is not None and not self.truth.is_floating_point()
        group = (
            self.truth[: len(self)].numpy()
            if self.truth is not None and hard
            else np.zeros(len(self), dtype=int)
        )
        depth = np.empty(
            len(self)
        )  # a client's place in its group's random order, scaled to (0, 1)
        for g in np.unique(group):
            members = np.flatnonzero(group == g)
            depth[members[chance[members].argsort()]] = (np.arange(len(members)) + 0.5) / len(
                members
            )
        chosen = np.lexsort((chance, depth))[:count]
        stay = np.setdiff1d(np.arange(len(self)), chosen)
        order = np.concatenate([stay, np.sort(chosen), np.arange(len(self), self.total)])
        return replace(self.subset(order.tolist()), unseen=self.unseen + count)

    def subset(self, clients: Sequence[int] | Tensor) -> Federation:
        """These clients in this order, with copies of their rows; unseen ones must come last."""
        index = torch.as_tensor(clients, dtype=torch.long)
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self.total:
            raise CoterieError(
                f"client indices must lie in 0..{self.total - 1}, not {index.tolist()}."
            )
        unseen = index >= len(self)
        if (unseen[:-1] & ~unseen[1:]).any():
            raise CoterieError(
                "unseen clients must come after those that train: put their indices last."
            )
        return replace(
            self,
            **self._parts(lambda part: part.subset(index)),
            names=tuple(self.names[i] for i in index.tolist()),
            truth=None if self.truth is None else self.truth[index],
            unseen=int(unseen.sum()),
        )

    def to(self, dtype: torch.dtype) -> Federation:
        """Every float tensor of the data (x, regression's y, planted) in another precision."""

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        planted = None if self.planted is None else cast(self.planted)
        return replace(self, **self._parts(lambda part: Ragged(*map(cast, part))), planted=planted)

    def _parts(self, change: Callable[[Ragged], Ragged]) -> dict[str, Any]:
        parts = {"train": self.train, "test": self.test, "valid": self.valid}
        return {name: change(part) for name, part in parts.items() if part is not None}
