"""Rows that somebody brings from outside, checked before a model sees them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.task import Batch, Task
from coterie.data.roster import Roster


def check_rows(
    task: Task, roster: Roster, x: Any, y: Any = None, *, use_labels: bool = True
) -> Batch:
    """Rows from outside as a batch; a DataFrame is encoded as in training.

    Without y, zeros stand for it.  use_labels: whether a DataFrame's label column is read.
    """
    if is_table(x):
        x, label_column = encode_table(roster, x, use_labels)
        y = label_column if y is None else y
    x = check_x(task, roster, as_tensor("x", x))
    if y is None:
        return Batch.of(x, _no_labels(task, len(x)), task.dtype)
    return Batch.of(x, check_y(task, as_tensor("y", y), len(x)), task.dtype)


def is_table(x: Any) -> bool:
    """Whether x is a DataFrame."""
    return hasattr(x, "columns")


def encode_table(roster: Roster, table: Any, use_labels: bool) -> tuple[Any, Any]:
    """(x, y or None) of a DataFrame, by the schema of the training tables."""
    if roster.schema is None:
        raise CoterieError(
            "x is a table, and this run was not trained on tables: give an array or a tensor."
        )
    for remark in roster.schema.remarks(table):
        warnings.warn(remark, stacklevel=6)
    if not use_labels:
        table = table.drop(columns=roster.schema.label, errors="ignore")
    return roster.schema.encode(table)


def check_labelled_rows(task: Task, roster: Roster, x: Any, y: Any = None) -> Batch:
    """Labelled rows from outside as a batch; refused without labels."""
    if y is None and not is_table(x):
        raise CoterieError("the rows need labels: give y, or a table with the label column.")
    if y is None and roster.schema is not None and roster.schema.label not in x:
        raise CoterieError(f"the table lacks the column {roster.schema.label}", "add the labels")
    return check_rows(task, roster, x, y)


def check_x(task: Task, roster: Roster, x: Tensor) -> Tensor:
    """Rows of the shape and type that the model takes, all finite."""
    if not len(x) or tuple(x.shape[1:]) != roster.row_shape:
        raise CoterieError(
            f"x has the shape {tuple(x.shape)}: it must be rows of the shape {roster.row_shape}."
        )
    if not bool(x.isfinite().all()):
        raise CoterieError("x holds NaN or infinity: fill or remove these rows.")
    return x.to(torch.int64 if roster.tokens else task.dtype)


def check_y(task: Task, y: Tensor, rows: int) -> Tensor:
    """One finite label per row, a known class where there are classes."""
    if y.shape != (rows,):
        raise CoterieError(
            f"y has the shape {tuple(y.shape)} for {rows} rows: give one label per row."
        )
    if not bool(y.isfinite().all()):
        raise CoterieError("y holds NaN or infinity: give every row a label.")
    if task.kind == "regression":
        return y.to(task.dtype)
    classes = task.classes or 0
    if not bool(((y >= 0) & (y < classes) & (y == y.floor())).all()):
        raise CoterieError(
            f"y must hold whole numbers from 0 to {classes - 1}, the classes of the run."
        )
    return y.long()


def _no_labels(task: Task, rows: int) -> Tensor:
    return torch.zeros(rows, dtype=task.dtype if task.kind == "regression" else torch.int64)


def as_tensor(name: str, values: Any) -> Tensor:
    """Numbers of any kind as a tensor."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as e:
        raise CoterieError(f"{name} does not hold numbers ({e}): give an array or a tensor.") from e
    if tensor.dim() == 0 or tensor.is_complex():
        raise CoterieError(
            f"{name} is {tensor.dtype} of the shape {tuple(tensor.shape)}: "
            "give a number per cell of rows."
        )
    return tensor
