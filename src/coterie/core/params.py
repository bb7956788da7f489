"""Maths on models: a model is a dict of tensors; K stacked models have a leading axis K.

A stacked leaf whose leading axis is 1 is shared by all K models (weight sharing): it is sent and
kept once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Params = dict[str, Tensor]


def axpy(a: float | Tensor, x: Params, y: Params) -> Params:
    """y + a·x"""
    return {k: y[k] + a * x[k] for k in y}


def minus(x: Params, y: Params) -> Params:
    """x − y"""
    return {k: x[k] - y[k] for k in x}


def mix(a: float | Tensor, x: Params, y: Params) -> Params:
    """(1 − a)·x + a·y"""
    if isinstance(a, Tensor):
        return {k: x[k] + a * (y[k] - x[k]) for k in x}
    return {k: torch.lerp(x[k], y[k], a) for k in x}  # the same in one pass


def scale(a: float | Tensor, x: Params) -> Params:
    """a·x"""
    return {k: a * v for k, v in x.items()}


def dot(x: Params, y: Params) -> Tensor:
    """⟨x, y⟩"""
    return torch.stack([(x[k] * y[k]).sum() for k in x]).sum()


def norm(x: Params) -> Tensor:
    """‖x‖"""
    return dot(x, x).sqrt()


def zeros(x: Params) -> Params:
    """Zeros in the shape of x."""
    return {k: torch.zeros_like(v) for k, v in x.items()}


def where(condition: Tensor, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`, through any nest of tensors."""

    def chosen(x: Any, y: Any) -> Any:
        if isinstance(x, Tensor):
            return torch.where(condition, x, y)
        return x

    return tree_map(chosen, a, b)


def is_bias(name: str) -> bool:
    """Whether a parameter is a bias, by its name: weight decay leaves it alone."""
    return name.endswith("bias")


def decayed_square(x: Params) -> Tensor:
    """‖x‖² of what weight decay acts on: everything but the biases."""
    weights = {k: v for k, v in x.items() if not is_bias(k)}
    return dot(weights, weights)


# ------------------------------------------------------------------------------ stacked models
def count(stacked: Params) -> int:
    """K, the number of models."""
    return max(len(v) for v in stacked.values())


def pick(stacked: Params, j: int | Tensor) -> Params:
    """Model j."""
    return {k: v[0] if len(v) == 1 else v[j] for k, v in stacked.items()}


def pick_rows(stacked: Params, index: Tensor) -> Params:
    """Models index[0], index[1], …, stacked."""

    def rows(v: Tensor) -> Tensor:
        if len(v) == 1:  # shared by all models
            return v.expand(len(index), *v.shape[1:])
        return v[index]

    return {k: rows(v) for k, v in stacked.items()}


def unstack(stacked: Params) -> list[Params]:
    """The models one by one."""
    return [pick(stacked, j) for j in range(count(stacked))]


def stack(models: Sequence[Params]) -> Params:
    """Models of one shape, stacked."""
    return {k: torch.stack([m[k] for m in models]) for k in models[0]}


def repeated(model: Params, k: int) -> Params:
    """K copies of one model, stacked."""
    return {n: v.expand(k, *v.shape).clone() for n, v in model.items()}


def flatten(stacked: Params) -> Tensor:
    """[K, d]: each model as one vector."""
    return torch.cat([v.flatten(1) for v in stacked.values()], 1)


def unflatten(rows: Tensor, like: Params) -> Params:
    """[K, d] back into K stacked models, each shaped as the one model `like`."""
    pieces = rows.split([v.numel() for v in like.values()], 1)
    return {
        n: p.reshape(len(rows), *v.shape).to(v.dtype) for (n, v), p in zip(like.items(), pieces)
    }


def as_column(weights: Tensor, like: Tensor) -> Tensor:
    """[K] shaped to multiply a stacked leaf [K, ...]."""
    return weights.view(-1, *[1] * (like.dim() - 1))


# ------------------------------------------------------------------------------ choices
def argmin_finite(losses: Tensor) -> Tensor:
    """Index of the least finite loss on the last axis, the lowest among equals; −1 if none is.

    `torch.argmin` returns the index of a NaN: one diverged centre would attract every client.
    """
    finite = losses.isfinite()
    least = torch.where(finite, losses, torch.inf).argmin(-1)
    return torch.where(finite.any(-1), least, -1)


def one_hot(j: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """One-hot rows [..., k] of choices j; −1 (nothing was finite) gives NaN, which is refused."""
    hot = (j[..., None] == torch.arange(k, device=j.device)).to(dtype)
    return torch.where((j < 0)[..., None], torch.nan, hot)


def nbytes(tree: Any) -> int:
    """Bytes of all tensors in a nest."""
    return sum(v.numel() * v.element_size() for v in tree_leaves(tree) if isinstance(v, Tensor))
