"""What each client tells of its training rows for a page: sums, never the rows.

Groups of clients are compared by means and by correlations with the label. Their standard errors are taken over clients
as well as over rows: what one client has and the others of its group lack is no trait of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

COLUMNS, CLASSES = 500, 20  # more than these are not looked at


class Sums(NamedTuple):
    """Over the rows of each of G clients: d columns, of which the last T are labels."""

    rows: np.ndarray  # [G]
    value: np.ndarray  # [G, d]
    scatter: np.ndarray  # [G, d] squared distances from the client's own mean
    cross: np.ndarray  # [G, d, T] products of distances from the client's own means

    def of(self, clients: np.ndarray) -> Sums:
        return Sums(*(part[clients] for part in self))

    def mean(self) -> np.ndarray:
        return self.value.sum(0) / self.rows.sum()

    def variance(self) -> np.ndarray:
        away = self.value / self.rows[:, None] - self.mean()
        return (self.scatter + self.rows[:, None] * away**2).sum(0) / self.rows.sum()

    def mean_error(self) -> np.ndarray:
        """The squared standard error of `mean`, [d]."""
        influence = (self.value - self.rows[:, None] * self.mean()) / self.rows.sum()
        return np.maximum(over_clients(influence), self.variance() / self.rows.sum())

    def correlation(self) -> tuple[np.ndarray, np.ndarray]:
        """(of each column with each label inside the clients, 0 where either never changes; its squared error): [d, T]

        The clients' own means are taken off first, so that only what happens inside a client counts.
        """
        first = self.cross.shape[1] - self.cross.shape[2]
        spread = self.scatter.sum(0)
        scale = np.sqrt(spread[:, None] * spread[first:])
        flat = spread <= 1e-18 * (self.value**2 / self.rows[:, None]).sum(
            0
        )  # what never changes is only rounded
        still = flat[:, None] | flat[first:]
        scale, spread = np.where(still, 1, scale), np.where(spread > 0, spread, 1)
        r = np.where(still, 0, self.cross.sum(0) / scale)
        share = self.scatter / spread
        influence = self.cross / scale - r * (share[:, :, None] + share[:, None, first:]) / 2
        free = self.rows.sum() - len(self.rows)
        return r, np.maximum(over_clients(influence), 1 / free if free > 0 else np.inf)

    def shares(self) -> np.ndarray:
        """Which columns hold only 0 and 1, bool [d]: those whose sum of squares is their sum."""
        squares = self.scatter + self.value**2 / self.rows[:, None]
        return np.isclose(squares, self.value, atol=0).all(0)


def over_clients(influence: np.ndarray) -> np.ndarray:
    """The squared standard error, as clients vary, of what each moves by its influence [G, …]; 0 for one client."""
    g = len(influence)
    error: np.ndarray = (influence**2).sum(0) * (g / (g - 1) if g > 1 else 0)
    return error


def sums(clients: Sequence[tuple[Tensor, Tensor]], classes: int | None) -> Sums:
    """Of the clients' features, then of their labels: the target of a regression, class 1 of two, or each of more."""
    told = []
    for x, y in clients:
        features = x.double() if has_columns(x) else torch.zeros(len(y), 0, dtype=torch.float64)
        if classes is None:
            labels = y.double()[:, None]
        else:
            kinds = [1] if classes == 2 else list(range(classes if classes <= CLASSES else 0))
            labels = (y[:, None] == torch.tensor(kinds, dtype=torch.int64)).double()
        z = torch.cat([features, labels], 1)
        away = z - z.mean(0)
        told.append(
            (
                torch.tensor(len(z)),
                z.sum(0),
                (away**2).sum(0),
                away.T @ away[:, features.shape[1] :],
            )
        )
    return Sums(*(torch.stack(part).double().numpy() for part in zip(*told)))


def has_columns(x: Tensor) -> bool:
    """Rows of numbers that someone may read, not images or words."""
    return x.dim() == 2 and x.is_floating_point() and x.shape[1] <= COLUMNS
