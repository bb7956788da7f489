"""Local training: small, pure solvers that all methods share."""

from coterie.optim.low_rank import stack_models
from coterie.optim.plain import Moments, moments
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
    "adam",
    "descend",
    "descend_from",
    "each",
    "gradient",
    "heavy_ball",
    "moments",
    "sgd",
    "stack_models",
    "walk",
]
