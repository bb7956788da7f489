"""One method: how its groups came about, and how well they fit its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from coterie.reporting.fairness import Grouping
from coterie.reporting.fit import (
    ClientMap,
    ClientPositions,
    GroupScores,
    client_map,
    client_positions,
    describe_left_out,
    group_scores,
)
from coterie.reporting.membership import Membership, last_groups, membership, same_groups
from coterie.reporting.moves import Moves, moves
from coterie.reporting.notes import Notes, collect_notes
from coterie.reporting.portrait import MOST, Portrait
from coterie.reporting.source import Source
from coterie.reporting.text import join_names


@dataclass(frozen=True)
class MethodDetails:
    """What there is to see of one method; None where there is nothing."""

    label: str
    seed: int
    client_count: int
    same_as: str | None  # the method under whose name its groups were shown before
    membership: Membership | None  # its groups, unless shown before
    moves: Moves | None
    notes: Notes
    # of its clients, where they could be asked
    has_portrait: bool = False
    warnings: Sequence[str] = ()  # on what is odd about its groups, unless shown before
    scores: GroupScores | None = None
    losses: ClientMap | None = None
    shares: ClientMap | None = None
    positions: ClientPositions | None = None
    left_out: str = ""  # a sentence on figures that are missing

    @property
    def is_main(self) -> bool:
        """Whether its groups are those that the page shows first."""
        return self.same_as == self.label

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to see."""
        groups = (self.same_as, self.membership, self.moves)
        clients = (self.scores, self.losses, self.shares, self.positions)
        has_part = any(part is not None for part in (*groups, *clients))
        return not has_part and not self.warnings and self.notes.is_empty

    @property
    def is_sampled(self) -> bool:
        """Whether figures show only some of the clients."""
        return self.has_portrait and self.client_count > MOST


class MethodByMethod(NamedTuple):
    """All methods that there is something to see of."""

    details: list[MethodDetails]  # the best method first
    without_groups: list[str]
    seeds: int  # the most that any method has; the lowest is shown


def method_details(
    run: Source,
    portraits: Mapping[str, Portrait],
    by: Grouping | None,
    same_as: str | None,
) -> MethodDetails:
    """Collect what there is to see of one run.

    by: groups for the colours of a method that has none.  same_as: the method under whose name
    its groups were shown already; its own label where they were shown under that.
    """
    portrait = portraits.get(run.label)
    groups = last_groups(run, portrait)
    members = None
    if groups is not None and same_as is None:
        members = membership(run, groups, portrait)
    details = MethodDetails(
        label=run.label,
        seed=run.seed,
        client_count=len(run.names),
        same_as=same_as,
        membership=members,
        moves=moves(run, portrait),
        notes=collect_notes(run),
    )
    if portrait is None:
        return details
    warnings: list[str] = []
    if not details.is_main:
        warnings = portrait.warnings
    return replace(
        details,
        has_portrait=True,
        warnings=warnings,
        scores=group_scores(run, portrait, portraits),
        losses=client_map(run, portrait, "loss"),
        shares=client_map(run, portrait, "share"),
        positions=client_positions(run, portrait, by),
        left_out=describe_left_out(portrait),
    )


def method_by_method(
    runs: Sequence[Source],
    portraits: Mapping[str, Portrait],
    by: Grouping | None,
    ends: Mapping[str, np.ndarray],
    main: str | None,
    seeds: int,
) -> MethodByMethod:
    """Collect what there is to see of each method.

    runs: one of each method, the best method first.  ends: the last groups of the methods that
    have any.  main: the method whose groups the page shows first.
    """
    details = []
    for run in runs:
        same_as = None
        if main is not None and run.label in ends and same_groups(ends[run.label], ends[main]):
            same_as = main
        details.append(method_details(run, portraits, by, same_as))
    return MethodByMethod(
        details=[one for one in details if not one.is_empty],
        without_groups=[run.label for run in runs if run.label not in ends],
        seeds=seeds,
    )


# ------------------------------------------------------------------------------ as text
def describe_methods(result: MethodByMethod) -> str:
    """Say how the methods are listed; "" where there is nothing to see of any."""
    if not result.details:
        return ""
    sentence = (
        "Best first; a click on a name shows how its groups came about, and how well they fit."
    )
    if result.seeds > 1:
        sentence += " Of several seeds, the lowest is shown."
    return sentence


def describe_without_groups(result: MethodByMethod) -> str:
    """Name the methods without groups; "" where there are none."""
    names = result.without_groups
    if not names:
        return ""
    verb = "find no groups; their scores stand"
    if len(names) == 1:
        verb = "finds no groups; its scores stand"
    return f"{join_names(names, most=30)} {verb} in the tables above."


def describe_sample(details: MethodDetails) -> str:
    """Say that figures show only some of the clients."""
    return (
        f"Figures show {MOST} of the {details.client_count} clients, an even sample over the "
        "groups."
    )


def describe_same_groups(details: MethodDetails) -> str:
    """Say where its groups were shown before."""
    if details.is_main:
        return "Its groups stand above, under Groups."
    return (
        "Its groups stand above, under Groups: the same clients are together as with "
        f"{details.same_as}."
    )
