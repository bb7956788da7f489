"""How far a gradient step on a linear model may go: the curvature of a client's rows.

On rows x the mean squared error of a linear model has the second derivative 2·(1/n)·Σ x xᵀ, with a
constant 1 in x for the intercept; cross-entropy has at most ½·(1/n)·Σ x xᵀ. A step of 2 over the
largest eigenvalue diverges. A client can compute its own, and it is one number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.data.federation import Ragged
from coterie.data.roster import Kind

FACTOR: dict[Kind, float] = {"regression": 2.0, "classification": 0.5}
TURNS = 30  # of the power iteration
MARGIN = 1.05  # a power iteration comes from below
MOST_ROWS = 0.95  # the share of all rows whose clients decide what is typical


def estimate_curvatures(part: Ragged, kind: Kind, batch: int | None) -> Tensor:
    """The largest curvature of each client's rows, float64 [clients].

    batch: rows per step. Few rows may lie far out together: the longest row is added in proportion.
    """
    rows = part.x.flatten(1).double()
    rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    client = torch.arange(len(part.sizes)).repeat_interleave(part.sizes)
    largest = MARGIN * largest_eigenvalues(rows, client, part.sizes)
    if batch is not None:
        squares = (rows**2).sum(1)
        longest = torch.zeros_like(largest).scatter_reduce(0, client, squares, "amax")
        in_batch = part.sizes.clamp(max=batch)
        largest = largest + longest / in_batch * (part.sizes > batch)
    return FACTOR[kind] * largest


def largest_eigenvalues(rows: Tensor, client: Tensor, sizes: Tensor) -> Tensor:
    """The largest eigenvalue of each client's (1/n)·Σ x xᵀ, by power iteration, [clients].

    rows: [rows, d].  client: int64 [rows], whose a row is.  sizes: int64 [clients].
    """
    start = torch.zeros(len(sizes), rows.shape[1], dtype=rows.dtype)
    # the sum of the rows' absolute values: never at right angles to the largest eigenvector
    direction = start.index_add(0, client, rows.abs()) + 1e-12
    value = torch.zeros(len(sizes), dtype=rows.dtype)
    for _ in range(TURNS):
        direction = direction / direction.norm(dim=1, keepdim=True)
        along = (rows * direction[client]).sum(1)
        direction = start.index_add(0, client, along[:, None] * rows) / sizes[:, None]
        value = direction.norm(dim=1)
    return value


def typical_curvature(curvature: Tensor, sizes: Tensor) -> float:
    """A curvature that nearly all rows' clients stay below: a few odd sites do not slow all."""
    order = curvature.argsort()
    upto = sizes[order].cumsum(0)
    at = int(torch.searchsorted(upto, MOST_ROWS * int(sizes.sum())))
    return float(curvature[order][min(at, len(order) - 1)])
