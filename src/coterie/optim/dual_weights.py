"""The first layer's weights in the dual form, for all clients at once: see `optim/dual.py`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.optim.steps import BatchRows, StepRule, take_rows


def gram_matrix(x: Tensor) -> Tensor:
    """XXᵀ of samples x [..., n, d]; one quarter is copied from its mirror image."""
    half = x.shape[-2] // 2
    if half < 32:  # copying would take longer
        return x @ x.mT
    upper, lower = x[..., :half, :], x[..., half:, :]
    rest = lower @ x.mT
    first = torch.cat([upper @ upper.mT, rest[..., :half].mT], -1)
    return torch.cat([first, rest], -2)


def add_rows(v: Tensor, at: BatchRows, g: Tensor) -> None:
    """Add g [c, b, h] to some rows of v [c, m, h]."""
    if isinstance(at, slice):
        v[:, at].add_(g)
    else:
        v.view(-1, v.shape[-1]).index_add_(0, at, g.flatten(0, 1))


def first_outputs(x: Tensor, weight: Tensor) -> Tensor:
    """X·Wᵀ [c, m, h]; a single product if all clients share the weights."""
    if weight.stride(0) == 0 and x.is_contiguous():
        return (x.flatten(0, 1) @ weight[0].T).unflatten(0, x.shape[:2])
    return x @ weight.mT


class Origins(NamedTuple):
    """The tensors that W is a combination of: W₀, and possibly the centre C and the momentum U₀."""

    weights: list[Tensor]  # each [c, h, d], the start first; empty if `outputs` suffice
    centre: int | None  # index of the centre; it may be the start
    momentum: int | None  # index of the momentum; None: zeros
    outputs: Tensor | None  # X·W₀ᵀ, if known


class DualWeights:
    """W as shares a of the origins and sums S over samples. Steps update both in place."""

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
        """Start at the origins.

        Args:
            x: X [c, m, d].
            gram: XXᵀ [c, m, m]; None if samples are in the order of use.
            origins: The tensors to start from.
            lr: Step size.
            has_momentum: Whether steps have momentum.
            is_pulled: Whether there is a proximal term or weight decay.
        """
        self.x = x
        self.gram = gram
        self.origins = origins
        self.lr = lr
        self.is_pulled = is_pulled
        self.is_simple = not has_momentum and not is_pulled  # so W stays W₀ − lr·SᵀX
        self.origin_outputs = _origin_outputs(x, origins)
        self.sums = torch.zeros_like(self.origin_outputs[0])  # S
        self.has_moved = False  # before the first step S is 0
        self.shares = self._all_of(0)  # a [c, origins]
        self.momentum_sums: Tensor | None = None  # for the momentum what S is for −W/lr
        self.momentum_shares = torch.zeros_like(self.shares)
        if has_momentum:
            self.momentum_sums = torch.zeros_like(self.sums)
        if origins.momentum is not None:
            self.momentum_shares = self._all_of(origins.momentum)

    def _all_of(self, origin: int) -> Tensor:
        """The shares [c, origins] of one origin."""
        shares = self.x.new_zeros(len(self.x), len(self.origin_outputs))
        shares[:, origin] = 1
        return shares

    def outputs(self, at: BatchRows) -> Tensor:
        """X_B·Wᵀ of the batch with these samples; the caller may overwrite it."""
        of_origins = self._mixed(self.shares, [take_rows(v, at) for v in self.origin_outputs])
        if not self.has_moved:
            return of_origins.clone()
        gram, sums = self._seen_from(at)
        return torch.baddbmm(of_origins, gram, sums, alpha=-self.lr)

    def _seen_from(self, at: BatchRows) -> tuple[Tensor, Tensor]:
        """(X_B·Xᵀ, S), both for samples with a nonzero sum."""
        if self.gram is not None:
            return take_rows(self.gram, at), self.sums
        assert isinstance(at, slice)
        before = slice(0, at.start)
        return self.x[:, at] @ self.x[:, before].mT, self.sums[:, before]

    def step(self, at: BatchRows, g: Tensor, rule: StepRule | None) -> None:
        """Take a step, where g is the gradient of the batch's outputs."""
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
            self.sums.addcmul_(self.momentum_sums, _for_rows(rule.is_real))
        self._step_of_shares(rule)

    def _step_of_shares(self, rule: StepRule) -> None:
        """The same step for the shares a: the gradient of the proximal term alone."""
        direction = rule.shrink[:, None] * self.shares
        if self.origins.centre is not None:
            direction[:, self.origins.centre] -= rule.strength
        if self.momentum_sums is not None:
            direction += rule.beta[:, None] * self.momentum_shares
            self.momentum_shares = direction
        self.shares = self.shares - self.lr * rule.is_real[:, None] * direction

    def weights(self) -> Tensor:
        """W"""
        return self._materialise(self.shares, self.sums, -self.lr)

    def update(self) -> tuple[Tensor, Tensor]:
        """(lr·S, ‖lr·SᵀX‖²) if W is W₀ − lr·SᵀX: without momentum, l2 and other centres."""
        assert self.gram is not None
        sums = self.lr * self.sums
        return sums, (sums * (self.gram @ sums)).sum((1, 2))

    def momentum(self) -> Tensor:
        """U"""
        assert self.momentum_sums is not None
        return self._materialise(self.momentum_shares, self.momentum_sums, 1.0)

    def _materialise(self, shares: Tensor, sums: Tensor, factor: float) -> Tensor:
        of_origins = self._mixed(shares, self.origins.weights)
        return torch.baddbmm(of_origins, sums.mT, self.x, alpha=factor)

    def _mixed(self, shares: Tensor, tensors: list[Tensor]) -> Tensor:
        """Σ share·tensor over the origins; shares [c, origins], tensors [c, ., .]."""
        if self.is_simple:
            return tensors[0]
        mixed = _for_rows(shares[:, 0]) * tensors[0]
        for share, v in zip(shares.T[1:], tensors[1:]):
            mixed.addcmul_(v, _for_rows(share))
        return mixed


def _origin_outputs(x: Tensor, origins: Origins) -> list[Tensor]:
    if origins.outputs is None:
        return [first_outputs(x, weight) for weight in origins.weights]
    return [origins.outputs, *(first_outputs(x, weight) for weight in origins.weights[1:])]


def _for_rows(numbers: Tensor) -> Tensor:
    """Reshape [c] to [c, 1, 1]."""
    return numbers[:, None, None]
