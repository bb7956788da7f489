"""Exact steps on one repeated batch that never touch the first layer's weights until the end.

Let the first layer be Z = X·Wᵀ + b on the rows X of the batch. The gradient of W is GᵀX with
G = ∂f/∂Z, so a step changes X·Wᵀ by a multiple of XXᵀ·G. With the Gram matrix XXᵀ computed once, a
step costs n²·h instead of 2·n·d·h multiplications (n rows, d inputs, h outputs of the layer), which
pays when a batch is repeated and n is small beside d. The bias b is a parameter like those of the
other layers.

Momentum and pull are linear, so after any number of steps the weights are a combination

    W = start·W₀ + centre·C + momentum·U₀ + sumsᵀ·X

of what was there at first: the start W₀, the centre C of the pull, the first momentum U₀; and so
are the momentum and every gradient. A `Combination` holds these three numbers, the sums [n, h] and
the outputs X·Wᵀ [n, h] that go with them. Steps on it are those of any other solver; the bias and
the other layers take them as they are.
"""

from __future__ import annotations

from typing import NamedTuple, overload

import torch
from torch import Tensor
from torch.func import grad

from coterie.client_data import Repeat
from coterie.first_layer import First
from coterie.local.pull import Number, Pull, WithMomentum, unless_padding
from coterie.params import Params, axpy
from coterie.task import Batch, Task


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
    gram = origin.x @ origin.x.T
    gradient = grad(_loss, argnums=(0, 1))
    model, centre, momentum = origin.splits()

    for _ in range(repeat.times):
        g, others = gradient(model.first.outputs, model.others, task, repeat.batch)
        direction = Split(Combination(0.0, 0.0, 0.0, sums=g, outputs=gram @ g), others)
        if pull is not None:
            direction = _pulled(direction, model, centre, pull)
        if momentum is not None:
            direction = direction.plus(beta, momentum)  # u ← β·u + ∇
            momentum = direction
        model = model.plus(-lr, direction)  # w ← w − lr·u

    moved = origin.written_out(model)
    moved_momentum = None if momentum is None else origin.written_out(momentum)
    return unless_padding(repeat.batch, (moved, moved_momentum), (w, u), pull)


def _loss(outputs: Tensor, others: Params, task: Task, batch: Batch) -> Tensor:
    """The loss, given X·Wᵀ of the first layer, and all other parameters."""
    assert task.first is not None
    z = outputs
    if task.first.bias is not None:
        z = outputs + others[task.first.bias]
    return task.loss_after_first(z, others, batch)


def _pulled(direction: Split, model: Split, centre: Combination | None, pull: Pull) -> Split:
    """∇ + strength·(w − centre) + l2·w"""
    first = direction.first
    if centre is not None:
        first = first.plus(pull.strength, model.first.minus(centre))
    if pull.l2:
        first = first.plus(pull.l2, model.first)
    return Split(first, axpy(1.0, pull.of(model.others), direction.others))


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
    """A model, momentum or gradient: the first weights as a combination, the rest as it is."""

    first: Combination
    others: Params

    def plus(self, a: Number, other: Split) -> Split:
        """self + a·other"""
        return Split(self.first.plus(a, other.first), axpy(a, other.others, self.others))


class Origin(NamedTuple):
    """What combinations are made of."""

    layer: First
    x: Tensor  # X [n, d]
    start: Params  # W₀, b₀ and the other layers
    centre: Params | None
    momentum: Params | None

    def splits(self) -> tuple[Split, Combination | None, Split | None]:
        """(start, centre, momentum) as combinations of themselves."""
        start = self._split(self.start, (1.0, 0.0, 0.0))
        centre = None
        if self.centre is not None:
            centre = self._split(self.centre, (0.0, 1.0, 0.0)).first
        momentum = None
        if self.momentum is not None:
            momentum = self._split(self.momentum, (0.0, 0.0, 1.0))
        return start, centre, momentum

    def _split(self, params: Params, shares: tuple[float, float, float]) -> Split:
        outputs = self.x @ params[self.layer.weight].T
        others = {k: v for k, v in params.items() if k != self.layer.weight}
        return Split(Combination(*shares, sums=0.0, outputs=outputs), others)

    def written_out(self, split: Split) -> Params:
        """The parameters of a split model, after at least one step."""
        share, name = split.first, self.layer.weight
        assert isinstance(share.sums, Tensor)
        weight = share.sums.T @ self.x + _times(share.start, self.start[name])
        if self.centre is not None:
            weight = weight + share.centre * self.centre[name]
        if self.momentum is not None:
            weight = weight + share.momentum * self.momentum[name]
        together = {name: weight, **split.others}
        return {k: together[k] for k in self.start}  # in the model's own order


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
