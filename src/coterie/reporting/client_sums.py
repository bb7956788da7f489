"""Sums over the training rows of each client, from which groups of clients are compared.

Only sums are kept, never rows. Standard errors are taken over clients as well as over rows, so that
a property of a single client does not count as a property of its group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

MAX_COLUMNS = 500  # wider rows are not a table that people read
MAX_CLASSES = 20  # more classes are not compared one by one
BLOCK_BYTES = 24_000_000  # of `ClientSums`, for the features summed at a time
BATCH_VALUES = 1_000_000  # numbers in the rows summed at a time

ClientRows = tuple[Tensor, Tensor]  # one client's training rows: x [n, d] and y [n]


class ClientSums(NamedTuple):
    """Sums over the rows of each of G clients: d feature columns, then T label columns."""

    rows: np.ndarray  # [G]
    value: np.ndarray  # [G, d + T]
    scatter: np.ndarray  # [G, d + T] squared distances from the client's mean
    cross: np.ndarray  # [G, d, T] products of distances from the client's means

    def select(self, clients: np.ndarray) -> ClientSums:
        """Select clients by a mask, bool [G]."""
        return ClientSums(*(part[clients] for part in self))

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
        """Correlate each feature with each label within clients, after subtracting their means.

        Returns:
            The correlation and its squared standard error, each [d, T]; the correlation is 0 if a
            column is constant.
        """
        d = self.cross.shape[1]
        spread = self.scatter.sum(0)
        # the spread of a constant column consists of rounding errors
        is_flat = spread <= 1e-18 * (self.value**2 / self.rows[:, None]).sum(0)
        either_flat = is_flat[:d, None] | is_flat[d:]
        scale = np.where(either_flat, 1, np.sqrt(spread[:d, None] * spread[d:]))
        r = np.where(either_flat, 0, self.cross.sum(0) / scale)
        # The influence of client i on r is cᵢ/s − r (aᵢ + bᵢ)/2, with its shares aᵢ and bᵢ of the
        # spread of feature and label. Expanding the square avoids an array [G, d, T].
        share = self.scatter / np.where(spread > 0, spread, 1)
        a = share[:, :d]
        b = share[:, d:]
        cross_squared = np.einsum("gdt,gdt->dt", self.cross, self.cross) / scale**2
        cross_a = np.einsum("gdt,gd->dt", self.cross, a) / scale
        cross_b = np.einsum("gdt,gt->dt", self.cross, b) / scale
        shares_squared = (a**2).sum(0)[:, None] + 2 * a.T @ b + (b**2).sum(0)
        influence = cross_squared - r * (cross_a + cross_b) + r**2 * shares_squared / 4
        over_clients = influence * small_sample_factor(len(self.rows))
        free_rows = float(self.rows.sum() - len(self.rows))
        over_rows = 1 / free_rows if free_rows > 0 else np.inf
        return r, np.maximum(over_clients, over_rows)

    def is_binary(self) -> np.ndarray:
        """Which columns hold only 0 and 1, bool [d + T]: their sum of squares is their sum."""
        squares = self.scatter + self.value**2 / self.rows[:, None]
        return np.isclose(squares, self.value, atol=0).all(0)


def small_sample_factor(clients: int) -> float:
    """Return n / (n − 1); 0 for a single client, whose spread is unknown."""
    return clients / (clients - 1) if clients > 1 else 0.0


# ------------------------------------------------------------------------------ from rows
def has_columns(x: Tensor) -> bool:
    """Return whether x is a table of numbers, not images or tokens."""
    return x.dim() == 2 and x.is_floating_point() and x.shape[1] <= MAX_COLUMNS


def encode_labels(y: Tensor, classes: int | None) -> Tensor:
    """Return labels as float64 columns [n, T]: a target, class 1 of two, or each of several.

    T is 0 for more than MAX_CLASSES classes.
    """
    if classes is None:
        return y.double()[:, None]
    if classes == 2:
        compared = [1]
    elif classes <= MAX_CLASSES:
        compared = list(range(classes))
    else:
        compared = []
    return (y[:, None] == torch.tensor(compared, dtype=torch.int64)).double()


def sum_clients(
    clients: Sequence[ClientRows], classes: int | None, features: slice = slice(0, MAX_COLUMNS)
) -> ClientSums:
    """Sum over the rows of each client.

    Args:
        clients: The rows of each client, at least one per client.
        classes: Number of classes; None for regression.
        features: The columns of x to sum.
    """
    rows = BATCH_VALUES // max(1, count_features(clients[0][0], features))
    parts = [sum_batch(batch, classes, features) for batch in batch_clients(clients, rows)]
    return ClientSums(*(np.concatenate(part) for part in zip(*parts)))


def batch_clients(clients: Sequence[ClientRows], most_rows: int) -> Iterator[Sequence[ClientRows]]:
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


def sum_batch(clients: Sequence[ClientRows], classes: int | None, features: slice) -> ClientSums:
    """Sum over the rows of a batch of clients, which is much faster than one by one."""
    d = count_features(clients[0][0], features)
    columns = encode_labels(torch.cat([y for _, y in clients]), classes).numpy()
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
    return ClientSums(sizes.astype(float), value, scatter, cross)


def count_features(x: Tensor, features: slice = slice(0, MAX_COLUMNS)) -> int:
    """Return the number of features among these columns of x; 0 if x is not a table."""
    if not has_columns(x):
        return 0
    return len(range(*features.indices(x.shape[1])))


def sum_in_blocks(
    clients: Sequence[ClientRows], classes: int | None
) -> Iterator[tuple[slice, ClientSums]]:
    """Yield blocks of features and their sums, to limit memory.

    With 4,000 clients, 500 columns and 20 classes, all products at once take 320 MB, and comparing
    them several times as much.
    """
    d = count_features(clients[0][0])
    t = encode_labels(clients[0][1], classes).shape[1]
    bytes_per_feature = 8 * len(clients) * (2 + t)
    size = max(1, BLOCK_BYTES // bytes_per_feature)
    for start in range(0, max(d, 1), size):
        features = slice(start, min(start + size, d))
        yield features, sum_clients(clients, classes, features)
