"""How groups came about: who was in which group over the rounds, and who moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.reporting.membership import group_history
from coterie.reporting.portrait import MOST, Portrait, sort_clients
from coterie.reporting.source import Source

FEW_MOVES = 3  # rounds with moves, up to which a sentence tells as much as a figure
MOST_SIZES = 20  # groups whose sizes are listed


class RoundMoves(NamedTuple):
    round: int
    clients: int  # that changed their group


class Moves(NamedTuple):
    """Everyone's group over the rounds."""

    groups: np.ndarray  # int64 [rounds + 1, N]; −1: not seen yet
    rounds: list[int]  # the number of each of these rounds; 0 is the start
    names: Sequence[str]  # of the clients
    shown: np.ndarray  # the clients in a figure, sorted by their last group
    group_count: int  # groups there ever were, also empty ones
    moved: list[RoundMoves]  # the rounds in which clients moved from one group to another
    sizes: list[tuple[int, list[int]]]  # (round, clients in each group), as the run noted it
    churn: list[tuple[int, float]]  # (round, share of clients that moved), as the run noted it

    @property
    def is_one_group(self) -> bool:
        """Whether everyone was in the same group in every round."""
        return bool(self.groups.max() == self.groups.min())


def moves(run: Source, portrait: Portrait | None) -> Moves | None:
    """Collect who was in which group; None for a method without groups."""
    groups = group_history(run)
    if groups is None:
        return None
    before = groups[:-1]
    after = groups[1:]
    changed = ((before != after) & (before >= 0) & (after >= 0)).sum(1)
    rounds = [row["round"] for row in run.history]
    sizes = [(row["round"], row["sizes"]) for row in run.history if "sizes" in row]
    if portrait is not None:
        shown = portrait.shown
    else:
        shown = sort_clients(groups[-1], run.names)[:MOST]
    return Moves(
        groups=groups,
        rounds=rounds,
        names=run.names,
        shown=shown,
        group_count=max([int(groups.max()) + 1, *(len(counts) for _, counts in sizes)]),
        moved=[RoundMoves(r, int(n)) for r, n in zip(rounds[1:], changed) if n],
        sizes=sizes,
        churn=[(row["round"], row["churn"]) for row in run.history if "churn" in row],
    )


# ------------------------------------------------------------------------------ as text
def describe_stillness(result: Moves) -> str:
    """Say that nobody ever moved, instead of a figure; "" where someone did."""
    if result.is_one_group:
        return "All clients were in one group all the time."
    if result.moved:
        return ""
    return f"Nobody ever moved from one group to another; {describe_arrival(result)}."


def describe_arrival(result: Moves) -> str:
    """Say when the last client came into its group."""
    last = result.groups[-1]
    not_seen = int((last < 0).sum())
    if not_seen:
        return f"not seen at all: {not_seen} of {len(result.names)} clients"
    rounds_before = int((result.groups != last).any(1).sum())
    round = result.rounds[rounds_before]
    if round == 0:
        return "everyone had one from the start"
    return f"everyone had one by round {round}"


def describe_few_moves(result: Moves) -> str:
    """Say who moved when, instead of two more figures; "" where there are too many moves."""
    if len(result.moved) > FEW_MOVES:
        return ""
    by_round = ", ".join(f"{moved.clients} in round {moved.round}" for moved in result.moved)
    return f"Clients that moved to another group: {by_round}."


def describe_history_map(result: Moves) -> str:
    """Say in words what the map of groups over rounds shows."""
    return (
        f"Map of {len(result.shown)} clients and their groups over {len(result.groups) - 1} "
        f"rounds; the last move was in round {result.moved[-1].round}."
    )


def describe_last_sizes(result: Moves) -> str:
    """Say in words where the figure of group sizes ends."""
    last = result.groups[-1]
    counts = np.bincount(last[last >= 0], minlength=result.group_count)[:MOST_SIZES]
    sizes = ", ".join(f"group {number} {size}" for number, size in enumerate(counts))
    return f"Sizes of the groups over rounds; at the end: {sizes}."


def describe_last_move(result: Moves) -> str:
    """Say in words where the figure of moves ends."""
    return f"Clients that moved, by round; the last move in round {result.moved[-1].round}."
