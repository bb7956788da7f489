"""The effect of each column on the prediction of each group's model, as plain numbers to draw."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.params import unstack
from coterie.data.schema import Column
from coterie.runs.trained import TrainedRun

POINTS = 41  # of a curve
REACH = 2.0  # standard deviations on either side of a column's mean
NORMAL_95 = 1.959964  # standard errors of a 95 % band


class Effect(NamedTuple):
    """How a group's prediction changes with one column, all others at their means.

    Predictions are in the label's unit, or the log odds of the second of two classes. They are
    differences from the prediction at the first category, or at the column's mean.
    """

    column: str
    group: int
    x: list[float] | list[str]  # values of the column in its own unit (years for dates), or texts
    mean: list[float]
    low: list[float] | None  # of a 95 % band; None if the method has no standard errors
    high: list[float] | None


def column_effects(trained: TrainedRun) -> list[Effect]:
    """Return the effect of every column on every group's model; see `Result.effects`."""
    schema, centres = trained.roster.schema, trained.centres
    if schema is None or centres is None:
        raise CoterieError(
            "effects are those of columns on the models of groups: use a run on tables of a method "
            "with groups, such as mixed."
        )
    if trained.roster.kind == "classification" and trained.roster.classes != 2:
        raise CoterieError(
            f"the label has {trained.roster.classes} classes: effects are for numbers and two "
            "classes."
        )
    task = trained.task
    effects = []
    start = 0
    for column in schema.features:
        x, rows = grid(column, start, len(schema.columns))
        start += len(column.encoded)
        rows = rows.to(task.dtype)
        reference = rows[len(rows) // 2 if column.kind != "category" else 0][None]
        errors = trained.method.standard_errors(task, trained.state, rows, reference)
        for group, model in enumerate(unstack(centres)):
            out = task.outputs(model, rows) - task.outputs(model, reference)
            if out.dim() == 2:
                out = out[:, 1] - out[:, 0]
            mean, band = out.double(), None
            if errors is not None:
                band = NORMAL_95 * errors[group]
            effects.append(
                Effect(
                    column=column.name,
                    group=group,
                    x=x,
                    mean=mean.tolist(),
                    low=None if band is None else (mean - band).tolist(),
                    high=None if band is None else (mean + band).tolist(),
                )
            )
    return effects


def grid(column: Column, start: int, width: int) -> tuple[list[float] | list[str], Tensor]:
    """Return values of a column, and a row [width] of encoded columns for each."""
    if column.kind == "category":
        texts = list(column.categories) or ["(other)"]
        rows = torch.zeros(len(texts), width)
        rows[range(len(texts)), range(start, start + len(texts))] = 1
        return texts, rows
    z = torch.linspace(-REACH, REACH, POINTS)
    rows = torch.zeros(POINTS, width)
    rows[:, start] = z
    return (column.mean + z.double() * column.deviation).tolist(), rows
