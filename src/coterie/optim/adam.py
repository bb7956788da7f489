"""Adam, of all clients at once and in place: see `optim/all_clients.py`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.client_data import Repeat
from coterie.core.params import Params, zeros
from coterie.core.task import Batch, Task
from coterie.optim.all_clients import for_all_clients, to_take
from coterie.optim.plain import Times, batches_of, clipped, contiguous, copied, gradients, parts_of
from coterie.optim.pull import Pull, Solver, strength_of
from coterie.optim.step import for_leaf, pulled_gradients, rule_of
from coterie.optim.visits import Order

FIRST, SECOND = 0.9, 0.999  # β₁, β₂
EPSILON = 1e-8


class Moments(NamedTuple):
    """Adam's state, kept by the method where it lives longer than one training."""

    first: Params
    second: Params
    steps: Tensor


def moments(w: Params) -> Moments:
    """Adam's state before its first step."""
    some = next(iter(w.values()))
    return Moments(zeros(w), zeros(w), torch.zeros((), dtype=some.dtype, device=some.device))


class Given(NamedTuple):
    """What steps begin with, of one client; of all clients, each leaf [c, ...]."""

    w: Params
    state: Moments
    strength: Tensor | None  # of the pull; None: there is none
    centre: Params | None
    batch: Batch
    order: Order  # which rows of the batch each step takes


def adam_steps(
    task: Task,
    w: Params,
    state: Moments,
    batches: Repeat | Iterable[Batch],
    solver: Solver,
    pull: Pull | None,
    clip: float | None,
) -> tuple[Params, Moments]:
    """(w, state) after a step for each batch."""
    strength = strength_of(pull, task)
    centre = None if pull is None else pull.centre
    for part in parts_of(batches):
        given = Given(w, state, strength, centre, part.batch, part.order)
        w, state = for_all_clients(partial(_steps, task, solver, clip, part.times), given)
    return w, state


# ------------------------------------------------------------------------------ of all clients
def _steps(
    task: Task, solver: Solver, clip: float | None, times: Times, given: Given
) -> tuple[Params, Moments]:
    """(w, state) of all clients after the steps."""
    w = copied(given.w)
    state = Moments(
        copied(given.state.first), copied(given.state.second), given.state.steps.clone()
    )
    centre = given.w if given.centre is None else given.centre
    for batch in to_take(batches_of(times, given.batch, given.order)):
        g = gradients(task, w, batch)
        g = pulled_gradients(solver, rule_of(solver, given.strength, batch.mask), w, g, centre)
        if clip is not None:
            g = clipped(g, clip)
        counts = (batch.mask.sum(1) > 0).to(state.steps)
        _step_in_place(w, state, g, solver.lr, counts)
    return contiguous(w), Moments(contiguous(state.first), contiguous(state.second), state.steps)


def _step_in_place(w: Params, state: Moments, g: Params, lr: float, counts: Tensor) -> None:
    """w ← w − lr·m̂/(√v̂ + ε), with m ← β₁·m + (1 − β₁)·g, v ← β₂·v + (1 − β₂)·g².

    counts: [c] 1, or 0 where a batch is all padding, so that nothing changes.
    """
    state.steps.add_(counts)
    t = state.steps.clamp(min=1)
    length = -lr * counts / (1 - FIRST**t)
    unbiased = 1 / (1 - SECOND**t)
    for name, gradient in g.items():
        first, second = state.first[name], state.second[name]
        new = for_leaf(counts, gradient)
        first.lerp_(gradient, (1 - FIRST) * new)
        second.lerp_(gradient.square(), (1 - SECOND) * new)
        below = (second * for_leaf(unbiased, gradient)).sqrt_().add_(EPSILON)
        w[name].addcdiv_(first * for_leaf(length, gradient), below)
