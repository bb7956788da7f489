"""One method in detail: its groups, group changes, fit, and what it logged about itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from coterie.reporting.client_statistics import MOST_SHOWN, ClientStatistics
from coterie.reporting.fairness import Grouping
from coterie.reporting.group_membership import (
    GroupChanges,
    Membership,
    group_changes,
    is_same_partition,
    last_groups,
    membership,
)
from coterie.reporting.model_fit import (
    ClientMap,
    ClientPositions,
    GroupScores,
    client_map,
    client_positions,
    group_scores,
)
from coterie.reporting.overview import format_value
from coterie.reporting.run_records import RunRecord
from coterie.reporting.text import TextTable

DRAWN = ("curve", "transitions", "sizes")  # notes that the table leaves out


# ------------------------------------------------------------------------------ notes
class GroupCount(NamedTuple):
    """How a method chose its number of groups."""

    criterion: list[float]  # for 1, 2, 3 … groups
    chosen: int | None


class Transitions(NamedTuple):
    """Transitions between groups in one round."""

    round: int
    shares: list[list[float]]  # [from][to]: share of a group's members that came from each group

    @property
    def is_diagonal(self) -> bool:
        """Whether no client changed its group."""
        return np.array_equal(self.shares, np.diag(np.diag(self.shares)))


class Notes(NamedTuple):
    """The last value of everything that a method logged."""

    group_count: GroupCount | None
    transitions: Transitions | None
    values: list[tuple[str, int, Any]]  # (name, round, value) of all others


def collect_notes(run: RunRecord) -> Notes:
    """Collect the last value of each note of a run."""
    last: dict[str, tuple[int, Any]] = {}
    for row in run.history:
        for name, value in (row.get("notes") or {}).items():
            last[name] = (row["round"], value)
    group_count = None
    if "curve" in last:
        _, chosen = last.get("clusters", (0, None))
        group_count = GroupCount(last["curve"][1], chosen)
    transitions = Transitions(*last["transitions"]) if "transitions" in last else None
    values = [(name, *note) for name, note in last.items() if name not in DRAWN]
    return Notes(group_count, transitions, values)


def notes_table(notes: Notes) -> TextTable:
    """Return one row for each note without a figure."""
    rows = [
        [name.replace("_", " "), str(round), format_value(value)]
        for name, round, value in notes.values
    ]
    return TextTable(["note", "round", "value"], rows)


# ------------------------------------------------------------------------------ details
@dataclass(frozen=True)
class MethodDetails:
    """The details of one method; None: not available."""

    label: str
    seed: int
    client_count: int
    same_as: str | None  # the method under which the page shows the same groups
    membership: Membership | None  # its groups, unless shown before
    changes: GroupChanges | None
    notes: Notes
    # from client statistics
    has_statistics: bool = False
    warnings: Sequence[str] = ()  # about its groups, unless shown before
    scores: GroupScores | None = None
    losses: ClientMap | None = None
    weights: ClientMap | None = None
    positions: ClientPositions | None = None
    lacks_data: bool = False  # some figures are missing because the data are not available

    @property
    def is_main(self) -> bool:
        """Whether its groups are those that the page shows first."""
        return self.same_as == self.label

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        parts = (
            self.same_as,
            self.membership,
            self.changes,
            self.scores,
            self.losses,
            self.weights,
            self.positions,
        )
        has_part = any(part is not None for part in parts)
        has_notes = any(self.notes)  # any of its three fields
        return not has_part and not self.warnings and not has_notes

    @property
    def sample_size(self) -> int:
        """Number of clients in figures if these show only some of them, else 0."""
        return MOST_SHOWN if self.has_statistics and self.client_count > MOST_SHOWN else 0


class MethodByMethod(NamedTuple):
    """The details of all methods."""

    details: list[MethodDetails]  # best method first
    without_groups: list[str]
    seeds: int  # largest number of seeds of any method; the lowest seed is shown


def method_details(
    run: RunRecord,
    statistics: Mapping[str, ClientStatistics],
    reference: Grouping | None,
    same_as: str | None,
) -> MethodDetails:
    """Collect the details of one run.

    Args:
        run: The run.
        statistics: Client statistics by method.
        reference: Reference groups, for the colours of a method without groups.
        same_as: The method under which the page already shows the same groups.
    """
    own = statistics.get(run.label)
    groups = last_groups(run, own)
    members = None
    if groups is not None and same_as is None:
        members = membership(run, groups, own)
    details = MethodDetails(
        label=run.label,
        seed=run.seed,
        client_count=len(run.training_names),
        same_as=same_as,
        membership=members,
        changes=group_changes(run, own),
        notes=collect_notes(run),
    )
    if own is None:
        return details
    return replace(
        details,
        has_statistics=True,
        warnings=[] if details.is_main else own.warnings,
        scores=group_scores(run, own, statistics),
        losses=client_map(run, own, "loss"),
        weights=client_map(run, own, "weight"),
        positions=client_positions(run, own, reference),
        lacks_data=not own.has_data and own.groups is not None,
    )


def method_by_method(
    runs: Sequence[RunRecord],
    statistics: Mapping[str, ClientStatistics],
    reference: Grouping | None,
    final_groups: Mapping[str, np.ndarray],
    main: str | None,
    seeds: int,
) -> MethodByMethod:
    """Collect the details of each method.

    Args:
        runs: One run per method, best method first.
        statistics: Client statistics by method.
        reference: Reference groups.
        final_groups: Final groups of the methods that have any, int64 [N].
        main: The method whose groups the page shows first.
        seeds: Largest number of seeds of any method.
    """
    details = []
    for run in runs:
        is_shown = (
            main is not None
            and run.label in final_groups
            and is_same_partition(final_groups[run.label], final_groups[main])
        )
        details.append(method_details(run, statistics, reference, main if is_shown else None))
    return MethodByMethod(
        details=[one for one in details if not one.is_empty],
        without_groups=[run.label for run in runs if run.label not in final_groups],
        seeds=seeds,
    )
