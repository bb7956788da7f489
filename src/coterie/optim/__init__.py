"""Local training: small, pure solvers that all methods share."""

from coterie.optim.low_rank import stack_models
from coterie.optim.optimizers import register_optimizer
from coterie.optim.solvers import (
    Moments,
    adam,
    descend,
    descend_from,
    each,
    gradient,
    heavy_ball,
    moments,
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
    "register_optimizer",
    "sgd",
    "stack_models",
    "walk",
]
