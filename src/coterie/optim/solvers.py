"""Solvers for local training: one function per way to train a model on a client's batches.

Each solver takes one step per batch on  f(w) + (pull/2)·‖w − towards‖² + (l2/2)·‖w‖².  A step whose
batch is all padding changes neither the model nor the solver's state. Solvers are written for one
client; the vectorised engine runs them for many clients at once. They choose between plain steps
(`optim/plain.py`) and the dual form (`optim/dual.py`), which sums gradients per sample instead of
changing the first layer's weights in every step. Both give the same result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from torch import Tensor
from torch.func import grad

from coterie.core.client_data import Drawn, PoissonBatches, Repeat, Sizes, Step
from coterie.core.errors import CoterieError
from coterie.core.params import Params, norm, pick, scale, where
from coterie.core.settings import Local
from coterie.core.task import Batch, Task
from coterie.optim.dp_sgd import private_steps
from coterie.optim.dual import dual_steps, dual_update
from coterie.optim.forms import choose_form, low_rank_pays, make_shapes
from coterie.optim.optimizers import OptimizerState, init_state, optimizer_steps
from coterie.optim.plain import plain_steps
from coterie.optim.steps import (
    MAX_STEPS,
    Number,
    ProximalTerm,
    Solver,
    WithMomentum,
    add_proximal,
    make_proximal,
)

C = TypeVar("C")
Batches = Repeat | PoissonBatches | Iterable[Batch]


def descend(
    task: Task,
    w: Params,
    batches: Batches,
    how: Local,
    pull: Number = 0.0,
    towards: Params | None = None,
    *,
    outputs: Tensor | None = None,
) -> Params:
    """Train a model with the solver that `how` names, from a fresh solver state.

    Args:
        task: Model and loss.
        w: The model to start from.
        batches: One step is taken per batch; see `Data.batches`.
        how: The method, for its settings of local training: solver, step size, regularisation.
        pull: Strength of the proximal term.
        towards: The centre of the proximal term.
        outputs: The first layer's X·Wᵀ of all own samples under w, if known; may save a product.

    Returns:
        The trained model.

    Example:
        One step of 0.1 along −∂/∂w of the mean of (w·1 − 2)² and (w·2 − 4)² at 0, which is 10:

        >>> import torch, coterie as ct
        >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0])
        >>> task = ct.Task(lambda: torch.nn.Linear(1, 1, bias=False), "regression", x)
        >>> data = ct.Data(ct.Batch.of(x, y, torch.float32), torch.tensor(0), torch.tensor(0))
        >>> how = ct.Local(lr=0.1, local_steps=1)
        >>> ct.optim.descend(task, {"weight": torch.zeros(1, 1)}, data.batches(how), how)
        {'weight': tensor([[1.]])}
    """
    proximal = make_proximal(pull, towards, how.l2)
    if isinstance(batches, PoissonBatches):
        return private_steps(task, w, batches, how, proximal)
    if how.solver not in ("sgd", "heavy_ball") or how.accumulate > 1:
        task.execution.record_form(f"plain: {how.solver} needs the whole gradient")
        return optimizer_steps(task, w, init_state(how.solver, w), batches, how, proximal)[0]
    if how.solver == "heavy_ball":
        solver = Solver(how.lr, how.momentum, how.l2, keeps_momentum=False)
        return _steps(task, w, None, batches, solver, proximal, clip=how.clip, outputs=outputs)[0]
    return sgd(task, w, batches, how, pull=pull, towards=towards, outputs=outputs)


def descend_from(
    task: Task,
    centres: Params,
    j: int | Tensor,
    batches: Batches,
    how: Local,
    *,
    pull: float = 0.0,
    outputs: Tensor | None = None,
) -> Params:
    """Train centre j, for an upload that counts for this centre alone.

    If the engine permits it, the first layer's weights may be a `LowRankUpdate` instead of a
    tensor, so the result can only be uploaded.

    Args:
        task: Model and loss.
        centres: Stacked models, leaves [K, ...].
        j: The centre to train.
        batches: One step is taken per batch.
        how: Solver, step size and regularisation.
        pull: Strength of a proximal term towards centre j.
        outputs: As in `descend`, under centre j.

    Returns:
        The trained model.

    Example:
        >>> import torch, coterie as ct
        >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0])
        >>> task = ct.Task(lambda: torch.nn.Linear(1, 1, bias=False), "regression", x)
        >>> data = ct.Data(ct.Batch.of(x, y, torch.float32), torch.tensor(0), torch.tensor(0))
        >>> how = ct.Local(lr=0.1, local_steps=1)
        >>> centres = {"weight": torch.tensor([[[0.0]], [[2.0]]])}
        >>> ct.optim.descend_from(task, centres, 1, data.batches(how), how)  # fits already
        {'weight': tensor([[2.]])}
    """
    drawn = _low_rank_batches(task, centres, batches, how, pull)
    if drawn is None:
        start = pick(centres, j)
        towards = start if pull else None
        return descend(task, start, batches, how, pull=pull, towards=towards, outputs=outputs)
    assert task.first is not None
    name = task.first.weight
    needed = {k: v for k, v in centres.items() if k != name or outputs is None}
    update, others = dual_update(task, pick(needed, j), drawn, how.lr, pull, outputs)
    return {k: update if k == name else others[k] for k in centres}  # type: ignore[misc]


def _low_rank_batches(
    task: Task, centres: Params, batches: Batches, how: Local, pull: float
) -> Drawn | None:
    """The batches, if training is to end in a `LowRankUpdate`.

    This requires sgd without l2 and clipping, the dual form in one block, an engine that permits
    it, and fewer operations than with full weights.
    """
    drawn = as_drawn(batches)
    is_simple = how.solver == "sgd" and not how.l2 and how.clip is None and how.accumulate == 1
    if drawn is None or not is_simple or not task.execution.low_rank:
        return None
    if task.first is None or not 0 < drawn.sizes.batches <= MAX_STEPS:
        return None
    like = pick(centres, 0)
    solver = Solver(how.lr, None, how.l2)
    to_start = make_proximal(pull, like, how.l2) if pull else None
    shapes = make_shapes(task, like, None, drawn, solver, to_start)
    if not low_rank_pays(shapes, len(centres[task.first.weight])):
        return None
    form = choose_form(task, like, None, drawn, solver, to_start)
    if not form or form.rows is not None:  # no dual form, or several blocks
        return None
    return drawn


def sgd(
    task: Task,
    w: Params,
    batches: Batches,
    how: Local,
    pull: Number = 0.0,
    towards: Params | None = None,
    *,
    dual: bool = True,
    outputs: Tensor | None = None,
) -> Params:
    """Gradient descent: w ← w − lr·∇, one step per batch.

    Args:
        task: Model and loss.
        w: The model to start from.
        batches: The batches.
        how: Step size, l2 and clipping.
        pull: Strength of the proximal term.
        towards: The centre of the proximal term.
        dual: Whether the dual form may be used.
        outputs: As in `descend`.

    Returns:
        The trained model.

    Example:
        With a proximal term of strength 10 towards 1, the gradient at 0 is −10 − 10:

        >>> import torch, coterie as ct
        >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0])
        >>> task = ct.Task(lambda: torch.nn.Linear(1, 1, bias=False), "regression", x)
        >>> batch = ct.Batch.of(x, y, torch.float32)
        >>> zero, one = {"weight": torch.zeros(1, 1)}, {"weight": torch.ones(1, 1)}
        >>> ct.optim.sgd(task, zero, [batch], ct.Local(lr=0.1), pull=10.0, towards=one)
        {'weight': tensor([[2.]])}
    """
    solver = Solver(how.lr, None, how.l2)
    proximal = make_proximal(pull, towards, how.l2)
    if how.accumulate > 1:
        with_sgd = replace(how, solver="sgd")
        return optimizer_steps(task, w, init_state("sgd", w), batches, with_sgd, proximal)[0]
    return _steps(
        task, w, None, batches, solver, proximal, clip=how.clip, dual=dual, outputs=outputs
    )[0]


def heavy_ball(
    task: Task,
    w: Params,
    u: Params,
    batches: Batches,
    how: Local,
    beta: float,
    pull: Number = 0.0,
    towards: Params | None = None,
    *,
    dual: bool = True,
    outputs: Tensor | None = None,
) -> tuple[Params, Params]:
    """Gradient descent with momentum: u ← β·u + ∇;  w ← w − lr·u, one step per batch.

    Args:
        task: Model and loss.
        w: The model to start from.
        u: The momentum to start from, like `w`.
        batches: The batches.
        how: Step size, l2 and clipping.
        beta: β.
        pull: Strength of the proximal term.
        towards: The centre of the proximal term.
        dual: Whether the dual form may be used.
        outputs: As in `descend`.

    Returns:
        The trained model and its momentum.

    Example:
        >>> import torch, coterie as ct
        >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0])
        >>> task = ct.Task(lambda: torch.nn.Linear(1, 1, bias=False), "regression", x)
        >>> batch, zero = ct.Batch.of(x, y, torch.float32), {"weight": torch.zeros(1, 1)}
        >>> ct.optim.heavy_ball(task, zero, zero, [batch], ct.Local(lr=0.1), beta=0.9)[1]
        {'weight': tensor([[-10.]])}
    """
    solver = Solver(how.lr, beta, how.l2)
    proximal = make_proximal(pull, towards, how.l2)
    if how.accumulate > 1:
        start = OptimizerState({"momentum": u}, init_state("sgd", w).steps)
        with_momentum = replace(how, solver="heavy_ball", momentum=beta)
        new, end = optimizer_steps(task, w, start, batches, with_momentum, proximal)
        return new, end.slots["momentum"]
    new, momentum = _steps(
        task, w, u, batches, solver, proximal, clip=how.clip, dual=dual, outputs=outputs
    )
    assert momentum is not None
    return new, momentum


def adam(
    task: Task,
    w: Params,
    state: Moments,
    batches: Batches,
    how: Local,
    pull: Number = 0.0,
    towards: Params | None = None,
) -> tuple[Params, Moments]:
    """Adam with β = (0.9, 0.999) and ε = 1e-8, one step per batch.

    Args:
        task: Model and loss.
        w: The model to start from.
        state: The state to start from; see `moments`.
        batches: The batches.
        how: Step size, l2 and clipping.
        pull: Strength of the proximal term.
        towards: The centre of the proximal term.

    Returns:
        The trained model and Adam's state.

    Example:
        >>> import torch, coterie as ct
        >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0])
        >>> task = ct.Task(lambda: torch.nn.Linear(1, 1, bias=False), "regression", x)
        >>> batch, w = ct.Batch.of(x, y, torch.float32), {"weight": torch.zeros(1, 1)}
        >>> ct.optim.adam(task, w, ct.optim.moments(w), [batch], ct.Local(lr=0.1))[0]
        {'weight': tensor([[0.1000]])}
    """
    task.execution.record_form("plain: adam needs the whole gradient")
    start = OptimizerState({"first": state.first, "second": state.second}, state.steps)
    with_adam = replace(how, solver="adam")
    proximal = make_proximal(pull, towards, how.l2)
    new, end = optimizer_steps(task, w, start, batches, with_adam, proximal)
    return new, Moments(end.slots["first"], end.slots["second"], end.steps)


class Moments(NamedTuple):
    """The state of Adam, for methods that keep it longer than one local training.

    Args:
        first: Exponential mean m of the gradients.
        second: Exponential mean v of their squares.
        steps: The number of steps t.

    Example:
        >>> import torch, coterie as ct
        >>> state = ct.optim.moments({"w": torch.ones(2)})
        >>> state.second, state.steps
        ({'w': tensor([0., 0.])}, tensor(0.))
    """

    first: Params
    second: Params
    steps: Tensor


def moments(w: Params) -> Moments:
    """The state of Adam before its first step.

    Args:
        w: The model that will be trained.

    Returns:
        Zeros like `w`, and step 0.

    Example:
        >>> import torch, coterie as ct
        >>> ct.optim.moments({"w": torch.ones(2)}).first
        {'w': tensor([0., 0.])}
    """
    state = init_state("adam", w)
    return Moments(state.slots["first"], state.slots["second"], state.steps)


def gradient(task: Task, w: Params, batch: Batch, how: Local) -> Params:
    """The gradient that one step of `sgd` would follow: ∇f at w with l2 and clipping.

    Running statistics of batch norms have no gradient: their entry is what a step of size `how.lr`
    moves to their new values.

    Args:
        task: Model and loss.
        w: The model.
        batch: The samples.
        how: l2 and clipping.

    Returns:
        Leaves like `w`.

    Example:
        >>> import torch, coterie as ct
        >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 4.0])
        >>> task = ct.Task(lambda: torch.nn.Linear(1, 1, bias=False), "regression", x)
        >>> batch, w = ct.Batch.of(x, y, torch.float32), {"weight": torch.zeros(1, 1)}
        >>> ct.optim.gradient(task, w, batch, ct.Local())
        {'weight': tensor([[-10.]])}
    """
    if how.accumulate > 1:
        raise CoterieError(
            f"accumulate is {how.accumulate}, and this method takes steps along single gradients: "
            "leave it at 1, and use larger batches."
        )
    trained = {k: v for k, v in w.items() if k not in task.averaged}
    loss = lambda values: task.training_loss({**w, **values}, batch)
    g, statistics = grad(loss, has_aux=True)(trained)
    g = add_proximal(g, trained, make_proximal(0.0, None, how.l2))
    if how.clip is not None:
        g = scale((how.clip / norm(g).clamp(min=1e-12)).clamp(max=1.0), g)
    towards_statistics = {k: (w[k] - new) / how.lr for k, new in statistics.items()}
    return {k: {**g, **towards_statistics}[k] for k in w}


def each(batches: Batches) -> Iterator[Batch]:
    """Iterate over batches one by one.

    Args:
        batches: A `Repeat` or any iterable of batches.

    Returns:
        An iterator over batches.

    Example:
        >>> import torch, coterie as ct
        >>> batch = ct.Batch.of(torch.zeros(2, 1), torch.zeros(2), torch.float32)
        >>> len(list(ct.optim.each(ct.Repeat(batch, 3))))
        3
    """
    return iter(batches)


def walk(carry: C, batches: Batches, step: Callable[[C, Batch], C]) -> C:
    """Fold a step over batches, for algorithms that no solver here implements.

    A batch that is all padding changes nothing.

    Args:
        carry: A pytree of tensors to start from.
        batches: The batches.
        step: Maps (carry, batch) to the next carry.

    Returns:
        The last carry.

    Example:
        >>> import torch, coterie as ct
        >>> batch = ct.Batch.of(torch.zeros(2, 1), torch.ones(2), torch.float32)
        >>> ct.optim.walk(torch.tensor(0.0), [batch, batch], lambda total, b: total + b.y.sum())
        tensor(4.)
    """
    for batch in each(batches):
        carry = where(batch.mask.sum() > 0, step(carry, batch), carry)
    return carry


def as_drawn(batches: Batches) -> Drawn | None:
    """The batches with indices of their samples; None if these are not known."""
    if isinstance(batches, Drawn):
        return batches
    if not isinstance(batches, Repeat):
        return None
    times = batches.times
    sizes = Sizes((len(batches.batch.mask),), times)
    steps = lambda: itertools.repeat(Step(None), times)
    return Drawn(batches.batch, sizes, steps, batches.gram)


def _steps(
    task: Task,
    w: Params,
    u: Params | None,
    batches: Batches,
    solver: Solver,
    proximal: ProximalTerm | None,
    *,
    clip: float | None,
    dual: bool = True,
    outputs: Tensor | None = None,
) -> WithMomentum:
    """(w, u) after one step per batch, in the cheaper form."""
    drawn = as_drawn(batches)
    if clip is not None:
        task.execution.record_form("plain: clipping needs the whole gradient")
    elif dual and drawn is not None:
        form = choose_form(task, w, u, drawn, solver, proximal)
        if form:
            return dual_steps(task, w, u, drawn, form, solver, proximal, outputs)
    return plain_steps(task, w, u, batches, solver, proximal, clip)
