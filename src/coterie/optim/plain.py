"""Plain local steps: the gradient of all parameters on a batch, and a step along it.

Gradient descent and heavy ball, for all clients at once and in place (`optim/batching.py`); other
optimizers are in `optim/optimizers.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.client_data import Drawn, Repeat
from coterie.core.params import Params, as_column, zeros
from coterie.core.task import Batch, Task
from coterie.core.trees import tree_map
from coterie.optim.batching import batch_clients
from coterie.optim.gradients import (
    gradients_of_models,
    has_manual_backward,
    training_losses_of_models,
)
from coterie.optim.steps import (
    ALL_ROWS,
    MAX_STEPS,
    Order,
    ProximalTerm,
    Solver,
    WithMomentum,
    global_indices,
    in_blocks,
    make_order,
    make_rule,
    mask_padding,
    regularised_gradients,
    step_in_place,
    step_sizes,
    strength_tensor,
    take_rows,
)


class PlainStart(NamedTuple):
    """The arguments of some steps. For all clients each leaf is [c, ...]."""

    w: Params
    u: Params | None  # None: no momentum, or zeros
    strength: Tensor | None  # of the proximal term
    centre: Params | None
    batch: Batch
    order: Order  # which samples of the batch each step takes


def plain_steps(
    task: Task,
    w: Params,
    u: Params | None,
    batches: Repeat | Iterable[Batch],
    solver: Solver,
    proximal: ProximalTerm | None,
    clip: float | None,
) -> WithMomentum:
    """Take one step per batch.

    Args:
        task: Model and loss.
        w: The model.
        u: The momentum; None without momentum or if it starts at 0.
        batches: The batches.
        solver: Step size and momentum.
        proximal: Proximal term and weight decay.
        clip: Largest norm of a gradient, proximal term included; None: no limit.

    Returns:
        The model, and its momentum if it has one.
    """
    strength = strength_tensor(proximal, task)
    centre = None if proximal is None else proximal.centre
    for group in group_steps(task, batches):
        given = PlainStart(w, u, strength, centre, group.batch, group.order)
        compute = partial(_steps, task, solver, clip, group.steps)
        w, u = batch_clients(compute, given, task.execution)
    return w, u


class StepSizes(NamedTuple):
    """The sizes of some steps, and their place in a local training."""

    sizes: tuple[int, ...]  # batch size of each step
    first: int | None  # number of the first step; None: a single batch of unknown number


class StepGroup(NamedTuple):
    """Some steps on samples of one batch."""

    batch: Batch
    order: Order
    steps: StepSizes


def group_steps(task: Task, batches: Repeat | Iterable[Batch]) -> Iterator[StepGroup]:
    """Yield the steps in groups."""

    def without_key(batch: Batch) -> Batch:
        return batch if task.is_random else batch._replace(key=())

    if isinstance(batches, Repeat):
        sizes = (len(batches.batch.mask),) * batches.times
        yield StepGroup(without_key(batches.batch), ALL_ROWS, StepSizes(sizes, 0))
        return
    if not isinstance(batches, Drawn):
        for batch in batches:
            sizes = (len(batch.mask),)
            yield StepGroup(without_key(batch), ALL_ROWS, StepSizes(sizes, None))
        return
    own = without_key(batches.own)
    for number, steps in enumerate(in_blocks(batches.steps(), MAX_STEPS)):
        place = StepSizes(step_sizes(steps, own), number * MAX_STEPS)
        yield StepGroup(own, make_order(steps, own), place)


def _steps(
    task: Task, solver: Solver, clip: float | None, steps: StepSizes, given: PlainStart
) -> WithMomentum:
    """(w, u) of all clients after the steps."""
    w = copy_for_steps(given.w)
    momentum: Params = {}
    if solver.beta is not None:
        momentum = zeros(w) if given.u is None else dict(given.u)
    centre = given.w if given.centre is None else given.centre
    trained = {k: v for k, v in w.items() if k not in task.averaged}
    for batch in task.execution.limit_steps(iterate_batches(steps, given.batch, given.order)):
        g, statistics = gradients(task, w, batch)
        rule = make_rule(solver, given.strength, batch.mask)
        g = regularised_gradients(solver, rule, trained, g, centre)
        if clip is not None:
            g = clip_gradients(g, clip)
        step_in_place(solver, rule, trained, momentum, g)
        replace_statistics(w, statistics, batch)
    if not momentum:
        return restore_layout(w), None
    return restore_layout(w), restore_layout(momentum)


def replace_statistics(w: Params, statistics: Params, batch: Batch) -> None:
    """Write new running statistics into w, except of clients whose batch is all padding."""
    if not statistics:
        return
    is_real = batch.mask.sum(1) > 0
    for name, new in statistics.items():
        w[name] = torch.where(as_column(is_real, new), new, w[name])


def iterate_batches(group: StepSizes, own: Batch, order: Order) -> Iterator[Batch]:
    """Yield the batch of each step, for all clients."""
    sizes, first = group
    if first is None:  # one batch, which has its step's random numbers
        yield mask_padding(own, order.is_real, 0)
        return
    if order.rows is None:
        for step in range(len(sizes)):
            yield mask_padding(own.at_step(first + step), order.is_real, step)
        return
    numbers = global_indices(order.rows, own.mask.shape[1])
    for step, at in enumerate(numbers.split(sizes, 1)):
        rows = at.flatten()
        batch = own.map_rows(partial(take_rows, at=rows))
        yield mask_padding(batch.at_step(first + step), order.is_real, step)


def gradients(task: Task, w: Params, batch: Batch) -> tuple[Params, Params]:
    """(∇f of the trained parameters, new running statistics) of each client.

    ∇f is the gradient of the summed losses, since clients share no model.
    """
    if has_manual_backward(task):
        return gradients_of_models(task, w, batch), {}
    names = [k for k in w if k not in task.averaged]
    if not names:  # running statistics alone, such as those that a new client of FedBN estimates
        return {}, losses_of(task, w, batch)[1]
    values = [w[k].detach().requires_grad_() for k in names]
    with torch.enable_grad():
        losses, statistics = losses_of(task, {**w, **dict(zip(names, values))}, batch)
        found = torch.autograd.grad(losses.sum(), values, materialize_grads=True)
    return dict(zip(names, found)), statistics


def losses_of(task: Task, w: Params, batch: Batch) -> tuple[Tensor, Params]:
    """(loss, new running statistics) of each client, [c, ...].

    One client avoids `vmap`, where convolutions are slow.
    """
    if len(batch.mask) > 1:
        return training_losses_of_models(task, w, batch)
    batch = batch._replace(x=with_channels_last(batch.x))
    alone = tree_map(lambda v: v[0], batch)
    # `squeeze` rather than v[0], because its gradient is a view
    loss, statistics = task.training_loss({k: v.squeeze(0) for k, v in w.items()}, alone)
    return loss[None], {k: v[None] for k, v in statistics.items()}


def copy_for_steps(params: Params) -> Params:
    """Copy the parameters in the memory layout in which steps are fastest."""
    copies = {k: v.clone(memory_format=torch.contiguous_format) for k, v in params.items()}
    if any(len(v) > 1 for v in copies.values()):
        return copies
    return {k: with_channels_last(v) for k, v in copies.items()}


def restore_layout(params: Params) -> Params:
    """Return the parameters in torch's default layout."""
    return {k: v.contiguous() for k, v in params.items()}


def with_channels_last(v: Tensor) -> Tensor:
    """Images or filters [1, n, channels, y, x] in channels-last layout, for fast convolutions."""
    if v.dim() != 5 or v.dtype != torch.float32:
        return v
    _, n, channels, height, width = v.shape
    if channels > 1:
        return v[0].contiguous(memory_format=torch.channels_last)[None]
    # With one channel both layouts are the same numbers; only the strides tell torch which it is.
    # If the first layer's layout differs from the next one's, torch copies images between them.
    strides = (height * width, 1, width, 1)
    return v[0].contiguous().as_strided((n, 1, height, width), strides)[None]


def clip_gradients(g: Params, limit: float) -> Params:
    """Rescale the gradients of clients whose norm exceeds the limit."""
    if not g:
        return g
    squares = torch.stack([v.flatten(1).square().sum(1) for v in g.values()]).sum(0)
    shrink = (limit / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    return {k: as_column(shrink, v) * v for k, v in g.items()}
