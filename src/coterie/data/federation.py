"""A federation: its clients, and the rows of all clients in contiguous tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core import randomness
from coterie.core.errors import CoterieError
from coterie.core.inputs import InputField
from coterie.core.targets import IGNORE_INDEX
from coterie.data.paths import shorten_spec
from coterie.data.roster import Kind as Kind
from coterie.data.roster import Roster, RowCounts

if TYPE_CHECKING:
    from coterie.data.schema import Schema
    from coterie.data.site_columns import SiteColumns


def rng(seed: int, *purpose: object) -> np.random.Generator:
    """Return a generator that depends only on the seed and the purpose.

    Args:
        seed: Seed of the data set.
        *purpose: What is drawn, such as "rotated", "train". Other purposes give independent draws.
    """
    key = hashlib.sha256(repr((int(seed), *purpose)).encode()).digest()
    return np.random.default_rng(int.from_bytes(key))


def rank_in_group(group: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return each row's rank, 0, 1, …, in a random order of the rows of its group, int64 [rows].

    Args:
        group: Whole numbers, [rows].
        random: The generator that orders the rows.
    """
    counts = np.bincount(group)
    order = np.lexsort((random.random(len(group)), group))
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(counts.cumsum() - counts, counts)
    return rank


# ------------------------------------------------------------------------------ rows
class Ragged(NamedTuple):
    """The rows of all clients, concatenated in the order of the clients.

    Example:
        >>> import torch
        >>> x, y = torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 1])
        >>> data = Ragged(x, y, sizes=torch.tensor([1, 2]))
        >>> data.client(1)[0].tolist()
        [[2.0, 3.0], [4.0, 5.0]]
    """

    x: Tensor  # [rows, ...] float, or int64 tokens
    y: Tensor  # [rows, ...] int64 labels, or float targets; [rows, 0] without targets
    sizes: Tensor  # int64 [clients]

    @property
    def starts(self) -> Tensor:
        """Index of the first row of each client, int64 [clients]."""
        return self.sizes.cumsum(0) - self.sizes

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        """Return views of the x and y of client i."""
        start, size = int(self.starts[i]), int(self.sizes[i])
        return self.x[start : start + size], self.y[start : start + size]

    def subset(self, clients: Tensor) -> Ragged:
        """Return a copy of the rows of these clients (int64 indices), in this order."""
        sizes = self.sizes[clients]
        shift = self.starts[clients] - (sizes.cumsum(0) - sizes)
        rows = torch.arange(int(sizes.sum())) + shift.repeat_interleave(sizes)
        return Ragged(self.x[rows], self.y[rows], sizes)


def split(
    data: Ragged, names: Sequence[str], share: float, seed: int, purpose: str
) -> tuple[Ragged, Ragged]:
    """Split off a random share of each client's rows; at least one row remains.

    The draw depends on the client's name, not on its position. Rows keep their order.

    Args:
        data: The rows of all clients.
        names: The names of the clients.
        share: Share of each client's rows to split off, in [0, 1).
        seed: Seed of the draw.
        purpose: Name of the split, which makes draws independent; appears in errors.

    Returns:
        The remaining rows, and the rows that were split off.
    """
    if not 0 <= share < 1:
        raise CoterieError(f"the {purpose} share must be at least 0 and below 1, not {share}.")
    wanted = (data.sizes * share).round().long()
    counts = torch.minimum(wanted, (data.sizes - 1).clamp(min=0))
    drawn = _random_ranks(data, names, seed, purpose) < counts.repeat_interleave(data.sizes)
    rest = Ragged(data.x[~drawn], data.y[~drawn], data.sizes - counts)
    return rest, Ragged(data.x[drawn], data.y[drawn], counts)


def _random_ranks(data: Ragged, names: Sequence[str], seed: int, purpose: str) -> Tensor:
    """Return each row's rank in a random order of its client's rows, int64 [rows]."""
    client = torch.arange(len(data.sizes)).repeat_interleave(data.sizes)
    row = torch.arange(len(client)) - data.starts[client]
    keys = randomness.keys(randomness.client_keys(names, seed), 0, f"split {purpose}")
    chance = randomness.scramble(keys[client] + row)
    order = torch.from_numpy(np.lexsort((chance.numpy(), client.numpy())))  # client by client
    ranks = torch.empty_like(row)
    ranks[order] = row
    return ranks


