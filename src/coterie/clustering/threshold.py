"""Threshold clustering (Werner, He, Karimireddy, Jordan, Jaggi, FL-NeurIPS 2022), Algorithm 1.

    paper       here         shape
    x_i         points       [N, d]
    v_k         share @ x    centre k as a mix of the points: share [K, N], each row sums to 1
    τ_k         radius       [K], found anew for each centre and round
    M           rounds

Centres are kept as mixes of the points and distances are taken in `coordinates`, so that N vectors of any length cost
one Gram matrix; v = share @ x in the end.

Ours, not the paper's:
* The sum over N points is divided by N, not by n; with `sample`, the sum is over a fresh sample S each round, by |S|:
  one for all centres, or one for each where every point has a ball of its own.
* The paper only says "set τ". A number; "half": half the distance to the nearest other centre (without one: infinite);
  "quantile": 0.99 × the q-quantile of the distances, q = 1/(2K) unless given; "k-means": between the two groups into
  which 2-means cuts the distances; "gap": halfway across the largest gap in the sorted distances below the nearest
  other centre, at least 2 points inside (where there are not so many: "half"); "theory": τ² = 2(n_k/N)ρΔ, with n_k,
  ρ, Δ from the start: sizes, root mean squared distance to the centres, least distance between these. A ball too
  large is what harms: it holds points that cancel out; one too small only averages less.
* The start is k-means (k-means++ seeds, Lloyd, best of 10): thresholding never parts two centres in one cluster.
* Points in several balls or in none go to the nearest centre.
* Until no centre moves by more than 1e-6 τ, at most `rounds` times; a fresh sample each time never stops earlier.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.clustering.kmeans import coordinates, kmeans
from coterie.errors import CoterieError

RULES = ("half", "quantile", "k-means", "gap", "theory")


class Threshold(NamedTuple):
    """How far a ball reaches and how long it is moved."""

    rule: float | str = "half"  # τ, or one of RULES
    quantile: float | None = None  # q
    rounds: int = 50  # M
    sample: int | None = None  # |S|


class Balls(NamedTuple):
    share: Tensor  # float64 [K, N]: centre k is Σ_i share_ki x_i
    radius: Tensor  # float64 [K]
    inside: Tensor  # bool [K, N]: within the radius of the centre
    labels: Tensor  # int64 [N]
    rounds: int


def threshold_clusters(
    points: Tensor, k: int, rng: torch.Generator, how: Threshold | None = None
) -> Balls:
    """At most k clusters of the points, from k-means."""
    how, x = how or Threshold(), coordinates(points)
    if not len(x):
        return Balls(
            x.new_zeros(0, 0),
            x.new_zeros(0),
            x.new_zeros(0, 0).bool(),
            torch.zeros(0, dtype=torch.long),
            0,
        )
    labels = kmeans(x, k, rng).labels.unique(return_inverse=True)[
        1
    ]  # equal points may leave some of k empty
    member = (labels == torch.arange(int(labels.max()) + 1)[:, None]).double()
    return _settled(x, member / member.sum(1, keepdim=True), how, k, rng, alone=False)


def own_balls(points: Tensor, k: int, rng: torch.Generator, how: Threshold) -> Balls:
    """A centre started at every point, each without knowing of the others; k is the number of clusters expected."""
    if how.rule in ("half", "theory"):
        raise CoterieError(
            f"threshold={how.rule} needs other centres, and a ball of one's own has none."
        )
    x = coordinates(points)
    return _settled(x, torch.eye(len(x), dtype=x.dtype), how, k, rng, alone=True)


def _settled(
    x: Tensor, share: Tensor, how: Threshold, k: int, rng: torch.Generator, alone: bool
) -> Balls:
    n, fixed = len(x), _theory(x, share) if how.rule == "theory" else None
    far = torch.cdist(share @ x, x)
    radius, rounds = far.new_zeros(len(share)), 0
    while rounds < how.rounds:
        rounds += 1
        radius = _radius(how, share @ x, far, k, alone) if fixed is None else fixed
        drawn = _sample(how.sample, n, len(share) if alone else 1, rng)
        near = ((far <= radius[:, None]) & drawn).to(x.dtype)
        # v ← (1/|S|) Σ_{i∈S} ( x_i if ‖x_i − v‖ ≤ τ, else v )
        move = (near - near.sum(1, keepdim=True) * share) / drawn.sum(1, keepdim=True)
        share = share + move
        far = torch.cdist(share @ x, x)
        if bool(drawn.all()) and bool(((move @ x).norm(dim=1) <= 1e-6 * radius).all()):
            break
    inside = far <= radius[:, None]
    labels = torch.where(inside.sum(0) == 1, inside.int().argmax(0), far.argmin(0))
    return Balls(share, radius, inside, labels, rounds)


def _sample(size: int | None, n: int, draws: int, rng: torch.Generator) -> Tensor:
    """bool [draws, N]: samples of so many points, each drawn anew; without a size all points."""
    if size is None or size >= n:
        return torch.ones(1, n, dtype=torch.bool)
    drawn = torch.zeros(draws, n, dtype=torch.bool)
    for row in drawn:
        row[torch.randperm(n, generator=rng)[:size]] = True
    return drawn


# ---------------------------------------------------------------------------------------------- τ
def _radius(how: Threshold, v: Tensor, far: Tensor, k: int, alone: bool) -> Tensor:
    """[K] for centres v [K, d], whose distances to the points are far [K, N]."""
    if not isinstance(how.rule, str):
        return torch.full((len(v),), float(how.rule), dtype=far.dtype)
    if how.rule == "quantile":
        return 0.99 * far.quantile(1 / (2 * k) if how.quantile is None else how.quantile, dim=1)
    if how.rule == "k-means":
        return _between(far)
    other = torch.full((len(v),), math.inf, dtype=far.dtype) if alone else _apart(v).amin(1)
    return other / 2 if how.rule == "half" else _gap(far, other)


def _apart(v: Tensor) -> Tensor:
    """[K, K] distances between centres, infinite from a centre to itself."""
    return torch.cdist(v, v).masked_fill(torch.eye(len(v), dtype=torch.bool), math.inf)


def _between(far: Tensor) -> Tensor:
    """Halfway between the two groups of 2-means on each row: of all cuts of the sorted row the one of least cost."""
    n, row = far.shape[1], far.sort(1).values
    if n < 2:
        return torch.full((len(far),), math.inf, dtype=far.dtype)
    left = torch.arange(1, n, dtype=far.dtype)
    first = row.cumsum(1)[:, :-1]
    gain = first**2 / left + (row.sum(1, keepdim=True) - first) ** 2 / (
        n - left
    )  # Σd² − the cost of the cut
    cut = gain.argmax(1, keepdim=True)
    return (row.gather(1, cut) + row.gather(1, cut + 1))[:, 0] / 2


def _gap(far: Tensor, other: Tensor) -> Tensor:
    """The middle of the largest gap among the sorted distances up to the nearest other centre, 2 points inside."""
    row = torch.cat([far, other[:, None]], 1).minimum(other[:, None]).sort(1).values
    row = row if bool(other.isfinite().all()) else row[:, :-1]  # a centre alone: no last gap
    if row.shape[1] < 3:
        return other / 2
    wide = row[:, 2:] - row[:, 1:-1]
    at = wide.argmax(1, keepdim=True)
    middle = (row[:, 1:-1].gather(1, at) + row[:, 2:].gather(1, at))[:, 0] / 2
    return torch.where(row[:, 1] < other, middle, other / 2)


def _theory(x: Tensor, share: Tensor) -> Tensor:
    """τ² = 2(n_k/N)ρΔ; a centre alone: infinite."""
    v, size = share @ x, (share > 0).sum(1)
    rho = torch.cdist(v, x).amin(0).square().mean().sqrt()
    if len(v) == 1:
        return torch.full((1,), math.inf, dtype=x.dtype)
    return (2 * size / len(x) * rho * _apart(v).min()).sqrt()
