"""Labels that agree with earlier labels of the same clusters."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.clustering.kmeans import coordinates, group_mean, kmeans
from coterie.core.params import Params, flatten, repeated


def match_clusters(cost: Tensor) -> Tensor:
    """Assign each of G ≤ K clusters a centre of its own, at the smallest total cost.

    Args:
        cost: [K, G].

    Returns:
        int64 [G].

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> clustering.match_clusters(torch.tensor([[0.0, 2.0], [1.0, 9.0]]))
        tensor([1, 0])
    """
    from scipy.optimize import linear_sum_assignment

    centre, group = linear_sum_assignment(cost.detach().cpu().double().numpy())
    to = torch.full((cost.shape[1],), -1)
    to[torch.from_numpy(group)] = torch.from_numpy(centre)
    return to


def overlap_counts(before: Tensor, now: Tensor, k: int, g: int) -> Tensor:
    """Count the points by their labels before and now.

    Args:
        before: int64 [n], from 0 to k − 1; points with −1 are new and not counted.
        now: int64 [n], from 0 to g − 1.
        k: Number of labels before.
        g: Number of labels now.

    Returns:
        int64 [k, g].

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> clustering.overlap_counts(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), 2, 2)
        tensor([[0, 2],
                [1, 0]])
    """
    known = before >= 0
    counts = torch.zeros(k, g, dtype=torch.long)
    one = torch.ones((), dtype=torch.long)
    return counts.index_put((before[known], now[known]), one, accumulate=True)


def mean_models(models: Params, group: Tensor, k: int) -> Params:
    """The means of k clusters of models, as k-means finds them, numbered like `group`.

    The same input gives the same bits.

    Args:
        models: Every leaf [N, ...].
        group: int64 [N]; models with −1 are ignored.
        k: Number of clusters; one without models is the mean of all.

    Returns:
        Every leaf [k, ...].

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> models = {"w": torch.tensor([[1.0], [5.0], [3.0], [5.0]])}
        >>> clustering.mean_models(models, torch.tensor([1, 0, 1, 0]), 2)["w"]
        tensor([[5.],
                [2.]])
    """
    overall = repeated({n: v.mean(0) for n, v in models.items()}, k)
    known = (group >= 0).nonzero()[:, 0]
    if not len(known):
        return overall
    models = {n: v[known.to(v.device)] for n, v in models.items()}
    points = coordinates(flatten(models))
    labels = kmeans(points, k, torch.Generator().manual_seed(0)).labels
    to = match_clusters(-overlap_counts(group[known], labels, k, k))
    return group_mean(models, to[labels], torch.ones(len(labels)), empty=overall)
