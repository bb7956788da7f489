"""What it cost each method to reach a target: rounds, and bytes sent."""

from __future__ import annotations

from statistics import mean
from typing import NamedTuple

from coterie.metrics import METRICS
from coterie.reporting.comparison import Comparison, Methods
from coterie.reporting.convergence import evaluations
from coterie.reporting.source import Source
from coterie.reporting.text import TextTable, format_bytes, format_score, metric_name

SHARE = 0.95  # of the best final score: the default target; of an error, 2 − SHARE


class Cost(NamedTuple):
    """When one method first reached the target, the mean over the seeds that did."""

    label: str
    rounds: float
    bytes: float
    seeds_there: int
    seeds: int


class CostToTarget(NamedTuple):
    """What it cost each method to reach a score."""

    metric: str
    target: float
    share_of_best: float | None  # how the target follows from the best final score; None: given
    reached: list[Cost]
    never: list[str]  # methods that no seed took to the target


def cost_to_target(
    methods: Methods, comparison: Comparison, target: float | None
) -> CostToTarget | None:
    """Measure what a target cost each method; None where no method has a score.

    target: None stands for 95 % of the best final accuracy, or 105 % of the least error.
    """
    if not comparison.scores:
        return None
    share = None
    if target is None:
        share = SHARE
        if not comparison.higher_is_better:
            share = 2 - SHARE
        best = comparison.best_of(list(comparison.scores))
        target = share * comparison.scores[best]
    reached = []
    never = []
    for label, runs in methods.items():
        hits = [first_hit(run, comparison.metric, target) for run in runs]
        there = [hit for hit in hits if hit is not None]
        if not there:
            never.append(label)
            continue
        rounds = mean(round for round, _ in there)
        spent = mean(sent for _, sent in there)
        reached.append(Cost(label, rounds, spent, len(there), len(runs)))
    return CostToTarget(comparison.metric, target, share, reached, never)


def first_hit(run: Source, metric: str, target: float) -> tuple[int, float] | None:
    """Return (round, bytes sent so far) of the first evaluation at the target or better."""
    for round, sent, score in zip(*evaluations(run, metric)):
        is_there = score <= target
        if METRICS[metric].higher_is_better:
            is_there = score >= target
        if is_there:
            return round, sent
    return None


def cost_table(cost: CostToTarget) -> TextTable:
    """Lay out one row for each method that reached the target."""
    rows = []
    for method in cost.reached:
        rounds = f"{method.rounds:.3g}"
        if method.seeds_there < method.seeds:
            rounds += f" ({method.seeds_there} of {method.seeds} seeds)"
        rows.append([method.label, rounds, format_bytes(method.bytes)])
    return TextTable(["method", "rounds", "bytes sent"], rows)


def describe_cost(cost: CostToTarget) -> str:
    """Say which target the table is about."""
    name = metric_name(cost.metric)
    why = ""
    if cost.share_of_best is not None:
        why = f", {100 * cost.share_of_best:.0f} % of the best final {name}"
    means = ""
    if any(method.seeds > 1 for method in cost.reached):
        means = ", means are over seeds"
    return (
        f"When each method was first measured at {name} {format_score(cost.target, cost.metric)} "
        f"or better{why}; round 0 is the start{means}."
    )
