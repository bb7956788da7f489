"""Local training: small, pure solvers that every method shares."""

from coterie.optim.adam import Moments, moments
from coterie.optim.dual import dual_steps
from coterie.optim.forms import dual_pays
from coterie.optim.low_rank import stack_models
from coterie.optim.pull import Pull
from coterie.optim.solvers import (
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
    "stack_models",
    "walk",
]
