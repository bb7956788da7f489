"""IFCA with gradient averaging (option I) on linear regression, from many starts at once.

Figure 3 of the paper needs thirty runs per trial. They share their rows, so all starts of one step
size are computed by one matrix product, where an engine would need one product per start. While the
clients of each planted group choose the same centre, a start needs no rows at all: its centres
follow from the groups' moments in closed form. Tests compare both with `IFCA(average="gradients")`.

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

from coterie.core.params import argmin_finite
from coterie.data import Federation

FAR = 1e6  # a start with a number of this size in its centres has diverged
QUIET = 3  # rounds without a change of identities, after which the closed form is tried


class EqualRows(NamedTuple):
    """The training rows of m clients with n rows each, one client after another."""

    x: Tensor  # [m·n, d]
    y: Tensor  # [m·n]
    clients: int  # m

    @staticmethod
    def of(fed: Federation) -> EqualRows:
        """Return the training rows of a federation."""
        sizes = fed.train.sizes
        assert bool((sizes == sizes[0]).all()), "clients must have equally many rows"
        return EqualRows(fed.train.x, fed.train.y, len(sizes))

    @property
    def per_client(self) -> int:
        """Number of rows of each client, n."""
        return len(self.y) // self.clients

    def residuals(self, centres: Tensor) -> Tensor:
        """Return predictions minus targets, [S, K, m, n], for centres [S, K, d]."""
        s, k, _ = centres.shape
        missed = centres.flatten(0, 1) @ self.x.T - self.y
        return missed.view(s, k, self.clients, self.per_client)


def choose_centres(residuals: Tensor) -> Tensor:
    """Return ĵ = argmin_j F_i(θ_j) for each client, [S, m]; −1 if no loss is finite."""
    losses = residuals.square().mean(-1)
    return argmin_finite(losses.transpose(1, 2))


def step(centres: Tensor, rows: EqualRows, lr: float) -> tuple[Tensor, Tensor]:
    """Run one round in which all clients participate.

    Args:
        centres: [S, K, d].
        rows: The clients' rows.
        lr: Step size γ.

    Returns:
        The new centres [S, K, d] and the choice of each client [S, m].
    """
    s, k, _ = centres.shape
    residuals = rows.residuals(centres)
    choice = choose_centres(residuals)
    chosen = choice[:, None] == torch.arange(k)[:, None]
    counted = torch.where(chosen[..., None], residuals, 0)  # not a product: 0 · ∞ is NaN
    sums = (counted.view(s * k, len(rows.y)) @ rows.x).view_as(centres)
    gradients = 2 / rows.per_client * sums  # Σ_{i∈S_j} g_i
    participants = (choice >= 0).sum(1).clamp(min=1)  # without those for whom no loss is finite
    return centres - lr * gradients / participants[:, None, None], choice  # θ_j − (γ/m) Σ g_i


def run_step_by_step(starts: Tensor, rows: EqualRows, lr: float, rounds: int) -> Tensor:
    """Run IFCA from each start, round by round.

    A start that diverges does not affect the others. Its centres end large or not finite, where an
    engine would stop the run.

    Args:
        starts: [S, K, d].
        rows: The clients' rows.
        lr: Step size γ.
        rounds: Number of rounds.

    Returns:
        The final centres, [S, K, d].
    """
    centres = starts
    for _ in range(rounds):
        centres, _ = step(centres, rows, lr)
    return centres


def run_starts(
    starts: Tensor, rows: EqualRows, lr: float, rounds: int, groups: PlantedGroups
) -> Iterator[tuple[int, Tensor]]:
    """Run IFCA from each start and yield each as soon as its end is known.

    The centres are those of `run_step_by_step`, unless choices change and change back between the
    rounds that `PlantedGroups.closed_form_end` checks. A diverged start is yielded as it is.

    Args:
        starts: [S, K, d].
        rows: The clients' rows.
        lr: Step size γ.
        rounds: Number of rounds.
        groups: The planted groups.

    Yields:
        The index of the start and its final centres [K, d].
    """
    numbers = torch.arange(len(starts))
    centres = starts
    before = torch.full((len(starts), rows.clients), -1)
    quiet = torch.zeros(len(starts), dtype=torch.long)  # rounds since an identity changed
    for left in range(rounds - 1, -1, -1):
        centres, choice = step(centres, rows, lr)
        quiet = torch.where((choice == before).all(1), quiet + 1, 0)
        before = choice
        ended = has_diverged(centres)
        for at in (~ended & (quiet >= QUIET)).nonzero().flatten().tolist():
            end = groups.closed_form_end(centres[at], choice[at], rows, lr, left)
            if end is not None:
                ended[at] = True
                centres[at] = end
        for at in ended.nonzero().flatten().tolist():
            yield int(numbers[at]), centres[at]
        centres, numbers, before, quiet = (v[~ended] for v in (centres, numbers, before, quiet))
        if not len(centres):
            return
    yield from zip(numbers.tolist(), centres)


def has_diverged(centres: Tensor) -> Tensor:
    """Return whether each start has diverged, bool [S]."""
    return ~(centres.abs().flatten(1).amax(1) < FAR)  # NaN is far, too


def rounds_to_check(last: int) -> list[int]:
    """Return 0, 1, 2, 3, 4, 6, 7, 8, 12, … and the last round; steps may oscillate."""
    rounds = {0, 1, last}
    power = 2
    while power <= last:
        halfway = power + power // 2
        rounds |= {power, halfway, halfway + 1}
        power *= 2
    return sorted(number for number in rounds if number <= last)


class Modes(NamedTuple):
    """The moments A = Σ XᵀX = VΛVᵀ and b = Σ Xᵀy of some clients' rows, in the basis V.

    While these clients choose a centre, a round maps it from θ to θ − c·(Aθ − b) with c = 2γ/(mn),
    which acts on each component of Vᵀθ separately.
    """

    values: Tensor  # [d]: Λ
    vectors: Tensor  # [d, d]: V
    targets: Tensor  # [d]: Vᵀb

    @staticmethod
    def of(gram: Tensor, products: Tensor) -> Modes:
        """Decompose A [d, d] and b [d]."""
        values, vectors = torch.linalg.eigh(gram)
        return Modes(values, vectors, vectors.T @ products)

    def after(self, centre: Tensor, c: float, rounds: int) -> Tensor:
        """Return the centre [d] after some rounds."""
        shrinks = (1 - c * self.values) ** rounds
        # Σ_{r < rounds} c·(1 − cλ)^r = (1 − (1 − cλ)^rounds) / λ
        sums = (1 - shrinks) / self.values.clamp(min=1e-300)
        moved = torch.where(self.values > 0, sums, c * rounds)
        inside = self.vectors.T @ centre.double()
        return (self.vectors @ (shrinks * inside + moved * self.targets)).to(centre.dtype)


class PlantedGroups:
    """The planted groups and the moments of their rows.

    Args:
        rows: The clients' rows.
        of_client: int64 [m], the group of each client, from 0 on.
    """

    def __init__(self, rows: EqualRows, of_client: Tensor) -> None:
        self.of_client = of_client
        self.count = int(of_client.max()) + 1
        self.first_client = torch.tensor(
            [int((of_client == group).nonzero()[0]) for group in range(self.count)]
        )
        self.grams: list[Tensor] = []
        self.products: list[Tensor] = []
        of_row = of_client.repeat_interleave(rows.per_client)
        for group in range(self.count):
            x, y = rows.x[of_row == group], rows.y[of_row == group]
            self.grams.append((x.T @ x).double())
            self.products.append((x.T @ y).double())
        self.known_modes: dict[tuple[int, ...], Modes] = {}

    def closed_form_end(
        self, centres: Tensor, choice: Tensor, rows: EqualRows, lr: float, rounds: int
    ) -> Tensor | None:
        """Compute the centres after more rounds in closed form.

        This is valid while clients of one group make the same choice as now, which is checked now
        and after 1, 2, 3, 4, 6, 7, 8, 12, … rounds.

        Args:
            centres: [K, d].
            choice: int64 [m], the last choice of each client.
            rows: The clients' rows.
            lr: Step size γ.
            rounds: Number of rounds.

        Returns:
            The final centres [K, d]; None if the closed form is not valid.
        """
        centre_of = choice[self.first_client]  # of each group
        if bool((centre_of < 0).any()) or not torch.equal(choice, centre_of[self.of_client]):
            return None
        ends = centres
        for more in rounds_to_check(rounds):
            ends = self.after(centres, centre_of, rows, lr, more)
            if not torch.equal(choose_centres(rows.residuals(ends[None]))[0], choice):
                return None
        return ends

    def after(
        self, centres: Tensor, centre_of: Tensor, rows: EqualRows, lr: float, rounds: int
    ) -> Tensor:
        """Return the centres [K, d] after rounds in which each group chooses its centre."""
        ends = centres.clone()  # a centre that nobody chooses stays
        for centre in centre_of.unique().tolist():
            members = tuple((centre_of == centre).nonzero().flatten().tolist())
            ends[centre] = self.modes(members).after(centres[centre], 2 * lr / len(rows.y), rounds)
        return ends

    def modes(self, members: tuple[int, ...]) -> Modes:
        """Return the modes of all rows of some groups."""
        if members not in self.known_modes:
            gram = torch.stack([self.grams[group] for group in members]).sum(0)
            products = torch.stack([self.products[group] for group in members]).sum(0)
            self.known_modes[members] = Modes.of(gram, products)
        return self.known_modes[members]
