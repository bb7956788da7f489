"""k-means++ on uploads, and shorter vectors with the same distances."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from coterie.core.params import Params, as_column, count, one_hot
from coterie.core.randomness import scramble

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

BLOCK = 20_000  # points whose distances are computed at once


class KMeansResult(NamedTuple):
    """The result of k-means."""

    labels: Tensor  # int64 [N]
    centres: Tensor  # float64 [K, d]
    cost: float  # Σ squared distances to the nearest centre, over the clustered points
    iterations: int


def kmeans(
    points: Tensor,
    k: int,
    rng: torch.Generator,
    init: Tensor | None = None,
    max_points: int = 1000,
    starts: int = 10,
) -> KMeansResult:
    """k-means with scikit-learn's k-means++, or Lloyd's algorithm from given centres.

    Args:
        points: float [N, d].
        k: Number of clusters; fewer if there are fewer points.
        rng: For the seeds.
        init: Initial centres [K, d]. All K are kept, also with fewer points: a centre that no point
            is nearest to stays where it is.
        max_points: With more points a sample of this size is clustered, and the others are assigned
            to the nearest centre.
        starts: Number of k-means++ starts, of which the best counts.

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> points = torch.tensor([[0.0], [0.1], [9.0], [9.1]])
        >>> labels = clustering.kmeans(points, 2, torch.Generator().manual_seed(0)).labels
        >>> labels[0] == labels[1] and labels[0] != labels[2]
        tensor(True)
    """
    from sklearn.cluster import KMeans

    x = points.detach().cpu()
    if init is not None:
        return lloyd(x.double(), init.detach().cpu().double())
    k = min(k, len(x))
    if not k:
        return KMeansResult(torch.zeros(0, dtype=torch.long), x.double(), 0.0, 0)
    sample = x
    if len(x) > max_points:
        sample = x[torch.randperm(len(x), generator=rng)[:max_points].sort().values]
    seed = int(torch.randint(2**31 - 1, (), generator=rng))
    with _thread_controller().limit(limits=1):
        fit = KMeans(k, n_init=starts, random_state=seed).fit(sample.double().numpy())
    centres = torch.from_numpy(fit.cluster_centers_)
    if len(x) > max_points:
        labels = nearest_centres(x, centres)
    else:
        labels = torch.from_numpy(fit.labels_).long()
    return KMeansResult(labels, centres, float(fit.inertia_), int(fit.n_iter_))


@functools.cache
def _thread_controller() -> ThreadpoolController:
    """The controller of scikit-learn's threads; to find their libraries is slow, so only once."""
    import sklearn.cluster  # noqa: F401  # loads the libraries
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def kmeans_without_singletons(
    points: Tensor, k: int, rng: torch.Generator, may_be_singleton: Tensor
) -> tuple[Tensor, int]:
    """k-means without clusters of a single point, except where allowed.

    A point that forms a cluster alone without permission is removed together with its cluster, and
    assigned to the nearest remaining centre in the end; unless too few points remain.

    Args:
        points: float [N, d].
        k: Number of clusters.
        rng: For the seeds.
        may_be_singleton: bool [N], points that may form a cluster alone.

    Returns:
        The labels, int64 [N], and the number of clusters.

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> points = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [9.9]])
        >>> rng = torch.Generator().manual_seed(0)
        >>> none = torch.zeros(6, dtype=torch.bool)
        >>> labels, k = clustering.kmeans_without_singletons(points, 3, rng, none)
        >>> k, labels.bincount().sort().values
        (2, tensor([3, 3]))
    """
    clustered = torch.ones(len(points), dtype=torch.bool)
    remaining = points
    while True:
        result = kmeans(remaining, k, rng)
        sizes = result.labels.bincount(minlength=k)
        alone = (sizes[result.labels] == 1) & ~may_be_singleton[clustered]
        removed = int(alone.sum())
        left = int(clustered.sum()) - removed
        if not removed or k - removed < 1 or left < 2 * (k - removed):
            break
        clustered[clustered.nonzero()[alone, 0]] = False
        remaining = points[clustered]
        k -= removed
    if bool(clustered.all()):
        return result.labels, k
    return nearest_centres(points.detach().cpu(), result.centres), k


