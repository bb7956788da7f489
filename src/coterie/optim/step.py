"""One step of gradient descent or heavy ball, of all clients at once and in place.

Here every tensor has the clients as its first axis: [c, ...].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.params import Params, is_bias
from coterie.optim.pull import Solver


class Rule(NamedTuple):
    """How a step changes what is linear in it: u ← β·u + ∇ + shrink·w;  w ← w − lr·u.

    A number for each client. Where its batch is all padding nothing changes: β is 1, the rest 0.
    """

    beta: Tensor
    shrink: Tensor  # strength of the pull, and l2
    strength: Tensor  # of the pull
    counts: Tensor  # 1, or 0 for padding


def rule_of(solver: Solver, strength: Tensor | None, mask: Tensor) -> Rule | None:
    """The step of each client on batches with this mask [c, b].

    None for a step without momentum and pull: padding has the gradient 0, which changes nothing.
    """
    if is_simple(solver, strength):
        return None
    counts = (mask.sum(1) > 0).to(mask)
    beta = 1 + counts * ((solver.beta or 0.0) - 1)
    pulled = torch.zeros_like(counts)
    if strength is not None:
        pulled = strength * counts
    return Rule(beta, pulled + solver.l2 * counts, pulled, counts)


def is_simple(solver: Solver, strength: Tensor | None) -> bool:
    """Whether steps have neither momentum nor pull nor weight decay."""
    return solver.beta is None and strength is None and not solver.l2


def pulled_gradients(
    solver: Solver, rule: Rule | None, params: Params, g: Params, centre: Params
) -> Params:
    """The gradient g, and that of the pull and of weight decay, which spares biases."""
    if rule is None:
        return g
    pulled = {}
    for name, v in params.items():
        pulled[name] = g[name] + for_leaf(rule.strength, v) * (v - centre[name])
        if solver.l2 and not is_bias(name):
            pulled[name].addcmul_(v, for_leaf(rule.counts, v), value=solver.l2)
    return pulled


def step_in_place(
    solver: Solver, rule: Rule | None, params: Params, momentum: Params, g: Params
) -> None:
    """Change params, and momentum where there is any, by a step along g."""
    if rule is None:
        if params:
            torch._foreach_add_(list(params.values()), list(g.values()), alpha=-solver.lr)
        return
    for name, v in params.items():
        direction = g[name]
        if momentum:
            direction = direction.addcmul_(momentum[name], for_leaf(rule.beta, v))
            momentum[name] = direction
        v.addcmul_(direction, for_leaf(rule.counts, v), value=-solver.lr)


def for_leaf(numbers: Tensor, like: Tensor) -> Tensor:
    """[c] as [c, 1, ...]"""
    return numbers.view(-1, *[1] * (like.dim() - 1))
