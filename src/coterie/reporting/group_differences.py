"""Differences between groups: which columns distinguish the clients of one group from the others.

Two sides, a group and another or all others, differ by

    (m − m') / √((v + v') / 2 + (m − m')² / 4)   in the mean of a column, between −2 and 2
    r − r'                                       in the correlation of a column with the label
                                                 within clients

A difference is reported if it is at least MIN_DIFFERENCE and significant: so many standard errors
from 0 that with random groups only one report in a hundred has any difference at all. The threshold
follows from the number of clients (Student's t) and of comparisons (Bonferroni).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.data import Federation
from coterie.reporting.client_sums import MAX_CLASSES, ClientSums, has_columns, sum_in_blocks
from coterie.reporting.text import capitalise, format_number, join_names

MIN_DIFFERENCE = 0.3
ERROR_RATE = 0.01  # probability of any false difference in a comparison
WEAK = 0.1  # correlations below are described as weak
MOST_DIFFERENCES = 6  # per comparison
FEW_CLIENTS = 10  # with fewer, hardly any difference is significant
MOST_COMPARISONS = 12  # groups that are described
OTHERS = "the other groups"


# ------------------------------------------------------------------------------ columns
class NamedColumn(NamedTuple):
    """A feature or a label as the page names it."""

    name: str
    source: str  # the column of the tables: "sex" for "sex = female"
    shift: float = 0.0  # value in the table = shift + scale · value in a client's rows
    scale: float = 1.0
    more: str = ""  # for labels: the meaning of high values, "a higher risk" or "outcome = well"
    less: str = ""  # for labels: the meaning of low values
    is_class: bool = False  # for labels: 1 for rows of a class

    def direction(self, correlation: float) -> str:
        """Return which labels a column with this correlation goes with."""
        return self.more if correlation > 0 else self.less


def name_classes(fed: Federation) -> list[str]:
    """Return the names of the classes, or their numbers."""
    return list(fed.labels or map(str, range(fed.classes or 0)))


def name_features(fed: Federation) -> list[NamedColumn]:
    """Return the feature columns of `sum_clients`; none for images and tokens."""
    x = fed.train.x
    if not has_columns(x):
        return []
    if fed.schema is None:
        return [NamedColumn(f"column {i}", f"column {i}") for i in range(x.shape[1])]
    columns = []
    for c in fed.schema.features:
        for place, name in enumerate(c.encoded):
            column = NamedColumn(name, c.name)
            is_standardised = c.kind == "number" or (c.kind == "date" and place == 0)  # its year
            if is_standardised:
                column = column._replace(shift=c.mean, scale=c.deviation)
            columns.append(column)
    return columns


def name_labels(fed: Federation, label: str) -> list[NamedColumn]:
    """Return the label columns of `sum_clients`: the target, class 1 of two, or each class."""
    if fed.classes is None:
        return [NamedColumn(label, label, more=f"a higher {label}", less=f"a lower {label}")]
    if fed.classes > MAX_CLASSES:
        return []
    names = name_classes(fed)
    if fed.classes == 2:
        low, high = (f"{label} = {name}" for name in names)
        return [NamedColumn(high, label, more=high, less=low, is_class=True)]
    columns = []
    for name in names:
        title = f"{label} = {name}"
        other = f"{label} other than {name}"
        columns.append(NamedColumn(title, title, more=title, less=other, is_class=True))
    return columns


def describe_labels(fed: Federation, means: np.ndarray) -> str:
    """Describe the labels of a group by the mean of each label column."""
    if fed.classes is None:
        return f"mean {format_number(means[0])}"
    names = name_classes(fed)
    if fed.classes == 2:
        return f"{100 * (1 - means[0]):.0f} % {names[0]}, {100 * means[0]:.0f} % {names[1]}"
    return f"most often {names[int(means.argmax())]} ({100 * means.max():.0f} %)"


# ------------------------------------------------------------------------------ statistics
class ColumnDifference(NamedTuple):
    """A significant difference between two sides."""

    column: NamedColumn
    label: NamedColumn | None  # None: the means differ; else the correlations with this label
    here: float  # mean or correlation on the first side
    there: float  # on the second side
    is_share: bool  # the column holds only 0 and 1, so its mean is a share of rows
    certain: float  # the part of the difference beyond the significance threshold


class GroupComparison(NamedTuple):
    """The differences between one group and another, or all others."""

    group: int
    other: int | None  # None: all other groups
    differences: list[ColumnDifference]  # most certain first


class GroupDifferences(NamedTuple):
    """The differences between the groups of a run."""

    label_column: str  # its name
    labels: dict[int, str]  # by group, a summary of its labels; empty for too many classes
    comparisons: list[GroupComparison]  # empty if there is nothing to compare


def compare_groups(fed: Federation, groups: np.ndarray) -> GroupDifferences:
    """Compare the training rows of the clients in each group.

    Args:
        fed: The data.
        groups: int64 [N], the group of each client; −1: none.

    Returns:
        The differences; none for inputs of several parts and for targets beside one class or number
        per row.
    """
    if fed.kind not in ("classification", "regression") or fed.fields:
        return GroupDifferences("label", {}, [])
    sizes = fed.train.sizes.tolist()
    clients = list(zip(fed.train.x.split(sizes), fed.train.y.split(sizes)))[: len(fed)]
    label = "label" if fed.schema is None else fed.schema.label
    features = name_features(fed)
    labels = name_labels(fed, label)
    tests = len(features) + len(labels) + len(features) * len(labels)
    known = np.unique(groups[groups >= 0]).tolist()
    pairs: list[tuple[int, int | None]] = [(group, None) for group in known]
    if len(known) == 2:  # one comparison describes both
        pairs = [(known[0], known[1])]
    elif len(known) < 2:
        pairs = []
    candidates: dict[int, list[ColumnDifference]] = {group: [] for group, _ in pairs}
    label_means: dict[int, np.ndarray] = {}
    for block, sums in sum_in_blocks(clients, fed.classes):
        columns = features[block]
        for group, _ in pairs:
            here = sums.select(groups == group)
            there = sums.select((groups >= 0) & (groups != group))
            candidates[group] += find_differences(columns, labels, here, there, tests)
        if labels and not label_means:  # the same in every block
            for group in known:
                label_means[group] = sums.select(groups == group).mean()[len(columns) :]
    comparisons = [
        GroupComparison(group, other, most_certain(candidates[group])) for group, other in pairs
    ]
    if not features and not any(c.differences for c in comparisons):
        comparisons = []  # for images only labels are compared
    summaries = {group: describe_labels(fed, means) for group, means in label_means.items()}
    return GroupDifferences(label, summaries, comparisons)


def find_differences(
    features: list[NamedColumn],
    labels: list[NamedColumn],
    here: ClientSums,
    there: ClientSums,
    tests: int,
) -> list[ColumnDifference]:
    """Find the significant differences in means, then in correlations.

    Args:
        features: The feature columns of the sums.
        labels: The label columns of the sums.
        here: The first side.
        there: The second side.
        tests: The number of means and correlations compared in total.
    """
    if not tests:
        return []  # images with many classes
    if min(len(here.rows), len(there.rows)) < 2:
        return []  # a single client cannot be distinguished from its group
    from scipy.special import stdtrit  # slow to import

    degrees_of_freedom = len(here.rows) + len(there.rows) - 2
    threshold = -float(stdtrit(degrees_of_freedom, ERROR_RATE / tests / 2))
    is_share = here.is_binary() & there.is_binary()

    def certain_part(difference: np.ndarray, squared_error: np.ndarray) -> np.ndarray:
        size = np.abs(difference)
        certain = np.maximum(size - threshold * np.sqrt(squared_error), 0)
        return np.where(size >= MIN_DIFFERENCE, certain, 0)

    m = here.mean()
    n = there.mean()
    width = np.sqrt((here.variance() + there.variance()) / 2 + (m - n) ** 2 / 4)
    # constant columns differ only by rounding errors
    width = np.maximum(width, 1e-6 * (np.abs(m) + np.abs(n)) + 1e-100)
    # the smallest error possible with this number of rows, also for constant columns
    least_error = 1 / here.rows.sum() + 1 / there.rows.sum()
    squared_error = np.maximum((here.mean_error() + there.mean_error()) / width**2, least_error)
    certain = certain_part((m - n) / width, squared_error)
    columns = [*features, *labels]
    found = [
        ColumnDifference(
            column=columns[i],
            label=None,
            here=float(m[i]),
            there=float(n[i]),
            is_share=bool(is_share[i]),
            certain=float(certain[i]),
        )
        for i in np.flatnonzero(certain > 0)
    ]
    r, r_error = here.correlation()
    s, s_error = there.correlation()
    certain = certain_part(r - s, r_error + s_error)
    found += [
        ColumnDifference(
            column=features[i],
            label=labels[t],
            here=float(r[i, t]),
            there=float(s[i, t]),
            is_share=bool(is_share[i]),
            certain=float(certain[i, t]),
        )
        for i, t in np.argwhere(certain > 0)
    ]
    return found


def most_certain(differences: list[ColumnDifference]) -> list[ColumnDifference]:
    """Select the most certain differences: one mean and one correlation per table column."""
    means_first = sorted(differences, key=lambda d: d.label is not None)
    selected: dict[tuple[bool, str], ColumnDifference] = {}
    for difference in sorted(means_first, key=lambda d: -d.certain):
        kind = (difference.label is None, difference.column.source)
        selected.setdefault(kind, difference)
    return list(selected.values())[:MOST_DIFFERENCES]


# ------------------------------------------------------------------------------ as text
def describe_differences(
    comparisons: list[GroupComparison], clients: int = FEW_CLIENTS, has_labels: bool = False
) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Describe the differences between groups.

    Args:
        comparisons: The differences.
        clients: Number of clients in all groups.
        has_labels: Whether the table above shows the labels of each group.

    Returns:
        A list of (title, sentences) per comparison, where the title is "" for a single pair, and a
        list of sentences about all other groups.
    """
    notable = [comparison for comparison in comparisons if comparison.differences]
    if not notable:
        rest = ["No column differs significantly between groups, nor does its correlation."]
        if clients < FEW_CLIENTS:
            rest.append(f"{clients} clients are too few for more certainty.")
        if has_labels:
            rest.append("The table above shows how the labels of the groups differ.")
        return [], rest
    parts = []
    for comparison in notable[:MOST_COMPARISONS]:
        first = f"group {comparison.group}"
        second = OTHERS if comparison.other is None else f"group {comparison.other}"
        title = f"{capitalise(first)} compared with {second}:" if len(comparisons) > 1 else ""
        sides = (first, second)
        parts.append((title, [describe_difference(d, sides) for d in comparison.differences]))
    rest = []
    if len(notable) > MOST_COMPARISONS:
        rest.append(f"{len(notable) - MOST_COMPARISONS} more groups differ from the others.")
    silent = [f"group {c.group}" for c in comparisons if not c.differences]
    if silent:
        rest.append(f"No significant differences: {join_names(silent)}.")
    return parts, rest


