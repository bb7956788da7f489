"""Exact local steps that touch the first layer's weights once for many steps.

Let the first layer be z = W·x + b, and let some steps train on batches of the rows X [m, d]. The
gradient of W on a batch B is G_BᵀX_B with G = ∂f/∂z, a combination of rows. Momentum and pull are
linear, so after any number of steps the weights, and likewise the momentum, are

    W = a₁·W₀ + a₂·C + a₃·U₀ − lr·SᵀX

of what was there at first: the start W₀, the centre C of the pull, the first momentum U₀, and the
rows, each with its sum of gradients in S [m, h]. A batch needs only its own outputs

    X_B·Wᵀ = a₁·X_B·W₀ᵀ + a₂·X_B·Cᵀ + a₃·X_B·U₀ᵀ − lr·(X_B·Xᵀ)·S

so a step takes rows of the Gram matrix XXᵀ times S, [b, m]×[m, h], instead of two products with
W, [b, d]×[d, h], and of some passes over W; and it changes a and S as any solver changes its
parameters: decay and pull shrink them, the batch's gradient is added to its rows of S. The bias b
is a parameter like those of the other layers, which take plain steps.

The rows X of a block of steps are one of two kinds (`local/forms.py` counts what takes less work):

* all rows of the client, for all steps. A row that comes again, in a later pass, drawn anew or
  because the batch is repeated, just adds to its row of S, and the Gram matrix is computed once.
* the rows of a few steps, in the order of use. Then a step only needs the rows before its own:
  half of the Gram matrix. The weights are written out after each block, so it serves any n.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from coterie.client_data import Drawn, Step, take
from coterie.local.forms import Form
from coterie.local.pull import Number, Pull, WithMomentum, take_step, with_pull
from coterie.params import Params
from coterie.task import Batch, Task

Rows = Tensor | slice  # some rows of a block


class Visit(NamedTuple):
    """A step as the block sees it."""

    at: Rows  # the batch's rows in the block
    batch: Batch


def rows_at(v: Tensor, at: Rows) -> Tensor:
    """Some rows of a matrix; `embedding` is what gathers them fastest under `vmap`."""
    if isinstance(at, slice):
        return v[at]
    return F.embedding(at, v)


class Block(NamedTuple):
    """Some steps, and the rows that they take."""

    x: Tensor  # X [m, d]
    gram: Tensor | None  # XXᵀ; None where rows stand in the order of use
    visits: Iterable[Visit]  # taken once

    def seen_from(self, at: Rows, sums: Tensor) -> Tensor:
        """(X_B·Xᵀ)·S, the batch's outputs under what the rows have added to the weights."""
        if self.gram is not None:
            return rows_at(self.gram, at) @ sums
        assert isinstance(at, slice)
        before = slice(0, at.start)  # later rows have added nothing yet
        return (self.x[at] @ self.x[before].T) @ sums[before]


def dual_steps(
    task: Task,
    w: Params,
    u: Params | None,
    batches: Drawn,
    form: Form,
    *,
    lr: float,
    beta: float,
    pull: Pull | None,
) -> WithMomentum:
    """(w, u) after a step for each batch; u is None for steps without momentum."""
    for block in _blocks(task, batches, form):
        w, u = _steps_of_block(task, w, u, block, lr=lr, beta=beta, pull=pull)
    return w, u


def _steps_of_block(
    task: Task,
    w: Params,
    u: Params | None,
    block: Block,
    *,
    lr: float,
    beta: float,
    pull: Pull | None,
) -> WithMomentum:
    assert task.first is not None
    name = task.first.weight
    others = _without(name, w)
    others_momentum = None if u is None else _without(name, u)
    layer = FirstLayer(block, name, w, u, lr, pull)
    gradient = grad(_loss, argnums=(0, 1))

    for at, batch in block.visits:
        g, rest = gradient(layer.outputs(at), others, task, batch)
        layer.step(at, g, batch, beta)
        rest = with_pull(rest, others, pull)
        others, others_momentum = take_step(
            others, others_momentum, rest, batch, lr=lr, beta=beta, pull=pull
        )

    moved = _in_order({name: layer.weights(), **others}, w)
    if u is None or others_momentum is None:
        return moved, None
    return moved, _in_order({name: layer.momentum_weights(), **others_momentum}, u)


