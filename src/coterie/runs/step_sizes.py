"""Settings that suit the data: steps that cannot diverge where a linear model learns from a table.

Of tables the columns are in deviations from their mean, so that what a step may be follows from the
rows alone (data/curvature.py). For other data and models the methods' own defaults stand.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.contract import Algorithm
from coterie.core.settings import Local, resolve_defaults, use_paper_defaults
from coterie.core.task import Task
from coterie.data import Federation
from coterie.data.curvature import curvatures, typical
from coterie.data.roster import Roster
from coterie.runs.options import Options

MIN_LOSS_SCALE = 1e-6


def fit_step_sizes(method: Algorithm, task: Task, fed: Federation, options: Options) -> Algorithm:
    """The method with every suggested setting decided, by the data or as in its paper."""
    curvature = None
    if can_fit_step_sizes(method, task, fed.roster, options):
        curvature = curvatures(fed.train, fed.kind, method.batch)  # type: ignore[attr-defined]
    return fit_to_curvature(method, curvature, fed.roster, options)


def fit_to_curvature(
    method: Algorithm, curvature: Tensor | None, roster: Roster, options: Options
) -> Algorithm:
    """The same, by the curvature of each client's rows [N]; None: the data decide nothing."""
    if options.paper:
        return use_paper_defaults(method)
    if curvature is not None:
        assert isinstance(method, Local)
        trained = len(roster)
        usual = typical(curvature[:trained], roster.rows.train[:trained])
        method = method.fit_step_sizes(usual, trained)
    return resolve_defaults(method)


def can_fit_step_sizes(method: Algorithm, task: Task, roster: Roster, options: Options) -> bool:
    """Whether steps can be bounded by the rows: a linear model on a table."""
    is_known = roster.schema is not None and task.is_linear
    return is_known and isinstance(method, Local) and not options.paper


def scale_losses(
    method: Algorithm, task: Task, fed: Federation, options: Options, clients: int | None = None
) -> Federation:
    """The federation, in which the losses of clients count less whose steps would diverge.

    A loss times c has c times the gradient: the client steps c times as far, whatever the method.
    clients: how many train in all, where these are only some of them.
    """
    if not can_fit_step_sizes(method, task, fed.roster, options):
        return fed
    assert isinstance(method, Local)
    curvature = curvatures(fed.train, fed.kind, method.batch)
    bearable = method.max_curvature(clients or len(fed))
    loss_scale = (bearable / curvature).clamp(MIN_LOSS_SCALE, 1.0)
    if bool((loss_scale == 1).all()):
        return fed
    # three digits, so that rounding on another machine does not show
    shown = [float(f"{c:.3g}") for c in loss_scale.tolist()]
    return replace(fed, loss_scale=torch.tensor(shown))
