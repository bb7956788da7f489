"""IFCA's option I on linear regression, from many starts at once.

Figure 3 of its paper needs thirty runs for each trial. They read the same rows, so that the runs of
one step size are one product with all their centres, where a run through the engine would be one
product for each start. A test holds this to what `IFCA(average="gradients")` gives.

    paper       here             shape
    θ_j         centres          [S, K, d], for S starts
    F_i(θ_j)    losses           [S, K, m]
    s_i         chosen           [S, K, m], one-hot over K
    γ           lr
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.data import Federation
from coterie.params import argmin_finite


class EqualRows(NamedTuple):
    """The training rows of m clients with n rows each, one client after another."""

    x: Tensor  # [m·n, d]
    y: Tensor  # [m·n]
    clients: int  # m

    @staticmethod
    def of(fed: Federation) -> EqualRows:
        """The training rows of a federation."""
        sizes = fed.train.sizes
        assert bool((sizes == sizes[0]).all()), "clients must have equally many rows"
        return EqualRows(fed.train.x, fed.train.y, len(sizes))


def descend_from(starts: Tensor, rows: EqualRows, lr: float, rounds: int) -> Tensor:
    """The centres [S, K, d] that IFCA ends with from each of the starts [S, K, d].

    A start that diverges does no harm to the others, for no number of one enters another. Its
    centres end large or not finite; the engine would stop such a run.
    """
    centres = starts
    for _ in range(rounds):
        centres = step(centres, rows, lr)
    return centres


def step(centres: Tensor, rows: EqualRows, lr: float) -> Tensor:
    """The centres after one more round, in which all clients take part."""
    s, k, _ = centres.shape
    m = rows.clients
    n = len(rows.y) // m
    residuals = (centres.flatten(0, 1) @ rows.x.T - rows.y).view(s, k, m, n)
    losses = residuals.square().mean(-1)
    choice = argmin_finite(losses.transpose(1, 2))  # [S, m]: ĵ = argmin_j F_i(θ_j)
    chosen = choice[:, None] == torch.arange(k)[:, None]
    counted = torch.where(chosen[..., None], residuals, 0)  # not a product: 0 · ∞ is NaN
    gradients = 2 / n * (counted.view(s * k, m * n) @ rows.x).view_as(centres)  # Σ_{i∈S_j} g_i
    participants = (choice >= 0).sum(1).clamp(min=1)  # without those for whom no loss is finite
    return centres - lr * gradients / participants[:, None, None]  # θ_j − (γ/m) Σ g_i
