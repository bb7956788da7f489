"""Optimizers of local training: how a step follows a gradient.

An optimizer is one function from a gradient and its state to a direction; a step is
w ← w − lr·direction. Gradient descent and heavy ball also have faster forms (`optim/plain.py`,
`optim/dual.py`), which give the same results. To add an optimizer, register its function:

    @register_optimizer("signed", slots=())
    def signed(g, state, step):
        return g.sign()

    ct.FedAvg(solver="signed")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.client_data import Repeat
from coterie.core.params import Params, as_column, is_bias, zeros
from coterie.core.settings import SOLVERS, Local
from coterie.core.task import Batch, Task
from coterie.optim.batching import batch_clients
from coterie.optim.plain import (
    StepSizes,
    clip_gradients,
    copy_for_steps,
    gradients,
    group_steps,
    iterate_batches,
    replace_statistics,
    restore_layout,
)
from coterie.optim.steps import (
    Order,
    ProximalTerm,
    Solver,
    make_rule,
    regularised_gradients,
    strength_tensor,
)

EPSILON = 1e-8  # of all optimizers that divide by a root


class StepInfo(NamedTuple):
    """What an optimizer knows about a step, for all clients at once.

    Args:
        number: [c, 1, ...], the number of the step, from 1.
        is_real: [c, 1, ...], 0 for clients whose batch is all padding, else 1.
        momentum: The setting `momentum`.
    """

    number: Tensor
    is_real: Tensor
    momentum: float

    def move_(self, mean: Tensor, towards: Tensor, share: float) -> Tensor:
        """Update an exponential mean in place, except of clients whose batch is all padding."""
        return mean.lerp_(towards, share * self.is_real)


Direction = Callable[[Tensor, dict[str, Tensor], StepInfo], Tensor]


@dataclass(frozen=True)
class Optimizer:
    """An optimizer; see `register_optimizer`."""

    slots: tuple[str, ...]
    direction: Direction
    decouples_decay: bool = False


OPTIMIZERS: dict[str, Optimizer] = {}


def register_optimizer(
    name: str, slots: tuple[str, ...] = (), *, decouples_decay: bool = False
) -> Callable[[Direction], Direction]:
    """Add an optimizer, which `solver=name` then selects in every method.

    Args:
        name: Its name.
        slots: Names of its state: one tensor like each parameter, from 0.
        decouples_decay: Whether l2 shrinks the weights directly, as in AdamW, instead of being
            part of the gradient.

    Returns:
        A decorator of a function (g, state, step) that returns the direction of the step and
        updates the tensors of `state` in place; all tensors are [clients, ...].

    Example:
        >>> import coterie as ct
        >>> @ct.optim.register_optimizer("signed")
        ... def signed(g, state, step):
        ...     return g.sign()
        >>> fed = ct.data.linear(clients=4, samples=10, dim=2, clusters=2)
        >>> len(ct.run(ct.FedAvg(solver="signed", lr=0.01), fed, rounds=1).history)
        2
    """

    def register(direction: Direction) -> Direction:
        OPTIMIZERS[name] = Optimizer(slots, direction, decouples_decay)
        if name not in SOLVERS:
            SOLVERS.append(name)
        return direction

    return register


# ------------------------------------------------------------------------------ built in
@register_optimizer("sgd")
def _sgd(g: Tensor, state: dict[str, Tensor], step: StepInfo) -> Tensor:
    return g


@register_optimizer("heavy_ball", ("momentum",))
def _heavy_ball(g: Tensor, state: dict[str, Tensor], step: StepInfo) -> Tensor:
    u = state["momentum"]  # u ← β·u + g
    return u.mul_(1 + step.is_real * (step.momentum - 1)).add_(g * step.is_real)


@register_optimizer("nesterov", ("momentum",))
def _nesterov(g: Tensor, state: dict[str, Tensor], step: StepInfo) -> Tensor:
    return g + step.momentum * _heavy_ball(g, state, step)


def _adam(g: Tensor, state: dict[str, Tensor], step: StepInfo) -> Tensor:
    first = step.move_(state["first"], g, 1 - 0.9) / (1 - 0.9**step.number)  # m̂
    second = step.move_(state["second"], g.square(), 1 - 0.999) / (1 - 0.999**step.number)  # v̂
    return first.div_(second.sqrt_().add_(EPSILON))


register_optimizer("adam", ("first", "second"))(_adam)
register_optimizer("adamw", ("first", "second"), decouples_decay=True)(_adam)


@register_optimizer("rmsprop", ("second",))
def _rmsprop(g: Tensor, state: dict[str, Tensor], step: StepInfo) -> Tensor:
    return g / (step.move_(state["second"], g.square(), 1 - 0.99).sqrt() + EPSILON)


@register_optimizer("adagrad", ("sum",))
def _adagrad(g: Tensor, state: dict[str, Tensor], step: StepInfo) -> Tensor:
    return g / (state["sum"].add_(g.square() * step.is_real).sqrt() + 1e-10)  # torch's ε


# ------------------------------------------------------------------------------ steps
class OptimizerState(NamedTuple):
    """The state of an optimizer: its slots, each like the model, and the number of steps."""

    slots: dict[str, Params]
    steps: Tensor


def init_state(solver: str, w: Params) -> OptimizerState:
    """The state of an optimizer before its first step."""
    some = next(iter(w.values()))
    steps = torch.zeros((), dtype=some.dtype, device=some.device)
    return OptimizerState({slot: zeros(w) for slot in OPTIMIZERS[solver].slots}, steps)


class OptimizerStart(NamedTuple):
    """The arguments of some steps. For all clients each leaf is [c, ...]."""

    w: Params
    state: OptimizerState
    strength: Tensor | None  # of the proximal term
    centre: Params | None
    batch: Batch
    order: Order  # which samples of the batch each step takes


def optimizer_steps(
    task: Task,
    w: Params,
    state: OptimizerState,
    batches: Repeat | Iterable[Batch],
    how: Local,
    proximal: ProximalTerm | None,
) -> tuple[Params, OptimizerState]:
    """(w, state) after one step per `how.accumulate` batches."""
    strength = strength_tensor(proximal, task)
    centre = None if proximal is None else proximal.centre
    for group in group_steps(task, batches):
        given = OptimizerStart(w, state, strength, centre, group.batch, group.order)
        compute = partial(_steps, task, how, group.steps)
        w, state = batch_clients(compute, given, task.execution)
    return w, state


def _steps(
    task: Task, how: Local, steps: StepSizes, given: OptimizerStart
) -> tuple[Params, OptimizerState]:
    """(w, state) of all clients after the steps."""
    optimizer = OPTIMIZERS[how.solver]
    w = copy_for_steps(given.w)
    state = OptimizerState(
        {slot: copy_for_steps(values) for slot, values in given.state.slots.items()},
        given.state.steps.clone(),
    )
    centre = given.w if given.centre is None else given.centre
    trained = {k: v for k, v in w.items() if k not in task.averaged}
    rule_of = Solver(how.lr, None, 0.0 if optimizer.decouples_decay else how.l2)
    sums = zeros(trained) if how.accumulate > 1 else {}
    count = torch.zeros_like(state.steps)  # batches in the sums, by client
    number = 0
    for batch in task.execution.limit_steps(iterate_batches(steps, given.batch, given.order)):
        g, statistics = gradients(task, w, batch)
        replace_statistics(w, statistics, batch)
        number += 1
        is_real = (batch.mask.sum(1) > 0).to(state.steps)
        if how.accumulate > 1:
            count += is_real
            for name, value in g.items():
                sums[name] += value
            if number % how.accumulate and number < len(steps.sizes):
                continue
            g = {k: v / as_column(count.clamp(min=1), v) for k, v in sums.items()}
            is_real = (count > 0).to(count)
            sums, count = zeros(trained), torch.zeros_like(count)
        rule = make_rule(rule_of, given.strength, is_real[:, None])
        g = regularised_gradients(rule_of, rule, trained, g, centre)
        if how.clip is not None:
            g = clip_gradients(g, how.clip)
        take_step(optimizer, how, trained, state, g, is_real)
    slots = {slot: restore_layout(values) for slot, values in state.slots.items()}
    return restore_layout(w), OptimizerState(slots, state.steps)


def take_step(
    optimizer: Optimizer,
    how: Local,
    trained: Params,
    state: OptimizerState,
    g: Params,
    is_real: Tensor,
) -> None:
    """w ← w − lr·direction, where is_real [c] is 1."""
    state.steps.add_(is_real)
    number = state.steps.clamp(min=1)
    for name, v in trained.items():
        info = StepInfo(as_column(number, v), as_column(is_real, v), how.momentum)
        slots = {slot: values[name] for slot, values in state.slots.items()}
        direction = optimizer.direction(g[name], slots, info)
        if optimizer.decouples_decay and how.l2 and not is_bias(name):
            v.mul_(1 - how.lr * how.l2 * info.is_real)
        v.addcmul_(direction, info.is_real.expand_as(v), value=-how.lr)
