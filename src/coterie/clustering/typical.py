"""What most uploads have in common, whatever a hostile minority sends.

All functions leave out a share of the points, as few as possible: of n points ⌈share · n⌉, at most
a minority. With share 0 nothing is left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.core.contract import Ask


def max_hostile(share: float, members: int) -> int:
    """f, how many of a centre's members may be hostile: at least one of three, never half."""
    most = (members - 1) // 2
    return min(math.ceil(share * members - 1e-9), most)  # 0.07 · 100 is a little more than 7


def hostile_share(ask: Ask) -> float:
    """The share of the uploads that the server may be wrong to believe; 0 where means are plain."""
    return ask.hostile_share


def inlier_indices(points: Tensor, share: float) -> Tensor:
    """int64, ascending: the points without the share of them that is farthest from the others.

    How far a point is, is its median distance to all points: a minority of points cannot change it
    much, neither for itself, however alike they are, nor for others.
    """
    x = points.detach().cpu().double()
    if share == 0 or not len(x):
        return torch.arange(len(x))
    return inlier_mask(torch.cdist(x, x).median(1).values, share).nonzero()[:, 0]


def inlier_mask(distances: Tensor, share: float) -> Tensor:
    """bool [n]: all but the share of largest distances."""
    n = len(distances)
    kept = n - max_hostile(share, n)
    order = distances.argsort(stable=True)
    return torch.zeros(n, dtype=torch.bool).index_fill(0, order[:kept].cpu(), True)


def largest_inlier(lengths: Tensor, share: float) -> Tensor:
    """The largest length that is left when the share of largest ones is left out."""
    return lengths[inlier_mask(lengths, share)].max()
