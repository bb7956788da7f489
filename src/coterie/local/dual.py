"""Exact steps on one repeated batch that never touch the first layer's weights until the end.

Let the first layer be Z = X·Wᵀ + b on the rows X of the batch. Its gradient is GᵀX with G = ∂f/∂Z,
so a step changes Z by a multiple of (XXᵀ + 1)·G, where the 1 stands for the bias, a constant
feature. With the Gram matrix XXᵀ computed once, a step costs n²·h instead of 2·n·d·h
multiplications (n rows, d inputs, h outputs of the layer), which pays when a batch is repeated and
n is small beside d.

Momentum and pull are linear, so after any number of steps the weights are a combination

    W = start·W₀ + centre·C + momentum·U₀ + sumsᵀ·X

of what was there at first: the start W₀, the centre C of the pull, the first momentum U₀; and so
are the momentum and every gradient. A `Combination` holds these three numbers, the sums [n, h] and
the outputs Z [n, h] that go with them. Steps on it are those of any other solver; the other layers
take them as they are.
"""

from __future__ import annotations

from typing import NamedTuple, overload

import torch
from torch import Tensor
from torch.func import grad

from coterie.client_data import Repeat
from coterie.first_layer import First
from coterie.local.pull import Number, Pull, WithMomentum, unless_padding
from coterie.params import Params, axpy, minus
from coterie.task import Task


def dual_pays(task: Task, w: Params, repeat: Repeat) -> bool:
    """Whether the dual form is possible, and takes fewer multiplications than plain steps."""
    if task.first is None:
        return False
    h, d = w[task.first.weight].shape
    n = len(repeat.batch.mask)
    t = repeat.times
    return n * n * d + 2 * n * d * h + t * n * n * h < 2 * t * n * d * h


def dual_steps(
    task: Task,
    w: Params,
    u: Params | None,
    repeat: Repeat,
    *,
    lr: float,
    beta: float,
    pull: Pull | None,
) -> WithMomentum:
    """(w, u) after `repeat.times` steps on its batch; u is None for steps without momentum."""
    assert task.first is not None
    origin = Origin(task.first, repeat.batch.x.flatten(1), w, _centre(pull), u)
    gram = origin.gram()
    gradient = grad(task.loss_after_first, argnums=(0, 1))
    model, centre, momentum = origin.splits()

    for _ in range(repeat.times):
        g, others = gradient(model.first.outputs, model.others, repeat.batch)
        direction = Split(Combination(0.0, 0.0, 0.0, sums=g, outputs=gram @ g), others)
        if pull is not None:
            away = model if centre is None else model.minus(centre)
            direction = direction.plus(pull.strength, away)  # ∇ + strength·(w − centre)
        if momentum is not None:
            direction = direction.plus(beta, momentum)  # u ← β·u + ∇
            momentum = direction
        model = model.plus(-lr, direction)  # w ← w − lr·u

    moved = origin.written_out(model)
    moved_momentum = None if momentum is None else origin.written_out(momentum)
    return unless_padding(repeat.batch, (moved, moved_momentum), (w, u), pull)


def _centre(pull: Pull | None) -> Params | None:
    if pull is None:
        return None
    return pull.centre


class Combination(NamedTuple):
    """A first layer as start·W₀ + centre·C + momentum·U₀ + sumsᵀ·X, and what it gives for X."""

    start: Number
    centre: Number
    momentum: Number
    sums: Number  # [n, h]; the number 0 before the first step
    outputs: Tensor  # [n, h]

    def plus(self, a: Number, other: Combination) -> Combination:
        """self + a·other"""
        return Combination(
            start=self.start + a * other.start,
            centre=self.centre + a * other.centre,
            momentum=self.momentum + a * other.momentum,
            sums=_plus(self.sums, a, other.sums),
            outputs=_plus(self.outputs, a, other.outputs),
        )

    def minus(self, other: Combination) -> Combination:
        """self − other"""
        return Combination(
            start=self.start - other.start,
            centre=self.centre - other.centre,
            momentum=self.momentum - other.momentum,
            sums=self.sums - other.sums,
            outputs=self.outputs - other.outputs,
        )


class Split(NamedTuple):
    """A model, momentum or gradient: the first layer as a combination, the others as they are."""

    first: Combination
    others: Params

    def plus(self, a: Number, other: Split) -> Split:
        """self + a·other"""
        return Split(self.first.plus(a, other.first), axpy(a, other.others, self.others))

    def minus(self, other: Split) -> Split:
        """self − other"""
        return Split(self.first.minus(other.first), minus(self.others, other.others))


class Origin(NamedTuple):
    """What combinations are made of."""

    layer: First
    x: Tensor  # X [n, d]
    start: Params  # W₀, b₀ and the other layers
    centre: Params | None
    momentum: Params | None

    def gram(self) -> Tensor:
        """XXᵀ, and 1 more for a bias [n, n]."""
        products = self.x @ self.x.T
        if self.layer.bias is None:
            return products
        return products + 1.0

    def splits(self) -> tuple[Split, Split | None, Split | None]:
        """(start, centre, momentum) as combinations of themselves."""
        start = self._split(self.start, (1.0, 0.0, 0.0))
        centre = None
        if self.centre is not None:
            centre = self._split(self.centre, (0.0, 1.0, 0.0))
        momentum = None
        if self.momentum is not None:
            momentum = self._split(self.momentum, (0.0, 0.0, 1.0))
        return start, centre, momentum

    def _split(self, params: Params, shares: tuple[float, float, float]) -> Split:
        outputs = self.x @ params[self.layer.weight].T
        if self.layer.bias is not None:
            outputs = outputs + params[self.layer.bias]
        own = (self.layer.weight, self.layer.bias)
        others = {k: v for k, v in params.items() if k not in own}
        return Split(Combination(*shares, sums=0.0, outputs=outputs), others)

    def written_out(self, split: Split) -> Params:
        """The parameters of a split model, after at least one step."""
        sums = split.first.sums
        assert isinstance(sums, Tensor)
        layer = {self.layer.weight: self._combined(split.first, self.layer.weight, sums.T @ self.x)}
        if self.layer.bias is not None:
            layer[self.layer.bias] = self._combined(split.first, self.layer.bias, sums.sum(0))
        together = layer | split.others
        return {k: together[k] for k in self.start}  # in the model's own order

    def _combined(self, share: Combination, name: str, moved: Tensor) -> Tensor:
        """start·W₀ + centre·C + momentum·U₀ + moved, for the weight or the bias."""
        out = moved + _times(share.start, self.start[name])
        if self.centre is not None:
            out = out + share.centre * self.centre[name]
        if self.momentum is not None:
            out = out + share.momentum * self.momentum[name]
        return out


@overload
def _plus(x: Tensor, a: Number, y: Tensor) -> Tensor: ...
@overload
def _plus(x: Number, a: Number, y: Number) -> Number: ...
def _plus(x: Number, a: Number, y: Number) -> Number:
    """x + a·y, in one pass over the elements where there is an operation for it."""
    if isinstance(x, Tensor) and isinstance(y, Tensor) and isinstance(a, float):
        return torch.add(x, y, alpha=a)
    return x + a * y


def _times(a: Number, v: Tensor) -> Tensor:
    """a·v; nothing is computed where a is 1, as it is without a pull."""
    if isinstance(a, float) and a == 1.0:
        return v
    return a * v
