"""Settings that suit the data: steps that cannot diverge where a linear model learns from a table.

Of tables the columns are in deviations from their mean, so that what a step may be follows from the
rows alone (data/curvature.py). For other data and models the methods' own defaults stand.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from coterie.contract import Algorithm
from coterie.data import Federation
from coterie.data.curvature import curvatures, typical
from coterie.runs.options import Options
from coterie.settings import Local, as_in_paper, settled
from coterie.task import Task

LEAST_CAUTION = 1e-6


def suited(method: Algorithm, task: Task, fed: Federation, options: Options) -> Algorithm:
    """The method with every suggested setting decided, by the data or as in its paper."""
    if options.paper:
        return as_in_paper(method)
    if isinstance(method, Local) and has_known_curvature(task, fed):
        curvature = curvatures(fed.train, fed.kind, method.batch)[: len(fed)]
        usual = typical(curvature, fed.train.sizes[: len(fed)])
        method = method.suited(usual, len(fed))
    return settled(method)


def has_known_curvature(task: Task, fed: Federation) -> bool:
    """Whether steps can be bounded by the rows: a linear model on a table."""
    return fed.schema is not None and task.is_linear


def with_caution(method: Algorithm, task: Task, fed: Federation, options: Options) -> Federation:
    """The federation, in which the losses of clients count less whose steps would diverge.

    A loss times c has c times the gradient: the client steps c times as far, whatever the method.
    """
    if options.paper or not isinstance(method, Local) or not has_known_curvature(task, fed):
        return fed
    curvature = curvatures(fed.train, fed.kind, method.batch)
    bearable = method.steepest(len(fed))
    caution = (bearable / curvature).clamp(LEAST_CAUTION, 1.0)
    if bool((caution == 1).all()):
        return fed
    # three digits, so that rounding on another machine does not show
    shown = [float(f"{c:.3g}") for c in caution.tolist()]
    return replace(fed, caution=torch.tensor(shown))
