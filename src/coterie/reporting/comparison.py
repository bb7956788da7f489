"""Comparison of methods: final scores, ranking, and the table that `coterie compare` prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np

from coterie.core.errors import CoterieError
from coterie.metrics import METRICS, Row, find_comparison_metric
from coterie.metrics.scores import find_main_metric
from coterie.reporting.intervals import (
    BySeed,
    Pair,
    ScoreDifference,
    ScoresBySite,
    all_differences,
)
from coterie.reporting.run_records import Methods, RunRecord, add_log_loss
from coterie.reporting.text import (
    NOTHING,
    TextTable,
    capitalise,
    format_bytes,
    join_names,
)
from coterie.runs.folder import RunFolder
from coterie.runs.references import read_references
from coterie.runs.run import Run, to_arrays

MIN_R2 = -10  # runs below have diverged
UNEVEN = 0.02  # show balanced accuracy if it differs from accuracy by more than this
MOST_SIZES = 6  # group sizes in a cell


def has_diverged(run: Row) -> bool:
    """Return whether a run's score or loss is not finite, or its R² is below MIN_R2.

    Args:
        run: Final scores. None: not finite (in rows read from a folder), or training diverged.
    """
    for name in ("mse", "accuracy", "loss"):
        if name in run and (run[name] is None or not math.isfinite(run[name])):
            return True
    r2 = run.get("r2")
    return r2 is not None and r2 < MIN_R2


def average(runs: Sequence[Row], name: str) -> float | None:
    """Average a value over runs; None if no run has it."""
    values = [run[name] for run in runs if run.get(name) is not None]
    if not values:
        return None
    return mean(values)


def spread(runs: Sequence[Row], name: str) -> float | None:
    """Return the standard deviation of a score over seeds; for a single seed, over clients."""
    if len(runs) == 1:
        return average(runs, f"{name}_std")
    values = [run[name] for run in runs if run.get(name) is not None]
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    return stdev(values)


class Lead(NamedTuple):
    """By how much one method is better than another; negative: worse."""

    one: str
    other: str
    metric: str
    other_score: float
    difference: ScoreDifference | None  # None: no scores by site

    @property
    def has_interval(self) -> bool:
        """Whether there are enough scores by site for an interval."""
        return self.difference is not None and self.difference.has_interval

    @property
    def is_better(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.difference is not None and self.difference.is_above

    @property
    def is_worse(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.difference is not None and self.difference.is_below

    @property
    def is_undecided(self) -> bool:
        """Whether the interval contains 0."""
        return self.has_interval and not self.is_better and not self.is_worse


@dataclass(frozen=True)
class Comparison:
    """The final scores of methods on the same data."""

    metric: str  # that decides: "log_loss" or "mse"; "accuracy" if the runs stored no loss
    runs: Mapping[str, Sequence[Row]]  # by method: final scores and total cost, one row per seed
    by_site: Mapping[str, BySeed] = field(default_factory=dict)  # by method: `metric` per site
    # by name: models with all rows in one place, which are shown, but not ranked
    references: Mapping[str, Sequence[Row]] = field(default_factory=dict)

    @property
    def higher_is_better(self) -> bool:
        return METRICS[self.metric].higher_is_better

    @property
    def seeds(self) -> int:
        """The largest number of seeds of any method."""
        return max(map(len, self.runs.values()))

    @cached_property
    def diverged(self) -> dict[str, int]:
        """By method, the number of its seeds that diverged; only methods with at least one."""
        counts = {label: sum(map(has_diverged, runs)) for label, runs in self.runs.items()}
        return {label: count for label, count in counts.items() if count}

    @cached_property
    def scores(self) -> dict[str, float]:
        """By method, the mean over seeds; methods that diverged or have no score are left out."""
        scores = {}
        for label, runs in self.runs.items():
            score = average(runs, self.metric)
            if score is not None and label not in self.diverged:
                scores[label] = score
        return scores

    def sort(self, labels: Sequence[str]) -> list[str]:
        """Sort methods with a score, best first."""
        return sorted(labels, key=self.scores.__getitem__, reverse=self.higher_is_better)

    @property
    def ranking(self) -> list[str]:
        """All methods, best first; those without a score come last."""
        scored = self.sort(list(self.scores))
        return [*scored, *(label for label in self.runs if label not in scored)]

    def lead(self, one: str, other: str) -> Lead:
        """Return by how much one method is better than another; both need a score."""
        difference = self.differences.get((one, other))
        if difference is not None and not self.higher_is_better:
            # an error is at least 0: no lead is larger than the other method's whole error
            difference = difference.negate().clip(self.scores[other])
        return Lead(one, other, self.metric, self.scores[other], difference)

    @cached_property
    def differences(self) -> dict[Pair, ScoreDifference]:
        """The differences of all pairs of methods with a score."""
        return all_differences({label: self.by_site.get(label, {}) for label in self.scores})

    @cached_property
    def leads_of_best(self) -> list[Lead]:
        """The lead of the best method over each other one with a score, the closest first."""
        ranked = self.sort(list(self.scores))
        return [self.lead(ranked[0], other) for other in ranked[1:]]

    @property
    def best(self) -> list[str]:
        """The method with the best score, then those that are level with it.

        A method is level if its difference from no other method has an interval below 0, or if its
        score is that of the best to three digits. Without intervals, only the latter.
        """
        ranked = self.sort(list(self.scores))
        if not ranked:
            return []
        shown = f"{self.scores[ranked[0]]:.3g}"
        best = ranked[:1]
        for lead in self.leads_of_best:
            leads = [self.lead(lead.other, another) for another in ranked if another != lead.other]
            is_level = lead.has_interval and not any(other.is_worse for other in leads)
            if is_level or f"{lead.other_score:.3g}" == shown:
                best.append(lead.other)
        return best


# ------------------------------------------------------------------------------ from runs
def compare(methods: Methods) -> Comparison:
    """Compare the final scores of runs."""
    metric = next(iter(methods.values()))[0].metric
    runs = {label: [run.summary for run in same] for label, same in methods.items()}
    by_site: dict[str, dict[int, ScoresBySite]] = {}
    for label, same in methods.items():
        for run in same:
            scores = site_scores(run.training_names, load_client_scores(run), metric)
            if scores is not None:
                by_site.setdefault(label, {})[run.seed] = scores
    return Comparison(metric, runs, by_site, group_references(find_references(methods)))


def find_references(methods: Methods) -> list[Row]:
    """Return the references of a comparison in folders, for the seeds of its runs."""
    every = [run for same in methods.values() for run in same]
    seeds = {run.seed for run in every}
    folders = [run.home.parent for run in every if run.home is not None]
    if not folders or set(folders) != {folders[0]}:
        return []  # runs of several commands
    return [row for row in read_references(folders[0]) if row["seed"] in seeds]


def group_references(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each reference, one per seed."""
    names = dict.fromkeys(row["method"] for row in rows)
    return {name: [row for row in rows if row["method"] == name] for name in names}


