"""How evenly methods serve groups and clients, judged by those who are served worst."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from coterie.metrics import HIGHER_IS_BETTER, scores
from coterie.reporting.compared import Methods, metric_of, told
from coterie.reporting.html import Html, listed, section, table, tag
from coterie.reporting.portrait import Portrait

FEW = 10  # test rows below which a score is marked


class Grouping(NamedTuple):
    """The groups by which methods are compared."""

    groups: np.ndarray
    whose: str  # "the true ones"
    word: str  # "true group"
    fingerprint: str  # of the data whose clients they are of


class Served(NamedTuple):
    """One method: the means of its best and worst group, by number, and its worst clients."""

    label: str
    best: tuple[int, float] | None
    worst: tuple[int, float] | None
    worst_clients: float
    std: float

    @property
    def gap(self) -> float:
        return abs(self.best[1] - self.worst[1]) if self.best and self.worst else np.nan


def fairness(methods: Methods, portraits: Mapping[str, Portrait], by: Grouping | None) -> Html:
    metric = metric_of(methods)
    high = HIGHER_IS_BETTER[metric]
    found = [
        served(label, p, metric, by) for label, p in portraits.items() if metric in p.per_client
    ]
    if not found:
        return Html("")
    grouped = [s for s in found if s.worst is not None]
    lead = leaders(grouped, metric, high) if len(grouped) > 1 else []
    word = "" if by is None else by.word
    end = lambda part: "–" if part is None else f"{told(part[1], metric)} ({word} {part[0]})"
    cells: dict[str, Callable[[Served], str]] = {
        "worst group": lambda s: end(s.worst),
        "worst 10 % of clients": lambda s: told(s.worst_clients, metric),
        "best group": lambda s: end(s.best),
        "gap between groups": lambda s: "–" if s.worst is None else told(s.gap, metric),
        "std over clients": lambda s: told(s.std, metric),
    }
    head = [title for title in cells if grouped or "group" not in title]
    lines = [[s.label, *(cells[title](s) for title in head)] for s in found]
    how = f"Who is served worst: test {metric.replace('mse', 'MSE')}, the mean over clients."
    if grouped and by is not None:
        how += f" Groups are {by.whose}, the same for every method. Judge by the worst group and the worst clients: a "
        how += "small gap alone may mean that all do equally badly."
    how += (
        " All from the lowest seed of each method." if max(map(len, methods.values())) > 1 else ""
    )
    marked = [i for i, s in enumerate(found) if s.label in lead]
    words = [*compared(grouped, lead, metric, high), tiny(portraits, metric, high)]
    return section(
        "Fairness",
        how,
        table(["method", *head], lines, "numbers", marked),
        *(tag("p", w) for w in words if w),
    )


def served(label: str, p: Portrait, metric: str, by: Grouping | None) -> Served:
    high, values = HIGHER_IS_BETTER[metric], p.per_client[metric]
    s = scores(values, p.per_client["rows"], high)
    means = (
        group_means(values, by.groups) if by is not None and by.fingerprint == p.fingerprint else {}
    )
    ends = sorted(means.items(), key=lambda item: item[1], reverse=high)
    best, worst = (ends[0], ends[-1]) if len(ends) > 1 else (None, None)
    return Served(label, best, worst, s.worst_decile, s.std)


def leaders(found: list[Served], metric: str, high: bool) -> list[str]:
    """The methods whose worst group does best, as far as the table shows."""
    level = {s.label: s.worst[1] for s in found if s.worst is not None}
    top = (max if high else min)(level.values())
    return [label for label, score in level.items() if told(score, metric) == told(top, metric)]


def compared(found: list[Served], lead: list[str], metric: str, high: bool) -> list[str]:
    """Where the worst group does best and worst, and a warning of a small gap that comes from a low level."""
    level = {s.label: s.worst[1] for s in found if s.worst is not None}
    if not lead or len(lead) == len(level):
        return []
    last = (min if high else max)(level, key=level.__getitem__)
    best = f"{told(level[lead[0]], metric)} with {listed(lead)}"
    words = [f"The worst-served group gets {best}, and {told(level[last], metric)} with {last}."]
    even = min(found, key=lambda s: s.gap)
    if even.label not in lead:
        words.append(
            f"{even.label} has the smallest gap ({told(even.gap, metric)}), but its worst group gets "
            f"{told(level[even.label], metric)}: it is even, not better."
        )
    return words


def tiny(portraits: Mapping[str, Portrait], metric: str, high: bool) -> str:
    """A warning where clients of few test rows are among the worst tenth of a method."""
    found = []
    for label, p in portraits.items():
        if metric in p.per_client:
            values = np.where(
                np.isnan(p.per_client[metric]), np.inf if high else -np.inf, p.per_client[metric]
            )
            tenth = np.argsort(values if high else -values, kind="stable")[
                : max(1, len(values) // 10)
            ]
            found += [label] if (p.test_rows[tenth] < FEW).any() else []
    return (
        f"Among the worst 10 % under {listed(found)} are clients with fewer than {FEW} test rows."
        if found
        else ""
    )


def group_means(values: np.ndarray, groups: np.ndarray) -> dict[int, float]:
    known = np.unique(groups[(groups >= 0) & np.isfinite(values)]).tolist()
    return {k: float(np.nanmean(values[groups == k])) for k in known}
