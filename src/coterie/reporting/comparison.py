"""Methods side by side: their final scores, the best, and who is too near to tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import NamedTuple

from coterie.metrics import HIGHER_IS_BETTER, Row
from coterie.reporting.source import Source
from coterie.reporting.text import format_score, join_names, metric_name

Methods = Mapping[str, list[Source]]  # by label: the runs of a method, the lowest seed first


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
    if len(values) < 2:
        return None
    return stdev(values)


@dataclass(frozen=True)
class Comparison:
    """The final scores of methods that ran on the same data."""

    metric: str  # "accuracy" or "mse"
    runs: Mapping[str, Sequence[Row]]  # by method: final scores and total costs, a row per seed
    test_rows: int | None  # of all clients together; None: unknown

    @property
    def higher_is_better(self) -> bool:
        return HIGHER_IS_BETTER[self.metric]

    @property
    def seeds(self) -> int:
        """The most seeds that any method ran with."""
        return max(map(len, self.runs.values()))

    @property
    def scores(self) -> dict[str, float]:
        """By method, the mean over its seeds; methods without a score are left out."""
        scores = {label: average(runs, self.metric) for label, runs in self.runs.items()}
        return {label: score for label, score in scores.items() if score is not None}

    def spread_over_seeds(self, label: str) -> float | None:
        """Return a method's standard deviation over its seeds; None with one seed."""
        if len(self.runs[label]) == 1:
            return None
        return spread(self.runs[label], self.metric) or 0.0

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

    @property
    def best(self) -> list[str]:
        """The best method and those level with it.

        Level means within one standard deviation over seeds, or equal to three digits.
        """
        scores = self.scores
        if not scores:
            return []
        top = self.best_of(list(scores))

        def is_level(label: str) -> bool:
            if f"{scores[label]:.3g}" == f"{scores[top]:.3g}":
                return True
            margin = self.spread_over_seeds(top)
            if margin is None:  # a single run is judged by the spread of the other method
                margin = self.spread_over_seeds(label) or 0.0
            return abs(scores[label] - scores[top]) <= margin

        return [label for label in scores if is_level(label)]


def compare(methods: Methods, test_rows: int | None) -> Comparison:
    """Set the final scores of methods side by side."""
    first = next(iter(methods.values()))[0]
    runs = {label: [run.facts for run in same] for label, same in methods.items()}
    return Comparison(first.metric, runs, test_rows)


def compare_rows(runs: Sequence[Row]) -> Comparison:
    """Set runs side by side that are given as flat rows, by the name of their method."""
    methods: dict[str, list[Row]] = {}
    for run in runs:
        methods.setdefault(run["method"], []).append(run)
    metric = "accuracy"
    if runs[0].get("kind") == "regression":
        metric = "mse"
    return Comparison(metric, methods, test_rows=None)


# ------------------------------------------------------------------------------ the best
class Verdict(NamedTuple):
    """Which methods are best, and which are too close to tell apart from them."""

    metric: str
    best: list[str]
    score: float  # of the first of `best`
    is_only: bool  # there is one method, and nothing to compare it with
    margin: float | None  # differences below it may be chance; None: not known
    near: list[str]  # methods that are not best, but nearer than the margin
    test_rows: int | None


def chance_margin(accuracy: float, test_rows: int | None) -> float | None:
    """Return two standard errors of a difference between two accuracies of one seed."""
    if not test_rows:
        return None
    share = (accuracy * test_rows + 2) / (test_rows + 4)  # so that 100 % is not taken for certain
    return float(2 * (2 * share * (1 - share) / test_rows) ** 0.5)


def judge(comparison: Comparison) -> Verdict | None:
    """Name the best methods; None where no method has a score."""
    best = comparison.best
    if not best:
        return None
    score = comparison.scores[best[0]]
    is_only = len(comparison.runs) == 1
    margin = None
    near: list[str] = []
    if comparison.metric == "accuracy" and comparison.seeds == 1 and not is_only:
        margin = chance_margin(score, comparison.test_rows)
    if margin is not None:
        others = [label for label in comparison.runs if label not in best]
        near = [other for other in others if score - comparison.scores.get(other, 0.0) < margin]
    return Verdict(
        metric=comparison.metric,
        best=best,
        score=score,
        is_only=is_only,
        margin=margin,
        near=near,
        test_rows=comparison.test_rows,
    )


def describe_near(verdict: Verdict) -> str:
    """Name the methods that are too near to the best to tell them apart."""
    verb = "are"
    if len(verdict.near) == 1:
        verb = "is"
    best = "them"
    if len(verdict.best) == 1:
        best = "it"
    return f"{join_names(verdict.near)} {verb} too near to tell apart from {best}"


def describe_verdict(verdict: Verdict) -> str:
    """Say which method is best, and which others may be as good."""
    score = f"a test {metric_name(verdict.metric)} of"
    number = format_score(verdict.score, verdict.metric)
    if verdict.is_only:
        return f"{verdict.best[0]} reaches {score} {number}."
    sentence = f"{verdict.best[0]} scores best, with {score} {number}"
    if len(verdict.best) > 1:
        sentence = f"{join_names(verdict.best)} are level, with {score} about {number}"
    if verdict.margin is None:
        return f"{sentence}."
    if verdict.near:
        sentence = f"{sentence}; {describe_near(verdict)}"
    return (
        f"{sentence}. On {verdict.test_rows:,} test rows and one seed, differences below about "
        f"{verdict.margin:.3f} may be chance (two standard errors)."
    )
