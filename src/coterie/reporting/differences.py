"""The differences between two sides, one group of clients and another, or all others.

Two sides differ by

    (m − m') / √((v + v') / 2 + (m − m')² / 4)   in the mean of a column, between −2 and 2
    r − r'                                       in the correlation of a column with the label
                                                 inside the clients

A difference is worth a sentence if it is at least NOTABLE and certain. Certain means that it is far
enough from 0, in standard errors, for only one report in a hundred to have any sentence at all if
its groups were drawn at random. How far that is depends on the number of clients (Student's t) and
of columns (Bonferroni).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.reporting.columns import Column
from coterie.reporting.sums import Sums
from coterie.reporting.text import format_number

NOTABLE = 0.3  # difference worth a sentence
CHANCE = 0.01  # that a comparison of groups which do not differ has a sentence
SLIGHT = 0.1  # correlation below which a column hardly matters
MOST_DIFFERENCES = 6  # per comparison
OTHERS = "the other groups"


class Difference(NamedTuple):
    """A difference between two sides that is worth a sentence."""

    column: Column
    label: Column | None  # None: the means of `column` differ; else its correlations with `label`
    here: float  # the mean or correlation on the first side
    there: float  # and on the other
    is_share: bool  # the column holds only 0 and 1: its mean is a share of rows
    certain: float  # how much of the difference is certain


def compare_sides(
    features: list[Column], labels: list[Column], here: Sums, there: Sums
) -> list[Difference]:
    """List the differences between two sides, the surest first."""
    looks = count_looks(len(features), len(labels))
    return select_surest(find_differences(features, labels, here, there, looks))


def count_looks(features: int, labels: int) -> int:
    """Count the means and correlations of a comparison, any of which may differ by chance."""
    return features + labels + features * labels


def find_differences(
    features: list[Column], labels: list[Column], here: Sums, there: Sums, looks: int
) -> list[Difference]:
    """List all differences that are notable and certain: of means, then of correlations.

    looks: how many means and correlations are compared in all.
    """
    if not looks:
        return []  # images of many classes have nothing to compare
    if min(len(here.rows), len(there.rows)) < 2:
        return []  # nothing tells the ways of a single client from those of a group
    errors = standard_errors_needed(len(here.rows) + len(there.rows) - 2, looks)
    return [
        *mean_differences([*features, *labels], here, there, errors),
        *correlation_differences(features, labels, here, there, errors),
    ]


def standard_errors_needed(degrees_of_freedom: int, looks: int) -> float:
    """Return how many standard errors a difference must exceed to be certain."""
    from scipy.special import stdtrit  # here, as it takes long to load

    return -float(stdtrit(degrees_of_freedom, CHANCE / looks / 2))


def certain_part(difference: np.ndarray, squared_error: np.ndarray, errors: float) -> np.ndarray:
    """Return how much of each difference is certain; 0 where it is not worth a sentence."""
    size = np.abs(difference)
    certain = np.maximum(size - errors * np.sqrt(squared_error), 0)
    return np.where(size >= NOTABLE, certain, 0)


def mean_differences(
    columns: list[Column], here: Sums, there: Sums, errors: float
) -> list[Difference]:
    """List the columns whose means differ for certain."""
    m = here.mean()
    n = there.mean()
    width = np.sqrt((here.variance() + there.variance()) / 2 + (m - n) ** 2 / 4)
    # what never changes differs only by rounding
    width = np.maximum(width, 1e-6 * (np.abs(m) + np.abs(n)) + 1e-100)
    # the least error that the number of rows allows, also of what never changes
    of_rows = 1 / here.rows.sum() + 1 / there.rows.sum()
    squared_error = np.maximum((here.mean_error() + there.mean_error()) / width**2, of_rows)
    certain = certain_part((m - n) / width, squared_error, errors)
    is_share = here.shares() & there.shares()
    return [
        Difference(columns[i], None, float(m[i]), float(n[i]), bool(is_share[i]), float(certain[i]))
        for i in np.flatnonzero(certain > 0)
    ]


def correlation_differences(
    features: list[Column], labels: list[Column], here: Sums, there: Sums, errors: float
) -> list[Difference]:
    """List the features whose correlations with a label differ for certain."""
    r, r_error = here.correlation()
    s, s_error = there.correlation()
    certain = certain_part(r - s, r_error + s_error, errors)
    is_share = here.shares() & there.shares()
    return [
        Difference(
            column=features[i],
            label=labels[t],
            here=float(r[i, t]),
            there=float(s[i, t]),
            is_share=bool(is_share[i]),
            certain=float(certain[i, t]),
        )
        for i, t in np.argwhere(certain > 0)
    ]


def select_surest(differences: list[Difference]) -> list[Difference]:
    """Select the surest differences: one mean and one correlation for each column of the tables."""
    means_first = sorted(differences, key=lambda d: d.label is not None)
    selected: dict[tuple[bool, str], Difference] = {}
    for difference in sorted(means_first, key=lambda d: -d.certain):
        kind = (difference.label is None, difference.column.source)
        selected.setdefault(kind, difference)
    return list(selected.values())[:MOST_DIFFERENCES]


# ------------------------------------------------------------------------------ as text
def describe_difference(difference: Difference, sides: tuple[str, str]) -> str:
    """Describe a difference in a sentence."""
    if difference.label is None:
        return describe_means(difference, sides)
    return describe_correlations(difference, difference.label, sides)


def describe_means(difference: Difference, sides: tuple[str, str]) -> str:
    """Say on which side a column is higher, or a category more common."""
    column = difference.column
    here = difference.here
    there = difference.there
    first, second = sides
    if here < there and second != OTHERS:  # of two groups, name the higher one first
        first, second = second, first
        here, there = there, here
    if difference.is_share:
        word = "less"
        if here > there:
            word = "more"
        return (
            f"{column.name} is {word} common in {first}: {100 * here:.0f} % of rows, against "
            f"{100 * there:.0f} % in {second}."
        )
    word = "lower"
    if here > there:
        word = "higher"
    mean_here = format_number(column.shift + column.scale * here)
    mean_there = format_number(column.shift + column.scale * there)
    return (
        f"{column.name} is {word} in {first}: mean {mean_here}, against {mean_there} in {second}."
    )


def describe_correlations(difference: Difference, label: Column, sides: tuple[str, str]) -> str:
    """Say how a column goes with the label on either side, first where it matters more."""
    here = difference.here
    there = difference.there
    first, second = sides
    is_opposite = here * there < 0 and min(abs(here), abs(there)) >= SLIGHT
    if not is_opposite and abs(here) < abs(there):
        first, second = second, first
        here, there = there, here
    what = f"a higher {difference.column.name}"
    if difference.is_share:
        what = difference.column.name
    start = (
        f"In {first}, {what} goes with {direction(label, here)} "
        f"(correlation {format_number(seen_from(label, here, here))}); in {second}"
    )
    strength = format_number(seen_from(label, here, there))
    if is_opposite:
        strength = format_number(seen_from(label, there, there))
        return f"{start}, with {direction(label, there)} ({strength})."
    if abs(there) >= SLIGHT:
        return f"{start} less so ({strength})."
    return f"{start} it hardly matters ({strength})."


def seen_from(label: Column, named: float, correlation: float) -> float:
    """Return a correlation as it is with the label that a sentence names.

    named: the correlation by whose sign the label is named. A number is named as it is, "a lower
    risk" with a correlation below 0; of classes, the one is named that the column goes with.
    """
    if label.is_class and named < 0:
        return -correlation
    return correlation


def direction(label: Column, correlation: float) -> str:
    """Return what a column goes with, by the sign of its correlation with the label."""
    if correlation > 0:
        return label.more
    return label.less
