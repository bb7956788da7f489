"""Local training: small, pure solvers that every method shares."""

from coterie.local.adam import Moments, moments
from coterie.local.dual import dual_steps
from coterie.local.forms import dual_pays
from coterie.local.pull import Pull
from coterie.local.row_move import stack_moved
from coterie.local.solvers import (
    adam,
    descend,
    descend_from,
    each,
    gradient,
    heavy_ball,
    sgd,
    walk,
)

__all__ = [
    "Moments",
    "Pull",
    "adam",
    "descend",
    "descend_from",
    "dual_pays",
    "dual_steps",
    "each",
    "gradient",
    "heavy_ball",
    "moments",
    "sgd",
    "stack_moved",
    "walk",
]
