"""DP-SGD (Abadi et al. 2016): local steps that protect each row of a client.

    paper       here                shape
    C           clip                largest norm of the gradient of one row
    σ           noise_multiplier    [c]
    q = L/N     rate                [c]
    L           expected            [c], the expected batch size
    ḡ_t(x_i)    clipped gradients, of which only the sum is made

A step draws a Poisson batch, clips each row's gradient to norm C, sums, adds N(0, σ²C²) and divides
by the expected batch size. What follows (proximal term, weight decay, momentum, Adam) uses no rows.

For models of linear layers no gradient of a single row is made ("ghost clipping", Goodfellow 2015,
Li et al. 2022): the gradient of a layer's weights for row i is δ_i·x_iᵀ, with the norm ‖δ_i‖·‖x_i‖.
Other models use `vmap`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

from coterie.core.client_data import PoissonBatches
from coterie.core.errors import CoterieError
from coterie.core.layers import Linear
from coterie.core.params import Params, as_column
from coterie.core.randomness import scramble
from coterie.core.settings import Local
from coterie.core.task import Batch, Task
from coterie.optim.batching import batch_clients
from coterie.optim.gradients import (
    ACTIVATIONS,
    gradient_of_loss,
    has_manual_backward,
    outputs_of_layers,
)
from coterie.optim.optimizers import OPTIMIZERS, OptimizerState, init_state, take_step
from coterie.optim.plain import copy_for_steps, restore_layout
from coterie.optim.row_randomness import RowRandomness
from coterie.optim.steps import (
    ProximalTerm,
    Solver,
    global_indices,
    make_rule,
    regularised_gradients,
    strength_tensor,
    take_rows,
)


class PrivateStart(NamedTuple):
    """The arguments of private steps. For all clients each leaf is [c, ...]."""

    w: Params
    state: OptimizerState
    strength: Tensor | None  # of the proximal term
    centre: Params | None
    own: Batch
    own_steps: Tensor
    rate: Tensor
    expected: Tensor
    key: Tensor
    noise_multiplier: Tensor


def private_steps(
    task: Task, w: Params, batches: PoissonBatches, how: Local, proximal: ProximalTerm | None
) -> Params:
    """Take the steps of a local training, with noise.

    Args:
        task: Model and loss; `task.row_privacy` has the clipping norm.
        w: The model to start from.
        batches: The client's rows, steps and noise.
        how: Optimizer and its settings.
        proximal: Proximal term and weight decay.

    Returns:
        The trained model.

    Raises:
        CoterieError: If the model mixes rows or cannot be vectorised, or with settings that DP-SGD
            does not have.
    """
    check_private_training(task, how)
    task.execution.record_form(
        "private, ghost clipping" if has_manual_backward(task) else "private, gradients by row"
    )
    given = PrivateStart(
        w=w,
        state=init_state(how.solver, w),
        strength=strength_tensor(proximal, task),
        centre=None if proximal is None else proximal.centre,
        own=batches.own if task.is_random else batches.own._replace(key=()),
        own_steps=batches.own_steps,
        rate=batches.rate,
        expected=batches.expected,
        key=batches.key,
        noise_multiplier=batches.noise_multiplier,
    )
    return batch_clients(partial(_steps, task, how, batches.steps), given, task.execution)


def check_private_training(task: Task, how: Local) -> None:
    """Raise a `CoterieError` for models and settings that DP-SGD does not have."""
    if task.averaged:
        raise CoterieError(
            "batch norm mixes the rows of a batch, so the influence of one row has no bound: use "
            "nn.GroupNorm or nn.LayerNorm with dp=rows."
        )
    if task.needs_loop:
        raise CoterieError(
            "dp=rows needs the gradient of each row, which vmap cannot compute for this model: use "
            "another model."
        )
    if how.clip is not None or how.accumulate > 1:
        raise CoterieError(
            "with dp=rows the gradient of each row is clipped, to dp_clip: leave out clip and "
            "accumulate."
        )


def _steps(task: Task, how: Local, steps: int, given: PrivateStart) -> Params:
    """The models of all clients after the steps."""
    privacy = task.row_privacy
    assert privacy is not None
    optimizer = OPTIMIZERS[how.solver]
    w = copy_for_steps(given.w)
    state = OptimizerState(
        {slot: copy_for_steps(values) for slot, values in given.state.slots.items()},
        given.state.steps.clone(),
    )
    centre = given.w if given.centre is None else given.centre
    rule_of = Solver(how.lr, None, 0.0 if optimizer.decouples_decay else how.l2)
    source = RowRandomness(privacy, given.key)
    deviation = given.noise_multiplier * privacy.clip
    for step in task.execution.limit_steps(range(steps)):
        batch = _draw(source, given, step, is_dry=task.execution.max_steps is not None)
        sums = clipped_sums(task, w, batch, privacy.clip)
        is_real = (step < given.own_steps).to(given.expected)
        g = {}
        for (name, total), noise in zip(sums.items(), source.normals(sums)):
            total = total.addcmul_(noise, as_column(deviation.to(total), total).expand_as(total))
            g[name] = total.div_(as_column(given.expected.clamp(min=1), total))
        rule = make_rule(rule_of, given.strength, is_real[:, None])
        g = regularised_gradients(rule_of, rule, w, g, centre)
        take_step(optimizer, how, w, state, g, is_real)
    return restore_layout(w)


# ------------------------------------------------------------------------------ batches
def _draw(source: RowRandomness, given: PrivateStart, step: int, *, is_dry: bool) -> Batch:
    """The Poisson batch of a step, padded to the largest of all clients."""
    own = given.own
    rows = own.mask.shape[1]
    if is_dry or bool((given.rate >= 1).all()):  # a dry run measures the most memory
        return own.at_step(step)
    is_drawn = (source.uniform(rows, step) < given.rate[:, None]) & (own.mask > 0)
    most = max(1, int(is_drawn.sum(1).max()))
    client, row = is_drawn.nonzero(as_tuple=True)
    place = is_drawn.cumsum(1)[client, row] - 1
    index = torch.zeros(len(is_drawn), most, dtype=torch.long, device=own.mask.device)
    index[client, place] = row
    mask = torch.zeros_like(index, dtype=own.mask.dtype)
    mask[client, place] = 1
    at = global_indices(index, rows).flatten()
    return own.map_rows(partial(take_rows, at=at))._replace(mask=mask).at_step(step)


# ------------------------------------------------------------------------------ clipped gradients
def clipped_sums(task: Task, w: Params, batch: Batch, clip: float) -> Params:
    """Σ_i of the gradients of each client's rows, each clipped to norm C; every leaf [c, ...].

    A row whose gradient is not finite counts as 0.
    """
    if has_manual_backward(task):
        return _ghost_sums(task, w, batch, clip)
    return _sums_by_row(task, w, batch, clip)


def _ghost_sums(task: Task, w: Params, batch: Batch, clip: float) -> Params:
    """For models of linear layers, without the gradient of any single row."""
    assert task.layers is not None
    outputs = outputs_of_layers(task.layers, w, batch.x.flatten(2))
    # of the mean over rows, hence times their number
    g = gradient_of_loss(task, outputs[-1], batch)
    g = g * batch.mask.sum(1).clamp(min=1)[:, None, None]
    squares = torch.zeros_like(batch.mask)
    deltas: list[tuple[Linear, Tensor, Tensor]] = []  # (layer, δ [c, n, h], inputs [c, n, d])
    for at in reversed(range(len(task.layers))):
        layer = task.layers[at]
        if not isinstance(layer, Linear):
            g = ACTIVATIONS[type(layer)].back_(g, outputs[at + 1])
            continue
        inputs = outputs[at]
        of_inputs = inputs.square().sum(2)
        if layer.bias is not None:
            of_inputs = of_inputs + 1
        squares = squares + g.square().sum(2) * of_inputs  # ‖δ_i‖²·(‖x_i‖² + 1)
        deltas.append((layer, g, inputs))
        if at > 0:
            g = g @ w[layer.weight]
    factor = _clip_factors(squares, clip)[:, :, None]
    sums: Params = {}
    is_finite = bool((factor > 0).all())
    for layer, delta, inputs in deltas:
        kept = delta * factor
        if not is_finite:  # 0 · inf is NaN
            kept, inputs = kept.where(factor > 0, 0), inputs.where(factor > 0, 0)
        sums[layer.weight] = kept.mT @ inputs
        if layer.bias is not None:
            sums[layer.bias] = kept.sum(1)
    return {name: sums[name] for name in w}


def _sums_by_row(task: Task, w: Params, batch: Batch, clip: float) -> Params:
    """For any model: a gradient for each row."""

    def row_loss(w: Params, row: Batch) -> Tensor:
        one = row.map_rows(lambda v: v[None])
        return task.training_loss(w, one)[0]

    key: Any = ()
    if isinstance(batch.key, Tensor):
        numbers = torch.arange(batch.mask.shape[1], device=batch.mask.device)
        key = scramble(batch.key[:, None] + numbers)
    rows = batch._replace(key=key)
    g: Params = vmap(vmap(grad(row_loss), in_dims=(None, 0)))(w, rows)  # [c, n, ...]
    squares = torch.stack([v.flatten(2).square().sum(2) for v in g.values()]).sum(0)
    factor = _clip_factors(squares, clip) * batch.mask
    sums = {}
    for name, v in g.items():
        kept = v.flatten(2).where(factor[:, :, None] > 0, 0)
        sums[name] = torch.einsum("cn,cnd->cd", factor, kept).view(len(v), *v.shape[2:])
    return sums


def _clip_factors(squares: Tensor, clip: float) -> Tensor:
    """min(1, C/‖g_i‖) from squared norms [c, n]; 0 where they are not finite."""
    factor = (clip / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    return torch.where(squares.isfinite(), factor, 0.0)
