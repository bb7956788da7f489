"""Exact steps on one repeated batch that never touch the first layer's weights until the end.

Let the first layer be Z = X·Wᵀ + b on the rows X of the batch. Its gradient is GᵀX with G = ∂f/∂Z, so a
step changes Z by a multiple of (XXᵀ + 1)·G, where the 1 stands for the bias, a constant feature. With the
Gram matrix XXᵀ computed once, a step costs n²·h instead of 2·n·d·h multiplications (n rows, d inputs, h
outputs of the layer), which pays when a batch is repeated and n is small beside d.

Momentum and pull are linear, so after any number of steps the weights W and the momentum U stay combinations

    W = a_W·W₀ + a_C·C + a_U·U₀ − lr·SᵀX        U = v_W·W₀ + v_C·C + v_U·U₀ + VᵀX

of what was there at first: the start W₀, the centre C of the pull, the first momentum U₀. The loop below
keeps the scalars a (`coefficients`) and v (`velocity`), and the sums S and V of gradients [n, h]; the other
layers take ordinary steps.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from coterie.client_data import Repeat
from coterie.local.pull import Number, Pull, WithMomentum, unless_padding
from coterie.params import Params, axpy
from coterie.task import First, Task

Coefficients = dict[str, Number]  # of W₀, C and U₀


def dual_pays(task: Task, w: Params, repeat: Repeat) -> bool:
    """Whether the dual form is possible, and takes fewer multiplications than plain steps."""
    if task.first is None:
        return False
    h, d = w[task.first.weight].shape
    n = len(repeat.batch.mask)
    t = repeat.times
    return n * n * d + 2 * n * d * h + t * n * n * h < 2 * t * n * d * h


def dual_steps(
    task: Task,
    w: Params,
    u: Params | None,
    repeat: Repeat,
    *,
    lr: float,
    beta: float,
    pull: Pull | None,
) -> WithMomentum:
    """(w, u) after `repeat.times` steps on its batch; u is None for steps without momentum."""
    first = task.first
    assert first is not None
    x = repeat.batch.x.flatten(1)
    bias_feature = 0.0 if first.bias is None else 1.0
    gram = x @ x.T + bias_feature
    centre = None if pull is None else pull.centre
    rest = {k: v for k, v in w.items() if k not in (first.weight, first.bias)}
    rest_momentum = None if u is None else {k: u[k] for k in rest}

    z = _layer(first, w, x)
    z_centre = None if centre is None else _layer(first, centre, x)
    z_momentum = None if u is None else _layer(first, u, x)
    s = v = torch.zeros_like(z)
    coefficients: Coefficients = {"W": 1.0, "C": 0.0, "U": 0.0}
    velocity: Coefficients = {"W": 0.0, "C": 0.0, "U": 1.0}

    for step in range(repeat.times):
        g, g_rest = grad(task.loss_after_first, argnums=(0, 1))(z, rest, repeat.batch)
        z_change = gram @ g
        drift: Coefficients = {"W": 0.0, "C": 0.0, "U": 0.0}
        if pull is not None:
            g_rest = axpy(1.0, _pull_on(rest, pull).of(rest), g_rest)
            z_change = z_change + pull.strength * (z if z_centre is None else z - z_centre)
            if step:
                g = g - pull.strength * lr * s
            drift = {i: pull.strength * a for i, a in coefficients.items()}
            if centre is not None:
                drift["C"] = pull.strength * (coefficients["C"] - 1.0)
        if rest_momentum is None or z_momentum is None:
            v, velocity, direction = g, drift, g_rest
        else:
            v = beta * v + g if step else g
            velocity = {i: beta * velocity[i] + drift[i] for i in velocity}
            direction = rest_momentum = axpy(beta, rest_momentum, g_rest)
            z_change = z_momentum = beta * z_momentum + z_change
        rest = axpy(-lr, direction, rest)
        z = z - lr * z_change
        s = s + v if step else v
        coefficients = {i: a - lr * velocity[i] for i, a in coefficients.items()}

    def whole(share: Coefficients, others: Params, sums: Tensor) -> Params:
        """A model from the other layers and the first one, put together again."""
        parts = {first.weight: sums.T @ x}
        if first.bias is not None:
            parts[first.bias] = sums.sum(0)
        layer = {k: _combined(share, w[k], _at(centre, k), _at(u, k), v) for k, v in parts.items()}
        return {k: layer[k] if k in layer else others[k] for k in w}

    moved = whole(coefficients, rest, -lr * s)
    momentum = None if rest_momentum is None else whole(velocity, rest_momentum, v)
    return unless_padding(repeat.batch, (moved, momentum), (w, u), pull)


def _layer(first: First, params: Params, x: Tensor) -> Tensor:
    """The first layer's outputs [n, h]."""
    z = x @ params[first.weight].T
    return z if first.bias is None else z + params[first.bias]


def _pull_on(rest: Params, pull: Pull) -> Pull:
    """The pull on the other layers."""
    if pull.centre is None:
        return pull
    return Pull(pull.strength, {k: pull.centre[k] for k in rest})


def _at(params: Params | None, name: str) -> Tensor | None:
    return None if params is None else params[name]


def _combined(
    share: Coefficients,
    start: Tensor,
    centre: Tensor | None,
    momentum: Tensor | None,
    moved: Tensor,
) -> Tensor:
    """share·(start, centre, momentum) + moved."""
    if _is_one(share["W"]):
        out = moved + start  # W₀ itself: one product of the layer's size less
    else:
        out = moved + share["W"] * start
    if centre is not None:
        out = out + share["C"] * centre
    if momentum is not None:
        out = out + share["U"] * momentum
    return out


def _is_one(a: Number) -> bool:
    return isinstance(a, float) and a == 1.0
