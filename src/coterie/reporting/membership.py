"""Who is with whom: the groups that a run ended with, and which other runs ended with the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coterie.metrics.clusters import decode_assignments
from coterie.reporting.apart import GroupComparison
from coterie.reporting.portrait import Portrait
from coterie.reporting.rows import lacks_training_rows
from coterie.reporting.source import Source
from coterie.reporting.text import (
    NOTHING,
    TextTable,
    format_score,
    join_names,
    metric_name,
    natural_key,
)


class Group(NamedTuple):
    """One group of clients."""

    number: int  # −1: the clients that were not seen
    members: list[str]
    score: float | None  # the mean over its clients; None: unknown
    labels: str  # its labels in a few words; "": unknown


class Membership(NamedTuple):
    """The groups that one run ended with."""

    metric: str
    groups: list[Group]
    label_column: str  # its name; "" where the labels of groups are unknown
    comparisons: list[GroupComparison]  # what sets groups apart; empty where nothing was compared
    lacks_rows: bool  # nothing was compared, as the training rows are not at hand

    @property
    def clients(self) -> int:
        """How many are in groups."""
        return sum(len(group.members) for group in self.groups if group.number >= 0)

    @property
    def is_of_singles(self) -> bool:
        """Whether there are several groups, and each has one member."""
        sizes = [len(group.members) for group in self.groups if group.number >= 0]
        return len(sizes) > 1 and max(sizes) == 1


class SeedAgreement(NamedTuple):
    """How many of a method's other seeds ended with the same groups."""

    same: int
    others: int


class MainGroups(NamedTuple):
    """The groups that the page shows first."""

    method: str
    seed: int | None  # None: the method has one seed only
    membership: Membership
    same: list[str]  # other methods that ended with the same groups
    other: list[str]  # methods that ended with other groups
    seeds: SeedAgreement | None  # None: other seeds are of other clients, or there are none
    warnings: list[str]  # sentences on what is odd about the groups


# ------------------------------------------------------------------------------ the groups of a run
def group_history(run: Source) -> np.ndarray | None:
    """Return everyone's group after each round, int64 [rounds + 1, N]; −1: not seen yet."""
    groups = decode_assignments(run.history, len(run.names))
    return None if groups is None else np.array(groups)


def last_groups(run: Source, portrait: Portrait | None) -> np.ndarray | None:
    """Return everyone's last group, int64 [N]: of the portrait, else as the run last noted it."""
    if portrait is not None:
        return portrait.groups
    groups = decode_assignments(run.history, len(run.names))
    return None if groups is None else groups[-1]


