"""A first layer that moved by a combination of its client's rows, and is not written out.

Without momentum, and with no pull but one towards the start, the dual form (`optim/dual.py`) ends
at  W = W₀ − SᵀX,  where W₀ is the start, X [n, d] are the client's rows and S [n, h] are sums of
their gradients over the steps. Who only wants the sum of many clients' models needs no W of any:

    Σ_i c_i·W_i  =  (Σ_i c_i)·W₀ − [c_1·S_1; c_2·S_2; …]ᵀ[X_1; X_2; …]

is one large product, and how far a client moved is  ‖SᵀX‖² = Σ S∘(XXᵀS).  Written out, each W would
be picked, written, compared with W₀ and added up: passes over d·h numbers for each client, which
take a quarter of a round where clients have few rows.

An engine that folds uploads into sums opens `row_moves_are_taken`; within it, `descend_from` may
give a `RowMove` in the place of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.params import Params, as_column


class RowMove(NamedTuple):
    """The weights W₀ − sumsᵀ·rows; of many clients, each leaf [c, ...]."""

    sums: Tensor  # [n, h]; of stacked models [n, K, h]
    rows: Tensor  # [n, d]
    square: Tensor  # ‖sumsᵀ·rows‖²

    def fits(self, weights: Tensor) -> bool:
        """Whether it moves weights [h, d] or [K, h, d] like these, here of many clients."""
        return (
            (*self.sums.shape[2:], self.rows.shape[2]) == weights.shape
            and self.sums.shape[:2] == self.rows.shape[:2]
            and self.sums.dtype == self.rows.dtype == weights.dtype
        )

    def shortened(self, clients: Tensor, factor: Tensor) -> RowMove:
        """The same of many clients, where these clients' moves are multiplied by a factor."""
        short = self.sums[clients] * as_column(factor.to(self.sums), self.sums)
        return self._replace(sums=self.sums.index_copy(0, clients, short))


def stack_moved(models: Sequence[Params]) -> Params:
    """The models of one client, stacked, where their first layers may be moves by its rows."""
    stacked: dict[str, Any] = {}
    for name, leaf in models[0].items():
        leaves: list[Any] = [model[name] for model in models]
        if isinstance(leaf, RowMove):
            sums = torch.stack([move.sums for move in leaves], 1)
            stacked[name] = RowMove(sums, leaf.rows, sum(move.square for move in leaves))
        else:
            stacked[name] = torch.stack(leaves)
    return stacked


def sum_of_moves(w: Tensor, move: RowMove, starts: Tensor) -> Tensor:
    """Σ_i w_ik·W_i: [K, h, d], or with more axes where each W_i has them.

    w: [c, K], in each row a single number that is not 0: that of the centre the client began with.
    starts: the centres, of the same shape.
    """
    w = w.to(starts)
    if bool(((w != 0).sum(1) > 1).any()):
        raise ValueError(
            "what descend_from() gave counts for one centre, and its weight names more"
        )
    total = as_column(w.sum(0), starts) * starts
    for k, of_centre in enumerate(w.T):
        sums = move.sums
        rows = move.rows
        clients = of_centre.nonzero()[:, 0]
        if len(clients) < len(w):  # else nothing need be copied
            sums = sums[clients]
            rows = rows[clients]
            of_centre = of_centre[clients]
        if bool((of_centre != 1).any()):
            sums = sums * as_column(of_centre, sums)
        all_rows = rows.flatten(0, 1)
        all_sums = sums.flatten(0, 1).flatten(1)
        total[k].flatten(0, -2).addmm_(all_sums.T, all_rows, alpha=-1)
    return total


# ------------------------------------------------------------------------------ who takes them
_taken: ContextVar[bool] = ContextVar("taken", default=False)


@contextmanager
def row_moves_are_taken(if_so: bool) -> Iterator[None]:
    """While it is open, uploads may have a `RowMove` in the place of a tensor."""
    token = _taken.set(if_so)
    try:
        yield
    finally:
        _taken.reset(token)


def are_taken() -> bool:
    """Whether somebody takes them."""
    return _taken.get()
