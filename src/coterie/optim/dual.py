"""The dual form: exact local steps that touch the first layer's weights once for many steps.

Let the first layer be z = W·x + b, and let some steps train on batches of the samples X [m, d]. The
gradient of W on a batch B is G_BᵀX_B with G = ∂f/∂z, a combination of samples. Momentum and the
proximal term are linear, so after any number of steps the weights, and likewise the momentum, are

    W = a₁·W₀ + a₂·C + a₃·U₀ − lr·SᵀX

with the start W₀, the centre C of the proximal term, the initial momentum U₀, and the sum of
gradients of each sample in S [m, h]. A batch needs only its own outputs

    X_B·Wᵀ = a₁·X_B·W₀ᵀ + a₂·X_B·Cᵀ + a₃·X_B·U₀ᵀ − lr·(X_B·Xᵀ)·S

so a step multiplies rows of the Gram matrix XXᵀ with S, [b, m]×[m, h], instead of two products with
W, [b, d]×[d, h], and some passes over W. It updates a and S as any solver updates its parameters:
decay and the proximal term shrink them, and the batch's gradient is added to its rows of S. The
bias b and the other layers take plain steps.

The samples X of a block of steps are of one of two kinds (`optim/forms.py` chooses the cheaper
one):

* all samples of the client, for all steps. A sample that is used again just adds to its row of S,
  and the Gram matrix is computed once.
* the samples of a few steps, in the order of use. A step only needs the samples before its own:
  half of the Gram matrix. Weights are written out after each block, so it works for any n.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.client_data import Drawn, Gram, Step
from coterie.core.params import Params, zeros
from coterie.core.task import Batch, Task
from coterie.optim.batching import batch_clients
from coterie.optim.dual_weights import DualWeights, Origins, gram_matrix
from coterie.optim.forms import DualForm
from coterie.optim.gradients import (
    gradients_from_first_outputs,
    has_manual_backward,
    losses_from_first_outputs,
)
from coterie.optim.low_rank import LowRankUpdate
from coterie.optim.steps import (
    MAX_STEPS,
    BatchRows,
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


class DualStart(NamedTuple):
    """The arguments of a block of steps. For all clients each leaf is [c, ...]."""

    w: Params  # the first layer's weights may be missing if `outputs` suffice
    u: Params | None  # None: no momentum, or zeros
    strength: Tensor | None  # of the proximal term
    centre: Params | None  # None: w, or no proximal term
    outputs: Tensor | None  # the first layer's X·Wᵀ of all samples under w, if known
    own: Batch
    gram: Gram  # of all samples
    order: Order  # the samples of each step


class BlockLayout(NamedTuple):
    """How a block is divided into steps."""

    sizes: tuple[int, ...]  # batch size of each step
    in_order: bool  # the block has the samples in the order of use, else all samples


class BlockStep(NamedTuple):
    """A step of a block, for all clients."""

    at: BatchRows  # the batches' samples in the block
    batch: Batch  # leaves [c, b, ...]


def dual_steps(
    task: Task,
    w: Params,
    u: Params | None,
    batches: Drawn,
    form: DualForm,
    solver: Solver,
    proximal: ProximalTerm | None,
    outputs: Tensor | None = None,
) -> WithMomentum:
    """Take one step per batch in the dual form.

    Args:
        task: Model and loss; it has a first linear layer.
        w: The model.
        u: The momentum; None without momentum or if it starts at 0.
        batches: The batches, with indices of their samples.
        form: Which blocks to use.
        solver: Step size and momentum.
        proximal: Proximal term and weight decay.
        outputs: The first layer's X·Wᵀ of all samples under w, if known.

    Returns:
        The model, and its momentum if it is needed.
    """
    centre = None if proximal is None else proximal.centre
    strength = strength_tensor(proximal, task)
    in_order = form.rows is not None
    if in_order or batches.sizes.batches > MAX_STEPS:  # the next block needs the momentum
        solver = solver._replace(keeps_momentum=True)
    for steps in _blocks(batches, form):
        given = DualStart(
            w=w,
            u=u,
            strength=strength,
            centre=None if centre is w else centre,
            outputs=None if in_order else outputs,
            own=batches.own._replace(key=()),  # models that draw have no first layer
            gram=() if in_order else batches.gram,
            order=make_order(steps, batches.own, written_out=in_order),
        )
        layout = BlockLayout(step_sizes(steps, batches.own), in_order)
        w, u = batch_clients(partial(_block_steps, task, layout, solver), given, task.execution)
        outputs = None  # the next block starts from other weights
    return w, u


def dual_update(
    task: Task, w: Params, batches: Drawn, lr: float, pull: float, outputs: Tensor | None
) -> tuple[LowRankUpdate, Params]:
    """Take one step per batch and return the first layer as a low-rank update.

    All samples are one block. There is no momentum and no l2, and the proximal term pulls towards
    the start, so that the start keeps the share 1 in the weights.

    Args:
        task: Model and loss; it has a first linear layer.
        w: The model; the first layer's weights may be missing if `outputs` are given.
        batches: The batches, with indices of their samples.
        lr: Step size.
        pull: Strength of the proximal term.
        outputs: The first layer's X·Wᵀ of all samples under w, if known.

    Returns:
        The update of the first layer's weights, and the other parameters.
    """
    solver = Solver(lr, beta=None, l2=0.0)
    steps = list(batches.steps())
    given = DualStart(
        w=w,
        u=None,
        strength=strength_tensor(ProximalTerm(pull, w, 0.0), task) if pull else None,
        centre=None,
        outputs=outputs,
        own=batches.own._replace(key=()),
        gram=batches.gram,
        order=make_order(steps, batches.own),
    )
    layout = BlockLayout(step_sizes(steps, batches.own), in_order=False)
    compute = partial(_block_update, task, layout, solver)
    (sums, squared_norm), others = batch_clients(compute, given, task.execution)
    return LowRankUpdate(sums, batches.own.x.flatten(1), squared_norm), others


# ------------------------------------------------------------------------------ steps
def _block_steps(task: Task, layout: BlockLayout, solver: Solver, given: DualStart) -> WithMomentum:
    """(w, u) of all clients after the steps of a block."""
    assert task.first is not None
    name = task.first.weight
    weights, others, momentum = _take_steps(task, layout, solver, given)
    trained = _reorder({name: weights.weights(), **others}, given.w)
    if solver.beta is None or not solver.keeps_momentum:
        return trained, None
    return trained, _reorder({name: weights.momentum(), **momentum}, given.w)


def _block_update(
    task: Task, layout: BlockLayout, solver: Solver, given: DualStart
) -> tuple[tuple[Tensor, Tensor], Params]:
    """(update of the first layer's weights, other parameters) of all clients after a block."""
    weights, others, _ = _take_steps(task, layout, solver, given)
    return weights.update(), others


def _take_steps(
    task: Task, layout: BlockLayout, solver: Solver, given: DualStart
) -> tuple[DualWeights, Params, Params]:
    """(the first layer's weights, the other parameters, their momentum) after the steps."""
    assert task.first is not None
    name = task.first.weight
    x, gram, steps = _samples_and_steps(task, layout, given)
    weights = _dual_weights(name, x, gram, solver, given)
    others = {k: v.clone() for k, v in _without(name, given.w).items()}
    momentum: Params = {}
    if solver.beta is not None:
        momentum = zeros(others) if given.u is None else _without(name, given.u)
    centre = given.w if given.centre is None else given.centre

    for at, batch in task.execution.limit_steps(steps):
        g, of_others = _gradients(task, weights.outputs(at), others, batch)
        rule = make_rule(solver, given.strength, batch.mask)
        weights.step(at, g, rule)
        of_others = regularised_gradients(solver, rule, others, of_others, centre)
        step_in_place(solver, rule, others, momentum, of_others)
    return weights, others, momentum


def _dual_weights(
    name: str, x: Tensor, gram: Tensor | None, solver: Solver, given: DualStart
) -> DualWeights:
    """The first layer before the steps."""
    origins = [given.w[name]] if name in given.w else []
    centre = None
    momentum = None
    if given.strength is not None:
        centre = 0
    if given.centre is not None:
        centre = len(origins)
        origins.append(given.centre[name])
    if given.u is not None:
        momentum = len(origins)
        origins.append(given.u[name])
    return DualWeights(
        x,
        gram,
        Origins(origins, centre, momentum, given.outputs),
        solver.lr,
        has_momentum=solver.beta is not None,
        is_pulled=given.strength is not None or bool(solver.l2),
    )


def _gradients(task: Task, outputs: Tensor, others: Params, batch: Batch) -> tuple[Tensor, Params]:
    """∂f/∂z of the first layer's outputs and ∂f/∂ of all other parameters, for each client.

    They are gradients of the summed losses, since clients share no parameter.
    """
    if has_manual_backward(task):
        return gradients_from_first_outputs(task, outputs, others, batch)
    leaves = [v.detach().requires_grad_() for v in (outputs, *others.values())]
    with torch.enable_grad():
        z, *values = leaves
        losses = losses_from_first_outputs(task, z, dict(zip(others, values)), batch)
        g, *of_others = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
    return g, dict(zip(others, of_others))


# ------------------------------------------------------------------------------ samples of a block
def _samples_and_steps(
    task: Task, layout: BlockLayout, given: DualStart
) -> tuple[Tensor, Tensor | None, Iterator[BlockStep]]:
    """(X, XXᵀ if X is all samples, the steps)"""
    own = given.own
    x = own.x.flatten(2)
    if given.order.rows is None:
        everything = slice(0, x.shape[1])
        batches = (
            mask_padding(own, given.order.is_real, step) for step in range(len(layout.sizes))
        )
        return x, _gram(x, given.gram), (BlockStep(everything, batch) for batch in batches)
    numbers = global_indices(given.order.rows, x.shape[1])
    used = own._replace(x=own.mask).map_rows(lambda v: take_rows(v, numbers.flatten()))
    if layout.in_order:
        used = used._replace(x=take_rows(own.x, numbers.flatten()))
        return used.x.flatten(2), None, _steps_in_order(layout, used, given)
    return x, _gram(x, given.gram), _steps_on_all_samples(task, layout, used, numbers, given)


def _steps_in_order(layout: BlockLayout, used: Batch, given: DualStart) -> Iterator[BlockStep]:
    first = 0
    for step, batch in enumerate(_split(used, layout)):
        at = slice(first, first + layout.sizes[step])
        yield BlockStep(at, mask_padding(batch, given.order.is_real, step))
        first = at.stop


def _steps_on_all_samples(
    task: Task, layout: BlockLayout, used: Batch, numbers: Tensor, given: DualStart
) -> Iterator[BlockStep]:
    """Steps on some of all samples each; `used` has the targets, masks and weights."""
    for step, (at, batch) in enumerate(zip(numbers.split(layout.sizes, 1), _split(used, layout))):
        at = at.flatten()
        batch = batch._replace(x=_samples_for_rest(task, given.own.x, at))
        yield BlockStep(at, mask_padding(batch, given.order.is_real, step))


def _split(used: Batch, layout: BlockLayout) -> Iterator[Batch]:
    """One batch for each step."""
    parts = [v.split(layout.sizes, 1) for v in (used.x, used.y, used.mask, used.weight)]
    return (Batch(*leaves) for leaves in zip(*parts))


def _samples_for_rest(task: Task, x: Tensor, at: Tensor) -> Tensor:
    """The batch's samples, for the part of the model outside the first layer.

    Most models do not use them there: then zeros that take no memory suffice.
    """
    if task.rows_are_used_elsewhere:
        return take_rows(x, at)
    return x.new_zeros(()).expand(len(x), len(at) // len(x), *x.shape[2:])


def _gram(x: Tensor, cached: Gram) -> Tensor:
    """XXᵀ of each client; the same bits whether the engine has cached it or would cache it."""
    if not isinstance(cached, Tensor):
        return gram_matrix(x)
    if cached.numel():
        return cached
    return torch.stack([gram_matrix(rows) for rows in x])


# ------------------------------------------------------------------------------ blocks of steps
def _blocks(batches: Drawn, form: DualForm) -> Iterator[list[Step]]:
    """Yield the steps in blocks of the form, at most MAX_STEPS each."""
    if form.rows is None:
        yield from in_blocks(batches.steps(), MAX_STEPS)
        return
    steps: list[Step] = []
    rows = 0
    for step, size in zip(batches.steps(), batches.sizes.each()):
        if steps and (rows + size > form.rows or len(steps) == MAX_STEPS):
            yield steps
            steps = []
            rows = 0
        steps.append(step)
        rows += size
    if steps:
        yield steps


def _without(name: str, params: Params) -> Params:
    return {k: v for k, v in params.items() if k != name}


def _reorder(params: Params, like: Params) -> Params:
    return {k: params[k] for k in like}
