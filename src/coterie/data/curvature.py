"""Curvature of a linear model's loss on each client's rows, which bounds the step size.

The Hessian of the mean squared error on rows x is 2·(1/n)·Σ x xᵀ, with a constant 1 in x for the
intercept; the Hessian of cross-entropy is at most ½·(1/n)·Σ x xᵀ. Gradient descent diverges if
the step size exceeds 2 over the largest eigenvalue. Each client can compute this one number from
its own rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.data.federation import Ragged
from coterie.data.roster import Kind

FACTOR: dict[Kind, float] = {"regression": 2.0, "classification": 0.5}
ITERATIONS = 30  # iterations of the power method
MARGIN = 1.05  # the power method converges from below
ROW_SHARE = 0.95  # share of all rows whose clients lie below the typical curvature


def estimate_curvatures(part: Ragged, kind: Kind, batch: int | None) -> Tensor:
    """Bound the curvature of the loss on each client's rows.

    Args:
        part: The clients' rows.
        kind: "regression" (mean squared error) or "classification" (cross-entropy).
        batch: Rows per step; None: all rows. A small batch may have a larger curvature, so
            the squared norm of the longest row over the batch size is added.

    Returns:
        The largest eigenvalue of each client's Hessian, float64 [clients].
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
    """Compute the largest eigenvalue of each client's (1/n)·Σ x xᵀ with the power method.

    Args:
        rows: The rows of all clients, [rows, d].
        client: The client of each row, int64 [rows].
        sizes: Rows per client, int64 [clients].

    Returns:
        The eigenvalues, [clients].
    """
    start = torch.zeros(len(sizes), rows.shape[1], dtype=rows.dtype)
    # start from the sum of the rows' absolute values: never orthogonal to the first eigenvector
    direction = start.index_add(0, client, rows.abs()) + 1e-12
    value = torch.zeros(len(sizes), dtype=rows.dtype)
    for _ in range(ITERATIONS):
        direction = direction / direction.norm(dim=1, keepdim=True)
        along = (rows * direction[client]).sum(1)
        direction = start.index_add(0, client, along[:, None] * rows) / sizes[:, None]
        value = direction.norm(dim=1)
    return value


def typical_curvature(curvature: Tensor, sizes: Tensor) -> float:
    """Return the 95 % quantile over rows, so that a few outlying clients do not slow down all."""
    order = curvature.argsort()
    upto = sizes[order].cumsum(0)
    at = int(torch.searchsorted(upto, ROW_SHARE * int(sizes.sum())))
    return float(curvature[order][min(at, len(order) - 1)])
