"""Every client by name: its rows, its group, and its score under each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.metrics import HIGHER_IS_BETTER
from coterie.reporting.compared import told
from coterie.reporting.fairness import FEW
from coterie.reporting.html import Html, listed, section, table, tag
from coterie.reporting.portrait import MOST, Portrait
from coterie.reporting.source import Source

LONG = 40  # lines above which a table scrolls by itself
WORST = 100  # clients that are listed where there are more than MOST
AGAINST = (
    "fedavg",
    "local",
)  # one model for all, one model each: what a client would have without groups
NAMED = 8  # clients of few test rows that are named
MARK = "†"


def is_against(label: str) -> bool:
    return label.split()[0] in AGAINST


def each_client(run: Source, portraits: Mapping[str, Portrait], seeds: int) -> Html:
    """A line per client, by the groups of `run`, with its gain over the methods in AGAINST."""
    mine, metric = portraits.get(run.label), run.metric
    if mine is None or metric not in mine.per_client:
        return Html("")
    scores = {
        label: p.per_client[metric]
        for label, p in portraits.items()
        if p.fingerprint == mine.fingerprint and metric in p.per_client
    }
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    own = scores.pop(run.label)
    gains = {label: sign * (own - values) for label, values in scores.items() if is_against(label)}
    others = {label: values for label, values in scores.items() if not is_against(label)}
    shown = {run.label: own, **{label: scores[label] for label in gains}, **others}

    def line(i: int) -> list[Any]:
        group = (
            [] if mine.groups is None else [mine.groups[i] if mine.groups[i] >= 0 else "not seen"]
        )
        tests = f"{mine.test_rows[i]} {MARK}" if 0 < mine.test_rows[i] < FEW else mine.test_rows[i]
        under = [score(values[i], metric) for values in shown.values()]
        under[1 + len(gains) : 1 + len(gains)] = [
            signed(values[i], metric) for values in gains.values()
        ]
        return [run.names[i], *group, mine.train_rows[i], tests, *under]

    titles = [*list(shown)[: 1 + len(gains)], *(f"gain over {label}" for label in gains), *others]
    head = [
        "client",
        *([] if mine.groups is None else ["group"]),
        "training rows",
        "test rows",
        *titles,
    ]
    lines = [line(i) for i in order(mine, own * sign)]
    listing = table(head, lines, "numbers sortable")
    how = f"Test {metric.replace('mse', 'MSE')} of every client on its own test rows"
    how += f"; the gain is that of {run.label}, above 0 where it is better" if gains else ""
    how += ". A click on a heading sorts by it."
    if len(own) > MOST:
        how += (
            f" Of the {len(own):,} clients, the {WORST} that do worst under {run.label} are shown."
        )
    how += (
        f" From the lowest seed of each method; that of {run.label} is {run.seed}."
        if seeds > 1
        else ""
    )
    words = [
        few_rows(run.names, mine.test_rows, metric),
        *(won(label, g, run.label) for label, g in gains.items()),
    ]
    absent = [label for label in portraits if label not in (run.label, *scores)]
    words += [f"Not shown, as its clients had other rows: {listed(absent)}."] if absent else []
    kind = "tall" if len(lines) > LONG else ""
    return section(
        "Each client", how, *(tag("p", w) for w in words if w), tag("div", listing, kind=kind)
    )


def order(p: Portrait, goodness: np.ndarray) -> list[int]:
    """By group, then as they are named; of too many clients, those that do worst, these first."""
    if len(goodness) > MOST:
        worst: list[int] = np.argsort(
            np.where(np.isnan(goodness), np.inf, goodness), kind="stable"
        )[:WORST].tolist()
        return worst
    by_group: list[int] = np.argsort(
        np.zeros(len(goodness)) if p.groups is None else p.groups, kind="stable"
    ).tolist()
    return by_group


def score(value: float, metric: str) -> str:
    return told(value, metric) if np.isfinite(value) else "–"


def signed(value: float, metric: str) -> str:
    text = told(abs(value), metric) if np.isfinite(value) else "–"
    sign = "" if not np.isfinite(value) or not float(text) else "+" if value > 0 else "−"
    return sign + text


def few_rows(names: Sequence[str], test_rows: np.ndarray, metric: str) -> str:
    """What to think of scores that a few rows decide."""
    few = np.flatnonzero((test_rows > 0) & (test_rows < FEW)).tolist()
    if not few:
        return ""
    who = f"{len(few):,} of the {len(names):,} clients"
    if len(few) <= NAMED:
        who = listed([f"{names[i]} ({test_rows[i]})" for i in few])
    least = int(test_rows[few].min())
    why = f"with {least}, one row more or less moves it by {100 / least:.0f} percentage points"
    why = why if metric == "accuracy" else "one unusual row decides it"
    return f"{MARK} Fewer than {FEW} test rows: {who}. Such a score is a hint, not a measurement: {why}."


def won(label: str, gain: np.ndarray, mine: str) -> str:
    """For how many clients a method is better than another."""
    better, worse, equal = (int(part.sum()) for part in (gain > 0, gain < 0, gain == 0))
    start = (
        f"Compared with {label}, {mine} is better for {better} of {better + worse + equal} clients"
    )
    return f"{start}, worse for {worse} and equal for {equal}."
