"""Which methods diverged: they are named, and neither judged nor drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coterie.reporting.comparison import Comparison
from coterie.reporting.text import join_names


class Diverged(NamedTuple):
    """A method whose error grew without bound."""

    label: str
    seeds: int  # of its runs, how many did
    of: int


def find_diverged(comparison: Comparison) -> list[Diverged]:
    """List the methods of which any run diverged."""
    return [
        Diverged(label, seeds, len(comparison.runs[label]))
        for label, seeds in comparison.diverged.items()
    ]


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
        f"{join_names(names)} diverged: {whose} errors grew without bound. {verb} neither "
        "judged nor drawn here; a smaller step size (lr) helps."
    )
