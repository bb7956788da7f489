"""Fit step sizes to the data, so that a linear model on tables cannot diverge.

Columns of tables are standardised, so the curvature of the loss, and with it the largest stable
step, follows from the samples alone (`data/curvature.py`). Other data and models keep the defaults.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.contract import Algorithm
from coterie.core.settings import Local, resolve_defaults, use_paper_defaults
from coterie.core.task import Task
from coterie.data import Federation
from coterie.data.curvature import estimate_curvatures, typical_curvature
from coterie.data.roster import Roster
from coterie.runs.options import Options

MIN_LOSS_SCALE = 1e-6


def fit_step_sizes(method: Algorithm, task: Task, fed: Federation, options: Options) -> Algorithm:
    """Return the method with a value for every tunable default.

    Args:
        method: The method.
        task: The model; only linear models are fitted.
        fed: The data.
        options: With `paper`, the defaults of the papers are used.
    """
    curvature = None
    if can_fit_step_sizes(method, task, fed.roster, options):
        curvature = estimate_curvatures(fed.train, fed.kind, method.batch)  # type: ignore[attr-defined]
    return fit_to_curvature(method, curvature, fed.roster, options)


def fit_to_curvature(
    method: Algorithm, curvature: Tensor | None, roster: Roster, options: Options
) -> Algorithm:
    """Do the same from the curvature of each client's loss, [N]; None: use the defaults."""
    if options.paper:
        return use_paper_defaults(method)
    if curvature is not None:
        assert isinstance(method, Local)
        trained = len(roster)
        typical = typical_curvature(curvature[:trained], roster.rows.train[:trained])
        method = method.fit_step_sizes(typical, trained)
    return resolve_defaults(method)


def can_fit_step_sizes(method: Algorithm, task: Task, roster: Roster, options: Options) -> bool:
    """Return whether step sizes follow from the data: for a linear model on tables."""
    if options.dp is not None:  # a step size that follows from the rows would reveal them
        return False
    is_known = roster.schema is not None and task.is_linear
    return is_known and isinstance(method, Local) and not options.paper


def scale_losses(
    method: Algorithm, task: Task, fed: Federation, options: Options, clients: int | None = None
) -> Federation:
    """Scale down the loss of clients whose steps would diverge.

    Scaling a loss by c scales its gradient, and so the client's steps, by c in any method.

    Args:
        method: The method, with its step size.
        task: The model.
        fed: The data.
        options: With `paper`, nothing is scaled.
        clients: Number of training clients, if `fed` has only some of them.

    Returns:
        The federation with `loss_scale`, unless all scales are 1.
    """
    if not can_fit_step_sizes(method, task, fed.roster, options):
        return fed
    assert isinstance(method, Local)
    curvature = estimate_curvatures(fed.train, fed.kind, method.batch)
    max_curvature = method.max_curvature(clients or len(fed))
    loss_scale = (max_curvature / curvature).clamp(MIN_LOSS_SCALE, 1.0)
    if bool((loss_scale == 1).all()):
        return fed
    # three digits, so that rounding errors of different machines vanish
    shown = [float(f"{c:.3g}") for c in loss_scale.tolist()]
    return replace(fed, loss_scale=torch.tensor(shown))
