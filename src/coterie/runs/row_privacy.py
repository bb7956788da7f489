"""Record-level differential privacy of a simulated run: a budget for each site, and a ledger.

Every exchange is written to rows.jsonl in the run's folder before it begins, with the sites that it
asks, so that a killed run cannot spend a site's budget twice:

    {"unit": "rows", "delta": 0.001, "epsilon": 6.0, "clip": 1.0, …}
    {"round": 1, "function": "train", "trainings": 1, "choices": 0, "sites": ["ash", "oak"]}

A site whose budget does not suffice for another round no longer takes part.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.contract import Algorithm, Declaration, Local
from coterie.core.declarations import row_releases_per_round
from coterie.core.errors import CoterieError
from coterie.core.task import RowPrivacy, Task
from coterie.data.roster import Roster
from coterie.engines.evaluate import Evaluation
from coterie.privacy.accounting import accountant_version
from coterie.privacy.row_budget import RowBudget, RowPlan
from coterie.runs.options import Options

ROW_LEDGER = "rows.jsonl"
DEFAULT_CLIP = 1.0
PUBLIC = [
    "names and number of the sites",
    "settings, seed and initial models",
    "numbers of rows, and the schema of tables",
    "scores on test and validation rows, which are not protected",
]


def plan_rows(options: Options, method: Algorithm) -> RowPlan:
    """What a run promises to rows, and how often it plans to use them."""
    trainings, choices = row_releases_per_round(method)
    evaluations = 2 + math.ceil(options.rounds / options.every)  # each on test and valid rows
    return RowPlan(
        epsilon=options.epsilon,
        delta=options.delta,
        noise_multiplier=options.noise_multiplier,
        choice_epsilon=options.dp_choice_epsilon,
        trainings=trainings * options.rounds,
        choices=choices * options.rounds + 2 * evaluations * (method.choices_to_predict or 0),
    )


def site_budgets(options: Options, method: Algorithm, roster: Roster) -> list[RowBudget]:
    """The budget of each site, in the order of the roster."""
    assert isinstance(method, Local)
    plan = plan_rows(options, method)
    return [plan.budget(rows, method) for rows in roster.rows.train.tolist()]


def with_row_privacy(task: Task, options: Options, budgets: Sequence[RowBudget]) -> Task:
    """The task for engines whose local training protects rows."""
    noise = torch.tensor([b.noise_multiplier for b in budgets], dtype=torch.float64)
    clip = DEFAULT_CLIP if options.dp_clip == "auto" else float(options.dp_clip)
    privacy = RowPrivacy(
        clip=clip,
        noise_multipliers=noise,
        seed=options.dp_seed,
        choice_epsilon=options.dp_choice_epsilon,
    )
    return task.with_row_privacy(privacy)


def open_row_ledger(options: Options, method: Algorithm, roster: Roster, start: Any) -> RowLedger:
    """The ledger of a run that has not begun; `RowLedger.open` continues that of a folder.

    Raises:
        CoterieError: If the run has a given start, whose privacy loss is not known.
    """
    if start is not None:
        raise CoterieError(
            "a given start comes from rows whose privacy loss this run does not know: leave out "
            "start with dp, or resume the earlier run."
        )
    return RowLedger(
        site_budgets(options, method, roster),
        roster.names,
        method,
        clip=options.dp_clip,
        seed=options.dp_seed,
        is_private=options.dp_seed is None,
    )


class RowLedger:
    """The privacy loss of all sites so far.

    Args:
        budgets: Of each site.
        names: Of the sites.
        method: The run's method.
        about: Further entries of the first line, for readers.
    """

    def __init__(
        self, budgets: list[RowBudget], names: Sequence[str], method: Algorithm, **about: Any
    ) -> None:
        self.budgets = budgets
        self.names = list(names)
        self.method = method
        self.per_round = row_releases_per_round(method)
        self.trainings = np.zeros(len(budgets), dtype=np.int64)
        self.choices = np.zeros(len(budgets), dtype=np.int64)
        self.file: Path | None = None
        first = budgets[0]
        self.lines = [
            json.dumps(
                {
                    "unit": "rows",
                    "adjacency": "one row of a site more or less",
                    "epsilon": first.epsilon,
                    "delta": first.delta,
                    "choice_epsilon": first.choice_epsilon,
                    "noise_multipliers": {n: b.noise_multiplier for n, b in zip(names, budgets)},
                    "accountant": f"dp-accounting {accountant_version()}, Rényi divergences",
                    "public": PUBLIC,
                    **about,
                }
            )
        ]

    # -- accounting
    def affordable(self, ids: Tensor) -> Tensor:
        """Which of these sites can take part in another round, bool [n]."""
        trainings, choices = self.per_round
        at = ids.numpy()
        then = list(
            zip(
                [self.budgets[i] for i in at],
                (self.trainings[at] + trainings).tolist(),
                (self.choices[at] + choices).tolist(),
            )
        )
        # sites of equal size lose the same
        can = {each: each[0].affords(each[1], each[2]) for each in set(then)}
        return torch.tensor([can[each] for each in then], dtype=torch.bool)

    def epsilon(self) -> float:
        """ε of the site that has lost most."""
        return max(self.site_losses())

    def site_losses(self) -> list[float]:
        """ε of each site."""
        spent = list(zip(self.budgets, self.trainings.tolist(), self.choices.tolist()))
        # sites of equal size lose the same
        losses = {each: each[0].loss(each[1], each[2]) for each in set(spent)}
        return [losses[each] for each in spent]

    # -- lines
    def charge(self, round: int, fn: Any, ids: Tensor) -> None:
        """Write down an exchange, before it begins."""
        declaration: Declaration = fn.declaration
        trainings, choices = declaration.trainings or 0, declaration.choices
        if isinstance(fn.__self__, Evaluation):
            choices = self.method.choices_to_predict or 0
        if not trainings and not choices:
            return
        entry = {
            "round": round,
            "function": fn.__name__,
            "trainings": trainings,
            "choices": choices,
            "sites": [self.names[i] for i in ids.tolist()],
        }
        line = json.dumps(entry)
        if self.file is not None:
            _write_line(self.file, line)
        self.lines.append(line)
        self._count(entry)

    def _count(self, entry: dict[str, Any]) -> None:
        place = {name: i for i, name in enumerate(self.names)}
        at = [place[name] for name in entry["sites"]]
        self.trainings[at] += entry["trainings"]
        self.choices[at] += entry["choices"]

    # -- files
    def open(self, folder: Path) -> None:
        """Continue the ledger of a run's folder, or begin it.

        Raises:
            CoterieError: If the file is damaged.
        """
        self.file = folder / ROW_LEDGER
        if not self.file.exists():
            for line in self.lines:
                _write_line(self.file, line)
            return
        try:
            text = self.file.read_text()
            # a line that a killed process did not finish stands for an exchange that never began
            lines = text[: text.rfind("\n") + 1].splitlines()
            entries = [json.loads(line) for line in lines]
            if entries[0]["unit"] != "rows":
                raise ValueError
            self.trainings[:] = 0
            self.choices[:] = 0
            for entry in entries[1:]:
                self._count(entry)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as e:
            raise CoterieError(
                f"{self.file} is damaged: the privacy loss so far is not known",
                "restore the file; without it the run cannot be resumed",
            ) from e
        self.lines = lines
        if not text.endswith("\n"):
            self.file.write_text("".join(line + "\n" for line in lines))


def _write_line(file: Path, line: str) -> None:
    """Append a line and flush it to disk."""
    with open(file, "a") as f:
        f.write(line + "\n")
        f.flush()
        os.fsync(f.fileno())
