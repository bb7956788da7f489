"""What sets the groups of a run apart, from the training rows of their clients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.data import Federation
from coterie.reporting.columns import describe_labels, feature_columns, label_columns, label_name
from coterie.reporting.differences import (
    OTHERS,
    Difference,
    count_looks,
    describe_difference,
    find_differences,
    select_surest,
)
from coterie.reporting.sums import sums_in_blocks
from coterie.reporting.text import capitalise, join_names

FEW_CLIENTS = 10  # with fewer, hardly any difference between groups is certain
MOST_COMPARISONS = 12  # groups whose differences from the others are described


class GroupComparison(NamedTuple):
    """What sets one group apart from another, or from all others."""

    group: int
    other: int | None  # None: all other groups
    differences: list[Difference]  # the surest first; empty where nothing stands out


class Apart(NamedTuple):
    """What sets the groups of a run apart."""

    label_column: str  # its name
    labels: dict[int, str]  # by group, what its labels are; empty where there are too many classes
    comparisons: list[GroupComparison]  # empty where there is nothing to compare


def apart(fed: Federation, groups: np.ndarray) -> Apart:
    """Compare the training rows of the clients in each group.

    groups: int64 [N], the group of each client; −1: in none.
    """
    sizes = fed.train.sizes.tolist()
    clients = list(zip(fed.train.x.split(sizes), fed.train.y.split(sizes)))[: len(fed)]
    features = feature_columns(fed)
    labels = label_columns(fed)
    looks = count_looks(len(features), len(labels))
    known = np.unique(groups[groups >= 0]).tolist()
    pairs = pairs_to_compare(known)
    candidates: dict[int, list[Difference]] = {group: [] for group, _ in pairs}
    label_means: dict[int, np.ndarray] = {}
    for block, each in sums_in_blocks(clients, fed.classes):
        columns = features[block]
        for group, _ in pairs:
            here = each.of(groups == group)
            there = each.of((groups >= 0) & (groups != group))
            candidates[group] += find_differences(columns, labels, here, there, looks)
        if labels and not label_means:  # every block has them
            for group in known:
                label_means[group] = each.of(groups == group).mean()[len(columns) :]
    comparisons = [
        GroupComparison(group, other, select_surest(candidates[group])) for group, other in pairs
    ]
    if not features and not any(c.differences for c in comparisons):
        comparisons = []  # of images only the labels were compared
    summaries = {group: describe_labels(fed, means) for group, means in label_means.items()}
    return Apart(label_name(fed), summaries, comparisons)


def pairs_to_compare(groups: list[int]) -> list[tuple[int, int | None]]:
    """List (group, other) pairs; other is None for all other groups."""
    if len(groups) < 2:
        return []
    if len(groups) == 2:  # what sets one apart sets the other apart
        return [(groups[0], groups[1])]
    return [(group, None) for group in groups]


# ------------------------------------------------------------------------------ as text
def name_sides(comparison: GroupComparison) -> tuple[str, str]:
    """Name the two sides of a comparison, "group 0" and "the other groups"."""
    other = OTHERS
    if comparison.other is not None:
        other = f"group {comparison.other}"
    return f"group {comparison.group}", other


class Described(NamedTuple):
    """What sets groups apart, in words."""

    parts: list[tuple[str, list[str]]]  # (title, sentences); the title is "" if there is one pair
    rest: list[str]  # sentences about all other groups


def describe_comparisons(
    comparisons: list[GroupComparison], clients: int = FEW_CLIENTS, has_labels: bool = False
) -> Described:
    """Describe what sets groups apart, group by group.

    clients: how many there are in all groups.  has_labels: whether the labels of each group stand
    above.
    """
    notable = [comparison for comparison in comparisons if comparison.differences]
    if not notable:
        silence = ["No column stands out, neither by itself nor in how it goes with the label."]
        if clients < FEW_CLIENTS:
            silence.append(f"{clients} clients are too few to tell more for certain.")
        if has_labels:
            silence.append("How the labels of the groups differ stands in the table above.")
        return Described([], silence)
    parts = []
    for comparison in notable[:MOST_COMPARISONS]:
        first, second = name_sides(comparison)
        title = ""
        if len(comparisons) > 1:
            title = f"{capitalise(first)} against {second}:"
        sides = (first, second)
        sentences = [describe_difference(d, sides) for d in comparison.differences]
        parts.append((title, sentences))
    rest = []
    if len(notable) > MOST_COMPARISONS:
        more = len(notable) - MOST_COMPARISONS
        rest.append(f"{more} more groups differ from the others, too.")
    silent = [f"group {c.group}" for c in comparisons if not c.differences]
    if silent:
        rest.append(f"Nothing stands out in {join_names(silent)}.")
    return Described(parts, rest)