def _loss(outputs: Tensor, others: Params, task: Task, batch: Batch) -> Tensor:
    """The loss, given X·Wᵀ of the first layer, and all other parameters."""
    assert task.first is not None
    z = outputs
    if task.first.bias is not None:
        z = outputs + others[task.first.bias]
    return task.loss_after_first(z, others, batch)


# ------------------------------------------------------------------------------ the first layer
class Rule(NamedTuple):
    """How a step changes what is linear in it: u ← β·u + ∇ + shrink·w;  w ← w − lr·u.

    Where the batch is all padding it changes nothing: β = 1 and all others are 0.
    """

    beta: Number
    shrink: Number  # strength of the pull, and l2
    strength: Number  # of the pull
    counts: Number  # 1, or 0 for padding


def _rule(batch: Batch, beta: float, pull: Pull | None) -> Rule:
    counts = (batch.mask.sum() > 0).to(batch.mask)
    if pull is None:
        return Rule(1 + counts * (beta - 1), 0.0, 0.0, counts)
    strength = pull.strength * counts
    return Rule(1 + counts * (beta - 1), strength + pull.l2 * counts, strength, counts)


class FirstLayer:
    """The first layer's weights as the numbers a and the sums S: these change, in place.

    Both are made here, so nobody else sees them change.
    """

    def __init__(
        self, block: Block, name: str, w: Params, u: Params | None, lr: float, pull: Pull | None
    ) -> None:
        self.block = block
        self.lr = lr
        self.pull = pull
        self.is_simple = u is None and pull is None
        self.origins = [w[name]]  # W₀, C, U₀ as far as there are any
        if pull is not None and pull.centre is not None:
            self.origins.append(pull.centre[name])
        self.has_centre = len(self.origins) == 2
        if u is not None:
            self.origins.append(u[name])
        self.origin_outputs = [block.x @ self.origins[0].T]
        for origin in self.origins[1:]:
            same = origin is self.origins[0]  # as in FedProx, whose centre is the start
            self.origin_outputs.append(self.origin_outputs[0] if same else block.x @ origin.T)
        self.sums = torch.zeros_like(self.origin_outputs[0])  # S
        units = torch.eye(len(self.origins), dtype=self.sums.dtype, device=self.sums.device)
        self.shares = units[0]  # a
        self.momentum_sums = None  # V, which is to U as S is to W, but for the factor −lr
        self.momentum_shares = None
        if u is not None:
            self.momentum_sums = torch.zeros_like(self.sums)
            self.momentum_shares = units[-1]

    def outputs(self, at: Rows) -> Tensor:
        """X_B·Wᵀ of the batch at these rows."""
        seen = self.block.seen_from(at, self.sums)
        if self.is_simple:
            return torch.sub(rows_at(self.origin_outputs[0], at), seen, alpha=self.lr)
        outputs = -self.lr * seen
        for share, of_origin in zip(self.shares, self.origin_outputs):
            outputs = outputs + share * rows_at(of_origin, at)
        return outputs

    def step(self, at: Rows, g: Tensor, batch: Batch, beta: float) -> None:
        """Take a step, where g is the gradient of the batch's outputs."""
        if self.is_simple:  # padding has the gradient 0, which changes nothing
            _add(self.sums, at, g)
            return
        rule = _rule(batch, beta, self.pull)
        if self.momentum_sums is None:
            self.sums.mul_(1 - self.lr * rule.shrink)  # S ← S + g − lr·shrink·S
            _add(self.sums, at, g)
        else:
            self.momentum_sums.mul_(rule.beta)  # V ← β·V + g − lr·shrink·S
            if self.pull is not None:
                self.momentum_sums.sub_(self.lr * rule.shrink * self.sums)
            _add(self.momentum_sums, at, g)
            self.sums.add_(rule.counts * self.momentum_sums)  # S ← S + V
        self._step_of_shares(rule)

    def _step_of_shares(self, rule: Rule) -> None:
        """The same step of the numbers a, where the gradient is that of the pull alone."""
        direction = rule.shrink * self.shares
        if self.has_centre:
            direction[1] -= rule.strength
        if self.momentum_shares is None:
            self.shares = self.shares - self.lr * direction
        else:
            self.momentum_shares = rule.beta * self.momentum_shares + direction
            self.shares = self.shares - self.lr * rule.counts * self.momentum_shares

    def weights(self) -> Tensor:
        """W"""
        return self._written_out(self.shares, self.sums, -self.lr)

    def momentum_weights(self) -> Tensor:
        """U"""
        assert self.momentum_shares is not None and self.momentum_sums is not None
        return self._written_out(self.momentum_shares, self.momentum_sums, 1.0)

    def _written_out(self, shares: Tensor, sums: Tensor, factor: float) -> Tensor:
        weight = (factor * sums).T @ self.block.x
        if self.is_simple:
            return weight.add_(self.origins[0])
        for share, origin in zip(shares, self.origins):
            weight += share * origin
        return weight


