"""The problem of a client of FedSoft, equation (4): h(w) = f(w) + (λ/2) Σ_s u_s ‖w − c_s‖²."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from coterie.core.contract import Data, Repeat
from coterie.core.params import Params, dot, minus, norm, unstack, where, zeros
from coterie.core.task import Batch, Task
from coterie.optim import Moments, adam, each, heavy_ball, moments, sgd

if TYPE_CHECKING:
    from coterie.methods.fedsoft import FedSoft, Personal


def fresh_solver(how: FedSoft, w: Params) -> Moments | Params | tuple[()]:
    """The state of a local optimiser that has not begun."""
    if how.solver == "adam":
        return moments(w)
    if how.solver == "heavy_ball":
        return zeros(w)
    return ()


class Proximal(NamedTuple):
    """h of one client."""

    task: Task
    centres: Params
    u: Tensor  # [S]
    strength: float  # λ

    def value(self, w: Params, rows: Batch) -> Tensor:
        moves = [minus(w, c) for c in unstack(self.centres)]
        squares = torch.stack([dot(m, m) for m in moves])
        return self.task.loss(w, rows) + self.strength / 2 * (self.u * squares).sum()

    def solve(self, how: FedSoft, me: Personal, batches: Repeat | Iterable[Batch]) -> Personal:
        """The client's state after steps on h.

        The gradient is that of f and one pull of λ Σ u towards the centres' weighted mean.
        """
        w = me.model
        kept = me.solver if how.keep_solver else fresh_solver(how, w)
        total = self.u.sum()
        pull = self.strength * total
        towards = {
            k: torch.einsum("s,s...->...", self.u / total, c) for k, c in self.centres.items()
        }
        if isinstance(kept, Moments):
            w, kept = adam(self.task, w, kept, batches, how, pull=pull, towards=towards)
        elif isinstance(kept, dict):
            beta = how.momentum
            w, kept = heavy_ball(self.task, w, kept, batches, how, beta, pull=pull, towards=towards)
        else:
            w = sgd(self.task, w, batches, how, pull=pull, towards=towards)
        if not how.keep_solver:
            kept = ()
        return me._replace(model=w, solver=kept)

    def solve_inexactly(
        self, how: FedSoft, me: Personal, data: Data, gamma: float
    ) -> tuple[Personal, Tensor]:
        """(the state after the first step that meets assumption 1, the number of steps taken).

        All local steps are gone through, for clients are vectorised; those after it change nothing.
        """
        at_centres = [norm(grad(self.task.loss)(c, data.all)) for c in unstack(self.centres)]
        limit = gamma * torch.stack(at_centres).min()
        steps = torch.zeros_like(limit)
        for batch in each(data.batches(how)):
            # ‖∇h_k(w_k)‖ ≤ γ0 min_s ‖∇F_s(c_s)‖ (9)
            unsolved = norm(grad(self.value)(me.model, data.all)) > limit
            me = where(unsolved, self.solve(how, me, [batch]), me)
            steps = steps + unsolved
        return me, steps
