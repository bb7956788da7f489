"""Test scores over rounds and over traffic, and the cost of reaching a target score."""

from __future__ import annotations

from statistics import mean
from typing import NamedTuple

import numpy as np

from coterie.metrics import METRICS
from coterie.reporting.comparison import Comparison
from coterie.reporting.run_records import Methods, RunRecord
from coterie.reporting.text import TextTable, format_bytes, format_score, join_names

TARGET_SHARE = 0.95  # default target as a share of the best final score; for errors, 2 − this


# ------------------------------------------------------------------------------ curves
class MethodCurve(NamedTuple):
    """The test scores of one method at its evaluations, up to the end of its shortest run."""

    label: str
    seeds: int
    rounds: np.ndarray  # [evaluations]
    bytes: np.ndarray  # [evaluations] sent so far in both directions, mean over seeds
    mean: np.ndarray  # [evaluations] over seeds
    low: np.ndarray  # [evaluations] minimum over seeds
    high: np.ndarray  # [evaluations] maximum over seeds


class Convergence(NamedTuple):
    """The score curves of all methods."""

    metric: str
    curves: list[MethodCurve]
    final: dict[str, float]  # by method: the final score, mean over seeds


def convergence(methods: Methods, comparison: Comparison) -> Convergence:
    """Collect the scores of each method over rounds and traffic."""
    curves = []
    for label, runs in methods.items():
        rounds, spent, scores = zip(*(evaluations(run, comparison.metric) for run in runs))
        shortest = min(map(len, scores))
        score = np.array([values[:shortest] for values in scores])
        curve = MethodCurve(
            label=label,
            seeds=len(runs),
            rounds=np.array([values[:shortest] for values in rounds]).mean(0),
            bytes=np.array([values[:shortest] for values in spent]).mean(0),
            mean=score.mean(0),
            low=score.min(0),
            high=score.max(0),
        )
        curves.append(curve)
    return Convergence(comparison.metric, curves, comparison.scores)


def evaluations(run: RunRecord, metric: str) -> tuple[list[int], list[float], list[float]]:
    """Return rounds, bytes sent so far, and scores of the rounds in which a run was evaluated."""
    traffic = np.cumsum([row["bytes_down"] + row["bytes_up"] for row in run.history]).tolist()
    rounds = []
    spent = []
    scores = []
    for row, sent in zip(run.history, traffic):
        if row.get(metric) is not None:
            rounds.append(row["round"])
            spent.append(sent)
            scores.append(row[metric])
    return rounds, spent, scores


def describe_curves(result: Convergence) -> str:
    """Explain the curves over rounds."""
    better = "higher" if METRICS[result.metric].higher_is_better else "lower"
    band = ""
    if any(curve.seeds > 1 for curve in result.curves):
        band = "; the band is the range over seeds"
    return (
        f"One line per method, {better} is better{band}. Click a name to hide its line, "
        "double-click to hide all others."
    )


def describe_final_scores(result: Convergence, over: str) -> str:
    """Describe the figure of scores over "rounds" or "bytes" for screen readers."""
    if not result.final:
        return f"Test {result.metric} over {over}: every method diverged."
    ends = [f"{name} {format_score(score, result.metric)}" for name, score in result.final.items()]
    return f"Test {result.metric} over {over}, one line per method. Final: {join_names(ends)}."


# ------------------------------------------------------------------------------ cost of a target
class MethodCost(NamedTuple):
    """When one method first reached the target, mean over the seeds that did."""

    label: str
    rounds: float
    bytes: float
    seeds_reached: int
    seeds: int


class CostToTarget(NamedTuple):
    """The cost of reaching a score, by method."""

    metric: str
    target: float
    share_of_best: float | None  # target / best final score; None: the user gave the target
    reached: list[MethodCost]
    never: list[str]  # methods of which no seed reached the target


def cost_to_target(
    methods: Methods, comparison: Comparison, target: float | None
) -> CostToTarget | None:
    """Measure the rounds and bytes until each method first reached a target.

    Args:
        methods: The runs.
        comparison: Their final scores.
        target: None: 95 % of the best final accuracy, or 105 % of the lowest error.

    Returns:
        The cost, or None if no method has a score.
    """
    if not comparison.scores:
        return None
    share = None
    if target is None:
        share = TARGET_SHARE if comparison.higher_is_better else 2 - TARGET_SHARE
        best = comparison.sort(list(comparison.scores))[0]
        target = share * comparison.scores[best]
    reached = []
    never = []
    for label, runs in methods.items():
        hits = [first_hit(run, comparison.metric, target) for run in runs]
        known = [hit for hit in hits if hit is not None]
        if not known:
            never.append(label)
            continue
        rounds = mean(round for round, _ in known)
        spent = mean(sent for _, sent in known)
        reached.append(MethodCost(label, rounds, spent, len(known), len(runs)))
    return CostToTarget(comparison.metric, target, share, reached, never)


def first_hit(run: RunRecord, metric: str, target: float) -> tuple[int, float] | None:
    """Return (round, bytes sent so far) of the first evaluation at the target or better."""
    for round, sent, score in zip(*evaluations(run, metric)):
        is_reached = score >= target if METRICS[metric].higher_is_better else score <= target
        if is_reached:
            return round, sent
    return None


def cost_table(cost: CostToTarget) -> TextTable:
    """Return one row for each method that reached the target."""
    rows = []
    for method in cost.reached:
        rounds = f"{method.rounds:.3g}"
        if method.seeds_reached < method.seeds:
            rounds += f" ({method.seeds_reached} of {method.seeds} seeds)"
        rows.append([method.label, rounds, format_bytes(method.bytes)])
    return TextTable(["method", "rounds", "bytes sent"], rows)


def describe_cost(cost: CostToTarget) -> str:
    """State the target of the table."""
    name = METRICS[cost.metric].label
    why = ""
    if cost.share_of_best is not None:
        why = f", {100 * cost.share_of_best:.0f} % of the best final {name}"
    means = ""
    if any(method.seeds > 1 for method in cost.reached):
        means = " Means over seeds."
    return (
        f"The first evaluation of each method with {name} {format_score(cost.target, cost.metric)} "
        f"or better{why}. Round 0 is the initial model.{means}"
    )
