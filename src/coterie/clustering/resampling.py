"""How sure a client's choice among centres is, by a bootstrap over its rows."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from coterie.core.randomness import digest, scramble, uniform

RESAMPLES = 200
BLOCKS = 256  # of a client with more rows, whole blocks of rows are resampled
MOST_COPIES = 6  # of one row in one resample; one in 12,000 would be drawn more often
HUGE = 1e100  # stands for an infinite loss: zero times infinity would be no number


def bootstrap_shares(losses: Tensor, mask: Tensor) -> Tensor:
    """Share of resamples in which each centre has the least loss, [K], from losses [n, K].

    In a resample each row counts as often as a Poisson number of mean 1 says (the Poisson
    bootstrap). Where nothing decides, as when no row is drawn, the centres share the resample
    equally: so a client of one row is never wholly sure. Row i belongs to block i modulo `BLOCKS`,
    so that a large client costs one pass over its losses and no memory. The numbers of copies are
    the same table for all clients, which no engine, padding or seed changes.
    """
    finite = losses.double().nan_to_num(HUGE, HUGE).clamp(max=HUGE)
    real = torch.where(mask[:, None] > 0, finite, 0.0)
    blocks = sums_of_blocks(real)
    copies = copies_of_blocks().to(real.device)[: len(blocks)]
    sums = blocks.T @ copies  # [K, RESAMPLES]; in this order one large product when vectorised
    is_least = (sums == sums.amin(0)).double()
    return (is_least / is_least.sum(0)).mean(1)


def sums_of_blocks(rows: Tensor) -> Tensor:
    """Sums of rows [n, K] over the rows whose number is the same modulo `BLOCKS`."""
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
    up_to = torch.distributions.Poisson(1.0).log_prob(torch.arange(MOST_COPIES).double())
    thresholds = up_to.exp().cumsum(0)
    return torch.searchsorted(thresholds, drawn).double()