def compare_rows(runs: Sequence[Row], references: Sequence[Row] = ()) -> Comparison:
    """Compare runs given as flat rows.

    Args:
        runs: Rows with "method", "seed", scores and costs. "by_site" holds the scores by site and
            may be missing.
        references: Rows of `coterie.runs.references`.
    """
    methods: dict[str, list[Row]] = {}
    by_site: dict[str, dict[int, ScoresBySite]] = {}
    for run in runs:
        methods.setdefault(run["method"], []).append(run)
        if run.get("by_site") is not None:
            by_site.setdefault(run["method"], {})[run["seed"]] = run["by_site"]
    metric = find_comparison_metric(name for run in runs for name in run) or "accuracy"
    return Comparison(metric, methods, by_site, group_references(references))


def load_client_scores(run: RunRecord) -> Mapping[str, np.ndarray]:
    """Load each metric by client [N] at a run's last evaluation; empty if not stored."""
    if isinstance(run.origin, Run):
        return add_log_loss(run.origin.client_scores)
    try:
        folder, _ = RunFolder.open(run.origin)
        saved = folder.latest({}, "scores")  # no types: scores contain no NamedTuples
    except (CoterieError, OSError, TypeError):  # damaged: `report` warns of it
        return {}
    if saved is None:
        return {}
    return add_log_loss(to_arrays(saved.trees["scores"]))


