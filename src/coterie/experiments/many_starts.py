"""IFCA's option I on linear regression, from many starts at once.

Figure 3 of its paper needs thirty runs for each trial. They read the same rows, so that the runs of
one step size are one product with all their centres, where a run through the engine would be one
product for each start. A start that has found the planted groups needs no rows any more: from there
on its centres follow from the groups' moments in closed form. Tests hold both to what
`IFCA(average="gradients")` gives.

    paper       here             shape
    θ_j         centres          [S, K, d], for S starts
    F_i(θ_j)    losses           [S, K, m]
    ĵ           choice           [S, m]
    s_i         chosen           [S, K, m], one-hot over K
    γ           lr
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.data import Federation
from coterie.params import argmin_finite

FAR = 1e6  # a start with a number of this size in its centres has diverged


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

    @property
    def per_client(self) -> int:
        """n"""
        return len(self.y) // self.clients

    def residuals(self, centres: Tensor) -> Tensor:
        """[S, K, m, n] of centres [S, K, d]."""
        s, k, _ = centres.shape
        found = centres.flatten(0, 1) @ self.x.T - self.y
        return found.view(s, k, self.clients, self.per_client)


def identities(residuals: Tensor) -> Tensor:
    """[S, m]: ĵ = argmin_j F_i(θ_j); −1 where no loss is finite."""
    return argmin_finite(residuals.square().mean(-1).transpose(1, 2))


def step(centres: Tensor, rows: EqualRows, lr: float) -> tuple[Tensor, Tensor]:
    """(the centres after one more round, in which all clients take part; who chose which)"""
    s, k, _ = centres.shape
    residuals = rows.residuals(centres)
    choice = identities(residuals)
    chosen = choice[:, None] == torch.arange(k)[:, None]
    counted = torch.where(chosen[..., None], residuals, 0)  # not a product: 0 · ∞ is NaN
    sums = (counted.view(s * k, len(rows.y)) @ rows.x).view_as(centres)
    gradients = 2 / rows.per_client * sums  # Σ_{i∈S_j} g_i
    participants = (choice >= 0).sum(1).clamp(min=1)  # without those for whom no loss is finite
    return centres - lr * gradients / participants[:, None, None], choice  # θ_j − (γ/m) Σ g_i


def descend_from(starts: Tensor, rows: EqualRows, lr: float, rounds: int) -> Tensor:
    """The centres [S, K, d] that IFCA ends with from each of the starts [S, K, d], step by step.

    A start that diverges does no harm to the others, for no number of one enters another. Its
    centres end large or not finite; the engine would stop such a run.
    """
    centres = starts
    for _ in range(rounds):
        centres, _ = step(centres, rows, lr)
    return centres


def ends_as_known(
    starts: Tensor, rows: EqualRows, lr: float, rounds: int, groups: PlantedGroups
) -> Iterator[tuple[int, Tensor]]:
    """(number of the start, the centres [K, d] it ends with), each as soon as it is known.

    The centres are those of `descend_from`, in the order of the planted groups where these were
    found. A start that has diverged is given as it is then.
    """
    numbers = torch.arange(len(starts))
    centres = starts
    for left in range(rounds - 1, -1, -1):
        centres, choice = step(centres, rows, lr)
        stays = torch.ones(len(centres), dtype=torch.bool)
        for at, order in groups.found_in(choice, centres.shape[1]):
            end = groups.after(centres[at, order], rows, lr, left)
            if groups.are_chosen(end, rows):
                stays[at] = False
                yield int(numbers[at]), end
        for at in (stays & is_far(centres)).nonzero().flatten().tolist():
            stays[at] = False
            yield int(numbers[at]), centres[at]
        centres, numbers = centres[stays], numbers[stays]
        if not len(centres):
            return
    yield from zip(numbers.tolist(), centres)


def is_far(centres: Tensor) -> Tensor:
    """[S] whether a start has diverged."""
    return ~(centres.abs().flatten(1).amax(1) < FAR)  # NaN is far, too


class PlantedGroups(NamedTuple):
    """The planted groups, with their moments A = Σ XᵀX = VΛVᵀ and Vᵀb, b = Σ Xᵀy.

    While each client chooses the centre of its group, a round takes θ to θ − c·(Aθ − b) with
    c = 2γ/(mn): in the coordinates Vᵀθ every number goes its own way.
    """

    of_client: Tensor  # int64 [m]
    first_client: Tensor  # int64 [K]: one client of each group
    values: Tensor  # [K, d]: Λ
    vectors: Tensor  # [K, d, d]: V
    targets: Tensor  # [K, d]: Vᵀb

    @staticmethod
    def of(rows: EqualRows, of_client: Tensor) -> PlantedGroups:
        """The moments of groups: of_client [m] has numbers from 0 to K − 1, all of them."""
        first, values, vectors, targets = [], [], [], []
        of_row = of_client.repeat_interleave(rows.per_client)
        for group in range(int(of_client.max()) + 1):
            x, y = rows.x[of_row == group], rows.y[of_row == group]
            found, basis = torch.linalg.eigh((x.T @ x).double())
            first.append(int((of_client == group).nonzero()[0]))
            values.append(found)
            vectors.append(basis)
            targets.append(basis.T @ (x.T @ y).double())
        stacked = (torch.stack(parts) for parts in (values, vectors, targets))
        return PlantedGroups(of_client, torch.tensor(first), *stacked)

    def found_in(self, choice: Tensor, centres: int) -> Iterator[tuple[int, Tensor]]:
        """(place of a start, [K] the centre of each group) where clients chose by their groups."""
        centre_of = choice[:, self.first_client]  # [S, K]
        is_same = (choice == centre_of[:, self.of_client]).all(1)
        for at in is_same.nonzero().flatten().tolist():
            if len(centre_of[at].unique()) == centres:
                yield at, centre_of[at]

    def after(self, centres: Tensor, rows: EqualRows, lr: float, rounds: int) -> Tensor:
        """The centres [K, d] of the groups after more rounds, in all of which they are chosen."""
        c = 2 * lr / len(rows.y)
        shrinks = (1 - c * self.values) ** rounds
        # Σ_{r < rounds} c·(1 − cλ)^r = (1 − (1 − cλ)^rounds) / λ
        moved = torch.where(
            self.values > 0, (1 - shrinks) / self.values.clamp(min=1e-300), c * rounds
        )
        inside = torch.einsum("kde,kd->ke", self.vectors, centres.double())
        ends = shrinks * inside + moved * self.targets
        return torch.einsum("kde,ke->kd", self.vectors, ends).to(centres.dtype)

    def are_chosen(self, centres: Tensor, rows: EqualRows) -> bool:
        """Whether each client chooses the centre of its group."""
        return bool((identities(rows.residuals(centres[None]))[0] == self.of_client).all())
