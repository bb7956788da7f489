"""Threshold clustering (Werner, He, Karimireddy, Jordan, Jaggi, FL-NeurIPS 2022), Algorithm 1.

    paper       here         shape
    x_i         points       [N, d]
    v_k         share @ x    centre k as a mix of the points: share [K, N], each row sums to 1
    τ_k,l       radii        [rounds, K], set anew for each centre and round
    M           rounds

Centres are kept as mixes of the points and distances are taken in `coordinates`, so that N vectors
of any length cost one Gram matrix; v = share @ x in the end.

Ours, not the paper's:
* The sum over N points is divided by N, not by n; with `sample`, the sum is over a fresh sample S
  each round, by |S|: one for all centres, or one for each where every point has a ball of its own.
* The paper only says "set τ". A number; "half": half the distance to the nearest other centre
  (without one: infinite); "quantile": 0.99 × the q-quantile of the distances, q = 1/(2K) unless
  given; "k-means": between the two groups into which 2-means cuts the distances; "gap": halfway
  across the largest gap in the sorted distances below the nearest other centre, at least 2 points
  inside (where there are fewer: "half"); "theory": τ² = 2(n_k/N)ρΔ, with n_k, ρ, Δ from the start:
  sizes, root mean squared distance to the centres, least distance between these. A ball too large
  is what harms: it holds points that cancel out; one too small only averages less.
* The start is k-means (k-means++ seeds, Lloyd, best of 10): thresholding never parts two centres in
  one cluster.
* Points in several balls or in none go to the nearest centre.
* Until no centre moves by more than 1e-6 τ, at most `rounds` times; a fresh sample each time never
  stops earlier.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.clustering.kmeans import coordinates, kmeans
from coterie.core.errors import CoterieError

RULES = ("half", "quantile", "k-means", "gap", "theory")


class Threshold(NamedTuple):
    """How far a ball reaches and how long it is moved."""

    rule: float | str = "half"  # τ, or one of RULES
    quantile: float | None = None  # q
    rounds: int = 50  # M
    sample: int | None = None  # |S|


class Balls(NamedTuple):
    share: Tensor  # float64 [K, N]: centre k is Σ_i share_ki x_i
    radii: Tensor  # float64 [rounds, K]
    inside: Tensor  # bool [K, N]: within the last radius of the centre
    labels: Tensor  # int64 [N]
    start: Start | None = None  # of K centres from k-means

    @property
    def radius(self) -> Tensor:
        """[K] of the last round."""
        return self.radii[-1]

    @property
    def rounds(self) -> int:
        return len(self.radii)


class Start(NamedTuple):
    """What theorem 1 speaks of, estimated from the clusters that k-means starts with."""

    sizes: Tensor  # [K] n_k
    spread: float  # ρ: root mean squared distance to the centres
    separation: float  # Δ: least distance between centres; infinite for one centre

    def radius(self) -> Tensor:
        """[K] τ² = 2(n_k/N)ρΔ, the proofs' choice with c = ρ."""
        return (2 * self.sizes / self.sizes.sum() * self.spread * self.separation).sqrt()

    def conditions(self, radius: Tensor) -> dict[str, bool]:
        """Which of the proofs' conditions hold for these radii [K], with c = ρ."""
        squares = radius.square()
        rho, delta = self.spread, self.separation
        fractions = (self.sizes / self.sizes.sum()).square()  # δ_k
        needed = 2 * (34 + 48 / self.sizes) * rho / fractions
        return {
            "τ²+c²+ρ² ≤ Δ²/12": bool((squares + 2 * rho**2 <= delta**2 / 12).all()),
            "τ² ≤ Δ²/18": bool((squares <= delta**2 / 18).all()),
            "Δ > 2(34+48/n)ρ/δ": bool((needed < delta).all()),
        }

    def rounds(self) -> float:
        """Theorem 1's number of rounds, max(1, max_k log(ρ/Δ + 1/n_k) / log(1 − n_k²/2N²))."""
        n = self.sizes.double()
        ratio = (self.spread / self.separation + 1 / n).log()
        return max(1.0, float((ratio / (1 - (n / n.sum()) ** 2 / 2).log()).max()))


# ------------------------------------------------------------------------------ clustering
def threshold_clusters(
    points: Tensor, k: int, rng: torch.Generator, how: Threshold | None = None
) -> Balls:
    """At most k clusters of the points, from k-means."""
    how = how or Threshold()
    x = coordinates(points)
    if not len(x):
        nothing = x.new_zeros(0, 0)
        return Balls(nothing, x.new_zeros(1, 0), nothing.bool(), torch.zeros(0, dtype=torch.long))
    labels = kmeans(x, k, rng).labels
    labels = labels.unique(return_inverse=True)[1]  # equal points may leave some of k empty
    member = (labels == torch.arange(int(labels.max()) + 1)[:, None]).double()
    share = member / member.sum(1, keepdim=True)
    start = _start(x, share, member.sum(1))
    return _settled(x, share, how, k, rng, start)


