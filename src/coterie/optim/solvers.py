"""Small, pure solvers that every method shares: gradient descent, heavy ball, Adam.

Each solver takes steps on  f(w) + (pull/2)·‖w − towards‖² + (l2/2)·‖w‖²  over the batches that it
is given. A step whose batch is all padding changes neither the model nor the solver's state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from torch import Tensor
from torch.func import grad

from coterie.core.client_data import Drawn, Repeat, Sizes, Step
from coterie.core.params import Params, norm, pick, scale, where
from coterie.core.settings import Local
from coterie.core.task import Batch, Task
from coterie.optim.adam import Moments, adam_steps, moments
from coterie.optim.dual import dual_move, dual_steps
from coterie.optim.forms import dual_pays, move_pays, note, shapes_of
from coterie.optim.low_rank import are_taken
from coterie.optim.plain import plain_steps
from coterie.optim.pull import Number, Pull, Solver, WithMomentum, joined, with_pull
from coterie.optim.visits import MOST_STEPS

C = TypeVar("C")


def descend(
    task: Task,
    w: Params,
    batches: Repeat | Iterable[Batch],
    how: Local,
    pull: Number = 0.0,
    towards: Params | None = None,
    *,
    outputs: Tensor | None = None,
) -> Params:
    """Train w with the solver that `how` names, from a fresh solver state.

    outputs: the first layer's X·Wᵀ of all own rows under w, where it is known already; it may save
        a product.
    """
    if how.solver == "adam":
        return adam(task, w, moments(w), batches, how, pull=pull, towards=towards)[0]
    if how.solver == "heavy_ball":
        both = joined(pull, towards, how.l2)
        solver = Solver(how.lr, how.momentum, how.l2, keeps_momentum=False)
        new, _ = _steps(task, w, None, batches, solver, both, clip=how.clip, outputs=outputs)
        return new
    return sgd(task, w, batches, how, pull=pull, towards=towards, outputs=outputs)


def descend_from(
    task: Task,
    centres: Params,
    j: int | Tensor,
    batches: Repeat | Iterable[Batch],
    how: Local,
    *,
    pull: float = 0.0,
    outputs: Tensor | None = None,
) -> Params:
    """Train centre j, for an upload that goes out as it is and counts for this centre alone.

    Where the engine takes it, the first layer's weights may be a `LowRankUpdate` instead of a
    tensor: nothing but uploading can be done with the result. pull: strength of a pull towards
    centre j itself. outputs: as in `descend`, under centre j.
    """
    drawn = _to_be_moved(task, centres, batches, how, pull)
    if drawn is None:
        start = pick(centres, j)
        towards = start if pull else None
        return descend(task, start, batches, how, pull=pull, towards=towards, outputs=outputs)
    assert task.first is not None
    name = task.first.weight
    needed = {k: v for k, v in centres.items() if k != name or outputs is None}
    move, others = dual_move(task, pick(needed, j), drawn, how.lr, pull, outputs)
    return {k: move if k == name else others[k] for k in centres}  # type: ignore[misc]


def _to_be_moved(
    task: Task, centres: Params, batches: Repeat | Iterable[Batch], how: Local, pull: float
) -> Drawn | None:
    """The batches, if training is to end in a `LowRankUpdate`.

    That takes plain steps in one block, somebody who takes it, and less work than weights.
    """
    drawn = as_drawn(batches)
    is_simple = how.solver == "sgd" and not how.l2 and how.clip is None
    if drawn is None or not is_simple or not are_taken():
        return None
    if task.first is None or not 0 < drawn.sizes.batches <= MOST_STEPS:
        return None
    like = pick(centres, 0)
    solver = Solver(how.lr, None, how.l2)
    to_start = joined(pull, like, how.l2) if pull else None
    shapes = shapes_of(task, like, None, drawn, solver, to_start)
    if not move_pays(shapes, len(centres[task.first.weight])):
        return None
    form = dual_pays(task, like, None, drawn, solver, to_start)
    if not form or form.rows is not None:
        return None
    return drawn


def sgd(
    task: Task,
    w: Params,
    batches: Repeat | Iterable[Batch],
    how: Local,
    pull: Number = 0.0,
    towards: Params | None = None,
    *,
    dual: bool = True,
    outputs: Tensor | None = None,
) -> Params:
    """w ← w − lr·∇, over the batches; outputs: as in `descend`."""
    both = joined(pull, towards, how.l2)
    solver = Solver(how.lr, None, how.l2)
    new, _ = _steps(task, w, None, batches, solver, both, clip=how.clip, dual=dual, outputs=outputs)
    return new


def heavy_ball(
    task: Task,
    w: Params,
    u: Params,
    batches: Repeat | Iterable[Batch],
    how: Local,
    beta: float,
    pull: Number = 0.0,
    towards: Params | None = None,
    *,
    dual: bool = True,
    outputs: Tensor | None = None,
) -> tuple[Params, Params]:
    """u ← β·u + ∇;  w ← w − lr·u; outputs: as in `descend`."""
    both = joined(pull, towards, how.l2)
    solver = Solver(how.lr, beta, how.l2)
    new, momentum = _steps(
        task, w, u, batches, solver, both, clip=how.clip, dual=dual, outputs=outputs
    )
    assert momentum is not None
    return new, momentum


def adam(
    task: Task,
    w: Params,
    state: Moments,
    batches: Repeat | Iterable[Batch],
    how: Local,
    pull: Number = 0.0,
    towards: Params | None = None,
) -> tuple[Params, Moments]:
    """Adam with β = (0.9, 0.999), ε = 1e-8."""
    note("plain: Adam needs the whole gradient")
    solver = Solver(how.lr, None, how.l2)
    both = joined(pull, towards, how.l2)
    return adam_steps(task, w, state, batches, solver, pull=both, clip=how.clip)


def gradient(task: Task, w: Params, batch: Batch, how: Local) -> Params:
    """∇f at w with l2 and clipping as `how` says: what one step of `sgd` would take."""
    return _pulled_gradient(task, w, batch, how.clip, joined(0.0, None, how.l2))


def each(batches: Repeat | Iterable[Batch]) -> Iterator[Batch]:
    """The batches one by one."""
    if isinstance(batches, Repeat):
        return itertools.repeat(batches.batch, batches.times)
    return iter(batches)


def as_drawn(batches: Repeat | Iterable[Batch]) -> Drawn | None:
    """The batches by the numbers of their rows; None where these are not known.

    Of a repeated batch the rows are its own, and every step takes all of them.
    """
    if isinstance(batches, Drawn):
        return batches
    if not isinstance(batches, Repeat):
        return None
    times = batches.times
    sizes = Sizes((len(batches.batch.mask),), times)
    steps = lambda: itertools.repeat(Step(None), times)
    return Drawn(batches.batch, sizes, steps, batches.gram)


def walk(carry: C, batches: Repeat | Iterable[Batch], step: Callable[[C, Batch], C]) -> C:
    """carry ← step(carry, batch) for each batch, for steps that no solver here takes.

    A batch that is all padding changes nothing.
    """
    for batch in each(batches):
        carry = where(batch.mask.sum() > 0, step(carry, batch), carry)
    return carry


# ------------------------------------------------------------------------------ plain steps
def _pulled_gradient(
    task: Task, w: Params, batch: Batch, clip: float | None, pull: Pull | None
) -> Params:
    """∇ of the loss and the pull; `clip` bounds the length of their sum."""
    g = with_pull(grad(task.loss)(w, batch), w, pull)
    if clip is None:
        return g
    shrink = (clip / norm(g).clamp(min=1e-12)).clamp(max=1.0)
    return scale(shrink, g)


def _steps(
    task: Task,
    w: Params,
    u: Params | None,
    batches: Repeat | Iterable[Batch],
    solver: Solver,
    pull: Pull | None,
    *,
    clip: float | None,
    dual: bool = True,
    outputs: Tensor | None = None,
) -> WithMomentum:
    """(w, u) after a step for each batch; u is None without momentum, and before from rest."""
    drawn = as_drawn(batches)
    if clip is not None:
        note("plain: clipping needs the whole gradient")
    elif dual and drawn is not None:
        form = dual_pays(task, w, u, drawn, solver, pull)
        if form:
            return dual_steps(task, w, u, drawn, form, solver, pull=pull, outputs=outputs)
    return plain_steps(task, w, u, batches, solver, pull=pull, clip=clip)
