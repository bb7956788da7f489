"""Choice among centres by their losses, and how certain the choice is."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.client_data import Data
from coterie.core.errors import CoterieError
from coterie.core.params import Params, argmin_finite
from coterie.core.randomness import digest, scramble, uniform
from coterie.core.task import Batch, Task
from coterie.optim.batching import batch_clients
from coterie.optim.row_randomness import RowRandomness

RESAMPLES = 200
BLOCKS = 256  # clients with more rows resample whole blocks of rows
MAX_COPIES = 6  # of a row in one resample; only one in 12,000 would be drawn more often
HUGE = 1e100  # replaces an infinite loss: zero times infinity is NaN


class Choice(NamedTuple):
    """The centre with the smallest loss."""

    centre: Tensor  # int64 [], its index; −1 if no loss is finite
    losses: Tensor  # [K], of all centres
    outputs: Tensor | None  # [n, K, hidden], the first layer's X·Wᵀ, if the model has such a layer

    def start_outputs(self) -> Tensor | None:
        """[n, hidden], the first-layer outputs under the chosen centre.

        Training that starts there on the same rows can reuse them. Without a finite loss they are
        arbitrary: the upload is rejected.
        """
        if self.outputs is None:
            return None
        return self.outputs.index_select(1, self.centre.clamp(min=0)[None])[:, 0]


def choose_by_loss(task: Task, centres: list[Params], batch: Batch) -> Choice:
    """Choose the centre with the smallest loss on a batch, and keep first-layer outputs."""
    if task.first is None:
        return Choice(*best_by_loss(task, centres, batch), None)
    outputs = task.first_outputs(centres, batch.x)
    losses = [task.loss_from_outputs(z, c, batch) for z, c in zip(outputs.unbind(1), centres)]
    stacked = torch.stack(losses)
    return Choice(argmin_finite(stacked), stacked, outputs)


def best_by_loss(task: Task, centres: list[Params], batch: Batch) -> tuple[Tensor, Tensor]:
    """Choose the centre with the smallest loss on a batch.

    A loop over the centres keeps each forward pass one large product when clients are vectorised;
    `vmap` over the centres does not.

    Returns:
        Its index, int64 [], −1 if no loss is finite, and all losses [K].
    """
    losses = torch.stack([task.loss(c, batch) for c in centres])
    return argmin_finite(losses), losses


def choose_privately(task: Task, centres: list[Params], data: Data) -> Choice:
    """Choose a centre under record-level differential privacy, by the exponential mechanism.

    j = argmin_j (m_j − Gumbel·2Δ/ε_s), with the error rate m_j of centre j on the client's rows and
    Δ = 1/(n − 1) (Liu et al. 2022). A choice has the Rényi divergence α·ε_s²/8.

    Returns:
        The choice; its losses are 0, since they do not leave the client.

    Raises:
        CoterieError: If the model predicts numbers, which have no error rate.
    """
    privacy = task.row_privacy
    assert privacy is not None
    if task.kind != "classification":
        raise CoterieError(
            "with dp=rows a client chooses its cluster by its error rate, and numbers have none: "
            "use a method without choices, such as mr-mtl."
        )
    rows = data.own
    wrong = torch.stack([task.outputs(c, rows.x).argmax(-1) != rows.y for c in centres])
    errors = (wrong * rows.mask).sum(1).double() / data.size.double().clamp(min=1)
    scale = 2 / (data.size.double() - 1).clamp(min=1) / privacy.choice_epsilon

    def draw(keys: Tensor) -> Tensor:
        return RowRandomness(privacy, keys).gumbels(len(centres))

    noise = batch_clients(draw, data.key + digest("choice"), task.execution)
    centre = (errors - noise * scale).argmin()
    return Choice(centre, torch.zeros_like(errors, dtype=task.dtype), None)


def min_finite(losses: Tensor) -> Tensor:
    """The smallest finite loss; NaN, which gets the upload rejected, if none is finite."""
    finite = losses.isfinite()
    smallest = torch.where(finite, losses, torch.inf).amin(-1)
    return torch.where(finite.any(-1), smallest, torch.nan)


# ------------------------------------------------------------------------------ bootstrap
def bootstrap_shares(losses: Tensor, mask: Tensor) -> Tensor:
    """The fraction of bootstrap resamples of a client's rows in which each centre is best.

    The Poisson bootstrap: in a resample each row counts as often as a Poisson number of mean 1.
    Centres with equal losses share a resample, so a client of one row is never entirely certain.
    Row i belongs to block i modulo `BLOCKS`, so that a large client costs one pass over its losses
    and no memory. All clients use the same table of counts, which no engine, padding or seed
    changes.

    Args:
        losses: [n, K], of each row under each centre.
        mask: [n], 0 for padding.

    Returns:
        float64 [K], with sum 1.
    """
    finite = losses.double().nan_to_num(HUGE, HUGE).clamp(max=HUGE)
    real = torch.where(mask[:, None] > 0, finite, 0.0)
    blocks = _sum_blocks(real)
    copies = copies_of_blocks().to(real.device)[: len(blocks)]
    sums = blocks.T @ copies  # [K, RESAMPLES]; in this order one large product when vectorised
    is_best = (sums == sums.amin(0)).double()
    return (is_best / is_best.sum(0)).mean(1)


def _sum_blocks(rows: Tensor) -> Tensor:
    """Sums of rows [n, K] over the rows with the same number modulo `BLOCKS`."""
    n, width = rows.shape
    if n <= BLOCKS:
        return rows
    missing = -n % BLOCKS
    full = torch.cat([rows, rows.new_zeros(missing, width)])
    return full.view(-1, BLOCKS, width).sum(0)


@lru_cache(maxsize=1)
def copies_of_blocks() -> Tensor:
    """How often each block counts in each resample, float64 [BLOCKS, RESAMPLES]."""
    numbers = torch.arange(BLOCKS * RESAMPLES).view(BLOCKS, RESAMPLES)
    drawn = uniform(scramble(numbers) + digest("resamples"))
    up_to = torch.distributions.Poisson(1.0).log_prob(torch.arange(MAX_COPIES).double())
    thresholds = up_to.exp().cumsum(0)
    return torch.searchsorted(thresholds, drawn).double()
