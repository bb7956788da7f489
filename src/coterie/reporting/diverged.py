"""Which methods diverged: they are named, and neither judged nor drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.metrics import HIGHER_IS_BETTER
from coterie.reporting.comparison import Methods
from coterie.reporting.source import Source
from coterie.reporting.text import join_names, metric_name

GROWTH = 10  # times the error of an untrained model, above which training has diverged


class Diverged(NamedTuple):
    """A method whose error grew without bound."""

    label: str
    seeds: int  # of its runs, how many did
    of: int
    metric: str


def find_diverged(methods: Methods) -> list[Diverged]:
    """List the methods of which any run diverged."""
    runs = [run for same in methods.values() for run in same]
    metric = runs[0].metric
    start = untrained_error(runs, metric)
    found = []
    for label, same in methods.items():
        seeds = sum(has_diverged(run, metric, start) for run in same)
        if seeds:
            found.append(Diverged(label, seeds, len(same), metric))
    return found


def untrained_error(runs: Sequence[Source], metric: str) -> float | None:
    """Return the least error that any run started with; None for a metric that has a bound."""
    if HIGHER_IS_BETTER[metric]:
        return None
    starts = []
    for run in runs:
        known = [row[metric] for row in run.history if row.get(metric) is not None]
        starts += [value for value in known[:1] if np.isfinite(value)]
    return min(starts, default=None)


def has_diverged(run: Source, metric: str, start: float | None) -> bool:
    """Tell whether the last score of a run is not finite, or an error far above `start`."""
    last = run.facts[metric]
    if last is None or not np.isfinite(last):
        return True
    return start is not None and last > GROWTH * start


def describe_diverged(diverged: Sequence[Diverged]) -> str:
    """Name the methods that diverged, and the usual remedy; "" where there are none."""
    if not diverged:
        return ""
    names = []
    for one in diverged:
        name = one.label
        if one.seeds < one.of:
            name += f" ({one.seeds} of {one.of} seeds)"
        names.append(name)
    whose = "their"
    verb = "They are"
    if len(names) == 1:
        whose = "its"
        verb = "It is"
    return (
        f"{join_names(names)} diverged: {whose} test {metric_name(diverged[0].metric)} grew "
        f"without bound. {verb} neither judged nor drawn here; a smaller step size (lr) helps."
    )
