"""The number of clusters: five rules behind one function, each with its curve over K.

    bound       CGPFL-Heur's (Tang, Guo, Guo, 2021): the minimum of
                √(dK/m · log(e·m/d)) + μ·cost(K)
    silhouette  Rousseeuw, 1987: the maximum of the mean silhouette
    gap         Tibshirani, Walther, Hastie, 2001: log cost of uniform points − log cost(K); the
                smallest K within two standard errors of the maximum
    careful     the bound's K, but 1 where the gap says 1: the bound mistakes noise for clusters
    stability   agreement (ARI) between k-means of two overlapping halves of the points; the largest
                K within 0.02 of the maximum

Differences from the papers:
* The gap's authors take the first K that the next does not beat, which is often 1 with many
  clusters.
* The bound, and so `careful`, considers every K from 1 to N/2. With at most 40 points cost(K) is
  that of k-means, best of 10 starts. With more it is the smaller of two: of a cut of Ward's tree,
  which takes one pass for all K, and, up to K = 20, of k-means (over 200 points: best of 3).
* The other rules consider K up to N/2, at most 12, and the points' 12 leading principal components,
  which suffice to separate 12 clusters.
* A silhouette below `NO_STRUCTURE` everywhere means one cluster, since it is undefined for K = 1;
  so does an agreement that never exceeds `AGREE`.
* μ="auto" scales both terms of the bound to [0, 1] over K = 1..N: (√K−1)/(√N−1) + cost(K)/cost(1),
  and K = 1 where cost(1) is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.clustering.kmeans import kmeans
from coterie.core.errors import CoterieError

RULES = ("careful", "bound", "silhouette", "gap", "stability")
NO_STRUCTURE = 0.1
AGREE = 0.9
MAX_CLUSTERS = 12  # and principal components, in all rules but the bound
MAX_BY_KMEANS = 20  # clusters for which the bound also runs k-means


class NumberOfClusters(NamedTuple):
    """A number of clusters, and the values for K = 1, 2, … that decided."""

    clusters: int
    curve: list[float]


class Bound(NamedTuple):
    """What the rule "bound" needs besides the points.

    Args:
        rows: [N], m_i, the clients' numbers of rows.
        size: d, the number of model parameters.
        mu: μ, the weight of the cost, or "auto".

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> clustering.Bound(rows=torch.tensor([10.0, 20.0]), size=3).mu
        'auto'
    """

    rows: Tensor
    size: int
    mu: float | str = "auto"


def choose_clusters(
    points: Tensor, rng: torch.Generator, rule: str = "careful", bound: Bound | None = None
) -> NumberOfClusters:
    """Choose the number of clusters.

    Args:
        points: [N, d].
        rng: For k-means.
        rule: One of `RULES`.
        bound: For the rules "bound" and "careful"; by default each point counts as one row.

    Returns:
        (clusters, curve).

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> rng = torch.Generator().manual_seed(0)
        >>> noise = 0.1 * torch.randn(12, 2, generator=rng)
        >>> points = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]]).repeat(4, 1) + noise
        >>> clustering.choose_clusters(points, rng, "silhouette").clusters
        3
    """
    if rule == "careful":
        by_gap = choose_clusters(points, rng, "gap").clusters
        by_bound = choose_clusters(points, rng, "bound", bound)
        if by_gap > 1:
            return by_bound
        return NumberOfClusters(1, by_bound.curve)
    x = points.detach().cpu().double()
    top = len(x) // 2
    if top < 2 or not bool((x != x[:1]).any()):
        return NumberOfClusters(1, [0.0])
    if rule == "bound":
        return _bound(x, top, rng, bound or Bound(torch.ones(len(x)), x.shape[1]))
    top = min(top, MAX_CLUSTERS)
    Rule = Callable[[Tensor, int, torch.Generator], NumberOfClusters]
    rules: dict[str, Rule] = {"silhouette": _silhouette, "gap": _gap, "stability": _stability}
    return rules[rule](leading_components(x), top, rng)


def leading_components(x: Tensor) -> Tensor:
    """The points [N, d] in their leading principal components, [N, ≤ MAX_CLUSTERS]."""
    u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    return u[:, :MAX_CLUSTERS] * s[:MAX_CLUSTERS]


# ------------------------------------------------------------------------------ the rules
def _bound(x: Tensor, top: int, rng: torch.Generator, how: Bound) -> NumberOfClusters:
    n = len(x)
    costs = _costs(x, top, rng, how.rows.double() / how.rows.double().sum())
    if isinstance(how.mu, str):
        curve = [
            (math.sqrt(k) - 1) / (math.sqrt(n) - 1) + cost / costs[0]
            for k, cost in enumerate(costs, 1)
        ]
    else:
        m = float(how.rows.sum())
        complexity = how.size / m * log_rows_per_parameter(m, how.size, how.mu)
        curve = [math.sqrt(k * complexity) + how.mu * cost for k, cost in enumerate(costs, 1)]
    return NumberOfClusters(1 + min(range(top), key=curve.__getitem__), curve)


def _costs(x: Tensor, top: int, rng: torch.Generator, share: Tensor) -> list[float]:
    """Σ_i share_i ‖x_i − its centre‖² for K = 1, …, top clusters; centres are unweighted means."""
    starts = 10 if len(x) <= 200 else 3
    plain = weighted = torch.full((top,), math.inf)
    if top > MAX_BY_KMEANS:
        plain, weighted = _ward_costs(x, share)
    costs = weighted[:top].tolist()
    for k in range(1, min(top, MAX_BY_KMEANS) + 1):
        fit = kmeans(x, k, rng, max_points=len(x), starts=starts)
        if fit.cost < plain[k - 1]:
            squares = (x - fit.centres[fit.labels]).square().sum(1)
            costs[k - 1] = float((share * squares).sum())
    return costs


def _ward_costs(x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The costs of cutting Ward's tree into K = 1, …, N clusters: [N] plain, [N] by share.

    A merge changes only the cost of its two clusters, so one pass gives the costs of all K.
    """
    from scipy.cluster.hierarchy import linkage

    n = len(x)
    members = {i: torch.tensor([i]) for i in range(n)}
    cost = {i: x.new_zeros(2) for i in range(n)}
    totals = x.new_zeros(n, 2)
    total = x.new_zeros(2)
    merges = linkage(x.numpy(), "ward")[:, :2].astype(int).tolist()
    for step, (a, b) in enumerate(merges):
        rows = torch.cat([members.pop(a), members.pop(b)])
        squares = (x[rows] - x[rows].mean(0)).square().sum(1)
        new = torch.stack([squares.sum(), (share[rows] * squares).sum()])
        total = total + new - cost.pop(a) - cost.pop(b)
        members[n + step], cost[n + step] = rows, new
        totals[n - 2 - step] = total
    return totals[:, 0], totals[:, 1]


