"""The parts of a local step that all solvers share: proximal term, step rule, batches.

A solver takes steps on  f(w) + (strength/2)·‖w − centre‖² + (l2/2)·‖w‖².  First come the values for
one client, then functions for all clients at once, where every tensor is [c, ...].
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.core.client_data import Step
from coterie.core.params import Params, as_column, axpy, is_bias
from coterie.core.task import Batch, Task

Number = float | Tensor
WithMomentum = tuple[Params, Params | None]  # a model, and its momentum where it has one
# where a batch's samples are: indices into the samples of all clients, or a range in each client
BatchRows = Tensor | slice
MAX_STEPS = 4096  # steps whose batches are drawn at once

T = TypeVar("T")


class ProximalTerm(NamedTuple):
    """strength·(w − centre) + l2·w: the gradient of the proximal term and of weight decay.

    Weight decay does not apply to biases.
    """

    strength: Number
    centre: Params | None  # None: weight decay alone
    l2: float

    def gradient(self, w: Params) -> Params:
        """The gradient of this term at w."""
        return {k: self._leaf_gradient(k, v) for k, v in w.items()}

    def _leaf_gradient(self, name: str, v: Tensor) -> Tensor:
        decay = self.leaf_decay(name)
        if self.centre is None:
            return decay * v
        pulled = self.strength * (v - self.centre[name])
        if decay:
            return pulled + decay * v
        return pulled

    def leaf_decay(self, name: str) -> float:
        """The weight decay of a parameter; 0 for biases."""
        if is_bias(name):
            return 0.0
        return self.l2


class Solver(NamedTuple):
    """Steps u ← β·u + ∇;  w ← w − lr·u, where ∇ includes the proximal term and l2."""

    lr: float
    beta: float | None  # None: without momentum
    l2: float
    keeps_momentum: bool = True  # False: the final momentum is not needed


def make_proximal(pull: Number, towards: Params | None, l2: float) -> ProximalTerm | None:
    """Combine the proximal term pull·(w − towards) with l2; None if there is neither."""
    if towards is not None:
        return ProximalTerm(pull, towards, l2)
    if isinstance(pull, Tensor) or pull:
        raise TypeError("pull needs towards: the model that it pulls towards")
    if not l2:
        return None
    return ProximalTerm(0.0, None, l2)


def strength_tensor(proximal: ProximalTerm | None, task: Task) -> Tensor | None:
    """The strength of a proximal term as a tensor; None without a centre."""
    if proximal is None or proximal.centre is None:
        return None
    return torch.as_tensor(proximal.strength, dtype=task.dtype, device=task.device)


def add_proximal(g: Params, w: Params, proximal: ProximalTerm | None) -> Params:
    """Add the gradient of the proximal term at w to g."""
    if proximal is None:
        return g
    return axpy(1.0, proximal.gradient(w), g)


# ------------------------------------------------------------------------------ batches
def in_blocks(steps: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yield the steps in lists: a run may have far too many for one."""
    while block := list(itertools.islice(steps, size)):
        yield block


class Order(NamedTuple):
    """The samples of some steps. For all clients each leaf is [c, ...]."""

    rows: Tensor | None  # int64, one step after another; None: all samples in each step
    is_real: Tensor | None  # bool [steps], False for padding; None: no step is padding


ALL_ROWS = Order(None, None)


def make_order(steps: list[Step], own: Batch, *, written_out: bool = False) -> Order:
    """The order of some steps; written_out: with indices even if each step takes all samples."""
    is_real = [step.is_real for step in steps if step.is_real is not None]
    rows = None
    if steps[0].rows is not None or written_out:
        everything = torch.arange(len(own.mask), device=own.mask.device)
        rows = torch.cat([everything if step.rows is None else step.rows for step in steps])
    return Order(rows, torch.stack(is_real) if is_real else None)


def step_sizes(steps: list[Step], own: Batch) -> tuple[int, ...]:
    """The batch size of each step."""
    return tuple(len(own.mask if step.rows is None else step.rows) for step in steps)


def global_indices(rows: Tensor, each: int) -> Tensor:
    """Convert indices [c, m] within clients of `each` samples to indices among all clients."""
    return rows + torch.arange(len(rows), device=rows.device)[:, None] * each


def take_rows(v: Tensor, at: BatchRows) -> Tensor:
    """Select samples [c, b, ...] of v [c, m, ...]."""
    if isinstance(at, slice):
        return v[:, at]
    return v.flatten(0, 1).index_select(0, at).unflatten(0, (len(v), -1))


def mask_padding(batch: Batch, is_real: Tensor | None, step: int) -> Batch:
    """Mask the batch of a step for the clients for which the step is padding."""
    if is_real is None:
        return batch
    return batch._replace(mask=batch.mask * is_real[:, step, None])


# ------------------------------------------------------------------------------ all clients at once
class StepRule(NamedTuple):
    """Coefficients of a step, [c] each: u ← β·u + ∇ + shrink·w;  w ← w − lr·u.

    For a client whose batch is all padding nothing changes: β is 1 and the rest 0.
    """

    beta: Tensor
    shrink: Tensor  # strength of the proximal term plus l2
    strength: Tensor  # of the proximal term
    is_real: Tensor  # 1, or 0 where the batch is all padding


def make_rule(solver: Solver, strength: Tensor | None, mask: Tensor) -> StepRule | None:
    """The coefficients of a step on batches with this mask [c, b].

    None for plain gradient descent: padding has the gradient 0, which changes nothing.
    """
    if is_simple(solver, strength):
        return None
    is_real = (mask.sum(1) > 0).to(mask)
    beta = 1 + is_real * ((solver.beta or 0.0) - 1)
    pulled = torch.zeros_like(is_real)
    if strength is not None:
        pulled = strength * is_real
    return StepRule(beta, pulled + solver.l2 * is_real, pulled, is_real)


def is_simple(solver: Solver, strength: Tensor | None) -> bool:
    """Whether steps have neither momentum nor proximal term nor weight decay."""
    return solver.beta is None and strength is None and not solver.l2


def regularised_gradients(
    solver: Solver, rule: StepRule | None, params: Params, g: Params, centre: Params
) -> Params:
    """Add the gradients of the proximal term and of weight decay to g."""
    if rule is None:
        return g
    pulled = {}
    for name, v in params.items():
        pulled[name] = g[name] + as_column(rule.strength, v) * (v - centre[name])
        if solver.l2 and not is_bias(name):
            pulled[name].addcmul_(v, as_column(rule.is_real, v), value=solver.l2)
    return pulled


def step_in_place(
    solver: Solver, rule: StepRule | None, params: Params, momentum: Params, g: Params
) -> None:
    """Update params, and momentum if there is any, by a step along g; g may be overwritten."""
    if rule is None:
        if params:
            torch._foreach_add_(list(params.values()), list(g.values()), alpha=-solver.lr)
        return
    for name, v in params.items():
        direction = g[name]
        if momentum:
            direction = direction.addcmul_(momentum[name], as_column(rule.beta, v))
            momentum[name] = direction
        v.addcmul_(direction, as_column(rule.is_real, v), value=-solver.lr)
