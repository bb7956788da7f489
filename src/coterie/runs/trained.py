"""A trained run as data.

All that answers, exports and reports need, and nothing of any client's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from coterie.core.contract import Algorithm, at_round
from coterie.core.params import Params
from coterie.core.task import Task
from coterie.data.roster import Roster
from coterie.metrics import Row, concerns, hard
from coterie.runs.certainty import Answers, Certainty, certainty
from coterie.runs.options import Options


@dataclass(frozen=True, eq=False)
class Trained:
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
        return hard(groups)

    @property
    def certainty(self) -> Certainty | None:
        """How sure each client's membership is; None before the end, or without groups."""
        return certainty(self.memberships, self.hard_groups)

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
        return concerns(self.history, self.centres, self.groups)
