"""The first layer's weights in the dual form, of all clients at once: see `optim/dual.py`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.optim.step import Rule
from coterie.optim.visits import Rows, rows_at


def add_rows(v: Tensor, at: Rows, g: Tensor) -> None:
    """Add g [c, b, h] to some rows of v [c, m, h]."""
    if isinstance(at, slice):
        v[:, at].add_(g)
    else:
        v.view(-1, v.shape[-1]).index_add_(0, at, g.flatten(0, 1))


def outputs_of(x: Tensor, weight: Tensor) -> Tensor:
    """X·Wᵀ [c, m, h]: one product where all clients share the weights."""
    if weight.stride(0) == 0 and x.is_contiguous():
        return (x.flatten(0, 1) @ weight[0].T).unflatten(0, x.shape[:2])
    return x @ weight.mT


class Origins(NamedTuple):
    """What steps begin with: the start W₀, and maybe the centre C and the momentum U₀."""

    weights: list[Tensor]  # each [c, h, d]; the first is the start; none where outputs are enough
    centre: int | None  # which of them is the centre of the pull; it may be the start
    momentum: int | None  # which of them is the momentum; None: it is 0
    outputs: Tensor | None  # X·W₀ᵀ, where it is known already


class DualWeights:
    """W as the shares a and the sums S. Steps change both in place."""

    def __init__(
        self,
        x: Tensor,
        gram: Tensor | None,
        origins: Origins,
        lr: float,
        *,
        has_momentum: bool,
        is_pulled: bool,
    ) -> None:
        """Begin at the origins.

        x: X [c, m, d].
        gram: XXᵀ [c, m, m]; None where rows stand in the order of use.
        is_pulled: there is a pull towards a centre, or weight decay.
        """
        self.x = x
        self.gram = gram
        self.origins = origins
        self.lr = lr
        self.is_pulled = is_pulled
        self.is_simple = not has_momentum and not is_pulled  # so W stays W₀ − lr·SᵀX
        self.origin_outputs = _outputs_of_origins(x, origins)
        self.sums = torch.zeros_like(self.origin_outputs[0])  # S
        self.has_moved = False  # before the first step S is 0
        self.shares = self._all_of(0)  # a [c, origins]
        self.momentum_sums: Tensor | None = None  # these are to the momentum as S is to −W/lr
        self.momentum_shares = torch.zeros_like(self.shares)
        if has_momentum:
            self.momentum_sums = torch.zeros_like(self.sums)
        if origins.momentum is not None:
            self.momentum_shares = self._all_of(origins.momentum)

    def _all_of(self, origin: int) -> Tensor:
        """The shares of what is one of the origins."""
        shares = self.x.new_zeros(len(self.x), len(self.origin_outputs))
        shares[:, origin] = 1
        return shares

    def outputs(self, at: Rows) -> Tensor:
        """X_B·Wᵀ of the batch at these rows, in memory of its own."""
        of_origins = self._mixed(self.shares, [rows_at(v, at) for v in self.origin_outputs])
        if not self.has_moved:
            return of_origins.clone()
        gram, sums = self._seen_from(at)
        return torch.baddbmm(of_origins, gram, sums, alpha=-self.lr)

    def _seen_from(self, at: Rows) -> tuple[Tensor, Tensor]:
        """(X_B·Xᵀ, S), both for the rows that have added something."""
        if self.gram is not None:
            return rows_at(self.gram, at), self.sums
        assert isinstance(at, slice)
        before = slice(0, at.start)
        return self.x[:, at] @ self.x[:, before].mT, self.sums[:, before]

    def step(self, at: Rows, g: Tensor, rule: Rule | None) -> None:
        """Take a step, where g is the gradient of the batch's outputs; simple ones need no rule."""
        self.has_moved = True
        if rule is None:
            add_rows(self.sums, at, g)
            return
        if self.momentum_sums is None:  # S ← S + g − lr·shrink·S
            self.sums.mul_(_for_rows(1 - self.lr * rule.shrink))
            add_rows(self.sums, at, g)
        else:  # V ← β·V + g − lr·shrink·S;  S ← S + V
            self.momentum_sums.mul_(_for_rows(rule.beta))
            if self.is_pulled:
                self.momentum_sums.addcmul_(self.sums, _for_rows(rule.shrink), value=-self.lr)
            add_rows(self.momentum_sums, at, g)
            self.sums.addcmul_(self.momentum_sums, _for_rows(rule.counts))
        self._step_of_shares(rule)

    def _step_of_shares(self, rule: Rule) -> None:
        """The same step of the numbers a, where the gradient is that of the pull alone."""
        direction = rule.shrink[:, None] * self.shares
        if self.origins.centre is not None:
            direction[:, self.origins.centre] -= rule.strength
        if self.momentum_sums is not None:
            direction += rule.beta[:, None] * self.momentum_shares
            self.momentum_shares = direction
        self.shares = self.shares - self.lr * rule.counts[:, None] * direction

    def weights(self) -> Tensor:
        """W"""
        return self._written_out(self.shares, self.sums, -self.lr)

    def move(self) -> tuple[Tensor, Tensor]:
        """(lr·S, ‖lr·SᵀX‖²), where W is W₀ − lr·SᵀX: without momentum, l2 and other centres."""
        assert self.gram is not None
        sums = self.lr * self.sums
        return sums, (sums * (self.gram @ sums)).sum((1, 2))

    def momentum(self) -> Tensor:
        """U"""
        assert self.momentum_sums is not None
        return self._written_out(self.momentum_shares, self.momentum_sums, 1.0)

    def _written_out(self, shares: Tensor, sums: Tensor, factor: float) -> Tensor:
        of_origins = self._mixed(shares, self.origins.weights)
        return torch.baddbmm(of_origins, sums.mT, self.x, alpha=factor)

    def _mixed(self, shares: Tensor, tensors: list[Tensor]) -> Tensor:
        """Σ share·tensor over the origins: shares [c, origins], tensors [c, ., .]."""
        if self.is_simple:
            return tensors[0]
        mixed = _for_rows(shares[:, 0]) * tensors[0]
        for share, v in zip(shares.T[1:], tensors[1:]):
            mixed.addcmul_(v, _for_rows(share))
        return mixed


def _outputs_of_origins(x: Tensor, origins: Origins) -> list[Tensor]:
    if origins.outputs is None:
        return [outputs_of(x, weight) for weight in origins.weights]
    return [origins.outputs, *(outputs_of(x, weight) for weight in origins.weights[1:])]


def _for_rows(numbers: Tensor) -> Tensor:
    """[c] as [c, 1, 1]"""
    return numbers[:, None, None]