def nearest_centres(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point, int64 [N], computed in float64 by blocks of points."""
    blocks = points.split(BLOCK)
    return torch.cat([torch.cdist(block.double(), centres).argmin(1) for block in blocks])


def lloyd(x: Tensor, centres: Tensor, max_iterations: int = 300) -> KMeansResult:
    """Lloyd's algorithm from given centres [K, d], until no assignment changes."""
    labels = torch.full((len(x),), -1)
    weight = torch.ones(len(x), dtype=x.dtype)
    iterations = 0
    while iterations < max_iterations:
        nearest = torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        if torch.equal(nearest, labels):
            break
        labels = nearest
        iterations += 1
        centres = group_mean({"": x}, labels, weight, {"": centres})[""]
    return KMeansResult(labels, centres, float(((x - centres[labels]) ** 2).sum()), iterations)


def group_mean(stacked: Params, labels: Tensor, weight: Tensor, empty: Params) -> Params:
    """Weighted mean of stacked models per label.

    Args:
        stacked: Every leaf [N, ...].
        labels: int64 [N], from 0 to K − 1.
        weight: [N].
        empty: Every leaf [K, ...], the result for labels without models.

    Returns:
        Every leaf [K, ...].

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> models = {"w": torch.tensor([1.0, 3.0, 5.0])}
        >>> empty = {"w": torch.zeros(3)}
        >>> clustering.group_mean(models, torch.tensor([0, 0, 2]), torch.ones(3), empty)
        {'w': tensor([2., 0., 5.])}
    """
    share = one_hot(labels.to(weight.device), count(empty), weight.dtype) * weight[:, None]
    mass = share.sum(0)

    def mean(v: Tensor, old: Tensor) -> Tensor:
        m = as_column(mass, v).to(v)
        total = torch.einsum("ik,i...->k...", share.to(v), v)
        return torch.where(m > 0, total / torch.where(m > 0, m, 1), old)

    return {n: mean(v, empty[n]) for n, v in stacked.items()}


# ------------------------------------------------------------------------------ shorter vectors
def coordinates(points: Tensor) -> Tensor:
    """At most N coordinates with the same distances between N points.

    Vectors longer than N are rotated exactly, through their Gram matrix; others stay.

    Args:
        points: [N, d].

    Returns:
        float64 [N, min(N, d)].

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> points = torch.randn(3, 1000)
        >>> short = clustering.coordinates(points)
        >>> short.shape, torch.allclose(torch.pdist(short), torch.pdist(points.double()))
        (torch.Size([3, 3]), True)
    """
    x = points.detach().cpu().double()
    if x.shape[1] <= len(x):
        return x
    x = x - x.mean(0)
    values, vectors = torch.linalg.eigh(x @ x.T)
    return vectors * values.clamp(min=0).sqrt()


def sketch(update: Params, bins: int, seed: int) -> Tensor:
    """A random projection of an update: random signs, then sums by position modulo `bins`.

    It takes O(d) operations and no matrix. Inner products of sketches equal those of the updates in
    expectation.

    Args:
        update: One model.
        bins: Length of the sketch; a model with fewer numbers keeps its length.
        seed: The server's, so that all clients use the same signs.

    Returns:
        [min(bins, d)].

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> clustering.sketch({"w": torch.randn(10, 100)}, bins=64, seed=0).shape
        torch.Size([64])
    """
    v = torch.cat([x.flatten() for x in update.values()])
    bins = min(bins, len(v))
    positions = torch.arange(len(v), device=v.device)
    sign = ((scramble(positions + seed) & 1) * 2 - 1).to(v.dtype)
    signed = v * sign
    full = len(v) // bins * bins  # the numbers that fill rows of length `bins`; the rest is padded
    rest = torch.nn.functional.pad(signed[full:], (0, bins - len(v) + full))
    return signed[:full].view(-1, bins).sum(0) + rest
