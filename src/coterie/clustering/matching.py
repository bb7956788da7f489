"""Labels that keep their meaning: clusters numbered like those that were there before."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.clustering.kmeans import coordinates, group_mean, kmeans
from coterie.core.params import Params, flatten, repeated


def match_clusters(cost: Tensor) -> Tensor:
    """int64 [G]: a centre of its own for each of G ≤ K groups, at the least total cost [K, G]."""
    from scipy.optimize import linear_sum_assignment

    centre, group = linear_sum_assignment(cost.detach().cpu().double().numpy())
    to = torch.full((cost.shape[1],), -1)
    to[torch.from_numpy(group)] = torch.from_numpy(centre)
    return to


def overlap_counts(before: Tensor, now: Tensor, k: int, g: int) -> Tensor:
    """int64 [K, G]: how many points had one label before and have the other now.

    A point with label −1 before is new and does not count.
    """
    known = before >= 0
    counts = torch.zeros(k, g, dtype=torch.long)
    one = torch.ones((), dtype=torch.long)
    return counts.index_put((before[known], now[known]), one, accumulate=True)


def mean_models(models: Params, group: Tensor, k: int) -> Params:
    """The means of k clusters of stacked models, as k-means finds them, numbered like `group`.

    Models with group −1 do not count; a cluster without models is the mean of all. The same input
    gives the same bits.
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
