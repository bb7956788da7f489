"""k-means++ on uploads."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from coterie.core.params import Params, as_column, count, one_hot

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


AT_ONCE = 20_000  # points whose distances are computed at once


class Clusters(NamedTuple):
    labels: Tensor  # int64 [N]
    centres: Tensor  # [K, d] float64
    cost: float  # Σ squared distances to the nearest centre, over the points that were clustered
    iterations: int


def kmeans(
    points: Tensor,
    k: int,
    rng: torch.Generator,
    init: Tensor | None = None,
    most: int = 1000,
    starts: int = 10,
) -> Clusters:
    """k-means++ seeds and Lloyd's steps, best of some starts; or Lloyd's from `init` [K, d].

    With more than `most` points a sample of them is clustered and the rest join the nearest centre.
    Without points there are no clusters. From `init` all K centres are kept, also where there are
    fewer points: one that no point is nearest to stays where it is.
    """
    from sklearn.cluster import KMeans

    x = points.detach().cpu()
    if init is not None:
        return lloyd(x.double(), init.detach().cpu().double())
    k = min(k, len(x))
    if not k:
        return Clusters(torch.zeros(0, dtype=torch.long), x.double(), 0.0, 0)
    sample = x
    if len(x) > most:
        sample = x[torch.randperm(len(x), generator=rng)[:most].sort().values]
    seed = int(torch.randint(2**31 - 1, (), generator=rng))
    with _threads().limit(limits=1):
        fit = KMeans(k, n_init=starts, random_state=seed).fit(sample.double().numpy())
    centres = torch.from_numpy(fit.cluster_centers_)
    if len(x) > most:
        labels = nearest_centres(x, centres)
    else:
        labels = torch.from_numpy(fit.labels_).long()
    return Clusters(labels, centres, float(fit.inertia_), int(fit.n_iter_))


def kmeans_without_singletons(
    points: Tensor, k: int, rng: torch.Generator, may_be_singleton: Tensor
) -> tuple[Tensor, int]:
    """(labels [N], number of clusters) of k-means, where nobody is alone without leave.

    may_be_singleton: bool [N], points that may form a cluster alone. Any other singleton is left
    out, with its cluster, and joins the nearest centre of those that remain; unless few remain.
    """
    clustered = torch.ones(len(points), dtype=torch.bool)
    remaining = points
    while True:
        result = kmeans(remaining, k, rng)
        sizes = result.labels.bincount(minlength=k)
        alone = (sizes[result.labels] == 1) & ~may_be_singleton[clustered]
        count = int(alone.sum())
        if not count or k - count < 1 or int(clustered.sum()) - count < 2 * (k - count):
            break
        clustered[clustered.nonzero()[alone, 0]] = False
        remaining = points[clustered]
        k -= count
    if bool(clustered.all()):
        return result.labels, k
    return nearest_centres(points.detach().cpu(), result.centres), k


def nearest_centres(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point, in float64, some points at a time: int64 [N]."""
    blocks = points.split(AT_ONCE)
    return torch.cat([torch.cdist(block.double(), centres).argmin(1) for block in blocks])


@functools.cache
def _threads() -> ThreadpoolController:
    """The controller of scikit-learn's threads.

    To look for the libraries that have threads takes as long as a small k-means: it is done once.
    """
    import sklearn.cluster  # noqa: F401  # loads the libraries that are looked for
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def lloyd(x: Tensor, centres: Tensor, most: int = 300) -> Clusters:
    """Points join the nearest centre, centres move to their points' mean, until nothing changes."""
    labels = torch.full((len(x),), -1)
    weight = torch.ones(len(x), dtype=x.dtype)
    iterations = 0
    while iterations < most:
        nearest = torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        if torch.equal(nearest, labels):
            break
        labels = nearest
        iterations += 1
        centres = group_mean({"": x}, labels, weight, {"": centres})[""]
    return Clusters(labels, centres, float(((x - centres[labels]) ** 2).sum()), iterations)


def coordinates(points: Tensor) -> Tensor:
    """[N, ≤ N] points with the same distances.

    N vectors longer than N are turned exactly, through their Gram matrix; others stay.
    """
    x = points.detach().cpu().double()
    if x.shape[1] <= len(x):
        return x
    x = x - x.mean(0)
    values, vectors = torch.linalg.eigh(x @ x.T)
    return vectors * values.clamp(min=0).sqrt()


def group_mean(stacked: Params, labels: Tensor, weight: Tensor, empty: Params) -> Params:
    """Weighted mean of stacked uploads per label; a label that nobody has keeps `empty`."""
    share = one_hot(labels, count(empty), weight.dtype) * weight[:, None]
    mass = share.sum(0)

    def mean(v: Tensor, old: Tensor) -> Tensor:
        m = as_column(mass, v).to(v.dtype)
        total = torch.einsum("ik,i...->k...", share.to(v.dtype), v)
        return torch.where(m > 0, total / torch.where(m > 0, m, 1), old)

    return {n: mean(v, empty[n]) for n, v in stacked.items()}
