"""Inputs of several parts: x as a dict of tensors.

The rows of all clients are one tensor, which engines pad, copy and store. A dict of tensors
[n, ...] is packed to one tensor [n, numbers of a row], and a `Task` unpacks it before the model
sees it. Whole numbers among floats are stored as floats, exactly up to `MAX_WHOLE`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, unknown_name

MAX_WHOLE = 2**24  # larger whole numbers are not exact in float32


class InputField(NamedTuple):
    """One part of the inputs.

    Example:
        >>> InputField("text", shape=(20,), tokens=True).numbers
        20
    """

    name: str
    shape: tuple[int, ...]  # of one row
    tokens: bool  # whether it holds whole numbers (int64)

    @property
    def numbers(self) -> int:
        """Count of numbers in a row."""
        return math.prod(self.shape)


def fields_of(x: Mapping[str, Tensor]) -> tuple[InputField, ...]:
    """The fields of a dict of tensors, sorted by name."""
    return tuple(
        InputField(name, tuple(x[name].shape[1:]), not x[name].is_floating_point())
        for name in sorted(x)
    )


def pack_inputs(x: Mapping[str, Tensor], fields: Sequence[InputField], whose: str) -> Tensor:
    """Pack a dict of tensors [n, ...] to one tensor [n, numbers of a row].

    Args:
        x: By name, tensors with the same number of rows.
        fields: What the dict must have.
        whose: Begins the messages, such as "client 'a'" or "x".

    Raises:
        CoterieError: If names, shapes or numbers of rows do not fit.
    """
    names = [field.name for field in fields]
    for name in x:
        if name not in names:
            raise unknown_name(f"input of {whose}", str(name), names)
    for field in fields:
        if field.name not in x:
            raise CoterieError(
                f"{whose} lacks the input {field.name!r}", f"give {', '.join(names)}"
            )
        found = x[field.name]
        is_float = found.is_floating_point()
        if tuple(found.shape[1:]) != field.shape or is_float == field.tokens:
            numbers = "whole numbers" if field.tokens else "floats"
            raise CoterieError(
                f"the input {field.name!r} of {whose} has rows of shape {tuple(found.shape[1:])} "
                f"and type {found.dtype}",
                f"give {numbers} of shape {field.shape}",
            )
    rows = {name: len(x[name]) for name in names}
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in rows.items())
        raise CoterieError(
            f"the inputs of {whose} have different numbers of rows: {listed}",
            "give one of each per row",
        )
    columns = [x[name][:, None].flatten(1) for name in names]
    if all(field.tokens for field in fields):
        return torch.cat(columns, 1)
    dtype = torch.get_default_dtype()
    for field, column in zip(fields, columns):
        if column.is_floating_point():
            dtype = torch.promote_types(dtype, column.dtype)
        elif column.numel() and int(column.abs().max()) > MAX_WHOLE:
            raise CoterieError(
                f"the input {field.name!r} of {whose} has a whole number above {MAX_WHOLE:,}",
                "give it as floats",
            )
    return torch.cat([column.to(dtype) for column in columns], 1)


def unpack_inputs(x: Tensor, fields: Sequence[InputField]) -> dict[str, Tensor]:
    """The dict of tensors [n, ...] that was packed to x [n, numbers of a row]."""
    parts = x.split([field.numbers for field in fields], 1)
    found: dict[str, Tensor] = {}
    for field, part in zip(fields, parts):
        rows = part.unflatten(1, field.shape) if field.shape else part[:, 0]
        found[field.name] = rows.long() if field.tokens else rows
    return found


def is_dict(x: Any) -> bool:
    """Whether x is a dict of tensors, and not a DataFrame."""
    return isinstance(x, Mapping)
