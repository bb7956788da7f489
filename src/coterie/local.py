"""Local training: small, pure, shared by every method.

Each solver takes steps on  f(w) + (pull/2)·‖w − towards‖² + (l2/2)·‖w‖²  over the batches it is given.
A step whose batch is all padding changes neither the model nor the solver's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import grad

from coterie.contract import Local, Repeat
from coterie.params import Params, axpy, norm, scale, where, zeros
from coterie.task import Batch, First, Task

Number = float | Tensor
C = TypeVar("C")


class Pull(NamedTuple):
    """strength·(w − centre): the proximal pull and l2 in one; no centre means 0."""

    strength: Number
    centre: Params | None

    def of(self, w: Params) -> Params:
        if self.centre is None:
            return scale(self.strength, w)
        return {k: self.strength * (w[k] - self.centre[k]) for k in w}


class Moments(NamedTuple):
    """Adam's state, kept by the method where it lives longer than one training."""

    first: Params
    second: Params
    steps: Tensor


def descend(
    task: Task,
    w: Params,
    batches: Repeat | Iterable[Batch],
    how: Local,
    pull: Number = 0.0,
    towards: Params | None = None,
) -> Params:
    """Train w with the solver that `how` names, from a fresh solver state."""
    if how.solver == "adam":
        return adam(task, w, moments(w), batches, how, pull, towards)[0]
    if how.solver == "heavy_ball":
        return heavy_ball(task, w, zeros(w), batches, how, how.momentum, pull, towards)[0]
    return sgd(task, w, batches, how, pull, towards)


def sgd(
    task: Task,
    w: Params,
    batches: Repeat | Iterable[Batch],
    how: Local,
    pull: Number = 0.0,
    towards: Params | None = None,
    dual: bool = True,
) -> Params:
    """w ← w − lr·∇, over the batches."""
    return _steps(task, w, None, batches, how, 0.0, _joined(pull, towards, how.l2), dual)[0]


def heavy_ball(
    task: Task,
    w: Params,
    u: Params,
    batches: Repeat | Iterable[Batch],
    how: Local,
    beta: float,
    pull: Number = 0.0,
    towards: Params | None = None,
    dual: bool = True,
) -> tuple[Params, Params]:
    """u ← β·u + ∇;  w ← w − lr·u."""
    new, momentum = _steps(task, w, u, batches, how, beta, _joined(pull, towards, how.l2), dual)
    assert momentum is not None
    return new, momentum


def moments(w: Params) -> Moments:
    first = next(iter(w.values()))
    return Moments(zeros(w), zeros(w), torch.zeros((), dtype=first.dtype, device=first.device))


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
    joined = _joined(pull, towards, how.l2)
    for batch in each(batches):
        g = _pulled_gradient(task, w, batch, how.clip, joined)
        t = state.steps + 1
        first = {k: 0.9 * state.first[k] + 0.1 * g[k] for k in w}
        second = {k: 0.999 * state.second[k] + 0.001 * g[k] ** 2 for k in w}
        c1, c2 = 1 - 0.9**t, 1 - 0.999**t
        new = {k: w[k] - how.lr * (first[k] / c1) / ((second[k] / c2).sqrt() + 1e-8) for k in w}
        w, state = where(batch.mask.sum() > 0, (new, Moments(first, second, t)), (w, state))
    return w, state


def gradient(task: Task, w: Params, batch: Batch, how: Local) -> Params:
    """∇f at w with l2 and clipping as `how` says: what one step of `sgd` would take."""
    return _pulled_gradient(task, w, batch, how.clip, _joined(0.0, None, how.l2))


def each(batches: Repeat | Iterable[Batch]) -> Iterator[Batch]:
    """The batches one by one."""
    if isinstance(batches, Repeat):
        return iter([batches.batch] * batches.times)
    return iter(batches)


def walk(carry: C, batches: Repeat | Iterable[Batch], step: Callable[[C, Batch], C]) -> C:
    """carry ← step(carry, batch) for each batch, for steps that no solver takes; all-padding batches change nothing."""
    for batch in each(batches):
        carry = where(batch.mask.sum() > 0, step(carry, batch), carry)
    return carry


# ---------------------------------------------------------------------------------------------- plain steps
def _joined(pull: Number, towards: Params | None, l2: float) -> Pull | None:
    """pull·(w − towards) + l2·w as one pull."""
    if towards is None:
        if isinstance(pull, Tensor) or pull:
            raise TypeError("a pull needs the centre it pulls towards")
        return Pull(l2, None) if l2 else None
    if not l2:
        return Pull(pull, towards)
    return Pull(pull + l2, scale(pull / (pull + l2), towards))


def _pulled_gradient(task: Task, w: Params, batch: Batch, clip: float | None, pull: Pull | None) -> Params:
    """∇ of the loss and the pull; `clip` bounds the length of the whole."""
    g = grad(task.loss)(w, batch)
    if pull is not None:
        g = axpy(1.0, pull.of(w), g)
    return g if clip is None else scale((clip / norm(g).clamp(min=1e-12)).clamp(max=1.0), g)