def as_numbers(x: Tensor, byte_scale: float, like: Tensor) -> Tensor:
    """Convert rows to the dtype and device of `like`; tokens keep their integer dtype.

    Args:
        x: Rows, [n, ...].
        byte_scale: Divisor of uint8 rows. They are divided in float32, as when images are read.
        like: A tensor with the wanted dtype and device.
    """
    if x.dtype == torch.uint8:
        x = x.to(like.device).to(torch.float32).div_(byte_scale)
    if x.is_floating_point():
        return x.to(like.device, like.dtype)
    return x.to(like.device)


# ------------------------------------------------------------------------------ a federation
class StoredSplits(NamedTuple):
    """The splits of a store on disk, whose rows are read when they are used."""

    fingerprint: str
    names: tuple[str, ...]
    train: Ragged
    test: Ragged
    valid: Ragged | None

    def matches(self, fed: Federation) -> bool:
        """Whether a federation has exactly the clients and rows of the store."""
        names = ("names", "train", "test", "valid")
        return all(getattr(self, name) is getattr(fed, name) for name in names)

    def has(self, x: Tensor) -> bool:
        """Whether x is one of the arrays on disk."""
        parts = [part for part in (self.train, self.test, self.valid) if part is not None]
        return any(part.x is x for part in parts)


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """The clients of a simulation with their training, validation and test rows.

    Create one with `from_memory`, `from_frames`, `load` or a data set such as `rotated`. The last
    `unseen` clients never train. Federations are immutable: methods return new ones.

    Raises:
        CoterieError: If names, sizes and rows do not match, or a client has no training rows.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.rotated("digits", clients=4, samples=20, angles=(0, 180))
        >>> len(fed), fed.row_shape, fed.train.sizes.tolist()
        (4, (8, 8), [20, 20, 20, 20])
        >>> fed.subset([0, 2]).names
        ('client-000', 'client-002')
    """

    names: tuple[str, ...]  # unique, one per client
    train: Ragged
    test: Ragged  # the same clients in the same order; sizes may be 0
    kind: Kind
    classes: int | None  # None for kinds without classes
    valid: Ragged | None = None
    truth: Tensor | None = None  # int64 [total] true group, or float [total, K] mixture weights
    unseen: int = 0
    labels: tuple[str, ...] | None = None  # class names where known
    source: str = ""  # the spec that creates it again: "rotated:digits?clients=40&…"
    planted: Tensor | None = None  # [K, d] true parameters of synthetic data
    schema: Schema | None = None  # the columns of x, if they come from tables
    loss_scale: Tensor | None = None  # [total] factor of each client's training losses; None: 1
    site_columns: SiteColumns | None = None  # columns that are empty or constant at single sites
    byte_scale: float = 1.0  # divisor of x, if x is uint8
    groups: tuple[str, ...] | None = None  # the group that users gave to each client
    stored: StoredSplits | None = None  # the store on disk that holds the rows
    ignore_index: int = IGNORE_INDEX  # the label of tokens and pixels that do not count
    fields: tuple[InputField, ...] = ()  # the parts of x, if it is a dict of tensors

    def __post_init__(self) -> None:
        _ = self.roster  # checks names, unseen and truth
        for title, part in self.parts().items():
            rows = int(part.sizes.sum())
            if len(part.sizes) != self.total or not rows == len(part.x) == len(part.y):
                raise CoterieError(
                    f"the {title} split has {len(part.sizes)} sizes that sum to {rows}, but there "
                    f"are {self.total} clients, {len(part.x)} rows of x and {len(part.y)} of y: "
                    "they must agree."
                )
        if not self.train.sizes.all():
            empty = self.names[int((self.train.sizes == 0).nonzero()[0])]
            raise CoterieError(
                f"client {empty!r} has no training rows: remove it, or give it data."
            )

    @cached_property
    def roster(self) -> Roster:
        """The description of the clients that a server may have."""
        none = torch.zeros_like(self.train.sizes)
        valid = none if self.valid is None else self.valid.sizes
        return Roster(
            names=self.names,
            unseen=self.unseen,
            rows=RowCounts(self.train.sizes, self.test.sizes, valid),
            row_shape=self.row_shape,
            tokens=self.train.x.dtype == torch.int64,
            kind=self.kind,
            classes=self.classes,
            labels=self.labels,
            schema=self.schema,
            source=shorten_spec(self.source),
            truth=self.truth,
            planted=self.planted,
            groups=self.groups,
            target_shape=tuple(self.train.y.shape[1:]),
            ignore_index=self.ignore_index,
            fields=self.fields,
        )

    def __len__(self) -> int:
        """Number of clients that train."""
        return self.total - self.unseen

    @property
    def total(self) -> int:
        """Number of all clients, including unseen ones."""
        return len(self.names)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row of x."""
        return tuple(self.train.x.shape[1:])

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.row_shape))
        if self.fields:
            shape = ", ".join(field.name for field in self.fields)
        return (
            f"Federation({len(self)} clients + {self.unseen} unseen, {len(self.train.y)} train and "
            f"{len(self.test.y)} test rows of {shape}, {self.kind}, source={self.source!r})"
        )

    @cached_property
    def _fingerprint(self) -> str:
        if self.stored is not None and self.stored.matches(self):
            return self.stored.fingerprint
        about: tuple[Any, ...] = (self.names, self.kind, self.classes, self.unseen)
        if self.ignore_index != IGNORE_INDEX or self.fields:  # others have the hash of version 0.2
            about = (*about, self.ignore_index, self.fields)
        digest = hashlib.sha256(repr(about).encode())
        for part in self.parts().values():
            for tensor in part:
                digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
                if tensor.numel():
                    digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of everything that training depends on.

        It covers names, sizes, dtypes, shapes and all values, and serves to compare data in memory.
        It allows guesses of rows to be verified, so files only contain a salted hash of it
        (`coterie.runs.config.hash_with_salt`).
        """
        return self._fingerprint

    # -- new federations
    def with_valid(self, share: float, seed: int) -> Federation:
        """Move a random share of each client's training rows to the validation split.

        Args:
            share: Share of rows to move, in [0, 1); at least one training row remains.
            seed: Seed of the draw.
        """
        if self.valid is not None:
            raise CoterieError(
                "the federation already has a validation split: use the original federation."
            )
        if share == 0:
            return self
        train, valid = split(self.train, self.names, share, seed, "valid")
        return replace(self, train=train, valid=valid)

    def with_unseen(self, count: int, seed: int) -> Federation:
        """Move `count` random training clients to the end, as unseen clients.

        If the true groups are known, the draw is stratified by group.
        """
        if not 0 <= count < len(self):
            raise CoterieError(
                f"unseen={count} of {len(self)} training clients: at least one client must train."
            )
        if count == 0:
            return self
        chance = np.array([rng(seed, "unseen", name).random() for name in self.names[: len(self)]])
        group = np.zeros(len(self), dtype=int)
        if self.truth is not None and not self.truth.is_floating_point():
            group = self.truth[: len(self)].numpy()
        depth = np.empty(len(self))  # a client's rank in its group's random order, scaled to (0, 1)
        for g in np.unique(group):
            members = np.flatnonzero(group == g)
            places = (np.arange(len(members)) + 0.5) / len(members)
            depth[members[chance[members].argsort()]] = places
        chosen = np.lexsort((chance, depth))[:count]
        stay = np.setdiff1d(np.arange(len(self)), chosen)
        order = np.concatenate([stay, np.sort(chosen), np.arange(len(self), self.total)])
        return replace(self.subset(order.tolist()), unseen=self.unseen + count)

    def subset(self, clients: Sequence[int] | Tensor) -> Federation:
        """Return these clients in this order, with copies of their rows; unseen ones come last."""
        index = torch.as_tensor(clients, dtype=torch.long)
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self.total:
            raise CoterieError(
                f"client indices must be in 0..{self.total - 1}, not {index.tolist()}."
            )
        unseen = index >= len(self)
        if (unseen[:-1] & ~unseen[1:]).any():
            raise CoterieError(
                "unseen clients must follow the training clients: put their indices last."
            )
        return replace(
            self,
            **self._map_parts(lambda part: part.subset(index)),
            names=tuple(self.names[i] for i in index.tolist()),
            truth=None if self.truth is None else self.truth[index],
            groups=None if self.groups is None else tuple(self.groups[i] for i in index.tolist()),
            loss_scale=None if self.loss_scale is None else self.loss_scale[index],
            unseen=int(unseen.sum()),
        )

    def to(self, dtype: torch.dtype) -> Federation:
        """Convert every float tensor (x, regression targets, planted parameters) to a dtype."""

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        planted = None if self.planted is None else cast(self.planted)
        return replace(
            self, **self._map_parts(lambda part: Ragged(*map(cast, part))), planted=planted
        )

    def parts(self) -> dict[str, Ragged]:
        """Return the existing splits by name."""
        parts = {"train": self.train, "test": self.test, "valid": self.valid}
        return {name: part for name, part in parts.items() if part is not None}

    def _map_parts(self, change: Callable[[Ragged], Ragged]) -> dict[str, Any]:
        """Apply a function to every split."""
        return {name: change(part) for name, part in self.parts().items()}
