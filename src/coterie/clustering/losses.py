"""Choosing among centres by their losses."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.params import Params, argmin_finite
from coterie.core.task import Batch, Task


class Choice(NamedTuple):
    """A centre that was chosen by its loss."""

    centre: Tensor  # its index
    losses: Tensor  # [K] of all centres
    outputs: Tensor | None  # of the first layer, X·Wᵀ [n, K, hidden], if there is one

    def start_outputs(self) -> Tensor | None:
        """Those of the chosen centre: training that starts from it on these rows begins so.

        Where no loss is finite the centre is −1, and anything will do: the upload is refused.
        """
        if self.outputs is None:
            return None
        return self.outputs.index_select(1, self.centre.clamp(min=0)[None])[:, 0]


def choose(task: Task, centres: list[Params], batch: Batch) -> Choice:
    """The centre of least loss, with what was computed on the way."""
    if task.first is None:
        return Choice(*best_by_loss(task, centres, batch), None)
    outputs = task.first_outputs(centres, batch.x)
    losses = [task.loss_from_outputs(z, c, batch) for z, c in zip(outputs.unbind(1), centres)]
    of_all = torch.stack(losses)
    return Choice(argmin_finite(of_all), of_all, outputs)


def best_by_loss(task: Task, centres: list[Params], batch: Batch) -> tuple[Tensor, Tensor]:
    """(index of the centre with the least loss, all losses [K]).

    A loop over the centres keeps each forward pass one large product when clients are vectorised;
    `vmap` over the centres does not.
    """
    losses = torch.stack([task.loss(c, batch) for c in centres])
    return argmin_finite(losses), losses


def min_finite(losses: Tensor) -> Tensor:
    """The least finite loss; NaN, so that the upload is refused, if none is finite."""
    finite = losses.isfinite()
    least = torch.where(finite, losses, torch.inf).amin(-1)
    return torch.where(finite.any(-1), least, torch.nan)
