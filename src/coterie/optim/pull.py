"""The proximal pull and l2, which every solver adds to its gradient."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.params import Params, axpy, is_bias
from coterie.core.task import Task

Number = float | Tensor
WithMomentum = tuple[Params, Params | None]  # a model, and its momentum where it has one


class Pull(NamedTuple):
    """strength·(w − centre) + l2·w: the proximal pull, and weight decay, which spares biases."""

    strength: Number
    centre: Params | None  # None: no pull, weight decay alone
    l2: float

    def of(self, w: Params) -> Params:
        """The gradient that the pull adds at w."""
        return {k: self._of_leaf(k, v) for k, v in w.items()}

    def _of_leaf(self, name: str, v: Tensor) -> Tensor:
        decay = self.decay_of(name)
        if self.centre is None:
            return decay * v
        pulled = self.strength * (v - self.centre[name])
        if decay:
            return pulled + decay * v
        return pulled

    def decay_of(self, name: str) -> float:
        """The weight decay of a parameter: a bias has none."""
        if is_bias(name):
            return 0.0
        return self.l2


class Solver(NamedTuple):
    """The steps: u ← β·u + ∇;  w ← w − lr·u, where the pull and l2 are in ∇."""

    lr: float
    beta: float | None  # None: without momentum
    l2: float
    keeps_momentum: bool = True  # False: nobody asks for the momentum after the steps


def joined(pull: Number, towards: Params | None, l2: float) -> Pull | None:
    """pull·(w − towards) + l2·w as one pull; None where there is neither a centre nor l2."""
    if towards is not None:
        return Pull(pull, towards, l2)
    if isinstance(pull, Tensor) or pull:
        raise TypeError("a pull needs the centre it pulls towards")
    if not l2:
        return None
    return Pull(0.0, None, l2)


def strength_of(pull: Pull | None, task: Task) -> Tensor | None:
    """The strength of a proximal pull as a tensor; None where there is no centre."""
    if pull is None or pull.centre is None:
        return None
    return torch.as_tensor(pull.strength, dtype=task.dtype, device=task.device)


def with_pull(g: Params, w: Params, pull: Pull | None) -> Params:
    """The gradient g of the loss at w, and that of the pull."""
    if pull is None:
        return g
    return axpy(1.0, pull.of(w), g)
