"""Choosing among centres by their losses."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.params import Params, argmin_finite
from coterie.task import Batch, Task


class Choice(NamedTuple):
    """A centre that was chosen by its loss."""

    centre: Tensor  # its index
    losses: Tensor  # [K] of all centres
    outputs: list[Tensor]  # of the first layer, X·Wᵀ [n, hidden] under each centre, if there is one

    def start_outputs(self) -> Tensor | None:
        """Those of the chosen centre: training that starts from it on these rows begins so."""
        if not self.outputs:
            return None
        return torch.stack(self.outputs)[self.centre]


def choose(task: Task, centres: list[Params], batch: Batch) -> Choice:
    """The centre of least loss, with what was computed on the way."""
    if task.first is None:
        return Choice(*least_loss(task, centres, batch), [])
    outputs = [task.first_outputs(c, batch.x) for c in centres]
    losses = [task.loss_from_outputs(z, c, batch) for z, c in zip(outputs, centres)]
    of_all = torch.stack(losses)
    return Choice(argmin_finite(of_all), of_all, outputs)


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
