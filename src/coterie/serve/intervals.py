"""Prediction intervals: the range that holds a label with a given probability.

A method with a posterior (`mixed`) gives intervals of its own. For any other method they are
split-conformal: the prediction plus and minus a quantile of the absolute errors on validation rows,
which trained no model. A client with few validation rows uses those of its whole group, and a new
client those of the group that fits it best. For these errors each client reports a histogram, never
the error of a row.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from coterie.core.call import pick_clients
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.core.task import Task
from coterie.engines.evaluate import ERROR_BINS, error_edges
from coterie.runs.run import Run
from coterie.runs.trained import TrainedRun

MIN_OWN = 50  # validation rows from which a client's own errors decide


def check_level(task: Task, level: float) -> None:
    """Raise an error if there can be no such interval."""
    if not 0 < level < 1:
        raise CoterieError(f"interval is {level}: it must lie between 0 and 1, such as 0.9.")
    if task.kind == "classification":
        raise CoterieError(
            "intervals are for labels that are numbers, and this label is a class: use its "
            "probabilities."
        )
    if task.kind != "regression":
        raise CoterieError(
            f"intervals are for one number per row, and the targets are of the kind {task.kind}: "
            "predict without an interval."
        )


def has_posterior(method: Algorithm) -> bool:
    """Return whether the method gives intervals of its own."""
    return type(method).predict_interval is not Algorithm.predict_interval


def add_conformal(
    run: Run, outputs: Tensor, level: float, members: Tensor, own: int = -1
) -> Tensor:
    """Return predictions with a split-conformal interval: [n, 3], prediction, low and high.

    Args:
        run: The run with its data.
        outputs: The predictions [n].
        level: The probability that the interval holds the label.
        members: int64, the clients of the group.
        own: The client itself; −1 for a new client.

    Raises:
        CoterieError: If the run has no validation rows, or too few for this level.
    """
    members = members[run.roster.rows.valid[members] > 0]
    if not len(members):
        raise CoterieError(
            f"intervals of {run.method.name} need rows that trained no model",
            "train it with --valid 0.2, or use mixed",
        )
    counts = error_counts(run, members)
    total = counts.sum(0)
    at = (members == own).nonzero()[:, 0]
    if len(at) and float(counts[at[0]].sum()) >= MIN_OWN:
        total = counts[at[0]]
    rows = float(total.sum())
    wanted = math.ceil((rows + 1) * level)  # so that a new error is within it with P ≥ level
    if wanted > rows:
        raise CoterieError(
            f"an interval of {level:g} needs {math.ceil(level / (1 - level))} validation rows, and "
            f"there are {rows:.0f}: use a lower level or a larger validation split."
        )
    within = int(torch.searchsorted(total.cumsum(0), wanted - 0.5))
    width = float(error_edges(run.task.loss_unit)[within + 1])
    return torch.stack([outputs, outputs - width, outputs + width], 1)


def error_counts(run: Run, ids: Tensor) -> Tensor:
    """Return the histogram of each client's absolute errors on its validation rows, [n, bins]."""
    ask = run.round_context(max(run.round, 0), "evaluate")
    shared, per_client = ask.root.method.use(run.state)
    answers: Any = ask(
        ask.root.absolute_errors,
        ids,
        shared=shared,
        per_client=pick_clients(per_client, ids),
        stream="evaluate",
        split="valid",
    )
    counts = torch.zeros(len(ids), ERROR_BINS, dtype=torch.float64)
    place = {client: i for i, client in enumerate(ids.tolist())}
    for i, client in enumerate(answers.ids.tolist()):
        counts[place[client]] = answers.report["errors"][i].double().cpu()
    return counts


def group_members(trained: TrainedRun, group: int | None) -> Tensor:
    """Return the clients of a group, int64; all clients for None or an empty group."""
    everyone = torch.arange(len(trained.roster))
    labels = trained.hard_groups
    if group is None or labels is None:
        return everyone
    members = everyone[torch.from_numpy(labels == group)]
    return members if len(members) else everyone
