"""Clustering of uploads when a minority of clients may be hostile.

Outliers: functions here drop a given fraction of n points, ⌈fraction · n⌉ but never half of them.

Candidate centres: hostile clients with similar uploads form a cluster like any other. So the server
makes twice as many centres as it needs, clients report their loss under each, and the server keeps
those that fit the clients best: no client is best served by the attackers' centre. Losses count by
their rank alone, from 0 for a client's best centre to 1 for its worst, so a client that lies has no
more influence than any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.clustering.kmeans import coordinates, kmeans
from coterie.core.contract import Ask
from coterie.core.params import Params, argmin_finite, flatten, pick_rows, repeated


# ------------------------------------------------------------------------------ outliers
def max_hostile(fraction: float, members: int) -> int:
    """How many of a cluster's members may be hostile: at least one of three, never half."""
    most = (members - 1) // 2
    return min(math.ceil(fraction * members - 1e-9), most)  # 0.07 · 100 is slightly above 7


def inlier_indices(points: Tensor, fraction: float) -> Tensor:
    """Indices of the points without a fraction of outliers.

    Outliers have the largest median distance to all points. A minority of points cannot change that
    distance much, neither for themselves, however similar they are, nor for others.

    Args:
        points: [n, d].
        fraction: Fraction of outliers; 0 keeps all points.

    Returns:
        int64, ascending.

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> points = torch.tensor([[0.0], [0.1], [9.0], [0.2]])
        >>> clustering.inlier_indices(points, 0.25)
        tensor([0, 1, 3])
    """
    x = points.detach().cpu().double()
    if fraction == 0 or not len(x):
        return torch.arange(len(x))
    return inlier_mask(torch.cdist(x, x).median(1).values, fraction).nonzero()[:, 0]


def inlier_mask(distances: Tensor, fraction: float) -> Tensor:
    """Mask of all but the largest distances.

    Args:
        distances: [n].
        fraction: Fraction of outliers.

    Returns:
        bool [n].

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> clustering.inlier_mask(torch.tensor([1.0, 7.0, 2.0]), 0.3)
        tensor([ True, False,  True])
    """
    n = len(distances)
    kept = n - max_hostile(fraction, n)
    order = distances.argsort(stable=True)
    return torch.zeros(n, dtype=torch.bool).index_fill(0, order[:kept].cpu(), True)


def largest_inlier(lengths: Tensor, fraction: float) -> Tensor:
    """The largest of some lengths [n] after a fraction of the largest is dropped.

    Args:
        lengths: [n].
        fraction: Fraction of outliers.

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> clustering.largest_inlier(torch.tensor([1.0, 7.0, 2.0]), 0.3)
        tensor(2.)
    """
    return lengths[inlier_mask(lengths, fraction)].max()


# ------------------------------------------------------------------------------ candidate centres
class SelectedCentres(NamedTuple):
    """The centres that fit the clients best."""

    centres: Params  # every leaf [k, ...]
    ids: Tensor  # the clients that answered
    labels: Tensor  # int64, the best of these centres for each of them


def find_centres(
    uploads: Params,
    ids: Tensor,
    common: Params,
    k: int,
    ask: Ask,
    rate: Callable[..., Any],
) -> SelectedCentres:
    """Cluster uploads into candidate centres and select k of them.

    Uploads are clustered by the direction of their updates: a long update must not count for more
    than a short one.

    Args:
        uploads: Stacked models, every leaf [n, ...].
        ids: int64 [n], their clients.
        common: The model near which all of them started.
        k: Number of centres.
        ask: This round.
        rate: A client function that reports "losses" [centres].

    Example:
        >>> from coterie import clustering
        >>> def new_centres(method, state, answers, ask):
        ...     models, common = answers.values["model"], state.start
        ...     return clustering.find_centres(models, answers.ids, common, 2, ask, method.rate)
    """
    made = num_candidates(k, len(ids))
    labels = kmeans(update_directions(uploads, common), made, ask.rng("k-means")).labels
    weight = torch.ones(len(labels))
    centres = ask.group_mean(uploads, labels, weight, empty=repeated(common, made))
    return select_centres(centres, k, ask, rate, ids)


