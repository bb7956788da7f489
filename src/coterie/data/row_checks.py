"""Checks of clients' rows before they become a federation."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.federation import Kind, Ragged

Pair = tuple[Tensor, Tensor]
BLOCK = 2**15  # values that are checked at once; torch divides more among threads, which is slower


def refuse_empty(names: Sequence[str], pairs: list[Pair]) -> None:
    """Refuse clients without rows."""
    for name, (x, _) in zip(names, pairs):
        if not len(x):
            raise CoterieError(f"client {name!r} is empty", "leave it out, or give it data")


def alike(train: Ragged, test: Ragged) -> tuple[Ragged, Ragged]:
    """Training and test rows in one dtype; rows of different shapes are refused."""
    dtype = torch.promote_types(train.x.dtype, test.x.dtype)
    both_float = train.x.is_floating_point() == test.x.is_floating_point()
    if train.x.shape[1:] != test.x.shape[1:] or not both_float:
        shapes = [f"{tuple(part.x.shape[1:])} of {part.x.dtype}" for part in (train, test)]
        raise CoterieError(
            f"training rows are {shapes[0]}, test rows {shapes[1]}", "they must be alike"
        )
    return train._replace(x=train.x.to(dtype)), test._replace(x=test.x.to(dtype))


def check_values(data: Ragged, names: Sequence[str], kind: Kind) -> Ragged:
    """Refuse values that cannot be trained on, naming the client; give y the dtype of its kind."""

    def client(row: int) -> str:
        return repr(names[int(torch.searchsorted(data.starts + data.sizes, row, right=True))])

    for part, values in (("x", data.x), ("y", data.y)):
        at = first_not_finite(values)
        if at:
            where = f"{part}, column {at[1]}" if values.ndim == 2 else part
            raise CoterieError(
                f"client {client(at[0])} has a NaN or infinite value in {where}",
                "drop or mend the row",
            )
    if kind == "regression":
        if data.y.is_floating_point():
            return data
        return data._replace(y=data.y.double())  # whole numbers up to 2^53 stay exact
    wrong = ((data.y < 0) | (data.y != data.y.round())).nonzero().flatten()
    if len(wrong):
        value = data.y[wrong[0]].item()
        raise CoterieError(
            f"client {client(int(wrong[0]))} has the label {value}",
            "classes are numbered 0, 1, 2, …",
        )
    return data._replace(y=data.y.long())


def first_not_finite(values: Tensor) -> list[int]:
    """The place of the first NaN or infinite value; [] if there is none.

    A few rows are looked at at a time, for torch makes copies of them on the way.
    """
    if not values.is_floating_point():
        return []
    block = max(1, BLOCK // max(1, values[:1].numel()))
    for start in range(0, len(values), block):
        bad = ~values[start : start + block].isfinite()
        if bad.any():
            row, *column = bad.nonzero()[0].tolist()
            return [start + row, *column]
    return []


def count_classes(y: Tensor, labels: Sequence[str] | None) -> int:
    """The number of classes: one per name, or the highest label plus one."""
    highest = int(y.max())
    if labels is None:
        return highest + 1
    if highest >= len(labels):
        raise CoterieError(
            f"there is a label {highest}, but names for only {len(labels)} classes", "name them all"
        )
    return len(labels)


def warn_of_thin_clients(train: Ragged, names: Sequence[str], kind: Kind) -> None:
    """Warn, in one line, of clients that can hardly be learnt from."""
    thin = train.sizes.numpy() == 1
    if kind == "classification":
        y, starts = train.y.numpy(), train.starts.numpy()
        thin = np.minimum.reduceat(y, starts) == np.maximum.reduceat(y, starts)
    if not thin.any():
        return
    listed = ", ".join(names[i] for i in np.flatnonzero(thin)[:5])
    if thin.sum() > 5:
        listed += ", …"
    warnings.warn(
        f"{thin.sum()} of {len(names)} clients have a single training row or a single class: "
        f"{listed}",
        stacklevel=3,
    )
