"""How evenly methods serve groups and clients, judged by those who are served worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coterie.metrics import METRICS, score_clients
from coterie.reporting.comparison import Comparison
from coterie.reporting.membership import group_means
from coterie.reporting.portrait import Portrait
from coterie.reporting.rows import FEW, count_test_rows
from coterie.reporting.text import NOTHING, TextTable, format_score, join_names, metric_name


class Grouping(NamedTuple):
    """The groups by which all methods are judged."""

    groups: np.ndarray  # int64 [N]; −1: in none
    whose: str  # "the true ones"
    word: str  # "true group"
    fingerprint: str  # of the data whose clients these are


class GroupScore(NamedTuple):
    number: int
    score: float  # the mean over its clients


class Served(NamedTuple):
    """How one method serves groups and clients."""

    label: str
    best: GroupScore | None  # None, as `worst`: there are no groups to compare
    worst: GroupScore | None
    worst_clients: float  # the mean over the tenth of the clients that do worst
    std: float  # over clients
    few_rows: bool  # some of the worst clients have fewer than FEW test rows

    @property
    def gap(self) -> float:
        """Between the best and the worst group; NaN without groups."""
        if self.best is None or self.worst is None:
            return np.nan
        return abs(self.best.score - self.worst.score)


class Fairness(NamedTuple):
    """How methods compare in whom they serve worst."""

    metric: str
    by: Grouping | None  # None: no groups are known
    served: list[Served]
    leaders: list[str]  # methods whose worst group does best, as far as the table shows
    seeds: int  # the most that any method has; the lowest is shown

    @property
    def grouped(self) -> list[Served]:
        """The methods that were judged by groups."""
        return [s for s in self.served if s.worst is not None]


def choose_grouping(ranking: Sequence[str], portraits: Mapping[str, Portrait]) -> Grouping | None:
    """Choose the true groups where they are known, else those of the best method with any.

    ranking: the methods, the best first.
    """
    ranked = [(label, portraits[label]) for label in ranking if label in portraits]
    for _, portrait in ranked:
        if portrait.truth is not None:
            return Grouping(portrait.truth, "the true ones", "true group", portrait.fingerprint)
    for label, portrait in ranked:
        if portrait.groups is not None and portrait.groups.max() > 0:
            whose = f"those that {label} found"
            return Grouping(portrait.groups, whose, "group", portrait.fingerprint)
    return None


def fairness(
    comparison: Comparison, portraits: Mapping[str, Portrait], by: Grouping | None
) -> Fairness | None:
    """Compare methods by whom they serve worst; None where no method has scores by client."""
    metric = comparison.metric
    served = [
        serve(label, portrait, metric, by)
        for label, portrait in portraits.items()
        if metric in portrait.per_client
    ]
    if not served:
        return None
    result = Fairness(metric, by, served, [], comparison.seeds)
    return result._replace(leaders=find_leaders(result))


def serve(label: str, portrait: Portrait, metric: str, by: Grouping | None) -> Served:
    """Measure one method; groups count only where they are of the same data."""
    high = METRICS[metric].higher_is_better
    values = portrait.per_client[metric]
    over_clients = score_clients(values, portrait.per_client["rows"], high)
    means: dict[int, float] = {}
    if by is not None and by.fingerprint == portrait.fingerprint:
        means = group_means(values, by.groups)
    best = None
    worst = None
    if len(means) > 1:
        ordered = sorted(means.items(), key=lambda item: item[1], reverse=high)
        best = GroupScore(*ordered[0])
        worst = GroupScore(*ordered[-1])
    return Served(
        label=label,
        best=best,
        worst=worst,
        worst_clients=over_clients.worst_decile,
        std=over_clients.std,
        few_rows=has_few_rows(portrait, metric),
    )


def has_few_rows(portrait: Portrait, metric: str) -> bool:
    """Tell whether clients with few test rows are among the tenth that does worst."""
    rows = count_test_rows(portrait)
    if rows is None:
        return False
    goodness = portrait.per_client[metric]
    if not METRICS[metric].higher_is_better:
        goodness = -goodness
    worst_first = np.argsort(np.where(np.isnan(goodness), np.inf, goodness), kind="stable")
    tenth = worst_first[: max(1, len(goodness) // 10)]
    return bool((rows[tenth] < FEW).any())


def worst_scores(result: Fairness) -> dict[str, float]:
    """Return the score of the worst group under each method that was judged by groups."""
    return {s.label: s.worst.score for s in result.served if s.worst is not None}


def find_leaders(result: Fairness) -> list[str]:
    """Return the methods whose worst group does best; none where there is nothing to compare."""
    worst = worst_scores(result)
    if len(worst) < 2:
        return []
    top = min(worst.values())
    if METRICS[result.metric].higher_is_better:
        top = max(worst.values())
    shown = format_score(top, result.metric)
    return [label for label, score in worst.items() if format_score(score, result.metric) == shown]


# ------------------------------------------------------------------------------ as text
def fairness_table(result: Fairness) -> TextTable:
    """Lay out one row per method; columns about groups only where groups are known."""
    head = ["method", "worst 10 % of clients", "std over clients"]
    if result.grouped:
        head[1:1] = ["worst group"]
        head[3:3] = ["best group", "gap between groups"]
    rows = []
    for served in result.served:
        clients = format_score(served.worst_clients, result.metric)
        std = format_score(served.std, result.metric)
        if not result.grouped:
            rows.append([served.label, clients, std])
            continue
        worst = format_group_score(served.worst, result)
        best = format_group_score(served.best, result)
        gap = format_score(served.gap, result.metric)
        rows.append([served.label, worst, clients, best, gap, std])
    marked = tuple(i for i, s in enumerate(result.served) if s.label in result.leaders)
    return TextTable(head, rows, marked)


def format_group_score(group: GroupScore | None, result: Fairness) -> str:
    """Write a group's score with its number, "0.800 (group 0)"."""
    if group is None or result.by is None:
        return NOTHING
    return f"{format_score(group.score, result.metric)} ({result.by.word} {group.number})"


