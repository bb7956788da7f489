"""Sums over the training rows of each client, from which groups of clients are compared.

Only sums are kept, never rows. Groups are compared by means and by correlations with the label.
Standard errors are taken over clients as well as over rows: what one client has and the others of
its group lack is no trait of the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

COLUMNS = 500  # rows with more numbers are not taken for columns that someone may read
CLASSES = 20  # more classes are not compared one by one
BLOCK_BYTES = 24_000_000  # of `Sums`, for the features that are summed at a time
BATCH_VALUES = 1_000_000  # numbers in the rows that are summed at a time

Client = tuple[Tensor, Tensor]  # its training rows: x [n, d] and y [n]


class Sums(NamedTuple):
    """Sums over the rows of each of G clients: of d feature columns, then of T label columns."""

    rows: np.ndarray  # [G]
    value: np.ndarray  # [G, d + T]
    scatter: np.ndarray  # [G, d + T] squared distances from the client's own mean
    cross: np.ndarray  # [G, d, T] products of distances from the client's own means

    def of(self, clients: np.ndarray) -> Sums:
        """Select some clients by a mask, bool [G]."""
        return Sums(*(part[clients] for part in self))

    def mean(self) -> np.ndarray:
        """Return the mean over all rows, [d + T]."""
        return self.value.sum(0) / self.rows.sum()

    def variance(self) -> np.ndarray:
        """Return the variance over all rows, [d + T]."""
        distance = self.value / self.rows[:, None] - self.mean()
        return (self.scatter + self.rows[:, None] * distance**2).sum(0) / self.rows.sum()

    def mean_error(self) -> np.ndarray:
        """Return the squared standard error of `mean`, [d + T]."""
        influence = (self.value - self.rows[:, None] * self.mean()) / self.rows.sum()
        over_clients = (influence**2).sum(0) * small_sample_factor(len(self.rows))
        return np.maximum(over_clients, self.variance() / self.rows.sum())

    def correlation(self) -> tuple[np.ndarray, np.ndarray]:
        """Correlate each feature with each label inside the clients.

        Each client's own means are taken off first, so that only what happens inside a client
        counts. Returns (correlation, its squared standard error), each [d, T]; the correlation is
        0 where a column never changes.
        """
        d = self.cross.shape[1]
        spread = self.scatter.sum(0)
        # what never changes has a spread of rounding errors only
        is_flat = spread <= 1e-18 * (self.value**2 / self.rows[:, None]).sum(0)
        either_flat = is_flat[:d, None] | is_flat[d:]
        scale = np.where(either_flat, 1, np.sqrt(spread[:d, None] * spread[d:]))
        r = np.where(either_flat, 0, self.cross.sum(0) / scale)
        # Client i moves r by its influence cᵢ/s − r (aᵢ + bᵢ)/2, with its shares aᵢ and bᵢ of the
        # spread of feature and label. The sum of squares is expanded: no array [G, d, T] is made.
        share = self.scatter / np.where(spread > 0, spread, 1)
        a = share[:, :d]
        b = share[:, d:]
        cross_squared = np.einsum("gdt,gdt->dt", self.cross, self.cross) / scale**2
        cross_a = np.einsum("gdt,gd->dt", self.cross, a) / scale
        cross_b = np.einsum("gdt,gt->dt", self.cross, b) / scale
        shares_squared = (a**2).sum(0)[:, None] + 2 * a.T @ b + (b**2).sum(0)
        influence = cross_squared - r * (cross_a + cross_b) + r**2 * shares_squared / 4
        over_clients = influence * small_sample_factor(len(self.rows))
        return r, np.maximum(over_clients, self.correlation_error_over_rows())

    def correlation_error_over_rows(self) -> float:
        """Return the least squared standard error that the number of rows allows."""
        free_rows = float(self.rows.sum() - len(self.rows))
        if free_rows <= 0:
            return np.inf
        return 1 / free_rows

    def shares(self) -> np.ndarray:
        """Tell which columns hold only 0 and 1, bool [d + T]: their sum of squares is their sum."""
        squares = self.scatter + self.value**2 / self.rows[:, None]
        return np.isclose(squares, self.value, atol=0).all(0)


def small_sample_factor(clients: int) -> float:
    """Return n / (n − 1), which makes up for few clients; 0 for one, whose spread is unknown."""
    if clients < 2:
        return 0.0
    return clients / (clients - 1)


# ------------------------------------------------------------------------------ from rows
def has_columns(x: Tensor) -> bool:
    """Tell whether rows are numbers that someone may read, not images or words."""
    return x.dim() == 2 and x.is_floating_point() and x.shape[1] <= COLUMNS


def label_columns(y: Tensor, classes: int | None) -> Tensor:
    """Return labels as float64 columns [n, T]: a target, class 1 of two, or each of several.

    Of more than CLASSES classes there is no column.
    """
    if classes is None:
        return y.double()[:, None]
    if classes == 2:
        compared = [1]
    elif classes <= CLASSES:
        compared = list(range(classes))
    else:
        compared = []
    return (y[:, None] == torch.tensor(compared, dtype=torch.int64)).double()


def sums(
    clients: Sequence[Client], classes: int | None, features: slice = slice(0, COLUMNS)
) -> Sums:
    """Sum over the rows of each client, of which each has at least one.

    classes: the number of classes; None for a regression.  features: the columns of x to sum.
    """
    rows = BATCH_VALUES // max(1, count_features(clients[0][0], features))
    parts = [sum_batch(batch, classes, features) for batch in batches(clients, rows)]
    return Sums(*(np.concatenate(part) for part in zip(*parts)))


def batches(clients: Sequence[Client], most_rows: int) -> Iterator[Sequence[Client]]:
    """Split clients into batches of at most `most_rows` rows, or of one client that has more."""
    start = 0
    rows = 0
    for i, (_, y) in enumerate(clients):
        if i > start and rows + len(y) > most_rows:
            yield clients[start:i]
            start = i
            rows = 0
        rows += len(y)
    yield clients[start:]


def sum_batch(clients: Sequence[Client], classes: int | None, features: slice) -> Sums:
    """Sum over the rows of a few clients at once, which is much faster than one by one."""
    d = count_features(clients[0][0], features)
    columns = label_columns(torch.cat([y for _, y in clients]), classes).numpy()
    if d:
        x = torch.cat([x[:, features] for x, _ in clients]).double().numpy()
        columns = np.concatenate([x, columns], 1)
    sizes = np.array([len(y) for _, y in clients])
    starts = np.cumsum(sizes) - sizes
    value = np.add.reduceat(columns, starts)
    distance = columns - np.repeat(value / sizes[:, None], sizes, axis=0)
    cross = np.empty((len(clients), d, columns.shape[1] - d))
    for i, (start, size) in enumerate(zip(starts, sizes)):
        rows = distance[start : start + size]
        np.matmul(rows[:, :d].T, rows[:, d:], out=cross[i])
    scatter = np.add.reduceat(distance**2, starts)
    return Sums(sizes.astype(float), value, scatter, cross)


def count_features(x: Tensor, features: slice = slice(0, COLUMNS)) -> int:
    """Count the features among these columns of x; 0 where x has none to read."""
    if not has_columns(x):
        return 0
    return len(range(*features.indices(x.shape[1])))


def sums_in_blocks(clients: Sequence[Client], classes: int | None) -> Iterator[tuple[slice, Sums]]:
    """Sum a few features at a time: (which features, their sums), so that memory stays small.

    With 4,000 clients, 500 columns and 20 classes, the products of all columns at once take
    320 MB, and comparing them several times as much.
    """
    d = count_features(clients[0][0])
    t = label_columns(clients[0][1], classes).shape[1]
    bytes_per_feature = 8 * len(clients) * (2 + t)
    size = max(1, BLOCK_BYTES // bytes_per_feature)
    for start in range(0, max(d, 1), size):
        features = slice(start, min(start + size, d))
        yield features, sums(clients, classes, features)
