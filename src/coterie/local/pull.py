"""The proximal pull and l2, which every solver adds to its gradient."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from coterie.params import Params, scale, where
from coterie.task import Batch

Number = float | Tensor
WithMomentum = tuple[Params, Params | None]  # a model, and its momentum where it has one


class Pull(NamedTuple):
    """strength·(w − centre): the proximal pull and l2 in one; without a centre, towards 0."""

    strength: Number
    centre: Params | None

    def of(self, w: Params) -> Params:
        """The gradient that the pull adds at w."""
        if self.centre is None:
            return scale(self.strength, w)
        return {k: self.strength * (w[k] - self.centre[k]) for k in w}


def joined(pull: Number, towards: Params | None, l2: float) -> Pull | None:
    """pull·(w − towards) + l2·w as one pull; None where there is neither a centre nor l2."""
    if towards is None:
        if isinstance(pull, Tensor) or pull:
            raise TypeError("a pull needs the centre it pulls towards")
        return Pull(l2, None) if l2 else None
    if not l2:
        return Pull(pull, towards)
    return Pull(pull + l2, scale(pull / (pull + l2), towards))


def unless_padding(
    batch: Batch, new: WithMomentum, old: WithMomentum, pull: Pull | None
) -> WithMomentum:
    """`old` where the batch is all padding, else `new`.

    The gradient is 0 there, so only steps with momentum or a pull need the test.
    """
    if new[1] is None and pull is None:
        return new
    return where(batch.mask.sum() > 0, new, old)
