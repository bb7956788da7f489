"""Arithmetic on models.

A model is a dict of tensors; K stacked models have a leading axis K. A stacked leaf whose leading
axis is 1 is shared by all K models (weight sharing): it is sent and stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.core.trees import tree_leaves, tree_map

Params = dict[str, Tensor]


def axpy(a: float | Tensor, x: Params, y: Params) -> Params:
    """y + a·x

    Args:
        a: A number.
        x: A model.
        y: A model of the same structure.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> x, y = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.0, 1.0])}
        >>> ct.params.axpy(2.0, x, y)
        {'w': tensor([2., 5.])}
    """
    return {k: y[k] + a * x[k] for k in y}


def minus(x: Params, y: Params) -> Params:
    """x − y

    Args:
        x: A model.
        y: A model of the same structure.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.minus({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])})
        {'w': tensor([2.])}
    """
    return {k: x[k] - y[k] for k in x}


def mix(a: float | Tensor, x: Params, y: Params) -> Params:
    """(1 − a)·x + a·y

    Args:
        a: The weight of y.
        x: A model.
        y: A model of the same structure.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.mix(0.25, {"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])})
        {'w': tensor([1.])}
    """
    if isinstance(a, Tensor):
        return {k: x[k] + a * (y[k] - x[k]) for k in x}
    return {k: torch.lerp(x[k], y[k], a) for k in x}  # the same in one pass


def scale(a: float | Tensor, x: Params) -> Params:
    """a·x

    Args:
        a: A number.
        x: A model.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.scale(2.0, {"w": torch.tensor([3.0])})
        {'w': tensor([6.])}
    """
    return {k: a * v for k, v in x.items()}


def dot(x: Params, y: Params) -> Tensor:
    """⟨x, y⟩

    Args:
        x: A model.
        y: A model of the same structure.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> x = {"w": torch.tensor([3.0, 4.0])}
        >>> ct.params.dot(x, x)
        tensor(25.)
    """
    return torch.stack([(x[k] * y[k]).sum() for k in x]).sum()


def norm(x: Params) -> Tensor:
    """‖x‖

    Args:
        x: A model.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.norm({"w": torch.tensor([3.0, 4.0])})
        tensor(5.)
    """
    return dot(x, x).sqrt()


def zeros(x: Params) -> Params:
    """Zeros with the shapes of x.

    Args:
        x: A model.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.zeros({"w": torch.tensor([3.0, 4.0])})
        {'w': tensor([0., 0.])}
    """
    return {k: torch.zeros_like(v) for k, v in x.items()}


def where(condition: Tensor, a: Any, b: Any) -> Any:
    """`torch.where` on nests of tensors.

    Args:
        condition: A bool tensor.
        a: The result where the condition holds.
        b: The result elsewhere, with the same structure.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.where(torch.tensor(False), {"w": torch.ones(1)}, {"w": torch.zeros(1)})
        {'w': tensor([0.])}
    """

    def select(x: Any, y: Any) -> Any:
        if isinstance(x, Tensor):
            return torch.where(condition, x, y)
        return x

    return tree_map(select, a, b)


def is_bias(name: str) -> bool:
    """Whether a parameter is a bias, by its name: weight decay does not act on biases.

    Args:
        name: Such as "0.bias".

    Example:
        >>> import coterie as ct
        >>> ct.params.is_bias("0.bias")
        True
    """
    return name.endswith("bias")


def decayed_square(x: Params) -> Tensor:
    """‖x‖² without biases, on which weight decay does not act.

    Args:
        x: A model.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.decayed_square({"weight": torch.tensor([3.0]), "bias": torch.ones(1)})
        tensor(9.)
    """
    weights = {k: v for k, v in x.items() if not is_bias(k)}
    return dot(weights, weights)


# ------------------------------------------------------------------------------ stacked models
def count(stacked: Params) -> int:
    """K, the number of stacked models.

    Args:
        stacked: Every leaf [K, ...], or [1, ...] if shared.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.count({"w": torch.zeros(3, 2)})
        3
    """
    return max(len(v) for v in stacked.values())


def pick(stacked: Params, j: int | Tensor) -> Params:
    """Model j of a stack.

    Args:
        stacked: Every leaf [K, ...], or [1, ...] if shared.
        j: An index, int or int64 [].

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.pick({"w": torch.tensor([[1.0], [2.0]])}, 1)
        {'w': tensor([2.])}
    """
    return {k: v[0] if len(v) == 1 else v[j] for k, v in stacked.items()}


def pick_rows(stacked: Params, index: Tensor) -> Params:
    """The models index[0], index[1], … of a stack, stacked.

    Args:
        stacked: Every leaf [K, ...], or [1, ...] if shared.
        index: int64 [n].

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> index = torch.tensor([1, 1, 0])
        >>> ct.params.pick_rows({"w": torch.tensor([1.0, 2.0])}, index)
        {'w': tensor([2., 2., 1.])}
    """

    def rows(v: Tensor) -> Tensor:
        if len(v) == 1:  # shared by all models
            return v.expand(len(index), *v.shape[1:])
        return v[index]

    return {k: rows(v) for k, v in stacked.items()}


def unstack(stacked: Params) -> list[Params]:
    """The models of a stack, as a list.

    Args:
        stacked: Every leaf [K, ...], or [1, ...] if shared.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.unstack({"w": torch.tensor([1.0, 2.0])})
        [{'w': tensor(1.)}, {'w': tensor(2.)}]
    """
    return [pick(stacked, j) for j in range(count(stacked))]


def stack(models: Sequence[Params]) -> Params:
    """Stack models of one structure.

    Args:
        models: The models, every leaf [...].

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.stack([{"w": torch.tensor(1.0)}, {"w": torch.tensor(2.0)}])
        {'w': tensor([1., 2.])}
    """
    return {k: torch.stack([m[k] for m in models]) for k in models[0]}


def repeated(model: Params, k: int) -> Params:
    """K copies of one model, stacked.

    Args:
        model: Every leaf [...].
        k: Number of copies.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.repeated({"w": torch.tensor(1.0)}, 2)
        {'w': tensor([1., 1.])}
    """
    return {n: v.expand(k, *v.shape).clone() for n, v in model.items()}


def flatten(stacked: Params) -> Tensor:
    """Each model of a stack as one vector, [K, d].

    Args:
        stacked: Every leaf [K, ...].

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.flatten({"w": torch.zeros(3, 2, 2), "b": torch.zeros(3, 2)}).shape
        torch.Size([3, 6])
    """
    return torch.cat([v.flatten(1) for v in stacked.values()], 1)


def unflatten(rows: Tensor, like: Params) -> Params:
    """The inverse of `flatten`.

    Args:
        rows: [K, d].
        like: One model, whose shapes and dtypes are used.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> like = {"w": torch.zeros(2, 2)}
        >>> ct.params.unflatten(torch.ones(3, 4), like)["w"].shape
        torch.Size([3, 2, 2])
    """
    pieces = rows.split([v.numel() for v in like.values()], 1)
    return {
        n: p.reshape(len(rows), *v.shape).to(v.dtype) for (n, v), p in zip(like.items(), pieces)
    }


def as_column(weights: Tensor, like: Tensor) -> Tensor:
    """Reshape weights [K] to multiply a stacked leaf [K, ...].

    Args:
        weights: [K].
        like: The leaf.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.as_column(torch.ones(3), torch.zeros(3, 2, 2)).shape
        torch.Size([3, 1, 1])
    """
    return weights.view(-1, *[1] * (like.dim() - 1))


# ------------------------------------------------------------------------------ choices
def argmin_finite(losses: Tensor) -> Tensor:
    """The index of the smallest finite loss on the last axis; −1 if none is finite.

    `torch.argmin` returns the index of a NaN: one diverged centre would attract every client.

    Args:
        losses: [..., K].

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.argmin_finite(torch.tensor([torch.nan, 2.0, 1.0]))
        tensor(2)
    """
    finite = losses.isfinite()
    least = torch.where(finite, losses, torch.inf).argmin(-1)
    return torch.where(finite.any(-1), least, -1)


def one_hot(j: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """One-hot vectors; an index of −1 (no finite loss) gives NaN, which gets the upload rejected.

    Args:
        j: int64 [...].
        k: The length of a vector.
        dtype: Of the result, [..., k].

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.one_hot(torch.tensor(1), 3, torch.float32)
        tensor([0., 1., 0.])
    """
    hot = (j[..., None] == torch.arange(k, device=j.device)).to(dtype)
    return torch.where((j < 0)[..., None], torch.nan, hot)


def nbytes(tree: Any) -> int:
    """Bytes of all tensors in a pytree.

    Args:
        tree: Dicts and tuples of tensors.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> ct.params.nbytes({"w": torch.zeros(3)})
        12
    """
    return sum(v.numel() * v.element_size() for v in tree_leaves(tree) if isinstance(v, Tensor))