def same_groups(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether the same clients are together, whatever the numbers of the groups."""
    pairs = set(zip(a.tolist(), b.tolist()))
    return len(pairs) == len(set(a.tolist())) == len(set(b.tolist()))


def group_means(values: np.ndarray, groups: np.ndarray) -> dict[int, float]:
    """Average a value over the clients of each group, as far as they have one."""
    known = np.unique(groups[(groups >= 0) & np.isfinite(values)]).tolist()
    return {k: float(np.nanmean(values[groups == k])) for k in known}


def membership(run: Source, groups: np.ndarray, portrait: Portrait | None) -> Membership:
    """Collect the members of each group, and what is known of them."""
    means: dict[int, float] = {}
    labels: dict[int, str] = {}
    comparisons: list[GroupComparison] = []
    label_column = ""
    if portrait is not None and run.metric in portrait.per_client:
        means = group_means(portrait.per_client[run.metric], groups)
    if portrait is not None and portrait.apart is not None:
        comparisons = portrait.apart.comparisons
        labels = portrait.apart.labels
        if labels:
            label_column = portrait.apart.label_column
    names = run.names
    listed = []
    for number in np.unique(groups).tolist():
        members = sorted((names[i] for i in np.flatnonzero(groups == number)), key=natural_key)
        listed.append(Group(number, members, means.get(number), labels.get(number, "")))
    has_several = len([group for group in listed if group.number >= 0]) > 1
    return Membership(
        metric=run.metric,
        groups=listed,
        label_column=label_column,
        comparisons=comparisons,
        lacks_rows=has_several and portrait is not None and lacks_training_rows(portrait),
    )


# ------------------------------------------------------------------------------ and of others
def main_groups(
    label: str,
    methods: Mapping[str, Sequence[Source]],
    ends: Mapping[str, np.ndarray],
    portrait: Portrait | None,
) -> MainGroups:
    """Collect the groups of the method `label`, and who else has the same.

    ends: by method, its last groups.
    """
    run, *other_seeds = methods[label]
    others = [name for name in ends if name != label]
    same = [name for name in others if same_groups(ends[name], ends[label])]
    warnings: list[str] = []
    if portrait is not None:
        warnings = portrait.warnings
    seed = None
    if other_seeds:
        seed = run.seed
    return MainGroups(
        method=label,
        seed=seed,
        membership=membership(run, ends[label], portrait),
        same=same,
        other=[name for name in others if name not in same],
        seeds=seed_agreement(run, other_seeds),
        warnings=warnings,
    )


def seed_agreement(run: Source, others: Sequence[Source]) -> SeedAgreement | None:
    """Count the other seeds with the same groups; None unless all seeds have the same clients."""
    groups = last_groups(run, None)
    of_others = [last_groups(other, None) for other in others]
    known = [last for last in of_others if last is not None]
    if groups is None or not known or not run.is_of_sites:
        return None
    return SeedAgreement(sum(same_groups(groups, last) for last in known), len(known))


# ------------------------------------------------------------------------------ as text
def describe_main_groups(groups: MainGroups) -> str:
    """Say whose groups these are, and who else has the same."""
    seed = ""
    if groups.seed is not None:
        seed = f" (seed {groups.seed})"
    sentences = [f"The groups that {groups.method} ended with{seed}."]
    is_of_singles = groups.membership.is_of_singles
    if is_of_singles:
        sentences.append(
            "No two clients belong together: each group has one member, which is what local does."
        )
    if groups.same:
        sentences.append(f"{join_names(groups.same)} found the same groups.")
    if groups.other:
        sentences.append(f"{join_names(groups.other)} found other groups: see Method by method.")
    if groups.seeds is not None:
        sentences.append(describe_seeds(groups.seeds, is_of_singles))
    return " ".join(sentences)


def describe_seeds(agreement: SeedAgreement, is_of_singles: bool = False) -> str:
    """Say how many other seeds ended with the same groups, or left everyone alone, too."""
    same, others = agreement
    ended = "ended with the same groups"
    if is_of_singles:
        ended = "left everyone alone, too"
    if others > 1:
        return f"Of its {others} other seeds, {same} {ended}."
    if same:
        return f"Its other seed {ended}."
    return "Its other seed ended with other groups."


def membership_table(result: Membership) -> TextTable:
    """Lay out one row per group; scores and labels are columns only where any is known."""
    has_scores = any(group.score is not None for group in result.groups)
    head = ["group", "clients"]
    if has_scores:
        head.append(f"mean test {metric_name(result.metric)}")
    if result.label_column:
        head.append(result.label_column)
    rows = []
    for group in result.groups:
        cells = [format_group(group.number), str(len(group.members))]
        if has_scores:
            cells.append(format_group_score(group.score, result.metric))
        if result.label_column:
            cells.append(group.labels or NOTHING)
        rows.append([*cells, ", ".join(group.members)])
    return TextTable([*head, "members"], rows)


def format_group(number: int) -> str:
    """Write the number of a group, or that its clients were not seen."""
    if number < 0:
        return "not seen"
    return str(number)


def format_group_score(score: float | None, metric: str) -> str:
    """Write the mean score of a group, where it has one."""
    if score is None:
        return NOTHING
    return format_score(score, metric)