def log_rows_per_parameter(m: float, d: int, mu: float | str) -> float:
    """log(e·m/d), the factor of the bound.

    Args:
        m: Number of rows.
        d: Number of model parameters.
        mu: μ, for the message.

    Raises:
        CoterieError: If it is not positive.

    Example:
        >>> from coterie import clustering
        >>> round(clustering.log_rows_per_parameter(100, 100, mu=1.0), 6)
        1.0
    """
    if math.e * m <= d:
        raise CoterieError(
            f"mu={mu} needs more rows than parameters / e, and the data have {m:g} rows and the "
            f"model {d} parameters: use mu='auto' or a smaller model."
        )
    return math.log(math.e * m / d)


def _silhouette(x: Tensor, top: int, rng: torch.Generator) -> NumberOfClusters:
    from sklearn.metrics import silhouette_score

    def score(k: int) -> float:
        labels = kmeans(x, k, rng).labels
        if not 1 < len(labels.unique()) < len(x):
            return -1.0
        return float(silhouette_score(x.numpy(), labels.numpy()))

    curve = [NO_STRUCTURE, *(score(k) for k in range(2, top + 1))]
    return NumberOfClusters(1 + max(range(top), key=curve.__getitem__), curve)


def _gap(x: Tensor, top: int, rng: torch.Generator, draws: int = 6) -> NumberOfClusters:
    low, high = x.amin(0), x.amax(0)

    def log_costs(points: Tensor) -> Tensor:
        costs = [kmeans(points, k, rng, starts=3).cost for k in range(1, top + 1)]
        return torch.tensor(costs).clamp(min=1e-300).log()

    def uniform_points() -> Tensor:
        """Points drawn uniformly from the bounding box of x."""
        return low + (high - low) * torch.rand(x.shape, generator=rng, dtype=x.dtype)

    reference = torch.stack([log_costs(uniform_points()) for _ in range(draws)])
    gap = reference.mean(0) - log_costs(x)
    error = reference.std(0, correction=0) * math.sqrt(1 + 1 / draws)
    best = int(gap.argmax())
    enough = gap >= gap[best] - 2 * error[best]
    return NumberOfClusters(1 + int(enough.nonzero()[0]), gap.tolist())


def _stability(x: Tensor, top: int, rng: torch.Generator, pairs: int = 6) -> NumberOfClusters:
    """Cluster two halves separately, then assign all points to the nearest centre of each."""
    from sklearn.metrics import adjusted_rand_score

    def labels_by(half: Tensor, k: int) -> Tensor:
        return torch.cdist(x, kmeans(x[half], k, rng, starts=3).centres).argmin(1)

    def agreement(k: int) -> float:
        total = 0.0
        for _ in range(pairs):
            order = torch.randperm(len(x), generator=rng)
            first = labels_by(order[: (len(x) + 1) // 2], k)
            second = labels_by(order[len(x) // 2 :], k)
            total += adjusted_rand_score(first.numpy(), second.numpy()) / pairs
        return total

    curve = [AGREE, *(agreement(k) for k in range(2, top + 1))]
    good = [k for k, score in enumerate(curve, 1) if score >= max(curve) - 0.02]
    return NumberOfClusters(max(good), curve)
