"""The proximal pull and l2, which every solver adds to its gradient."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from coterie.params import Params, is_bias, where
from coterie.task import Batch

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


def joined(pull: Number, towards: Params | None, l2: float) -> Pull | None:
    """pull·(w − towards) + l2·w as one pull; None where there is neither a centre nor l2."""
    if towards is not None:
        return Pull(pull, towards, l2)
    if isinstance(pull, Tensor) or pull:
        raise TypeError("a pull needs the centre it pulls towards")
    if not l2:
        return None
    return Pull(0.0, None, l2)


def unless_padding(
    batch: Batch, new: WithMomentum, old: WithMomentum, pull: Pull | None
) -> WithMomentum:
    """`old` where the batch is all padding, else `new`.

    The gradient is 0 there, so only steps with momentum or a pull need the test.
    """
    if new[1] is None and pull is None:
        return new
    return where(batch.mask.sum() > 0, new, old)
