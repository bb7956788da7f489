"""Histograms of predicted log odds, for AUC, average precision and calibration.

A client counts its samples per bin, so that no score of a single sample leaves it. Bins have equal
width in asinh(log odds): about 0.04 around even odds, where briefly trained models put all their
samples, and wider towards odds of e^74, which are practically certain.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BINS = 256
CALIBRATION_BINS = 10  # of equal width in probability
REACH = 5.0  # bins cover −REACH to REACH in asinh(log odds)


def log_odds_of_bins() -> np.ndarray:
    """Return the log odds at the centre of each bin, [BINS]."""
    width = 2 * REACH / BINS
    return np.sinh(-REACH + width * (np.arange(BINS) + 0.5))


def count_log_odds(log_odds: Tensor, kind: Tensor, mask: Tensor) -> Tensor:
    """Count samples by kind and bin; values out of reach fall into the first or last bin.

    Args:
        log_odds: [n].
        kind: int64 [n], 0 or 1: the class, or whether the prediction is correct.
        mask: [n], 1 for samples that count.

    Returns:
        int32 [2, BINS].
    """
    scaled = (log_odds.nan_to_num(0.0).asinh() + REACH) / (2 * REACH) * BINS
    bins = scaled.floor().clamp(0, BINS - 1).long()
    counts = torch.zeros(2 * BINS, dtype=mask.dtype, device=mask.device)
    counts = counts.scatter_add(0, kind * BINS + bins, mask)
    return counts.view(2, BINS).to(torch.int32)


def log_odds_of_prediction(outputs: Tensor) -> Tensor:
    """Return the log odds [n] of each sample's likeliest class, from logits [n, classes]."""
    share = outputs.log_softmax(-1).amax(-1)
    return share - (-share.expm1()).clamp(min=torch.finfo(share.dtype).tiny).log()


def roc_area(counts: np.ndarray) -> np.ndarray:
    """Compute the area under the ROC curve; ties count half.

    Args:
        counts: [N, 2, BINS], by class and bin.

    Returns:
        [N]; NaN for clients with samples of one class only.
    """
    zeros, ones = counts[:, 0], counts[:, 1]
    below = zeros.cumsum(1) - zeros / 2
    pairs = zeros.sum(1) * ones.sum(1)
    return np.where(pairs > 0, (ones * below).sum(1) / pairs, np.nan)


def average_precision(counts: np.ndarray) -> np.ndarray:
    """Compute the mean precision over the samples of class 1, largest odds first.

    Samples of one bin have no order, so each stands at the middle of its bin.

    Args:
        counts: [N, 2, BINS], by class and bin.

    Returns:
        [N]; NaN for clients without samples of class 1.
    """
    ones = counts[:, 1, ::-1]
    samples = counts.sum(1)[:, ::-1]
    ones_so_far = ones.cumsum(1) - (ones - 1) / 2
    samples_so_far = samples.cumsum(1) - (samples - 1) / 2
    total = ones.sum(1)
    return np.where(total > 0, (ones * ones_so_far / samples_so_far).sum(1) / total, np.nan)


def calibration_bins() -> np.ndarray:
    """Return which of CALIBRATION_BINS each bin of the histogram belongs to, int64 [BINS]."""
    probability = 1 / (1 + np.exp(-log_odds_of_bins()))
    return np.minimum((probability * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)


def calibration_error(counts: np.ndarray) -> np.ndarray:
    """Compute the expected calibration error: the mean |predicted − observed| over samples.

    Predicted probabilities and observed shares are averaged within CALIBRATION_BINS bins.

    Args:
        counts: [N, 2, BINS], by class or by wrong and right, and by bin.

    Returns:
        [N]; NaN for clients without samples.
    """
    probability = 1 / (1 + np.exp(-log_odds_of_bins()))
    samples = counts.sum(1)
    gap = samples * probability - counts[:, 1]  # Σ (predicted − observed) in each bin
    merge = np.eye(CALIBRATION_BINS)[calibration_bins()]
    total = samples.sum(1)
    return np.where(total > 0, np.abs(gap @ merge).sum(1) / total, np.nan)