def site_scores(
    names: Sequence[str], scores: Mapping[str, np.ndarray], metric: str
) -> ScoresBySite | None:
    """Return the scores by site that a comparison needs; None if they were not stored."""
    if metric not in scores or "rows" not in scores:
        return None
    constant = None
    score_of_constant = METRICS[metric].score_of_constant
    if score_of_constant is not None:
        with suppress(KeyError):  # runs of old versions stored fewer scores
            constant = score_of_constant(dict(scores))
    return ScoresBySite(tuple(names), scores[metric], scores["rows"], constant)


# ------------------------------------------------------------------------------ the table
class ComparisonColumn(NamedTuple):
    """A column of the comparison table."""

    title: str
    cell: Callable[[Sequence[Row]], str]  # from a method's runs; "" without a value


def comparison_table(comparison: Comparison) -> TextTable:
    """Return one row per method and reference; columns without any value are left out."""
    runs = comparison.runs
    columns = [c for c in all_columns(comparison) if any(map(c.cell, runs.values()))]
    best = comparison.best if len(runs) > 1 else []
    rows = []
    for label, same in runs.items():
        cells = [column.cell(same) or NOTHING for column in columns]
        if label in best:
            cells[0] += " *"
        rows.append([label, *cells])
    for name, same in comparison.references.items():
        rows.append([f"{name} †", *(column.cell(same) or NOTHING for column in columns)])
    marked = tuple(i for i, label in enumerate(runs) if label in best)
    return TextTable(["method", *(column.title for column in columns)], rows, marked)


def all_columns(comparison: Comparison) -> list[ComparisonColumn]:
    """Return all columns, from the main score to the cost."""
    metric = METRICS[comparison.metric]
    ari = METRICS["ari"]
    every_run = [run for runs in comparison.runs.values() for run in runs]
    others = [m for m in METRICS.values() if m.in_table and any(m.name in r for r in every_run)]
    readable = METRICS[find_main_metric(every_run) or metric.name]

    def score(title: str, name: str, form: str = metric.format) -> ComparisonColumn:
        def cell(runs: Sequence[Row]) -> str:
            return "" if any(map(has_diverged, runs)) else format_average(runs, name, form)

        return ComparisonColumn(title, cell)

    over = "seeds" if comparison.seeds > 1 else "clients"
    has_groups = any(sum(size > 0 for size in run.get("sizes") or []) > 1 for run in every_run)
    columns = [
        ComparisonColumn(
            f"{metric.label} ± {over}",
            lambda runs: format_with_spread(runs, comparison, metric.format),
        ),
        score("client mean", f"{metric.name}_mean"),
        score("worst 10 %", f"{metric.name}_worst"),
    ]
    if readable is not metric:
        columns.append(score(readable.label, readable.name, readable.format))
    balanced = [
        abs(run["balanced_accuracy"] - run["accuracy"])
        for runs in comparison.runs.values()
        for run in runs
        if run.get("balanced_accuracy") is not None and run.get("accuracy") is not None
    ]
    if any(difference > UNEVEN for difference in balanced):
        columns.append(score("balanced", "balanced_accuracy"))
    return [
        *columns,
        *(score(other.label, other.name, other.format) for other in others),
        score("unseen", f"unseen_{metric.name}"),
        score(ari.label, ari.name, ari.format),
        *([ComparisonColumn("group sizes", format_group_sizes)] if has_groups else []),
        score("ε", "epsilon", ".3g"),
        ComparisonColumn("traffic", format_traffic),
        ComparisonColumn("seconds", lambda runs: format_average(runs, "seconds", ".1f")),
    ]


def format_average(runs: Sequence[Row], name: str, form: str) -> str:
    """Format the mean over seeds."""
    value = average(runs, name)
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:{form}}"