def _steps(
    task: Task,
    w: Params,
    u: Params | None,
    batches: Repeat | Iterable[Batch],
    how: Local,
    beta: float,
    pull: Pull | None,
    dual: bool,
) -> tuple[Params, Params | None]:
    first = task.first
    if (
        dual
        and first is not None
        and isinstance(batches, Repeat)
        and how.clip is None
        and _pays(w[first.weight], batches)
    ):
        return _dual_steps(task, first, w, u, batches, how.lr, beta, pull)
    for batch in each(batches):
        g = _pulled_gradient(task, w, batch, how.clip, pull)
        direction = g if u is None else axpy(beta, u, g)
        moved = axpy(-how.lr, direction, w), None if u is None else direction
        w, u = _unless_padding(batch, moved, (w, u), u, pull)
    return w, u


def _unless_padding(
    batch: Batch,
    new: tuple[Params, Params | None],
    old: tuple[Params, Params | None],
    u: Params | None,
    pull: Pull | None,
) -> tuple[Params, Params | None]:
    """`old` where the batch is all padding; its gradient is 0 there, so that only momentum and pull need the test."""
    if u is None and pull is None:
        return new
    chosen: tuple[Params, Params | None] = where(batch.mask.sum() > 0, new, old)
    return chosen


# ---------------------------------------------------------------------------------------------- the dual form
def _pays(weight: Tensor, batches: Repeat) -> bool:
    """Whether the dual form takes fewer multiplications than plain steps."""
    (h, d), n, t = weight.shape, len(batches.batch.mask), batches.times
    return n * n * d + 2 * n * d * h + t * n * n * h < 2 * t * n * d * h


def _dual_steps(
    task: Task, first: First, w: Params, u: Params | None, repeat: Repeat, lr: float, beta: float, pull: Pull | None
) -> tuple[Params, Params | None]:
    """The same steps on one repeated batch X, exactly, with the first layer kept as Z = X·Wᵀ + b.

    The layer's gradient is GᵀX with G = ∂f/∂Z, so Z moves by (XXᵀ+1)G and nothing of the layer's size is touched
    until the end. Momentum and pull are linear, so W and U stay combinations

        W = a_W·W₀ + a_C·C + a_U·U₀ − lr·SᵀX        U = v_W·W₀ + v_C·C + v_U·U₀ + VᵀX

    of what was there at first, with scalars a and v, and sums S, V of the gradients G.
    """
    x = repeat.batch.x.flatten(1)
    gram = x @ x.T + (0.0 if first.bias is None else 1.0)  # the bias is a constant feature
    centre = None if pull is None else pull.centre
    own = {first.weight, first.bias}
    rest = {k: v for k, v in w.items() if k not in own}

    def before(p: Params) -> Tensor:
        z = x @ p[first.weight].T
        return z if first.bias is None else z + p[first.bias]

    z, xc = before(w), None if centre is None else before(centre)
    xu = None if u is None else before(u)
    s = v = torch.zeros_like(z)
    at: dict[str, Number] = {"W": 1.0, "C": 0.0, "U": 0.0}
    velocity: dict[str, Number] = {"W": 0.0, "C": 0.0, "U": 1.0}
    momentum = None if u is None else {k: u[k] for k in rest}

    for step in range(repeat.times):
        g, g_rest = grad(task.loss_after_first, argnums=(0, 1))(z, rest, repeat.batch)
        xg = gram @ g
        drift: dict[str, Number] = {"W": 0.0, "C": 0.0, "U": 0.0}
        if pull is not None:
            rest_pull = Pull(pull.strength, None if centre is None else {k: centre[k] for k in rest})
            g_rest = axpy(1.0, rest_pull.of(rest), g_rest)
            xg = xg + pull.strength * (z if xc is None else z - xc)
            if step:
                g = g - pull.strength * lr * s
            drift = {i: pull.strength * (a - (1.0 if i == "C" and centre is not None else 0.0)) for i, a in at.items()}
        if u is None or momentum is None or xu is None:
            v, velocity, direction, xv = g, drift, g_rest, xg
        else:
            v = beta * v + g if step else g
            velocity = {i: beta * velocity[i] + drift[i] for i in velocity}
            direction = momentum = axpy(beta, momentum, g_rest)
            xv = xu = beta * xu + xg
        rest = axpy(-lr, direction, rest)
        z = z - lr * xv
        s = s + v if step else v
        at = {i: at[i] - lr * velocity[i] for i in at}

    def rebuilt(share: dict[str, Number], name: str, moved: Tensor) -> Tensor:
        out = moved + w[name] if _is_one(share["W"]) else moved + share["W"] * w[name]
        if centre is not None:
            out = out + share["C"] * centre[name]
        return out if u is None else out + share["U"] * u[name]

    def whole(share: dict[str, Number], others: Params, sums: Tensor) -> Params:
        new = {**others, first.weight: rebuilt(share, first.weight, sums.T @ x)}
        if first.bias is not None:
            new[first.bias] = rebuilt(share, first.bias, sums.sum(0))
        return {k: new[k] for k in w}

    moved = whole(at, rest, -lr * s), None if momentum is None else whole(velocity, momentum, v)
    return _unless_padding(repeat.batch, moved, (w, u), u, pull)


def _is_one(a: Number) -> bool:
    return isinstance(a, float) and a == 1.0
