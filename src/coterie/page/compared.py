"""The parts of a page that set methods side by side."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import NamedTuple

import numpy as np

from coterie.cli.table import average, best_of, columns, human, legend
from coterie.metrics import HIGHER_IS_BETTER, Row, scores
from coterie.page.figures import curves, traffic
from coterie.page.html import Html, Page, join, section, table, tag
from coterie.page.portrait import Portrait
from coterie.page.source import Source

SHARE = 0.95  # of the best final score: the default target
Methods = Mapping[str, list[Source]]


class Grouping(NamedTuple):
    """The groups by which methods are compared."""

    groups: np.ndarray
    whose: str  # "the true groups"
    word: str  # "true group"
    fingerprint: str  # of the data whose clients they are of


def facts_of(methods: Methods) -> dict[str, list[Row]]:
    return {label: [run.facts for run in runs] for label, runs in methods.items()}


def metric_of(methods: Methods) -> str:
    return next(iter(methods.values()))[0].metric


def told(value: float, metric: str) -> str:
    return f"{value:.3f}" if metric == "accuracy" else f"{value:.4g}"


def verdict(methods: Methods) -> str:
    """Which method is best, in a sentence."""
    metric, facts = metric_of(methods), facts_of(methods)
    best = best_of(facts, metric)
    if not best:
        return ""
    score = told(average(facts[best[0]], metric) or 0.0, metric)
    name = metric.replace("mse", "MSE")
    if len(facts) == 1:
        return f"{best[0]} reaches a test {name} of {score}."
    if len(best) == 1:
        return f"{best[0]} is best, with a test {name} of {score}."
    return f"{', '.join(best[:-1])} and {best[-1]} are level, with a test {name} of about {score}."


def comparison(methods: Methods) -> Html:
    """The table of `coterie compare`."""
    facts, metric = facts_of(methods), metric_of(methods)
    runs = [row for rows in facts.values() for row in rows]
    seeds = max(map(len, facts.values()))
    best = best_of(facts, metric) if len(facts) > 1 else []
    shown = [(title, cell) for title, cell in columns(metric, seeds, runs) if any(map(cell, facts.values()))]
    lines = []
    for label, rows in facts.items():
        texts = [cell(rows) or "–" for _, cell in shown]
        texts[0] += " *" if label in best else ""
        lines.append([label, *texts])
    marked = [i for i, label in enumerate(facts) if label in best]
    how = " ".join(legend(metric, seeds, runs[0], len(facts) > 1).split())
    how = how[0].upper() + how[1:]
    return section("Comparison", how, table(["method", *(t for t, _ in shown)], lines, "numbers", marked))


def progress(page: Page, methods: Methods) -> Html:
    metric = metric_of(methods)
    better = "higher" if HIGHER_IS_BETTER[metric] else "lower"
    band = "; the band is the range over seeds" if any(len(runs) > 1 for runs in methods.values()) else ""
    how = f"One line per method, {better} is better{band}. A click on a name hides its line, a double click all others."
    sent = "The same against what was sent between server and clients so far: a line further left is cheaper."
    rounds = section("Over rounds", how, page.plot(curves(methods, metric, "rounds")))
    return join([rounds, section("Over bytes", sent, page.plot(curves(methods, metric, "bytes")))])


def to_target(methods: Methods, target: float | None) -> Html:
    """Rounds and bytes until the target is first reached."""
    metric, facts = metric_of(methods), facts_of(methods)
    high = HIGHER_IS_BETTER[metric]
    finals = [score for rows in facts.values() if (score := average(rows, metric)) is not None]
    if not finals:
        return Html("")
    best = (max if high else min)(finals)
    goal = target if target is not None else best * (SHARE if high else 2 - SHARE)
    lines, never = [], []
    for label, runs in methods.items():
        hits = [hit for run in runs if (hit := first_hit(run, metric, goal, high)) is not None]
        if not hits:
            never.append(label)
            continue
        part = "" if len(hits) == len(runs) else f" ({len(hits)} of {len(runs)} seeds)"
        rounds = mean(r for r, _ in hits)
        lines.append([label, f"{rounds:.3g}{part}", human(mean(b for _, b in hits))])
    name = metric.replace("mse", "MSE")
    why = "" if target is not None else f", {100 * (SHARE if high else 2 - SHARE):.0f} % of the best final {name}"
    how = f"When each method was first measured at {name} {told(goal, metric)} or better{why}; round 0 is the start, "
    how += "means are over seeds."
    reached = [table(["method", "rounds", "bytes sent"], lines, "numbers")] if lines else []
    missed = [tag("p", f"Never, in these runs: {', '.join(never)}.")] if never else []
    return section("Cost of getting there", how, *reached, *missed)


def first_hit(run: Source, metric: str, goal: float, high: bool) -> tuple[int, float] | None:
    """(round, bytes) of the first evaluation at the goal or better."""
    for row, spent in zip(run.history, traffic(run)):
        score = row.get(metric)
        if score is not None and (score >= goal if high else score <= goal):
            return row["round"], spent
    return None


def fairness(methods: Methods, portraits: Mapping[str, Portrait], by: Grouping | None) -> Html:
    """How evenly each method serves groups and clients."""
    metric, lines = metric_of(methods), []
    high = HIGHER_IS_BETTER[metric]
    for label, p in portraits.items():
        if metric not in p.per_client:
            continue
        values = p.per_client[metric]
        gap = ["–"] * 3
        if by is not None and p.fingerprint == by.fingerprint:
            means = group_means(values, by.groups)
            if len(means) > 1:
                ends = sorted(means, key=means.__getitem__, reverse=high)
                gap = [f"{told(means[k], metric)} (group {k})" for k in (ends[0], ends[-1])]
                gap.append(told(abs(means[ends[0]] - means[ends[-1]]), metric))
        s = scores(values, p.per_client["rows"], high)
        lines.append([label, *gap, told(s.worst_decile, metric), told(s.std, metric)])
    if not lines:
        return Html("")
    head = ["method", "best group", "worst group", "gap", "worst 10 % of clients", "std over clients"]
    groups = f"groups are {by.whose}, the same for every method" if by is not None else "there are no groups to compare"
    name = metric.replace("mse", "MSE")
    how = f"Mean test {name} of the clients in each group ({groups}); a small gap means that nobody is left behind."
    seeds = max(map(len, methods.values()))
    more = [tag("p", "Lowest seed of each method.", kind="how")] if seeds > 1 else []
    return section("Fairness", how, table(head, lines, "numbers"), *more)


def group_means(values: np.ndarray, groups: np.ndarray) -> dict[int, float]:
    known = np.unique(groups[(groups >= 0) & np.isfinite(values)]).tolist()
    return {k: float(np.nanmean(values[groups == k])) for k in known}