def format_with_spread(runs: Sequence[Row], comparison: Comparison, form: str) -> str:
    """Format the main score with its standard deviation, or "diverged".

    The heading says whether the deviation is over seeds or clients. A method with a single seed
    among others with several has none.
    """
    diverged = sum(map(has_diverged, runs))
    if diverged == len(runs):
        return "diverged"
    if diverged:
        return f"diverged ({diverged} of {len(runs)} seeds)"
    score = format_average(runs, comparison.metric, form)
    has_several = len(runs) > 1
    if has_several != (comparison.seeds > 1):
        return score
    deviation = spread(runs, comparison.metric)
    if deviation is None or not math.isfinite(deviation):
        return score
    return f"{score} ± {deviation:{form}}"


def format_traffic(runs: Sequence[Row]) -> str:
    """Format the bytes of a run; references send none."""
    if "bytes_up" not in runs[0]:
        return ""
    return format_bytes(mean(run["bytes_down"] + run["bytes_up"] for run in runs))


def format_group_sizes(runs: Sequence[Row]) -> str:
    """Format the group sizes; "vary" if they differ between seeds."""
    sizes = [run["sizes"] for run in runs if "sizes" in run]
    if not sizes:
        return ""
    if len(runs) == 1:
        return list_sizes(sizes[0])
    descending = [sorted(counts, reverse=True) for counts in sizes]
    if any(counts != descending[0] for counts in descending):
        return "vary"
    return list_sizes(descending[0])


def list_sizes(counts: Sequence[int]) -> str:
    """Format the first MOST_SIZES sizes: "12 8 …"."""
    text = " ".join(map(str, counts[:MOST_SIZES]))
    if len(counts) > MOST_SIZES:
        text += " …"
    return text


# ------------------------------------------------------------------------------ as text
def describe_comparison_table(comparison: Comparison) -> str:
    """Explain the columns of the table."""
    runs = next(iter(comparison.runs.values()))
    over = f"the {runs[0].get('evaluated', runs[0]['clients'])} clients"
    if comparison.seeds > 1:
        over = f"{comparison.seeds} seeds, means in the other columns"
    parts = [
        f"{METRICS[comparison.metric].label} over all test rows, ± standard deviation over {over}",
        "worst 10 %: mean over the clients with the worst scores",
    ]
    accuracy = format_average(runs, "commonest", ".3f")
    log_loss = format_average(runs, "constant_log_loss", ".3f")
    if accuracy:
        constant = f"always predicting the most frequent class: accuracy {accuracy}"
        if log_loss:
            constant += f", the shares of the classes: log loss {log_loss}"
        parts.append(constant)
    every_run = [run for same in comparison.runs.values() for run in same]
    if any("epsilon" in run for run in every_run):
        parts.append(
            "ε: the privacy loss of the models, by privacy.jsonl; it does not cover the scores, "
            "which are those of a simulation and not released"
        )
    if len(comparison.runs) > 1 and comparison.best:
        parts.append(
            "* best, or level with it: no interval says that another method is better, or the "
            "scores are equal to three digits"
        )
    if comparison.references:
        parts.append("† needs all rows in one place: for reference, and not ranked")
    sentences = [capitalise("; ".join(parts))]
    if any(lead.has_interval for lead in comparison.leads_of_best):
        pairs = " for all pairs of methods together" if len(comparison.scores) > 2 else ""
        about = f"Intervals hold with 95 % confidence{pairs}"
        if comparison.seeds == 1:
            about += "; they cover other sites like these, but no other seeds: see --seeds"
        sentences.append(about)
    return ". ".join(sentences) + "."


def describe_diverged(comparison: Comparison) -> str:
    """Name the methods that diverged; "" if there are none."""
    if not comparison.diverged:
        return ""
    names = []
    for label, seeds in comparison.diverged.items():
        of = len(comparison.runs[label])
        names.append(label if seeds == of else f"{label} ({seeds} of {of} seeds)")
    reason = "loss or scores are not finite"
    if comparison.metric == "mse":
        reason += f", or R² is below −{-MIN_R2}"
    whose, subject = ("its", "It is") if len(names) == 1 else ("their", "They are")
    return (
        f"{join_names(names)} diverged: {whose} {reason}. {subject} excluded from the ranking and "
        "the figures; try a smaller step size (lr)."
    )
