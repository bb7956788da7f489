"""How many clusters? Five rules behind one function, each with its curve over K.

    bound       CGPFL-Heur's (Tang, Guo, Guo, 2021): √(dK/m · log(e·m/d)) + μ·cost(K); the least
    silhouette  Rousseeuw, 1987: how much nearer points are to their own cluster than to the next; the largest
    gap         Tibshirani, Walther, Hastie, 2001: log cost of shapeless points − log cost(K); the least K within
                two standard errors of the largest
    careful     the bound's K, but 1 where the gap says 1: the bound takes noise for groups where there are none
    stability   do k-means of two overlapping halves of the points agree (ARI)? The largest K within 0.02 of the best

Ours: the gap's authors take the first K that the next does not beat, which is often 1 where there are many groups. K
goes from 1 to N/2, at most 12 (the bound: 20). All but the bound look at the points' 12 leading principal
components, which hold what tells so many groups apart. A silhouette below `NO_STRUCTURE` everywhere means one cluster,
since it cannot speak of K = 1; so does no agreement above `AGREE`. μ="auto" scales both terms of the bound to [0, 1]
over K = 1..N: (√K−1)/(√N−1) + cost(K)/cost(1), and K = 1 where cost(1) is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.clustering.kmeans import kmeans
from coterie.errors import CoterieError

RULES = ("careful", "bound", "silhouette", "gap", "stability")
NO_STRUCTURE, AGREE = 0.1, 0.9
MOST = 12


class Choice(NamedTuple):
    clusters: int
    curve: list[float]  # what K = 1, 2, … were compared by


class Bound(NamedTuple):
    """What the bound needs besides the points."""

    rows: Tensor  # [N] m_i
    size: int  # d
    mu: float | str = "auto"


def choose_clusters(
    points: Tensor, rng: torch.Generator, rule: str = "careful", bound: Bound | None = None
) -> Choice:
    """The number of clusters among points [N, d], by one of RULES."""
    if rule == "careful" and choose_clusters(points, rng, "gap").clusters == 1:
        return Choice(1, choose_clusters(points, rng, "bound", bound).curve)
    rule = "bound" if rule == "careful" else rule
    x = points.detach().cpu().double()
    top = min(len(x) // 2, 20 if rule == "bound" else MOST)
    if top < 2 or not bool((x != x[:1]).any()):
        return Choice(1, [0.0])
    if rule == "bound":
        return _bound(x, top, rng, bound or Bound(torch.ones(len(x)), x.shape[1]))
    rules: dict[str, Callable[[Tensor, int, torch.Generator], Choice]] = {
        "silhouette": _silhouette, "gap": _gap, "stability": _stability,
    }  # fmt: skip
    return rules[rule](leading(x), top, rng)


def leading(x: Tensor) -> Tensor:
    """The points in their leading principal components."""
    u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    return u[:, :MOST] * s[:MOST]


# ---------------------------------------------------------------------------------------------- the rules
def _bound(x: Tensor, top: int, rng: torch.Generator, how: Bound) -> Choice:
    n, m, share = len(x), float(how.rows.sum()), (how.rows / how.rows.sum()).double()

    def cost(k: int) -> float:
        found = kmeans(x, k, rng, most=n)
        return float((share * ((x - found.centres[found.labels]) ** 2).sum(1)).sum())

    costs = {k: cost(k) for k in range(1, top + 1)}
    if isinstance(how.mu, str):
        curve = [(math.sqrt(k) - 1) / (math.sqrt(n) - 1) + c / costs[1] for k, c in costs.items()]
    else:
        complexity = how.size / m * few_rows(m, how.size, how.mu)
        curve = [math.sqrt(k * complexity) + how.mu * c for k, c in costs.items()]
    return Choice(1 + min(range(top), key=curve.__getitem__), curve)


def few_rows(m: float, d: int, mu: float | str) -> float:
    """log(e·m/d), which must be above 0."""
    if math.e * m <= d:
        raise CoterieError(
            f"mu={mu} needs more rows than parameters / e, and there are {m:g} rows and {d} parameters: "
            "use mu='auto' or a smaller model."
        )
    return math.log(math.e * m / d)


def _silhouette(x: Tensor, top: int, rng: torch.Generator) -> Choice:
    from sklearn.metrics import silhouette_score

    def score(k: int) -> float:
        labels = kmeans(x, k, rng).labels
        return (
            float(silhouette_score(x.numpy(), labels.numpy()))
            if 1 < len(labels.unique()) < len(x)
            else -1.0
        )

    curve = [NO_STRUCTURE, *(score(k) for k in range(2, top + 1))]
    return Choice(1 + max(range(top), key=curve.__getitem__), curve)


def _gap(x: Tensor, top: int, rng: torch.Generator, draws: int = 6) -> Choice:
    low, high = x.amin(0), x.amax(0)

    def log_costs(points: Tensor) -> Tensor:
        return (
            torch.tensor([kmeans(points, k, rng, starts=3).cost for k in range(1, top + 1)])
            .clamp(min=1e-300)
            .log()
        )

    shapeless = torch.stack(
        [
            log_costs(low + (high - low) * torch.rand(x.shape, generator=rng, dtype=x.dtype))
            for _ in range(draws)
        ]
    )
    gap = shapeless.mean(0) - log_costs(x)
    error = shapeless.std(0, correction=0) * math.sqrt(1 + 1 / draws)
    best = int(gap.argmax())
    return Choice(1 + int((gap >= gap[best] - 2 * error[best]).nonzero()[0]), gap.tolist())


def _stability(x: Tensor, top: int, rng: torch.Generator, pairs: int = 6) -> Choice:
    """Each half is clustered alone; then all points join the nearest centre of the one and of the other."""
    from sklearn.metrics import adjusted_rand_score

    def agreement(k: int) -> float:
        total = 0.0
        for _ in range(pairs):
            order = torch.randperm(len(x), generator=rng)
            halves = order[: (len(x) + 1) // 2], order[len(x) // 2 :]
            a, b = (
                torch.cdist(x, kmeans(x[half], k, rng, starts=3).centres).argmin(1).numpy()
                for half in halves
            )
            total += adjusted_rand_score(a, b) / pairs
        return total

    curve = [AGREE, *(agreement(k) for k in range(2, top + 1))]
    return Choice(max(k for k, score in enumerate(curve, 1) if score >= max(curve) - 0.02), curve)
