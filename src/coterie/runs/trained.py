"""A trained run as data.

All that answers, exports and reports need, and nothing of any client's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.contract import Algorithm, at_round
from coterie.core.params import Params, count, flatten, pick_rows
from coterie.core.task import Task
from coterie.data.roster import Roster
from coterie.metrics import Row, hard_labels
from coterie.runs.membership import Answers, MembershipConfidence, membership_confidence
from coterie.runs.options import Options

ALIKE = 1e-3  # centres nearer than this, relative to their length, are one
MOST_SCREENED = 5  # clients that a sentence names
RESTLESS = (
    0.05  # share of clients that change their group in a round, above which they are unstable
)


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """What a run came to. It is made by a run, or read from a run's folder."""

    method: Algorithm
    task: Task
    roster: Roster
    options: Options
    state: Any  # of the server, after the last round
    round: int  # the last that is done; 0 is the start
    history: list[Row]  # a row of metrics per round
    client_scores: dict[str, np.ndarray] = field(default_factory=dict)  # [N], NaN: not measured
    pooled_counts: dict[str, np.ndarray] = field(default_factory=dict)  # confusion, scored
    memberships: Answers = field(default_factory=dict)  # asked for at the end of the run
    model_name: str = ""
    folder: Path | None = None

    @property
    def method_now(self) -> Algorithm:
        """The method as it is after the last round, with decayed step sizes."""
        return at_round(self.method, self.round)

    @property
    def centres(self) -> Params | None:
        """The groups' models, stacked; None for methods without groups."""
        return self.method.centres(self.state)

    @property
    def groups(self) -> Tensor | None:
        """The group of each client, int64 [N]; or soft weights [N, K]; None without groups."""
        return self.method.groups(self.state)

    @property
    def hard_groups(self) -> np.ndarray | None:
        """The group of each client, int64 [N], of soft ones the largest; −1: not seen."""
        groups = self.groups
        if groups is None:
            return None
        return hard_labels(groups)

    @property
    def membership(self) -> MembershipConfidence | None:
        """How sure each client's membership is; None before the end, or without groups."""
        return membership_confidence(self.memberships, self.hard_groups)

    @property
    def last_evaluation(self) -> Row:
        """The newest row that has scores; the last row if none has."""
        for row in reversed(self.history):
            if "loss" in row:
                return row
        return self.history[-1]

    @property
    def warnings(self) -> list[str]:
        """What is odd about the groups, a sentence each."""
        return describe_warnings(self.history, self.centres, self.groups)


# ------------------------------------------------------------------------------ warnings
def describe_warnings(
    history: list[Row], centres: Params | None, groups: Tensor | None
) -> list[str]:
    """What is odd about a run's clients and the groups it ended with, a sentence each."""
    return screened_clients(history) + group_concerns(history, centres, groups)


def screened_clients(history: list[Row]) -> list[str]:
    """A sentence on the clients whose moves were shortened, if there were any."""
    rounds = [row for row in history if row.get("clipped")]
    if not rounds:
        return []
    names = sorted({name for row in rounds for name in row["clipped"]})
    some = ", ".join(names[:MOST_SCREENED])
    if len(names) > MOST_SCREENED:
        some += f" and {len(names) - MOST_SCREENED} more"
    return [
        f"in {len(rounds)} rounds updates were far longer than is usual, and were shortened, of "
        f"{some}: look at the rows there, or leave screening out (screen 0)."
    ]


def group_concerns(history: list[Row], centres: Params | None, groups: Tensor | None) -> list[str]:
    """What is odd about the groups that a run ended with, a sentence each."""
    if groups is None:
        return []
    sizes = history[-1].get("sizes", [])
    empty = empty_groups(sizes, groups)
    sentences = []
    if empty:
        sentences.append(
            f"no client is in group {join_numbers(empty)} of {len(sizes)}: fewer clusters may do, "
            "or another start or seed."
        )
    for a, b in twins(centres, empty):
        sentences.append(
            f"the models of groups {a} and {b} are all but equal: they are one group, or have not "
            "parted; try fewer clusters, more rounds or larger steps."
        )
    churn = [row["churn"] for row in history[1:] if "churn" in row]
    late = churn[-max(3, len(history) // 4) :]
    if len(late) >= 3 and sum(late) / len(late) > RESTLESS:
        percent = 100 * sum(late) / len(late)
        sentences.append(
            f"the groups are not stable: in the last {len(late)} rounds {percent:.0f} % of the "
            "clients changed theirs each round."
        )
    return sentences


def empty_groups(sizes: list[int], groups: Tensor) -> list[int]:
    """The groups that next to nobody is in, where anybody is in any."""
    if not any(sizes):
        return []
    masses: list[float] = list(sizes)
    if groups.dim() == 2:
        masses = groups.sum(0).tolist()
    return [k for k, mass in enumerate(masses) if mass < 1e-3 * len(groups)]


def twins(centres: Params | None, skip: list[int]) -> list[tuple[int, int]]:
    """Pairs of centres that differ by less than a thousandth of their length."""
    if centres is None:
        return []
    k = count(centres)
    rows = flatten(pick_rows(centres, torch.arange(k))).double()
    near = torch.cdist(rows, rows) < ALIKE * rows.norm(dim=1)
    kept = [j for j in range(k) if j not in skip]
    return [(a, b) for a in kept for b in kept if a < b and near[a, b]]


def join_numbers(numbers: list[int]) -> str:
    """1, 2, 3 and 5 more"""
    text = ", ".join(map(str, numbers[:5]))
    if len(numbers) > 5:
        return f"{text} and {len(numbers) - 5} more"
    return text
