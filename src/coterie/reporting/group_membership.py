"""Membership of clients in groups: at the end of a run, over its rounds, and in other runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coterie.data.roster import natural_key
from coterie.metrics import METRICS
from coterie.metrics.clusters import decode_assignments
from coterie.reporting.client_statistics import MOST_SHOWN, ClientStatistics, sort_clients
from coterie.reporting.group_differences import GroupComparison
from coterie.reporting.run_records import RunRecord
from coterie.reporting.text import NOTHING, TextTable, format_score, join_names

FEW_ROUNDS = 3  # with changes; up to these a sentence replaces figures
MOST_SIZES = 20  # group sizes in a sentence


# ------------------------------------------------------------------------------ at the end
class GroupMembers(NamedTuple):
    """The clients of one group."""

    number: int  # −1: clients without a group
    members: list[str]
    rows: int | None  # training rows of its clients; None: unknown
    score: float | None  # mean over its clients; None: unknown
    labels: str  # summary of its labels; "": unknown


class Membership(NamedTuple):
    """The final groups of one run."""

    metric: str
    groups: list[GroupMembers]
    label_column: str  # its name; "" if the labels of groups are unknown
    comparisons: list[GroupComparison]  # differences between groups
    lacks_data: bool  # there are no comparisons because the training data are not available

    @property
    def clients(self) -> int:
        """Number of clients in groups."""
        return sum(len(group.members) for group in self.groups if group.number >= 0)

    @property
    def has_only_singletons(self) -> bool:
        """Whether there are several groups with one member each."""
        sizes = [len(group.members) for group in self.groups if group.number >= 0]
        return len(sizes) > 1 and max(sizes) == 1


def last_groups(run: RunRecord, statistics: ClientStatistics | None) -> np.ndarray | None:
    """Return the final group of each client, int64 [N]; None for methods without groups.

    They come from the statistics, or without these from the history.
    """
    if statistics is not None:
        return statistics.groups
    groups = decode_assignments(run.history, len(run.training_names))
    return None if groups is None else groups[-1]


def is_same_partition(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two clusterings are the same up to the numbers of their groups."""
    pairs = set(zip(a.tolist(), b.tolist()))
    return len(pairs) == len(set(a.tolist())) == len(set(b.tolist()))


def group_means(values: np.ndarray, groups: np.ndarray) -> dict[int, float]:
    """Average the finite values [N] over the clients of each group."""
    known = np.unique(groups[(groups >= 0) & np.isfinite(values)]).tolist()
    return {k: float(np.nanmean(values[groups == k])) for k in known}


def members_by_group(names: Sequence[str], groups: np.ndarray) -> dict[int, list[str]]:
    """Return the names of each group's members, sorted; −1: without a group."""
    return {
        number: sorted(
            (names[i] for i in np.flatnonzero(groups == number).tolist()), key=natural_key
        )
        for number in np.unique(groups).tolist()
    }


def membership(
    run: RunRecord, groups: np.ndarray, statistics: ClientStatistics | None
) -> Membership:
    """Collect the members, scores, labels and differences of groups, int64 [N]."""
    means: dict[int, float] = {}
    labels: dict[int, str] = {}
    comparisons: list[GroupComparison] = []
    label_column = ""
    lacks_data = False
    if statistics is not None:
        if run.metric in statistics.per_client:
            means = group_means(statistics.per_client[run.metric], groups)
        if statistics.differences is not None:
            comparisons = statistics.differences.comparisons
            labels = statistics.differences.labels
            if labels:
                label_column = statistics.differences.label_column
        else:
            lacks_data = len(np.unique(groups[groups >= 0])) > 1
    listed = []
    for number, members in members_by_group(run.training_names, groups).items():
        rows = None if statistics is None else int(statistics.train_rows[groups == number].sum())
        listed.append(
            GroupMembers(number, members, rows, means.get(number), labels.get(number, ""))
        )
    return Membership(run.metric, listed, label_column, comparisons, lacks_data)


def membership_table(result: Membership) -> TextTable:
    """Return one row per group; scores and labels have columns if any is known."""
    has_scores = any(group.score is not None for group in result.groups)
    has_rows = any(group.rows is not None for group in result.groups)
    head = ["group", "clients"]
    if has_rows:
        head.append("training rows")
    if has_scores:
        head.append(f"mean test {METRICS[result.metric].label}")
    if result.label_column:
        head.append(result.label_column)
    rows = []
    for group in result.groups:
        cells = [format_group(group.number), str(len(group.members))]
        if has_rows:
            cells.append(NOTHING if group.rows is None else f"{group.rows:,}")
        if has_scores:
            score = NOTHING
            if group.score is not None:
                score = format_score(group.score, result.metric)
            cells.append(score)
        if result.label_column:
            cells.append(group.labels or NOTHING)
        rows.append([*cells, ", ".join(group.members)])
    return TextTable([*head, "members"], rows)


def format_group(number: int) -> str:
    """Format the number of a group; "not seen" for −1."""
    return "not seen" if number < 0 else str(number)


