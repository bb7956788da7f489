"""The rows of a base set, from which federations are made."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Base(NamedTuple):
    """Rows x, float32, and labels y, int64 [rows].

    Images are [rows, H, W] or [rows, 3, H, W] in [0, 1]. Where it is known whom a row comes from,
    `keys` are their names, and `key_train` and `key_test`, int64 [rows], say whose each row is.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    labels: tuple[str, ...]
    keys: tuple[str, ...] = ()
    key_train: Tensor | None = None
    key_test: Tensor | None = None
