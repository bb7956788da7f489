"""Whether predicted probabilities come true: a calibration curve over all test rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.metrics.histogram import log_odds_of_bins

STEPS = 10  # parts of the scale from 0 to 1


class CalibrationPoint(NamedTuple):
    """Rows with about the same predicted probability."""

    predicted: float  # their mean probability
    observed: float  # the share of them for which it came true
    rows: int


class Calibration(NamedTuple):
    """The calibration curve of one method."""

    label: str
    of: str  # what is predicted: a class, or that the guess is right
    points: list[CalibrationPoint]  # by rising probability; steps without rows are left out

    @property
    def error(self) -> float:
        """The mean distance between predicted and observed, over rows."""
        rows = sum(point.rows for point in self.points)
        return sum(p.rows * abs(p.predicted - p.observed) for p in self.points) / rows


def calibration(label: str, counts: np.ndarray, classes: list[str]) -> Calibration | None:
    """Make the curve from `TrainedRun.pooled_counts["scored"]`; None where nothing was counted.

    Of two classes it is the probability of the second; of more, that of the guess being right.
    """
    if not counts.sum():
        return None
    of = "the guess being right"
    if len(classes) == 2:
        of = classes[1]
    probability = 1 / (1 + np.exp(-log_odds_of_bins()))
    step = np.minimum((probability * STEPS).astype(int), STEPS - 1)
    points = []
    for number in range(STEPS):
        inside = counts[:, step == number]
        rows = inside.sum()
        if rows > 0:
            predicted = (inside.sum(0) * probability[step == number]).sum() / rows
            observed = inside[1].sum() / rows
            points.append(CalibrationPoint(float(predicted), float(observed), int(rows)))
    return Calibration(label, of, points)


def describe_calibration(result: Calibration) -> str:
    """Say how far predictions of one method are from what came true."""
    return (
        f"{result.label}: predicted and observed shares of {result.of} differ by "
        f"{result.error:.3f} in the mean over rows."
    )
