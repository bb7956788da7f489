"""Where a model is no better than a constant guess: the site's own commonest class, or its mean.

An accuracy of 0.94 says nothing at a site where 94 % of the rows are of one class. So every site is
measured against the best constant guess for its own test rows. Sites with few test rows are left
out, and those whose test rows are all of one class, where nothing could be better.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.metrics import METRICS
from coterie.reporting.comparison import Comparison
from coterie.reporting.intervals import BySeed
from coterie.reporting.rows import FEW
from coterie.reporting.text import join_names, natural_key

MOST_SITES = 5  # that are named of one method
MOST_PARTS = 3  # lists of sites in the sentence
TOLERANCE = 1e-9  # of a mean gain: what is above 0 by rounding alone is no gain


class NoBetter(NamedTuple):
    """Methods that are no better than a constant guess at the same sites."""

    labels: list[str]
    sites: list[str]


class ConstantGuess(NamedTuple):
    """Where methods are no better than a constant guess."""

    metric: str
    parts: list[NoBetter]  # the best method first
    methods: int  # that were judged
    sites: int  # that were judged


def find_no_better(comparison: Comparison) -> ConstantGuess | None:
    """Find the sites at which methods are no better than a constant; None where there are none."""
    parts: list[NoBetter] = []
    judged: set[str] = set()
    methods = comparison.sort(list(comparison.scores))
    for label in methods:
        gains = mean_gains(comparison.by_site.get(label, {}), comparison.higher_is_better)
        judged |= gains.keys()
        sites = [name for name in sorted(gains, key=natural_key) if gains[name] <= TOLERANCE]
        same = [part for part in parts if part.sites == sites]
        if same:
            same[0].labels.append(label)
        elif sites:
            parts.append(NoBetter([label], sites))
    if not parts:
        return None
    return ConstantGuess(comparison.metric, parts, len(methods), len(judged))


def mean_gains(by_seed: BySeed, higher_is_better: bool) -> dict[str, float]:
    """By how much each site's score is better than a constant guess, the mean over its test rows.

    All seeds together. The guess knows the test rows, which flatters it where they are few: these
    are left out.
    """
    gain: dict[str, float] = {}
    rows: dict[str, float] = {}
    for scores in by_seed.values():
        if scores.simplest is None:
            continue
        ahead = scores.values - scores.simplest
        if not higher_is_better:
            ahead = -ahead
        is_judged = np.isfinite(ahead) & (scores.rows >= FEW)
        for i in np.flatnonzero(is_judged).tolist():
            name = scores.names[i]
            gain[name] = gain.get(name, 0.0) + float(scores.rows[i] * ahead[i])
            rows[name] = rows.get(name, 0.0) + float(scores.rows[i])
    return {name: gain[name] / rows[name] for name in gain}


# ------------------------------------------------------------------------------ as text
def describe_constant_guess(result: ConstantGuess) -> str:
    """Name the sites whose model is no better than a constant guess."""
    parts = [describe_part(part, result) for part in result.parts[:MOST_PARTS]]
    others = sum(len(part.labels) for part in result.parts[MOST_PARTS:])
    if others == 1:
        parts.append("1 more method at others")
    elif others:
        parts.append(f"{others} more methods at others")
    return f"No better than always guessing {METRICS[result.metric].constant}: {'; '.join(parts)}."


def describe_part(part: NoBetter, result: ConstantGuess) -> str:
    """Name some methods, and their sites or the first of them."""
    who = join_names(part.labels)
    if len(part.labels) == result.methods > 2:
        who = "every method"
    if len(part.sites) <= MOST_SITES:
        return f"{who} at {join_names(part.sites)}"
    some = ", ".join(part.sites[:MOST_SITES])
    return f"{who} at {len(part.sites)} of {result.sites} sites ({some}, …)"
