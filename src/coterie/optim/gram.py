"""XXᵀ of a client's rows X, which the dual form needs and which no training changes.

An engine that meets the same clients again and again may keep it from round to round. It costs
memory, so it is kept only if it is used: until then the engine gives an empty one, which says that
it would be kept, and local training wishes for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeGuard

import torch
from torch import Tensor

from coterie.core.client_data import Gram

_wishes: ContextVar[list[bool] | None] = ContextVar("wishes", default=None)


def gram_matrix(x: Tensor) -> Tensor:
    """XXᵀ of rows x [..., n, d], of which one quarter is the mirror image of another."""
    half = x.shape[-2] // 2
    if half < 32:  # too little to gain
        return x @ x.mT
    upper, lower = x[..., :half, :], x[..., half:, :]
    rest = lower @ x.mT
    first = torch.cat([upper @ upper.mT, rest[..., :half].mT], -1)
    return torch.cat([first, rest], -2)


def is_kept(gram: Gram) -> TypeGuard[Tensor]:
    """Whether the engine has it, or would have it in the next round."""
    return isinstance(gram, Tensor)


def wish_for_gram() -> None:
    """Tell the engine that it is worth keeping."""
    wishes = _wishes.get()
    if wishes is not None:
        wishes.append(True)


@contextmanager
def gram_wishes() -> Iterator[list[bool]]:
    """A list that is no longer empty once somebody wished for it, while the context is open."""
    wishes: list[bool] = []
    token = _wishes.set(wishes)
    try:
        yield wishes
    finally:
        _wishes.reset(token)
