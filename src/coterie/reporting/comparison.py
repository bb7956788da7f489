"""Methods side by side: their final scores, the best, and how sure the differences are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, stdev

import numpy as np

from coterie.core.errors import CoterieError
from coterie.metrics import METRICS, Row, main_metric
from coterie.reporting.intervals import BySeed, Difference, SiteScores, paired_difference
from coterie.reporting.source import Source
from coterie.runs.folder import RunFolder
from coterie.runs.run import Run, to_arrays

Methods = Mapping[str, list[Source]]  # by label: the runs of a method, the lowest seed first
ABSURD = 10  # times worse than a constant: an R² below minus this


def average(runs: Sequence[Row], name: str) -> float | None:
    """Average a value over runs; None where no run has it."""
    values = [run[name] for run in runs if run.get(name) is not None]
    if not values:
        return None
    return mean(values)


def spread(runs: Sequence[Row], name: str) -> float | None:
    """Return the standard deviation of a value over seeds; with one seed, over its clients."""
    if len(runs) == 1:
        return average(runs, f"{name}_std")
    values = [run[name] for run in runs if run.get(name) is not None]
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    return stdev(values)


def has_diverged(run: Row) -> bool:
    """Tell whether a run's test error or loss is not a finite number, or beyond all reason.

    Infinite numbers are None in rows that were read from a folder.
    """
    for name in (main_metric("regression"), main_metric("classification"), "loss"):
        if name in run and (run[name] is None or not math.isfinite(run[name])):
            return True
    explained = run.get("r2")
    return explained is not None and explained < -ABSURD


def any_diverged(runs: Sequence[Row]) -> bool:
    """Tell whether any of these runs diverged, for the exit status of a command."""
    return any(map(has_diverged, runs))


@dataclass(frozen=True)
class Comparison:
    """The final scores of methods that ran on the same data."""

    metric: str  # "accuracy" or "mse"
    runs: Mapping[str, Sequence[Row]]  # by method: final scores and total costs, a row per seed
    by_site: Mapping[str, BySeed] = field(default_factory=dict)  # by method: `metric` of each site

    @property
    def higher_is_better(self) -> bool:
        return METRICS[self.metric].higher_is_better

    @property
    def seeds(self) -> int:
        """The most seeds that any method ran with."""
        return max(map(len, self.runs.values()))

    @cached_property
    def diverged(self) -> dict[str, int]:
        """By method, the number of its seeds that diverged; methods without any are left out."""
        counts = {label: sum(map(has_diverged, runs)) for label, runs in self.runs.items()}
        return {label: count for label, count in counts.items() if count}

    @cached_property
    def scores(self) -> dict[str, float]:
        """By method, the mean over its seeds; methods that diverged or have none are left out."""
        scores = {}
        for label, runs in self.runs.items():
            score = average(runs, self.metric)
            if score is not None and label not in self.diverged:
                scores[label] = score
        return scores

    def best_of(self, labels: Sequence[str]) -> str:
        """Return which of these methods has the best score."""
        return self.sort(labels)[0]

    def sort(self, labels: Sequence[str]) -> list[str]:
        """Sort methods that have a score, the best first."""
        return sorted(labels, key=self.scores.__getitem__, reverse=self.higher_is_better)

    @property
    def ranking(self) -> list[str]:
        """All methods, the best first; those without a score come last."""
        scored = self.sort(list(self.scores))
        return [*scored, *(label for label in self.runs if label not in scored)]

    def lead(self, one: str, other: str) -> Difference | None:
        """By how much one method is better than another; None where no scores by site are known."""
        difference = paired_difference(self.by_site.get(one, {}), self.by_site.get(other, {}))
        if difference is None or self.higher_is_better:
            return difference
        return difference.negated()

    @cached_property
    def leads_of_best(self) -> dict[str, Difference | None]:
        """By every other method with a score, the lead of the best over it; the nearest first."""
        ranked = self.sort(list(self.scores))
        return {other: self.lead(ranked[0], other) for other in ranked[1:]}

    @property
    def best(self) -> list[str]:
        """The method with the best score, then those level with it.

        Level means that the interval of the difference holds 0. Where no interval is known, only
        scores that are equal to three digits are level.
        """
        if not self.scores:
            return []
        top = self.best_of(list(self.scores))
        return [top, *(label for label in self.leads_of_best if self._is_level(label, top))]

    def _is_level(self, label: str, top: str) -> bool:
        if f"{self.scores[label]:.3g}" == f"{self.scores[top]:.3g}":
            return True
        lead = self.leads_of_best[label]
        return lead is not None and lead.has_interval and not lead.is_above


# ------------------------------------------------------------------------------ from runs
def compare(methods: Methods) -> Comparison:
    """Set the final scores of methods side by side."""
    first = next(iter(methods.values()))[0]
    runs = {label: [run.facts for run in same] for label, same in methods.items()}
    by_site: dict[str, dict[int, SiteScores]] = {}
    for label, same in methods.items():
        for run in same:
            scores = site_scores(run.names, scores_by_client(run), first.metric)
            if scores is not None:
                by_site.setdefault(label, {})[run.seed] = scores
    return Comparison(first.metric, runs, by_site)


def scores_by_client(run: Source) -> Mapping[str, np.ndarray]:
    """Each metric by client [N] at a run's last evaluation; empty where that is not known."""
    if isinstance(run.at, Run):
        return run.at.client_scores
    try:
        folder, _ = RunFolder.open(run.at)
        saved = folder.latest({}, "scores")
    except (CoterieError, OSError, TypeError):  # a damaged run is named elsewhere on the page
        return {}
    if saved is None:
        return {}
    return to_arrays(saved.trees["scores"])


def site_scores(
    names: Sequence[str], scores: Mapping[str, np.ndarray], metric: str
) -> SiteScores | None:
    """The scores by site that a comparison needs; None where they were not kept."""
    if metric not in scores or "rows" not in scores:
        return None
    simplest = scores_of_constant(scores, metric)
    return SiteScores(tuple(names), scores[metric], scores["rows"], simplest)


def scores_of_constant(scores: Mapping[str, np.ndarray], metric: str) -> np.ndarray | None:
    """What the best constant guess scores at each site, [sites]; None where that is unknown.

    NaN where nothing could be better: all test rows are of one class, or have the same target.
    """
    score_of_constant = METRICS[metric].score_of_constant
    if score_of_constant is None:
        return None
    try:
        return score_of_constant(dict(scores))
    except KeyError:  # an older run kept fewer scores
        return None


def compare_rows(runs: Sequence[Row]) -> Comparison:
    """Set runs side by side that are given as flat rows, by the name of their method.

    A row may have its scores by site, under "by_site".
    """
    methods: dict[str, list[Row]] = {}
    by_site: dict[str, dict[int, SiteScores]] = {}
    for run in runs:
        methods.setdefault(run["method"], []).append(run)
        if run.get("by_site") is not None:
            by_site.setdefault(run["method"], {})[run["seed"]] = run["by_site"]
    metric = main_metric(runs[0].get("kind", "classification"))
    return Comparison(metric, methods, by_site)