# ------------------------------------------------------------------------------ in other runs
class MainGroups(NamedTuple):
    """The groups that the page shows first."""

    method: str
    seed: int | None  # None: the method has one seed
    membership: Membership
    same: list[str]  # other methods with the same groups
    other: list[str]  # methods with other groups
    warnings: list[str]


def main_groups(
    label: str,
    methods: Mapping[str, Sequence[RunRecord]],
    final_groups: Mapping[str, np.ndarray],
    statistics: ClientStatistics | None,
) -> MainGroups:
    """Collect the groups of a method, and compare them with those of other methods and seeds.

    Args:
        label: The method.
        methods: The runs by method.
        final_groups: Final groups by method, int64 [N].
        statistics: The statistics of the method's lowest seed.
    """
    run, *other_seeds = methods[label]
    others = [name for name in final_groups if name != label]
    same = [name for name in others if is_same_partition(final_groups[name], final_groups[label])]
    return MainGroups(
        method=label,
        seed=run.seed if other_seeds else None,
        membership=membership(run, final_groups[label], statistics),
        same=same,
        other=[name for name in others if name not in same],
        warnings=[] if statistics is None else statistics.warnings,
    )


def describe_main_groups(groups: MainGroups) -> str:
    """Name the method that found the groups, and others that found the same."""
    seed = "" if groups.seed is None else f" (seed {groups.seed})"
    sentences = [f"The final groups of {groups.method}{seed}."]
    if groups.membership.has_only_singletons:
        sentences.append(
            "No two clients belong together: each group has one member, like local training."
        )
    if groups.same:
        sentences.append(f"{join_names(groups.same)} found the same groups.")
    if groups.other:
        sentences.append(f"{join_names(groups.other)} found other groups: see Method by method.")
    return " ".join(sentences)


# ------------------------------------------------------------------------------ over rounds
class GroupChanges(NamedTuple):
    """The groups of all clients over the rounds of a run."""

    groups: np.ndarray  # int64 [rounds + 1, N]; −1: not seen yet
    rounds: list[int]  # the number of each of these rounds; 0 is the start
    names: Sequence[str]  # of the clients
    shown: np.ndarray  # indices of the clients in figures, sorted by final group
    group_count: int  # including empty groups
    changes: list[tuple[int, int]]  # (round, clients that changed group), only rounds with changes
    sizes: list[tuple[int, list[int]]]  # (round, clients in each group), from the history
    churn: list[tuple[int, float]]  # (round, share of clients that changed), from the history


def group_changes(run: RunRecord, statistics: ClientStatistics | None) -> GroupChanges | None:
    """Collect the groups of all clients over rounds; None for methods without groups."""
    assignments = decode_assignments(run.history, len(run.training_names))
    if assignments is None:
        return None
    groups = np.array(assignments)
    before = groups[:-1]
    after = groups[1:]
    changed = ((before != after) & (before >= 0) & (after >= 0)).sum(1)
    rounds = [row["round"] for row in run.history]
    sizes = [(row["round"], row["sizes"]) for row in run.history if "sizes" in row]
    if statistics is None:
        shown = sort_clients(groups[-1], run.training_names)[:MOST_SHOWN]
    else:
        shown = statistics.shown
    return GroupChanges(
        groups=groups,
        rounds=rounds,
        names=run.training_names,
        shown=shown,
        group_count=max([int(groups.max()) + 1, *(len(counts) for _, counts in sizes)]),
        changes=[(r, int(n)) for r, n in zip(rounds[1:], changed) if n],
        sizes=sizes,
        churn=[(row["round"], row["churn"]) for row in run.history if "churn" in row],
    )


def describe_no_changes(result: GroupChanges) -> str:
    """Return a sentence that replaces the figures if no client changed its group, else ""."""
    if result.groups.max() == result.groups.min():
        return "All clients were in one group throughout."
    if result.changes:
        return ""
    last = result.groups[-1]
    not_seen = int((last < 0).sum())
    first = result.rounds[int((result.groups != last).any(1).sum())] if not not_seen else None
    assigned = f"all clients were assigned by round {first}"
    if not_seen:
        assigned = f"never seen: {not_seen} of {len(result.names)} clients"
    elif first == 0:
        assigned = "all clients were assigned from the start"
    return f"No client changed its group; {assigned}."


def describe_few_changes(result: GroupChanges) -> str:
    """Return a sentence that replaces two figures if few clients changed their group, else ""."""
    if len(result.changes) > FEW_ROUNDS:
        return ""
    by_round = ", ".join(f"{clients} in round {round}" for round, clients in result.changes)
    return f"Clients that changed their group: {by_round}."


def describe_history_map(result: GroupChanges) -> str:
    """Describe the map of groups over rounds for screen readers."""
    return (
        f"Map of {len(result.shown)} clients and their groups over {len(result.groups) - 1} "
        f"rounds; the last change was in round {result.changes[-1][0]}."
    )


def describe_last_sizes(result: GroupChanges) -> str:
    """Describe the figure of group sizes for screen readers."""
    last = result.groups[-1]
    counts = np.bincount(last[last >= 0], minlength=result.group_count)[:MOST_SIZES]
    sizes = ", ".join(f"group {number} {size}" for number, size in enumerate(counts))
    return f"Sizes of the groups over rounds; final sizes: {sizes}."
