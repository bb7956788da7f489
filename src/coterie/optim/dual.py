"""Exact local steps that touch the first layer's weights once for many steps.

Let the first layer be z = W·x + b, and let some steps train on batches of the rows X [m, d]. The
gradient of W on a batch B is G_BᵀX_B with G = ∂f/∂z, a combination of rows. Momentum and pull are
linear, so after any number of steps the weights, and likewise the momentum, are

    W = a₁·W₀ + a₂·C + a₃·U₀ − lr·SᵀX

of what was there at first: the start W₀, the centre C of the pull, the first momentum U₀, and the
rows, each with its sum of gradients in S [m, h]. A batch needs only its own outputs

    X_B·Wᵀ = a₁·X_B·W₀ᵀ + a₂·X_B·Cᵀ + a₃·X_B·U₀ᵀ − lr·(X_B·Xᵀ)·S

so a step takes rows of the Gram matrix XXᵀ times S, [b, m]×[m, h], instead of two products with
W, [b, d]×[d, h], and of some passes over W; and it changes a and S as any solver changes its
parameters: decay and pull shrink them, the batch's gradient is added to its rows of S. The bias b
is a parameter like those of the other layers, which take plain steps.

The rows X of a block of steps are one of two kinds (`optim/forms.py` counts what takes less work):

* all rows of the client, for all steps. A row that comes again, in a later pass, drawn anew or
  because the batch is repeated, just adds to its row of S, and the Gram matrix is computed once.
* the rows of a few steps, in the order of use. Then a step only needs the rows before its own:
  half of the Gram matrix. The weights are written out after each block, so it serves any n.
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
from coterie.optim.all_clients import for_all_clients, to_take
from coterie.optim.backward import gradients_from_first_outputs, is_written_out
from coterie.optim.dual_weights import DualWeights, Origins
from coterie.optim.forms import Form
from coterie.optim.gram import gram_matrix, is_kept
from coterie.optim.low_rank import LowRankUpdate
from coterie.optim.many_models import losses_from_first_outputs
from coterie.optim.pull import Pull, Solver, WithMomentum, strength_of
from coterie.optim.step import pulled_gradients, rule_of, step_in_place
from coterie.optim.visits import (
    MOST_STEPS,
    Order,
    Rows,
    counted,
    in_blocks,
    numbers_among_all,
    order_of,
    rows_at,
    sizes_of,
)


class Given(NamedTuple):
    """What a block of steps begins with, of one client; of all clients, each leaf [c, ...]."""

    w: Params  # it may be without the first layer's weights where `outputs` are enough
    u: Params | None  # None: no momentum, or it begins with 0
    strength: Tensor | None  # of the pull; None: there is none
    centre: Params | None  # of the pull; None: it is w, or there is no pull
    outputs: Tensor | None  # of the first layer under w, X·Wᵀ of all own rows, where they are known
    own: Batch
    gram: Gram  # of the own rows
    order: Order  # which rows each step takes


class Cut(NamedTuple):
    """How the rows of a block are cut into steps."""

    sizes: tuple[int, ...]  # rows of each step
    in_order: bool  # the block has the steps' own rows, in the order of use; else all rows


class Visit(NamedTuple):
    """A step as the block sees it."""

    at: Rows  # the batches' rows in the block
    batch: Batch  # leaves [c, b, ...]


def dual_steps(
    task: Task,
    w: Params,
    u: Params | None,
    batches: Drawn,
    form: Form,
    solver: Solver,
    pull: Pull | None,
    outputs: Tensor | None = None,
) -> WithMomentum:
    """(w, u) after a step for each batch.

    u: None without momentum; or from rest, and after it where nobody asks for it.
    """
    centre = None if pull is None else pull.centre
    strength = strength_of(pull, task)
    in_order = form.rows is not None
    if in_order or batches.sizes.batches > MOST_STEPS:  # the next block goes on from the momentum
        solver = solver._replace(keeps_momentum=True)
    for steps in _blocks(batches, form):
        given = Given(
            w=w,
            u=u,
            strength=strength,
            centre=None if centre is w else centre,
            outputs=None if in_order else outputs,
            own=batches.own,
            gram=() if in_order else batches.gram,
            order=order_of(steps, batches.own, written_out=in_order),
        )
        cut = Cut(sizes_of(steps, batches.own), in_order)
        w, u = for_all_clients(partial(_steps_of_block, task, cut, solver), given)
        outputs = None  # the next block begins with other weights
    return w, u


def dual_move(
    task: Task, w: Params, batches: Drawn, lr: float, pull: float, outputs: Tensor | None
) -> tuple[LowRankUpdate, Params]:
    """(how the first layer's weights moved, the other parameters) after a step for each batch.

    All rows are one block. There is no momentum and no l2; a pull is one towards the start, so the
    start keeps the share 1 in the weights.
    w: it need not have the first layer's weights where `outputs` are given.
    """
    solver = Solver(lr, beta=None, l2=0.0)
    steps = list(batches.steps())
    given = Given(
        w=w,
        u=None,
        strength=strength_of(Pull(pull, w, 0.0), task) if pull else None,
        centre=None,
        outputs=outputs,
        own=batches.own,
        gram=batches.gram,
        order=order_of(steps, batches.own),
    )
    cut = Cut(sizes_of(steps, batches.own), in_order=False)
    (sums, square), others = for_all_clients(partial(_move_of_block, task, cut, solver), given)
    return LowRankUpdate(sums, batches.own.x.flatten(1), square), others


# ------------------------------------------------------------------------------ steps
def _steps_of_block(task: Task, cut: Cut, solver: Solver, given: Given) -> WithMomentum:
    """(w, u) of all clients after the steps of a block: every leaf has their axis in front."""
    assert task.first is not None
    name = task.first.weight
    weights, others, momentum = _take_steps(task, cut, solver, given)
    moved = _in_order({name: weights.weights(), **others}, given.w)
    if solver.beta is None or not solver.keeps_momentum:
        return moved, None
    return moved, _in_order({name: weights.momentum(), **momentum}, given.w)


def _move_of_block(
    task: Task, cut: Cut, solver: Solver, given: Given
) -> tuple[tuple[Tensor, Tensor], Params]:
    """(the move of the first layer's weights, the others) of all clients after a block."""
    weights, others, _ = _take_steps(task, cut, solver, given)
    return weights.move(), others


def _take_steps(
    task: Task, cut: Cut, solver: Solver, given: Given
) -> tuple[DualWeights, Params, Params]:
    """(the first layer's weights, the other parameters, their momentum) after the steps."""
    assert task.first is not None
    name = task.first.weight
    x, gram, visits = _rows_and_visits(task, cut, given)
    weights = _dual_weights(name, x, gram, solver, given)
    others = {k: v.clone() for k, v in _without(name, given.w).items()}
    momentum: Params = {}
    if solver.beta is not None:
        momentum = zeros(others) if given.u is None else _without(name, given.u)
    centre = given.w if given.centre is None else given.centre

    for at, batch in to_take(visits):
        g, of_others = _gradients(task, weights.outputs(at), others, batch)
        rule = rule_of(solver, given.strength, batch.mask)
        weights.step(at, g, rule)
        of_others = pulled_gradients(solver, rule, others, of_others, centre)
        step_in_place(solver, rule, others, momentum, of_others)
    return weights, others, momentum


def _dual_weights(
    name: str, x: Tensor, gram: Tensor | None, solver: Solver, given: Given
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
    """∂f/∂z of the first layer's outputs, and ∂f/∂ of all other parameters, of each client.

    Those of a sum over clients are those of each client, for none sees another's.
    """
    if is_written_out(task):
        return gradients_from_first_outputs(task, outputs, others, batch)
    leaves = [v.detach().requires_grad_() for v in (outputs, *others.values())]
    with torch.enable_grad():
        z, *values = leaves
        losses = losses_from_first_outputs(task, z, dict(zip(others, values)), batch)
        g, *of_others = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
    return g, dict(zip(others, of_others))


# ------------------------------------------------------------------------------ rows of a block
def _rows_and_visits(
    task: Task, cut: Cut, given: Given
) -> tuple[Tensor, Tensor | None, Iterator[Visit]]:
    """(X, XXᵀ where it is all rows', the steps)"""
    own = given.own
    x = own.x.flatten(2)
    if given.order.rows is None:
        everything = slice(0, x.shape[1])
        batches = (counted(own, given.order.counts, step) for step in range(len(cut.sizes)))
        return x, _gram(x, given.gram), (Visit(everything, batch) for batch in batches)
    numbers = numbers_among_all(given.order.rows, x.shape[1])
    used = Batch(*(rows_at(v, numbers.flatten()) for v in own._replace(x=own.mask)))
    if cut.in_order:
        used = used._replace(x=rows_at(own.x, numbers.flatten()))
        return used.x.flatten(2), None, _visits_in_order(cut, used, given)
    return x, _gram(x, given.gram), _visits_of_own(task, cut, used, numbers, given)


def _visits_in_order(cut: Cut, used: Batch, given: Given) -> Iterator[Visit]:
    first = 0
    for step, batch in enumerate(_split(used, cut)):
        at = slice(first, first + cut.sizes[step])
        yield Visit(at, counted(batch, given.order.counts, step))
        first = at.stop


def _visits_of_own(
    task: Task, cut: Cut, used: Batch, numbers: Tensor, given: Given
) -> Iterator[Visit]:
    """Steps on some of all rows each; `used` has what comes beside the rows themselves."""
    for step, (at, batch) in enumerate(zip(numbers.split(cut.sizes, 1), _split(used, cut))):
        at = at.flatten()
        batch = batch._replace(x=_rows_for_others(task, given.own.x, at))
        yield Visit(at, counted(batch, given.order.counts, step))


def _split(used: Batch, cut: Cut) -> Iterator[Batch]:
    """One batch for each step."""
    return (Batch(*leaves) for leaves in zip(*(v.split(cut.sizes, 1) for v in used)))


def _rows_for_others(task: Task, x: Tensor, at: Tensor) -> Tensor:
    """The batch's rows, for what the model does with them beside its first layer.

    Most models do nothing else with them: then zeros that take no memory will do.
    """
    if task.rows_are_used_elsewhere:
        return rows_at(x, at)
    return x.new_zeros(()).expand(len(x), len(at) // len(x), *x.shape[2:])


def _gram(x: Tensor, kept: Gram) -> Tensor:
    """XXᵀ of each client: where it may be kept, the same bits whether it was kept or not."""
    if not is_kept(kept):
        return gram_matrix(x)
    if kept.numel():
        return kept
    return torch.stack([gram_matrix(rows) for rows in x])


# ------------------------------------------------------------------------------ cutting into blocks
def _blocks(batches: Drawn, form: Form) -> Iterator[list[Step]]:
    """The steps in blocks, as the form says; no block has very many, for they are drawn first."""
    if form.rows is None:
        yield from in_blocks(batches.steps(), MOST_STEPS)
        return
    steps: list[Step] = []
    rows = 0
    for step, size in zip(batches.steps(), batches.sizes.each()):
        if steps and (rows + size > form.rows or len(steps) == MOST_STEPS):
            yield steps
            steps = []
            rows = 0
        steps.append(step)
        rows += size
    if steps:
        yield steps


def _without(name: str, params: Params) -> Params:
    return {k: v for k, v in params.items() if k != name}


def _in_order(params: Params, like: Params) -> Params:
    return {k: params[k] for k in like}
