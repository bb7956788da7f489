"""Histograms of predicted odds: what AUC, average precision and calibration are computed from.

A client counts its rows by bin, so that no score of a single row leaves it. Bins are equally wide
in asinh(log odds): about 0.04 wide around even odds, where models that were trained briefly have
all their rows, and wider towards odds of e^74, which are all but certain.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BINS = 256
REACH = 5.0  # the bins reach from −REACH to REACH in asinh(log odds)


def bin_of(log_odds: Tensor) -> Tensor:
    """The bin of each row, int64 [n]; those out of reach are in the first or the last bin."""
    finite = log_odds.nan_to_num(0.0)
    place = (finite.asinh() + REACH) / (2 * REACH) * BINS
    return place.floor().clamp(0, BINS - 1).long()


def log_odds_of_bins() -> np.ndarray:
    """The log odds in the middle of each bin [BINS]."""
    width = 2 * REACH / BINS
    return np.sinh(-REACH + width * (np.arange(BINS) + 0.5))


def count_scores(log_odds: Tensor, kind: Tensor, mask: Tensor) -> Tensor:
    """Rows by kind and bin, int32 [2, BINS].

    kind: int64 [n], 0 or 1.  mask: [n], 1 for rows that count.
    """
    counts = torch.zeros(2 * BINS, dtype=mask.dtype, device=mask.device)
    counts = counts.scatter_add(0, kind * BINS + bin_of(log_odds), mask)
    return counts.view(2, BINS).to(torch.int32)


def log_odds_of_guess(outputs: Tensor) -> Tensor:
    """The log odds [n] of each row's likeliest class against all others; outputs: [n, classes]."""
    share = outputs.log_softmax(-1).amax(-1)
    return share - (-share.expm1()).clamp(min=torch.finfo(share.dtype).tiny).log()


# ------------------------------------------------------------------------------ from counts
def roc_area(counts: np.ndarray) -> np.ndarray:
    """The area under the ROC curve [N] from counts [N, 2, BINS]; NaN with one class alone.

    It is how often a row of class 1 has larger odds than one of class 0; ties count half.
    """
    zeros, ones = counts[:, 0], counts[:, 1]
    below = zeros.cumsum(1) - zeros / 2
    pairs = zeros.sum(1) * ones.sum(1)
    return np.where(pairs > 0, (ones * below).sum(1) / pairs, np.nan)


def average_precision(counts: np.ndarray) -> np.ndarray:
    """The mean precision over the rows of class 1, largest odds first [N]; NaN without such rows.

    A row stands in the middle of its bin: rows of one bin may have any order.
    counts: [N, 2, BINS].
    """
    ones = counts[:, 1, ::-1]
    rows = counts.sum(1)[:, ::-1]
    ones_up_to = ones.cumsum(1) - (ones - 1) / 2
    rows_up_to = rows.cumsum(1) - (rows - 1) / 2
    total = ones.sum(1)
    return np.where(total > 0, (ones * ones_up_to / rows_up_to).sum(1) / total, np.nan)