def describe_fairness(result: Fairness) -> str:
    """Say how to read the table."""
    sentences = [f"Who is served worst: test {metric_name(result.metric)}, the mean over clients."]
    if result.grouped and result.by is not None:
        sentences.append(f"Groups are {result.by.whose}, the same for every method.")
        sentences.append(
            "Judge by the worst group and the worst clients: a small gap alone may mean that all "
            "do equally badly."
        )
    if result.seeds > 1:
        sentences.append("All from the lowest seed of each method.")
    return " ".join(sentences)


def describe_worst_groups(result: Fairness) -> list[str]:
    """Say where the worst group does best, and warn of a small gap that comes from a low level."""
    worst = worst_scores(result)
    leaders = result.leaders
    if not leaders or len(leaders) == len(worst):
        return []
    last = max(worst, key=worst.__getitem__)
    if METRICS[result.metric].higher_is_better:
        last = min(worst, key=worst.__getitem__)
    best_score = format_score(worst[leaders[0]], result.metric)
    last_score = format_score(worst[last], result.metric)
    sentences = [
        f"The worst-served group gets {best_score} with {join_names(leaders)}, and {last_score} "
        f"with {last}."
    ]
    even = min(result.grouped, key=lambda s: s.gap)
    if even.label not in leaders:
        sentences.append(
            f"{even.label} has the smallest gap ({format_score(even.gap, result.metric)}), but its "
            f"worst group gets {format_score(worst[even.label], result.metric)}: it is even, not "
            "better."
        )
    return sentences


def describe_tiny_clients(result: Fairness) -> str:
    """Warn where clients with few test rows are among the worst; "" where there are none."""
    labels = [served.label for served in result.served if served.few_rows]
    if not labels:
        return ""
    return (
        f"Among the worst 10 % under {join_names(labels)} are clients with fewer than {FEW} test "
        "rows."
    )
