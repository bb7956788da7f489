"""Fairness: how methods serve the worst-served groups and clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coterie.metrics import METRICS, score_clients
from coterie.reporting.client_statistics import ClientStatistics
from coterie.reporting.comparison import Comparison
from coterie.reporting.group_membership import group_means
from coterie.reporting.predictions import FEW_ROWS
from coterie.reporting.text import NOTHING, TextTable, format_score, join_names


class Grouping(NamedTuple):
    """The reference groups, the same for all methods."""

    groups: np.ndarray  # int64 [N]; −1: none
    whose: str  # "the true ones" or "those found by ifca"
    word: str  # "true group" or "group"
    fingerprint: str  # of the data of these clients


class MethodFairness(NamedTuple):
    """How one method serves groups and clients."""

    label: str
    worst_group: int | None  # None: there are no groups to compare, as for `best_group`
    worst_score: float  # mean over its clients; NaN without groups
    best_group: int | None
    best_score: float
    worst_clients: float  # mean over the worst 10 % of evaluated clients
    std: float  # over clients
    has_few_rows: bool  # some of the worst clients have fewer than FEW_ROWS test rows

    @property
    def gap(self) -> float:
        """Difference between the best and the worst group; NaN without groups."""
        return abs(self.best_score - self.worst_score)


class Fairness(NamedTuple):
    """Fairness of all methods."""

    metric: str
    reference: Grouping | None  # None: no groups are known
    methods: list[MethodFairness]
    seeds: int  # largest number of seeds of any method; the lowest seed is shown

    @property
    def grouped(self) -> list[MethodFairness]:
        """The methods with scores by group."""
        return [method for method in self.methods if method.worst_group is not None]

    @property
    def leaders(self) -> list[str]:
        """The methods whose worst group has the best score, as displayed."""
        if len(self.grouped) < 2:
            return []
        best = max if METRICS[self.metric].higher_is_better else min
        top = format_score(best(m.worst_score for m in self.grouped), self.metric)
        return [m.label for m in self.grouped if format_score(m.worst_score, self.metric) == top]


def choose_grouping(
    ranking: Sequence[str], statistics: Mapping[str, ClientStatistics]
) -> Grouping | None:
    """Choose the true groups if known, else those of the best method with several groups.

    Args:
        ranking: Methods, best first.
        statistics: Client statistics by method.
    """
    ranked = [(label, statistics[label]) for label in ranking if label in statistics]
    for _, own in ranked:
        if own.truth is not None:
            return Grouping(own.truth, "the true ones", "true group", own.fingerprint)
    for label, own in ranked:
        if own.groups is not None and len(np.unique(own.groups[own.groups >= 0])) > 1:
            return Grouping(own.groups, f"those found by {label}", "group", own.fingerprint)
    return None


def fairness(
    comparison: Comparison, statistics: Mapping[str, ClientStatistics], reference: Grouping | None
) -> Fairness | None:
    """Compare methods by their worst groups and clients.

    Args:
        comparison: The comparison of the methods.
        statistics: Client statistics by method.
        reference: The groups to compare; they count for methods that ran on the same data.

    Returns:
        The fairness of each method; None if no method has scores by client.
    """
    metric = comparison.metric
    high = comparison.higher_is_better
    methods = []
    for label, own in statistics.items():
        if metric not in own.per_client:
            continue
        values = own.per_client[metric]
        over_clients = score_clients(values, own.per_client["rows"], high)
        means: dict[int, float] = {}
        if reference is not None and reference.fingerprint == own.fingerprint:
            means = group_means(values, reference.groups)
        worst: tuple[int | None, float] = (None, np.nan)
        best: tuple[int | None, float] = (None, np.nan)
        if len(means) > 1:
            best, *_, worst = sorted(means.items(), key=lambda item: item[1], reverse=high)
        goodness = values if high else -values
        evaluated = np.flatnonzero(~np.isnan(values))
        worst_first = evaluated[np.argsort(goodness[evaluated], kind="stable")]
        tenth = worst_first[: max(1, len(evaluated) // 10)]  # as in `score_clients`
        measured = MethodFairness(
            label=label,
            worst_group=worst[0],
            worst_score=worst[1],
            best_group=best[0],
            best_score=best[1],
            worst_clients=over_clients.worst_decile,
            std=over_clients.std,
            has_few_rows=bool((own.test_rows[tenth] < FEW_ROWS).any()),
        )
        methods.append(measured)
    if not methods:
        return None
    return Fairness(metric, reference, methods, comparison.seeds)


# ------------------------------------------------------------------------------ as text
def fairness_table(result: Fairness) -> TextTable:
    """Return one row per method; columns about groups only if groups are known."""
    head = ["method", "worst 10 % of clients", "std over clients"]
    if result.grouped:
        head = ["method", "worst group", head[1], "best group", "gap between groups", head[2]]

    def group(number: int | None, score: float) -> str:
        if number is None or result.reference is None:
            return NOTHING
        return f"{format_score(score, result.metric)} ({result.reference.word} {number})"

    rows = []
    for method in result.methods:
        clients = format_score(method.worst_clients, result.metric)
        std = format_score(method.std, result.metric)
        cells = [method.label, clients, std]
        if result.grouped:
            worst = group(method.worst_group, method.worst_score)
            best = group(method.best_group, method.best_score)
            gap = format_score(method.gap, result.metric)
            cells = [method.label, worst, clients, best, gap, std]
        rows.append(cells)
    leaders = result.leaders
    marked = tuple(i for i, method in enumerate(result.methods) if method.label in leaders)
    return TextTable(head, rows, marked)


def describe_fairness(result: Fairness) -> str:
    """Explain the table."""
    sentences = [f"Test {METRICS[result.metric].label} of the worst-served groups and clients."]
    if result.grouped and result.reference is not None:
        sentences.append(f"Groups are {result.reference.whose}, the same for every method.")
        sentences.append(
            "Compare the worst group and the worst clients: a small gap alone may mean that all "
            "scores are low."
        )
    if result.seeds > 1:
        sentences.append("Lowest seed of each method.")
    return " ".join(sentences)


def describe_worst_groups(result: Fairness) -> list[str]:
    """Name the method whose worst group scores best; warn of a small gap at a low level."""
    worst = {method.label: method.worst_score for method in result.grouped}
    leaders = result.leaders
    if not leaders or len(leaders) == len(worst):
        return []
    lowest = min if METRICS[result.metric].higher_is_better else max
    last = lowest(worst, key=worst.__getitem__)
    best_score = format_score(worst[leaders[0]], result.metric)
    last_score = format_score(worst[last], result.metric)
    sentences = [
        f"The worst-served group has {best_score} with {join_names(leaders)}, and {last_score} "
        f"with {last}."
    ]
    even = min(result.grouped, key=lambda method: method.gap)
    if even.label not in leaders:
        sentences.append(
            f"{even.label} has the smallest gap ({format_score(even.gap, result.metric)}), but its "
            f"worst group has only {format_score(worst[even.label], result.metric)}."
        )
    return sentences


def describe_few_rows_of_worst(result: Fairness) -> str:
    """Warn if clients with few test rows are among the worst; "" if there are none."""
    labels = [method.label for method in result.methods if method.has_few_rows]
    if not labels:
        return ""
    return (
        f"The worst 10 % under {join_names(labels)} include clients with fewer than {FEW_ROWS} "
        "test rows."
    )