def _add(sums: Tensor, at: Rows, g: Tensor) -> None:
    """Add g to some rows."""
    if isinstance(at, slice):
        sums[at].add_(g)
    else:
        sums.index_put_((at,), g, accumulate=True)


# ------------------------------------------------------------------------------ blocks
def _blocks(task: Task, batches: Drawn, form: Form) -> Iterator[Block]:
    """The steps in blocks, as the form says."""
    if form.rows is None:
        yield _block_of_own_rows(task, batches.own, batches.steps())
        return
    steps: list[Step] = []
    rows = 0
    for step, size in zip(batches.steps(), batches.sizes.each()):
        if steps and rows + size > form.rows:
            yield _block_in_order_of_use(batches.own, steps)
            steps = []
            rows = 0
        steps.append(step)
        rows += size
    if steps:
        yield _block_in_order_of_use(batches.own, steps)


def _block_of_own_rows(task: Task, own: Batch, drawn: Iterator[Step]) -> Block:
    """All rows of the client; what comes beside the rows is gathered once for all steps."""
    x = own.x.flatten(1)
    first = next(drawn)
    drawn = itertools.chain([first], drawn)
    if first.rows is None:
        everything = slice(0, len(x))
        return Block(x, gram_matrix(x), (Visit(everything, _counted(own, step)) for step in drawn))
    steps = list(drawn)
    numbers = _numbers(own, steps)
    beside = take(own._replace(x=own.mask), torch.cat(numbers))
    visits = []
    for step, at, batch in zip(steps, numbers, _cut(beside, numbers)):
        batch = batch._replace(x=_rows_for_others(task, own.x, at))
        visits.append(Visit(at, _counted(batch, step)))
    return Block(x, gram_matrix(x), visits)


def _block_in_order_of_use(own: Batch, steps: list[Step]) -> Block:
    """The rows of these steps; a row that comes twice is there twice."""
    numbers = _numbers(own, steps)
    order = torch.cat(numbers)
    x = rows_at(own.x.flatten(1), order)
    used = take(own._replace(x=own.mask), order)._replace(x=x.view(-1, *own.x.shape[1:]))
    visits = []
    first = 0
    for step, batch in zip(steps, _cut(used, numbers)):
        at = slice(first, first + len(batch.mask))
        visits.append(Visit(at, _counted(batch, step)))
        first = at.stop
    return Block(x, None, visits)


def gram_matrix(x: Tensor) -> Tensor:
    """XXᵀ, of which one quarter is the mirror image of another."""
    half = len(x) // 2
    if half < 32:  # too little to gain
        return x @ x.T
    first = x[:half] @ x[:half].T
    rest = x[half:] @ x.T
    return torch.cat([torch.cat([first, rest[:, :half].T], 1), rest])


def _numbers(own: Batch, steps: list[Step]) -> list[Tensor]:
    everything = torch.arange(len(own.mask), device=own.mask.device)
    return [everything if step.rows is None else step.rows for step in steps]


def _cut(batch: Batch, numbers: list[Tensor]) -> Iterator[Batch]:
    """One batch for each step again."""
    sizes = [len(rows) for rows in numbers]
    return (Batch(*leaves) for leaves in zip(*(v.split(sizes) for v in batch)))


def _rows_for_others(task: Task, x: Tensor, at: Tensor) -> Tensor:
    """The batch's rows, for what the model does with them beside its first layer.

    Most models do nothing else with them: then zeros that take no memory will do.
    """
    if task.rows_are_used_elsewhere:
        return x[at]
    return torch.zeros((), dtype=x.dtype, device=x.device).expand(len(at), *x.shape[1:])


def _counted(batch: Batch, step: Step) -> Batch:
    if step.counts is None:
        return batch
    return batch._replace(mask=batch.mask * step.counts)


def _without(name: str, params: Params) -> Params:
    return {k: v for k, v in params.items() if k != name}


def _in_order(params: Params, like: Params) -> Params:
    return {k: params[k] for k in like}
