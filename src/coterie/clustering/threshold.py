"""Threshold clustering (Werner, He, Karimireddy, Jordan, Jaggi, FL-NeurIPS 2022), Algorithm 1.

    paper       here         shape
    x_i         points       [N, d]
    v_k         share @ x    centre k as a mix of the points: share [K, N], each row sums to 1
    τ_k,l       radii        [rounds, K], set for each centre and round
    M           rounds

Centres are stored as mixes of the points and distances are computed in `coordinates`, so that N
vectors of any length cost one Gram matrix; v = share @ x in the end.

Differences from the paper:
* The sum over N points is divided by N, not by n; with `sample`, the sum is over a new sample S in
  each round, divided by |S|: one for all centres, or one for each in `balls_per_point`.
* The paper only says "set τ". A number; "half": half the distance to the nearest other centre
  (without one: infinite); "quantile": 0.99 × the q-quantile of the distances, q = 1/(2K) unless
  given; "k-means": between the two clusters of 2-means on the distances; "gap": the middle of the
  largest gap in the sorted distances below the nearest other centre, with at least 2 points inside
  (where there are fewer: "half"); "theory": τ² = 2(n_k/N)ρΔ, with n_k, ρ, Δ from the start: sizes,
  root mean squared distance to the centres, smallest distance between these. Too large a ball is
  harmful: it contains points that cancel out; too small a ball only averages less.
* The start is k-means (k-means++, best of 10): thresholding never separates two centres in one
  cluster.
* Points in several balls or in none belong to the nearest centre.
* It stops when no centre moves by more than 1e-6 τ, at the latest after `rounds`; with samples it
  always runs all rounds.
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
    """Options of threshold clustering.

    Args:
        rule: τ, or one of "half", "quantile", "k-means", "gap", "theory".
        quantile: q of the rule "quantile".
        rounds: M, the maximum number of rounds.
        sample: |S|; None uses all points in each round.

    Example:
        >>> from coterie import clustering
        >>> clustering.Threshold("quantile", quantile=0.25).rounds
        50
    """

    rule: float | str = "half"
    quantile: float | None = None
    rounds: int = 50
    sample: int | None = None


class Balls(NamedTuple):
    """The result of threshold clustering.

    Args:
        share: float64 [K, N]: centre k is Σ_i share_ki x_i.
        radii: float64 [rounds, K].
        inside: bool [K, N]: within the last radius of the centre.
        labels: int64 [N].
        start: Statistics of the initial clusters; None for `balls_per_point`.

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> points = torch.tensor([[0.0], [0.2], [9.0], [9.2]])
        >>> balls = clustering.threshold_clusters(points, 2, torch.Generator().manual_seed(0))
        >>> balls.inside.sum(1)
        tensor([2, 2])
    """

    share: Tensor
    radii: Tensor
    inside: Tensor
    labels: Tensor
    start: StartStatistics | None = None

    @property
    def radius(self) -> Tensor:
        """[K], the radii of the last round."""
        return self.radii[-1]

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.radii)


class StartStatistics(NamedTuple):
    """The quantities of theorem 1, estimated from the initial clusters of k-means."""

    sizes: Tensor  # [K] n_k
    spread: float  # ρ: root mean squared distance to the centres
    separation: float  # Δ: smallest distance between centres; infinite for one centre

    def radius(self) -> Tensor:
        """[K] τ² = 2(n_k/N)ρΔ, the proofs' choice with c = ρ."""
        return (2 * self.sizes / self.sizes.sum() * self.spread * self.separation).sqrt()

    def conditions(self, radius: Tensor) -> dict[str, bool]:
        """Whether each condition of the proofs holds for these radii [K], with c = ρ."""
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
    """Find at most k clusters, starting from k-means.

    Args:
        points: [N, d].
        k: Number of clusters.
        rng: For k-means and samples.
        how: Options; the defaults if None.

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> points = torch.tensor([[0.0], [0.2], [9.0], [9.2]])
        >>> rng = torch.Generator().manual_seed(0)
        >>> labels = clustering.threshold_clusters(points, 2, rng).labels
        >>> labels[0] == labels[1] and labels[0] != labels[2]
        tensor(True)
    """
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
    return _iterate(x, share, how, k, rng, start)


def balls_per_point(points: Tensor, k: int, rng: torch.Generator, how: Threshold) -> Balls:
    """Run thresholding from every point separately, as in PDL-TC.

    Args:
        points: [N, d].
        k: The expected number of clusters.
        rng: For samples.
        how: Options; the rules "half" and "theory" need other centres.

    Raises:
        CoterieError: If the rule needs other centres.

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> points = torch.tensor([[0.0], [0.2], [9.0], [9.2]])
        >>> how = clustering.Threshold("k-means")
        >>> balls = clustering.balls_per_point(points, 2, torch.Generator(), how)
        >>> balls.inside.sum(1)
        tensor([2, 2, 2, 2])
    """
    if how.rule in ("half", "theory"):
        raise CoterieError(
            f"threshold={how.rule} needs other centres, which a client alone does not have: use "
            "quantile, k-means or gap."
        )
    x = coordinates(points)
    return _iterate(x, torch.eye(len(x), dtype=x.dtype), how, k, rng, start=None)


def _iterate(
    x: Tensor,
    share: Tensor,
    how: Threshold,
    k: int,
    rng: torch.Generator,
    start: StartStatistics | None,
) -> Balls:
    """Threshold until the centres converge; without a start they are independent."""
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
    """bool [draws, N]: independent samples of `size` points; all points without a size."""
    if size is None or size >= n:
        return torch.ones(1, n, dtype=torch.bool)
    drawn = torch.zeros(draws, n, dtype=torch.bool)
    for row in drawn:
        row[torch.randperm(n, generator=rng)[:size]] = True
    return drawn


def _start(x: Tensor, share: Tensor, sizes: Tensor) -> StartStatistics:
    centres = share @ x
    spread = torch.cdist(centres, x).amin(0).square().mean().sqrt()
    return StartStatistics(sizes, float(spread), float(_apart(centres).min()))


# ------------------------------------------------------------------------------ τ
def _radius(
    how: Threshold, v: Tensor, far: Tensor, k: int, start: StartStatistics | None
) -> Tensor:
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
    """The middle between the two clusters of 2-means on each row, its best cut."""
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
    """The middle of the largest gap in the sorted distances, with 2 points inside.

    Only distances below that of the nearest other centre count.
    """
    row = torch.cat([far, nearest[:, None]], 1).minimum(nearest[:, None]).sort(1).values
    if not bool(nearest.isfinite().all()):
        row = row[:, :-1]  # a single centre: no last gap
    if row.shape[1] < 3:
        return nearest / 2
    wide = row[:, 2:] - row[:, 1:-1]
    at = wide.argmax(1, keepdim=True)
    middle = (row[:, 1:-1].gather(1, at) + row[:, 2:].gather(1, at))[:, 0] / 2
    return torch.where(row[:, 1] < nearest, middle, nearest / 2)