def balls_per_point(points: Tensor, k: int, rng: torch.Generator, how: Threshold) -> Balls:
    """A ball around every point, each drawn without knowing of the others.

    k is the number of clusters expected.
    """
    if how.rule in ("half", "theory"):
        raise CoterieError(
            f"threshold={how.rule} needs other centres, and a ball of one's own has none."
        )
    x = coordinates(points)
    return _settled(x, torch.eye(len(x), dtype=x.dtype), how, k, rng, start=None)


def _settled(
    x: Tensor, share: Tensor, how: Threshold, k: int, rng: torch.Generator, start: Start | None
) -> Balls:
    """Move the centres until they stand still; without a start each knows of no other."""
    n = len(x)
    draws = len(share) if start is None else 1
    far = torch.cdist(share @ x, x)
    radii: list[Tensor] = []
    while len(radii) < how.rounds:
        radius = _radius(how, share @ x, far, k, start)
        radii.append(radius)
        drawn = _sample(how.sample, n, draws, rng)
        near = ((far <= radius[:, None]) & drawn).to(x.dtype)
        # v ← (1/|S|) Σ_{i∈S} ( x_i if ‖x_i − v‖ ≤ τ, else v )
        move = (near - near.sum(1, keepdim=True) * share) / drawn.sum(1, keepdim=True)
        share = share + move
        far = torch.cdist(share @ x, x)
        still = bool(((move @ x).norm(dim=1) <= 1e-6 * radius).all())
        if still and bool(drawn.all()):
            break
    inside = far <= radius[:, None]
    labels = torch.where(inside.sum(0) == 1, inside.int().argmax(0), far.argmin(0))
    return Balls(share, torch.stack(radii), inside, labels, start)


def _sample(size: int | None, n: int, draws: int, rng: torch.Generator) -> Tensor:
    """bool [draws, N]: samples of `size` points, each drawn anew; without a size all points."""
    if size is None or size >= n:
        return torch.ones(1, n, dtype=torch.bool)
    drawn = torch.zeros(draws, n, dtype=torch.bool)
    for row in drawn:
        row[torch.randperm(n, generator=rng)[:size]] = True
    return drawn


def _start(x: Tensor, share: Tensor, sizes: Tensor) -> Start:
    centres = share @ x
    spread = torch.cdist(centres, x).amin(0).square().mean().sqrt()
    return Start(sizes, float(spread), float(_apart(centres).min()))


# ------------------------------------------------------------------------------ τ
def _radius(how: Threshold, v: Tensor, far: Tensor, k: int, start: Start | None) -> Tensor:
    """[K] for centres v [K, d], whose distances to the points are far [K, N]."""
    if not isinstance(how.rule, str):
        return torch.full((len(v),), float(how.rule), dtype=far.dtype)
    if how.rule == "theory" and start is not None:
        if len(v) == 1:
            return torch.full((1,), math.inf, dtype=far.dtype)
        return start.radius()
    if how.rule == "quantile":
        q = 1 / (2 * k) if how.quantile is None else how.quantile
        return 0.99 * far.quantile(q, dim=1)
    if how.rule == "k-means":
        return _between(far)
    if start is None:
        nearest = torch.full((len(v),), math.inf, dtype=far.dtype)
    else:
        nearest = _apart(v).amin(1)
    if how.rule == "half":
        return nearest / 2
    return _gap(far, nearest)


def _apart(v: Tensor) -> Tensor:
    """[K, K] distances between centres, infinite from a centre to itself."""
    return torch.cdist(v, v).masked_fill(torch.eye(len(v), dtype=torch.bool), math.inf)


def _between(far: Tensor) -> Tensor:
    """Halfway between the two groups of 2-means on each row.

    Of all cuts of the sorted row that is the one of least cost.
    """
    n = far.shape[1]
    if n < 2:
        return torch.full((len(far),), math.inf, dtype=far.dtype)
    row = far.sort(1).values
    left = torch.arange(1, n, dtype=far.dtype)
    first = row.cumsum(1)[:, :-1]
    second = row.sum(1, keepdim=True) - first
    gain = first**2 / left + second**2 / (n - left)  # Σd² − the cost of the cut
    at = gain.argmax(1, keepdim=True)
    return (row.gather(1, at) + row.gather(1, at + 1))[:, 0] / 2


def _gap(far: Tensor, nearest: Tensor) -> Tensor:
    """The middle of the largest gap among the sorted distances, 2 points inside.

    Distances count up to the nearest other centre.
    """
    row = torch.cat([far, nearest[:, None]], 1).minimum(nearest[:, None]).sort(1).values
    if not bool(nearest.isfinite().all()):
        row = row[:, :-1]  # a centre alone: no last gap
    if row.shape[1] < 3:
        return nearest / 2
    wide = row[:, 2:] - row[:, 1:-1]
    at = wide.argmax(1, keepdim=True)
    middle = (row[:, 1:-1].gather(1, at) + row[:, 2:].gather(1, at))[:, 0] / 2
    return torch.where(row[:, 1] < nearest, middle, nearest / 2)
