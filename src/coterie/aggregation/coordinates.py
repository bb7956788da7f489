"""Means, medians and trimmed means of each coordinate, for one block of them.

Each function takes rows [members, columns] and weights, float64 [members, centres], all positive,
and gives [centres, columns]. One sort of the rows serves all centres.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Sums of weights that differ by less than this share of the total count as equal: weights are often
# float32. Otherwise a rounding error would keep a trace of what is cut off, maybe a huge number.
SAME = 1e-6


def mean(rows: Tensor, weight: Tensor) -> Tensor:
    """Σ_i w_i x_i / Σ_i w_i, in float64."""
    share = weight / weight.sum(0)
    return share.T @ rows.double()


# ------------------------------------------------------------------------------ medians
def median(rows: Tensor, weight: Tensor) -> Tensor:
    """The middle of the mass: half of the weight lies on either side.

    Where a whole range of numbers halves the mass, its middle is taken. So equal weights give the
    usual median, of an even number of members the mean of the middle two, and a weight of 3 is the
    same as three rows of weight 1.
    """
    columns = rows.T.contiguous()
    if are_equal(weight):
        ordered = ascending(columns)
        members = len(weight)
        middle = halfway(ordered[:, (members - 1) // 2], ordered[:, members // 2])
        return middle.expand(weight.shape[1], -1)
    order = ascending_order(columns)
    return torch.stack([weighted_median(columns, order, w) for w in weight.T])


def weighted_median(columns: Tensor, order: Tensor, weight: Tensor) -> Tensor:
    """[columns] the median for one centre; columns and order are [columns, members]."""
    mass = weight.take(order).cumsum(1)  # up to and with each member, in ascending order
    half = mass[:, -1:] / 2
    margin = SAME * half
    last = len(weight) - 1
    lower = torch.searchsorted(mass, half - margin)  # the first to reach half of the mass
    upper = torch.searchsorted(mass, half + margin).clamp(max=last)  # the first to exceed it
    a = columns.gather(1, order.gather(1, lower))
    b = columns.gather(1, order.gather(1, upper))
    return halfway(a, b)[:, 0]


def halfway(a: Tensor, b: Tensor) -> Tensor:
    """(a + b) / 2, also where the sum would overflow."""
    return a / 2 + b / 2


# ------------------------------------------------------------------------------ trimmed means
def trimmed(rows: Tensor, weight: Tensor, share: float) -> Tensor:
    """The mean of what is left when `share` of the mass is cut off at either end.

    A member on the edge is cut in part. Equal weights and an integer share · members give the
    classical trimmed mean.
    """
    columns = rows.T.contiguous()
    weight = weight / weight.sum(0)
    if are_equal(weight):
        middle = trimmed_mean(ascending(columns), weight[:, 0], share)
        return middle.expand(weight.shape[1], -1)
    order = ascending_order(columns)
    ordered = columns.gather(1, order)
    return torch.stack([trimmed_mean(ordered, w.take(order), share) for w in weight.T])


def trimmed_mean(ordered: Tensor, weight: Tensor, share: float) -> Tensor:
    """[columns] the trimmed mean for one centre.

    ordered: [columns, members] in ascending order.  weight: theirs, with sum 1; [members] where it
    is the same in every column.
    """
    kept = kept_mass(weight, share)
    total = kept.sum(-1).to(ordered.dtype)
    kept = kept.to(ordered.dtype)
    if kept.dim() == 1:
        return ordered @ kept / total
    return (ordered * kept).sum(1) / total


def kept_mass(weight: Tensor, share: float) -> Tensor:
    """[..., members] how much of each weight is not cut off, in ascending order of the values."""
    low, high = share, 1 - share
    margin = SAME * (high - low)
    mass = weight.cumsum(-1)
    mass.masked_fill_((mass - low).abs_() <= margin, low)
    mass.masked_fill_((mass - high).abs_() <= margin, high)
    inside = mass.clamp_(low, high)
    kept = inside.clone()
    kept[..., 0] -= low
    kept[..., 1:] -= inside[..., :-1]
    return kept


# ------------------------------------------------------------------------------ sorting
def are_equal(weight: Tensor) -> bool:
    """Whether all members have the same weight, for every centre."""
    return bool((weight == weight[:1]).all())


def ascending(columns: Tensor) -> Tensor:
    """Each row in ascending order; on a processor NumPy sorts some ten times faster than torch."""
    if columns.device.type == "cpu":
        return torch.from_numpy(np.sort(columns.numpy(), axis=1))
    return columns.sort(1).values


def ascending_order(columns: Tensor) -> Tensor:
    """The order that sorts each row."""
    if columns.device.type == "cpu":
        return torch.from_numpy(np.argsort(columns.numpy(), axis=1))
    return columns.argsort(1)
