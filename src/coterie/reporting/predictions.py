"""Quality of predictions: confusion matrix, calibration, and comparison with a constant prediction.

An accuracy of 0.94 means little at a site where 94 % of the rows have the same class. So every site
is compared with the best constant prediction for its own test rows: its most frequent class or its
mean. Sites with few test rows, and sites where the constant is perfect, are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.data.roster import natural_key
from coterie.metrics import METRICS
from coterie.metrics.histogram import CALIBRATION_BINS, calibration_bins, log_odds_of_bins
from coterie.reporting.comparison import Comparison
from coterie.reporting.intervals import BySeed
from coterie.reporting.text import join_names
from coterie.runs.trained import TrainedRun

FEW_ROWS = 10  # scores on fewer test rows are unreliable
MOST_SITES = 5  # named per method
MOST_PARTS = 3  # lists of sites in the sentence
TOLERANCE = 1e-9  # a smaller mean gain is a rounding error


# ------------------------------------------------------------------------------ classes
class Confusion(NamedTuple):
    """The confusion matrix of one method over the test rows of all clients."""

    classes: list[str]
    counts: np.ndarray  # int64 [true class, predicted class]


class CalibrationPoint(NamedTuple):
    """Test rows with similar predicted probabilities."""

    predicted: float  # mean predicted probability
    observed: float  # share of rows in which the prediction was right
    rows: int


class Calibration(NamedTuple):
    """The calibration curve of one method over the test rows of all clients."""

    label: str
    of: str  # the predicted event: a class, or that the prediction is right
    points: list[CalibrationPoint]  # by ascending probability, without empty bins

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of predicted and observed over rows."""
        rows = sum(point.rows for point in self.points)
        return sum(p.rows * abs(p.predicted - p.observed) for p in self.points) / rows


class Predictions(NamedTuple):
    """The quality of one method's class predictions; None: not counted."""

    label: str
    confusion: Confusion | None
    calibration: Calibration | None


def collect_predictions(trained: TrainedRun, label: str = "") -> Predictions | None:
    """Collect the counts of the last evaluation; None for regression and runs of old versions.

    Args:
        trained: The run.
        label: Its method with settings; "": the method's name.
    """
    counts = trained.pooled_counts
    roster = trained.roster
    classes = list(roster.labels or map(str, range(roster.classes or 0)))
    label = label or trained.method.name
    matrix = None
    if "confusion" in counts:
        all_counts = counts["confusion"].astype(np.int64)
        known = min(len(classes), len(all_counts))  # a model may have more outputs than classes
        matrix = Confusion(classes[:known], all_counts[:known, :known])
    curve = None
    if "scored" in counts:
        curve = calibrate(label, counts["scored"], classes)
    if matrix is None and curve is None:
        return None
    return Predictions(label, matrix, curve)


def calibrate(label: str, counts: np.ndarray, classes: list[str]) -> Calibration | None:
    """Compute the calibration curve.

    Args:
        label: The method.
        counts: Histogram of predicted log odds, [2, bins], by wrong and right or by class.
        classes: With two classes the curve is that of the second, otherwise of the prediction
            being right.

    Returns:
        The curve; None if nothing was counted.
    """
    if not counts.sum():
        return None
    probability = 1 / (1 + np.exp(-log_odds_of_bins()))
    bins = calibration_bins()
    points = []
    for number in range(CALIBRATION_BINS):
        inside = counts[:, bins == number]
        rows = inside.sum()
        if rows > 0:
            predicted = (inside.sum(0) * probability[bins == number]).sum() / rows
            observed = inside[1].sum() / rows
            points.append(CalibrationPoint(float(predicted), float(observed), int(rows)))
    of = classes[1] if len(classes) == 2 else "a correct prediction"
    return Calibration(label, of, points)


def describe_calibration(result: Calibration) -> str:
    """State the calibration error."""
    return (
        f"{result.label}: the predicted probability of {result.of} differs from the observed "
        f"frequency by {result.error:.3f}, averaged over rows."
    )


# ------------------------------------------------------------------------------ constant prediction
class NoGainAt(NamedTuple):
    """Methods that are no better than a constant prediction at the same sites."""

    labels: list[str]
    sites: list[str]


class ConstantBaseline(NamedTuple):
    """The sites at which methods are no better than a constant prediction."""

    metric: str
    parts: list[NoGainAt]  # best method first
    methods: int  # compared
    sites: int  # compared


def compare_with_constant(comparison: Comparison) -> ConstantBaseline | None:
    """Find sites at which methods are no better than a constant prediction; None if none."""
    parts: list[NoGainAt] = []
    judged: set[str] = set()
    methods = comparison.sort(list(comparison.scores))
    for label in methods:
        gains = mean_gains(comparison.by_site.get(label, {}), comparison.higher_is_better)
        judged |= gains.keys()
        sites = [name for name in sorted(gains, key=natural_key) if gains[name] <= TOLERANCE]
        same = [part for part in parts if part.sites == sites]
        if same:
            same[0].labels.append(label)
        elif sites:
            parts.append(NoGainAt([label], sites))
    if not parts:
        return None
    return ConstantBaseline(comparison.metric, parts, len(methods), len(judged))


def mean_gains(by_seed: BySeed, higher_is_better: bool) -> dict[str, float]:
    """Return by how much each site's score beats a constant, averaged over test rows and seeds.

    The constant is chosen on the test rows, which favours it if they are few: sites with fewer than
    FEW_ROWS are skipped.
    """
    gain: dict[str, float] = {}
    rows: dict[str, float] = {}
    for scores in by_seed.values():
        if scores.constant is None:
            continue
        ahead = scores.values - scores.constant
        if not higher_is_better:
            ahead = -ahead
        is_judged = np.isfinite(ahead) & (scores.rows >= FEW_ROWS)
        for i in np.flatnonzero(is_judged).tolist():
            name = scores.names[i]
            gain[name] = gain.get(name, 0.0) + float(scores.rows[i] * ahead[i])
            rows[name] = rows.get(name, 0.0) + float(scores.rows[i])
    return {name: gain[name] / rows[name] for name in gain}


def describe_constant_baseline(result: ConstantBaseline) -> str:
    """Name the sites at which methods are no better than a constant prediction."""
    parts = []
    for part in result.parts[:MOST_PARTS]:
        who = join_names(part.labels)
        if len(part.labels) == result.methods > 2:
            who = "every method"
        where = join_names(part.sites)
        if len(part.sites) > MOST_SITES:
            some = ", ".join(part.sites[:MOST_SITES])
            where = f"{len(part.sites)} of {result.sites} sites ({some}, …)"
        parts.append(f"{who} at {where}")
    others = sum(len(part.labels) for part in result.parts[MOST_PARTS:])
    if others:
        noun = "method" if others == 1 else "methods"
        parts.append(f"{others} more {noun} at others")
    return (
        f"No better than always predicting {METRICS[result.metric].constant}: {'; '.join(parts)}."
    )