def describe_difference(difference: ColumnDifference, sides: tuple[str, str]) -> str:
    """Describe a difference in a sentence."""
    if difference.label is None:
        return describe_means(difference, sides)
    return describe_correlations(difference, difference.label, sides)


def describe_means(difference: ColumnDifference, sides: tuple[str, str]) -> str:
    """Describe which side has the higher values of a column, or more of a category."""
    column = difference.column
    here = difference.here
    there = difference.there
    first, second = sides
    if here < there and second != OTHERS:  # of two groups, name the higher one first
        first, second = second, first
        here, there = there, here
    if difference.is_share:
        word = "more" if here > there else "less"
        return (
            f"{column.name} is {word} common in {first}: {100 * here:.0f} % of rows, compared with "
            f"{100 * there:.0f} % in {second}."
        )
    word = "higher" if here > there else "lower"
    mean_here = format_number(column.shift + column.scale * here)
    mean_there = format_number(column.shift + column.scale * there)
    return (
        f"{column.name} is {word} in {first}: mean {mean_here}, compared with {mean_there} in "
        f"{second}."
    )


def describe_correlations(
    difference: ColumnDifference, label: NamedColumn, sides: tuple[str, str]
) -> str:
    """Describe the correlation of a column with the label on both sides, the stronger first.

    Numbers are named as they are ("a lower risk" with a negative correlation); for classes, the
    sentence names the class with which the correlation is positive.
    """
    here = difference.here
    there = difference.there
    first, second = sides
    is_opposite = here * there < 0 and min(abs(here), abs(there)) >= WEAK
    if not is_opposite and abs(here) < abs(there):
        first, second = second, first
        here, there = there, here
    what = difference.column.name if difference.is_share else f"a higher {difference.column.name}"

    def signed(named: float, correlation: float) -> str:
        return format_number(-correlation if label.is_class and named < 0 else correlation)

    start = (
        f"In {first}, {what} goes with {label.direction(here)} "
        f"(correlation {signed(here, here)}); in {second}"
    )
    if is_opposite:
        return f"{start}, with {label.direction(there)} ({signed(there, there)})."
    if abs(there) >= WEAK:
        return f"{start} less so ({signed(here, there)})."
    return f"{start} hardly at all ({signed(here, there)})."
