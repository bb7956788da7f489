"""Choosing among centres by their losses."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.params import Params, argmin_finite
from coterie.task import Batch, Task


def least_loss(task: Task, centres: list[Params], batch: Batch) -> tuple[Tensor, Tensor]:
    """(index of the centre with the least loss, all losses [K]).

    A loop over the centres keeps each forward pass one large product when clients are vectorised;
    `vmap` over the centres does not.
    """
    losses = torch.stack([task.loss(c, batch) for c in centres])
    return argmin_finite(losses), losses


def least_finite(losses: Tensor) -> Tensor:
    """The least finite loss; NaN, so that the upload is refused, if none is finite."""
    finite = losses.isfinite()
    least = torch.where(finite, losses, torch.inf).amin(-1)
    return torch.where(finite.any(-1), least, torch.nan)
