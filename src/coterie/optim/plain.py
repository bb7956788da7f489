"""Plain steps: the gradient of all parameters on a batch, and a step along it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.client_data import Drawn, Repeat
from coterie.core.params import Params, zeros
from coterie.core.task import Batch, Task
from coterie.optim.all_clients import for_all_clients, to_take
from coterie.optim.backward import gradients_of_models, is_written_out
from coterie.optim.many_models import losses_of_models
from coterie.optim.pull import Pull, Solver, WithMomentum, strength_of
from coterie.optim.step import for_leaf, pulled_gradients, rule_of, step_in_place
from coterie.optim.visits import (
    ALL_ROWS,
    MOST_STEPS,
    Order,
    counted,
    in_blocks,
    numbers_among_all,
    order_of,
    rows_at,
    sizes_of,
)


class Given(NamedTuple):
    """What steps begin with, of one client; of all clients, each leaf [c, ...]."""

    w: Params
    u: Params | None  # None: no momentum, or it begins with 0
    strength: Tensor | None  # of the pull; None: there is none
    centre: Params | None
    batch: Batch
    order: Order  # which rows of the batch each step takes


class Times(NamedTuple):
    """How many steps there are."""

    steps: int
    sizes: tuple[int, ...] = ()  # rows of each, where they are taken out of one batch


def plain_steps(
    task: Task,
    w: Params,
    u: Params | None,
    batches: Repeat | Iterable[Batch],
    solver: Solver,
    pull: Pull | None,
    clip: float | None,
) -> WithMomentum:
    """(w, u) after a step for each batch; u is None without momentum, and before from rest.

    clip: how long a gradient may be, with its pull; a longer one is shortened.
    """
    strength = strength_of(pull, task)
    centre = None if pull is None else pull.centre
    for part in parts_of(batches):
        given = Given(w, u, strength, centre, part.batch, part.order)
        compute = partial(_steps, task, solver, clip, part.times)
        w, u = for_all_clients(compute, given)
    return w, u


class Part(NamedTuple):
    """Some steps, on rows of one batch."""

    batch: Batch
    order: Order
    times: Times


def parts_of(batches: Repeat | Iterable[Batch]) -> Iterator[Part]:
    """The steps, some at a time."""
    if isinstance(batches, Repeat):
        yield Part(batches.batch, ALL_ROWS, Times(batches.times))
        return
    if not isinstance(batches, Drawn):
        for batch in batches:
            yield Part(batch, ALL_ROWS, Times(1))
        return
    own = batches.own
    for steps in in_blocks(batches.steps(), MOST_STEPS):
        yield Part(own, order_of(steps, own), Times(len(steps), sizes_of(steps, own)))


# ------------------------------------------------------------------------------ of all clients
def _steps(
    task: Task, solver: Solver, clip: float | None, times: Times, given: Given
) -> WithMomentum:
    """(w, u) of all clients after the steps: every leaf has their axis in front."""
    w = copied(given.w)
    momentum: Params = {}
    if solver.beta is not None:
        momentum = zeros(w) if given.u is None else dict(given.u)
    centre = given.w if given.centre is None else given.centre
    for batch in to_take(batches_of(times, given.batch, given.order)):
        g = gradients(task, w, batch)
        rule = rule_of(solver, given.strength, batch.mask)
        g = pulled_gradients(solver, rule, w, g, centre)
        if clip is not None:
            g = clipped(g, clip)
        step_in_place(solver, rule, w, momentum, g)
    if not momentum:
        return contiguous(w), None
    return contiguous(w), contiguous(momentum)


def batches_of(times: Times, own: Batch, order: Order) -> Iterator[Batch]:
    """The batch of each step, of all clients."""
    if order.rows is None:
        for step in range(times.steps):
            yield counted(own, order.counts, step)
        return
    numbers = numbers_among_all(order.rows, own.mask.shape[1])
    for step, at in enumerate(numbers.split(times.sizes, 1)):
        batch = Batch(*(rows_at(v, at.flatten()) for v in own))
        yield counted(batch, order.counts, step)


def gradients(task: Task, w: Params, batch: Batch) -> Params:
    """∇f of each client: that of the sum of their losses, for none sees another's model."""
    if is_written_out(task):
        return gradients_of_models(task, w, batch)
    values = [v.detach().requires_grad_() for v in w.values()]
    with torch.enable_grad():
        losses = losses_of(task, dict(zip(w, values)), batch)
        found = torch.autograd.grad(losses.sum(), values, materialize_grads=True)
    return dict(zip(w, found))


def losses_of(task: Task, w: Params, batch: Batch) -> Tensor:
    """[c] the loss of each client; a single one needs no `vmap`, in which convolutions are slow."""
    if len(batch.mask) > 1:
        return losses_of_models(task, w, batch)
    alone = Batch(with_channels_last(batch.x)[0], *(v[0] for v in batch[1:]))
    # `squeeze`, not v[0]: its gradient is a view
    return task.loss({k: v.squeeze(0) for k, v in w.items()}, alone)[None]


def copied(params: Params) -> Params:
    """A copy to change in place, in the layout in which steps are fastest."""
    copies = {k: v.clone(memory_format=torch.contiguous_format) for k, v in params.items()}
    if any(len(v) > 1 for v in copies.values()):
        return copies
    return {k: with_channels_last(v) for k, v in copies.items()}


def contiguous(params: Params) -> Params:
    """The parameters in torch's own layout again."""
    return {k: v.contiguous() for k, v in params.items()}


def with_channels_last(v: Tensor) -> Tensor:
    """Images or filters [1, n, channels, y, x] in the layout in which convolutions are fastest."""
    if v.dim() != 5 or v.dtype != torch.float32:
        return v
    _, n, channels, height, width = v.shape
    if channels > 1:
        return v[0].contiguous(memory_format=torch.channels_last)[None]
    # Of one channel both layouts are the same numbers. Only the strides tell torch which is meant,
    # and if the first layer has another one than the next, images are copied between them.
    strides = (height * width, 1, width, 1)
    return v[0].contiguous().as_strided((n, 1, height, width), strides)[None]


def clipped(g: Params, longest: float) -> Params:
    """The gradients of all clients, none longer than so."""
    squares = torch.stack([v.flatten(1).square().sum(1) for v in g.values()]).sum(0)
    shrink = (longest / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    return {k: for_leaf(shrink, v) * v for k, v in g.items()}