def update_directions(uploads: Params, common: Params) -> Tensor:
    """Unit vectors along the updates from a common model.

    Args:
        uploads: Stacked models, every leaf [n, ...].
        common: One model.

    Returns:
        float64 [n, ≤ n], in `coordinates`.

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> uploads = {"w": torch.tensor([[2.0], [-3.0]])}
        >>> clustering.update_directions(uploads, {"w": torch.zeros(1)})
        tensor([[ 1.],
                [-1.]], dtype=torch.float64)
    """
    updates = flatten(uploads) - flatten(repeated(common, 1))
    lengths = updates.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return coordinates(updates / lengths)


def num_candidates(k: int, clients: int) -> int:
    """How many candidate centres to make: twice k, if there are enough clients.

    A single centre is the robust mean of all clients and needs no alternative.

    Args:
        k: Number of centres to keep.
        clients: Number of clients.

    Example:
        >>> from coterie import clustering
        >>> clustering.num_candidates(3, clients=20), clustering.num_candidates(3, clients=5)
        (6, 5)
    """
    if k == 1:
        return 1
    return max(k, min(2 * k, clients))


def select_centres(
    centres: Params, k: int, ask: Ask, rate: Callable[..., Any], clients: Tensor | None = None
) -> SelectedCentres:
    """Ask clients for their losses and keep the k centres that fit them best.

    Args:
        centres: Candidates, every leaf [candidates, ...].
        k: Number of centres to keep.
        ask: This round.
        rate: A client function that reports "losses" [candidates].
        clients: Ids of the clients to ask; None: the participants.

    Example:
        >>> from coterie import clustering
        >>> def begin(method, state, ask):
        ...     return clustering.select_centres(state.centres, 2, ask, method.rate).centres
    """
    answers = ask(rate, clients, shared=centres)
    losses = answers.report["losses"]
    kept = select_by_losses(losses, k)
    ask.note("start_kept", kept)
    return SelectedCentres(pick_rows(centres, kept), answers.ids, argmin_finite(losses[:, kept]))


def select_by_losses(losses: Tensor, k: int) -> Tensor:
    """Select the k centres with the smallest total rank over all clients.

    Greedy selection, then exchanges of one centre for another while these reduce the total.

    Args:
        losses: [clients, centres], infinite for a diverged centre.
        k: Number of centres to select.

    Returns:
        int64 [k], ascending.

    Example:
        >>> import torch
        >>> from coterie import clustering
        >>> losses = torch.tensor([[1.0, 2.0, 9.0], [1.0, 2.0, 9.0], [9.0, 2.0, 1.0]])
        >>> clustering.select_by_losses(losses, 2)
        tensor([0, 2])
    """
    better = (losses[:, None, :] < losses[:, :, None]).sum(-1)
    rank = better.double() / max(losses.shape[1] - 1, 1)  # ties have equal ranks

    def total(kept: Tensor) -> float:
        return float(rank[:, kept].amin(1).sum())

    def others(kept: Tensor) -> Tensor:
        every = torch.arange(losses.shape[1])
        return every[~torch.isin(every, kept)]

    kept = torch.zeros(0, dtype=torch.long)
    for _ in range(k):
        candidates = [torch.cat([kept, other[None]]) for other in others(kept)]
        kept = min(candidates, key=total)
    best = total(kept)
    improved = True
    while improved:
        improved = False
        for place in range(len(kept)):
            for other in others(kept):
                tried = kept.index_fill(0, torch.tensor(place), int(other))
                if total(tried) < best:
                    kept, best, improved = tried, total(tried), True
    return kept.sort().values
