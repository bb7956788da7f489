"""Coarsen the evaluation sums that leave a real site.

A sum of losses has 53 bits: a server that knows the rows can choose a model whose losses are
different powers of two, and read every label from one sum. A bin of the histogram with one row is
that row's score. So sums are rounded to a few digits, and neighbouring bins are joined until each
has enough rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.core.rounding import round_significant, round_to_scale

ROUNDED = ("loss", "absolute", "brier", "losses")


def coarsen_sums(sums: dict[str, Tensor], min_rows: int, digits: int | None) -> dict[str, Tensor]:
    """Round the sums of one client and join bins with few rows.

    Args:
        sums: What `sum_over_samples` returned, or a report of losses.
        min_rows: Fewest rows of a bin.
        digits: Significant digits; None: all.
    """
    coarse = dict(sums)
    if "scored" in sums and min_rows > 1:
        coarse["scored"] = join_bins(sums["scored"], min_rows)
    if digits is None:
        return coarse
    for name in ROUNDED:
        if name in sums:
            rounded = [round_significant(v, digits) for v in sums[name].double().flatten().tolist()]
            coarse[name] = sums[name].new_tensor(rounded).reshape(sums[name].shape)
    if "y2" in sums:
        n = float(sums["n"])
        mean = float(sums["y"]) / n
        deviation = math.sqrt(max(0.0, float(sums["y2"]) / n - mean**2))
        mean = round_to_scale(mean, deviation, digits)
        square = round_significant(deviation, digits) ** 2 + mean**2
        coarse["y"] = sums["y"].new_tensor(n * mean)
        coarse["y2"] = sums["y2"].new_tensor(n * square)
    return coarse


def join_bins(counts: Tensor, min_rows: int) -> Tensor:
    """Join neighbouring bins until each non-empty one has at least `min_rows` rows.

    Args:
        counts: [2, bins], by class.
        min_rows: Fewest rows of both classes in a bin.

    Returns:
        Counts of the same shape and total; each group of bins is counted in its middle bin.
    """
    joined = torch.zeros_like(counts)
    groups: list[list[int]] = [[]]
    rows = 0
    for place in counts.sum(0).nonzero()[:, 0].tolist():
        if rows >= min_rows:
            groups.append([])
            rows = 0
        groups[-1].append(place)
        rows += int(counts[:, place].sum())
    if rows < min_rows and len(groups) > 1:  # the last group is too small on its own
        groups[-2:] = [groups[-2] + groups[-1]]
    for places in groups:
        if places:
            joined[:, places[len(places) // 2]] = counts[:, places].sum(1)
    return joined
