"""What methods noted about themselves while they trained."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from coterie.reporting.source import Source
from coterie.reporting.text import TextTable

DRAWN = ("curve", "transitions", "sizes")  # notes that have a figure, or repeat one
MOST_VALUES = 20  # of a list in a table cell


class GroupCount(NamedTuple):
    """How a method chose the number of groups."""

    criterion: list[float]  # for 1, 2, 3 … groups
    chosen: int | None


class Transitions(NamedTuple):
    """How members moved between groups in one round."""

    round: int
    shares: list[list[float]]  # [from][to]: of a group's members now, how many came from which

    @property
    def is_still(self) -> bool:
        """Whether nobody moved."""
        return np.array_equal(self.shares, np.diag(np.diag(self.shares)))


class Note(NamedTuple):
    """The last value of anything else that a method noted."""

    name: str
    round: int
    value: Any


class Notes(NamedTuple):
    """All that a method noted."""

    group_count: GroupCount | None
    transitions: Transitions | None
    values: list[Note]

    @property
    def is_empty(self) -> bool:
        return self.group_count is None and self.transitions is None and not self.values


def collect_notes(run: Source) -> Notes:
    """Collect the last value of each note of a run."""
    last: dict[str, Note] = {}
    for row in run.history:
        for name, value in (row.get("notes") or {}).items():
            last[name] = Note(name, row["round"], value)
    group_count = None
    if "curve" in last:
        chosen = None
        if "clusters" in last:
            chosen = last["clusters"].value
        group_count = GroupCount(last["curve"].value, chosen)
    transitions = None
    if "transitions" in last:
        transitions = Transitions(last["transitions"].round, last["transitions"].value)
    values = [note for name, note in last.items() if name not in DRAWN]
    return Notes(group_count, transitions, values)


def describe_group_count(result: GroupCount) -> str:
    """Say in words what the figure of numbers of groups shows."""
    return f"The criterion for 1 to {len(result.criterion)} groups; chosen: {result.chosen}."


def notes_table(notes: Notes) -> TextTable:
    """Lay out one row for each note that has no figure."""
    rows = []
    for note in notes.values:
        rows.append([note.name.replace("_", " "), str(note.round), format_value(note.value)])
    return TextTable(["note", "round", "value"], rows)


def format_value(value: Any) -> str:
    """Write a note or a setting in a table cell."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {format_value(part)}" for name, part in value.items())
    if isinstance(value, list):
        text = ", ".join(map(format_value, value[:MOST_VALUES]))
        if len(value) > MOST_VALUES:
            text += " …"
        return text
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
