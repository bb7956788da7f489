"""The few of many centres that serve the clients best, by the losses that clients report.

Losses count by their order alone: the best centre of a client costs it 0, the worst 1. So a client
that reports what is not true has as much say as any other, and no more.
"""

from __future__ import annotations

import torch
from torch import Tensor


def best_serving(losses: Tensor, k: int) -> Tensor:
    """int64 [k], ascending: the centres among which the clients' best ones cost least in all.

    losses: [clients, centres], infinite for a centre that diverged. Centres are taken one by one,
    each time the one that saves most; then one is exchanged for another as long as that saves.
    """
    cost = ranks(losses)
    kept = torch.zeros(0, dtype=torch.long)
    for _ in range(k):
        others = without(kept, cost.shape[1])
        totals = [total(cost, torch.cat([kept, other[None]])) for other in others]
        kept = torch.cat([kept, others[least(totals)][None]])
    return exchanged(cost, kept).sort().values


def exchanged(cost: Tensor, kept: Tensor) -> Tensor:
    """The centres after every exchange of one for another that saves."""
    best = total(cost, kept)
    improved = True
    while improved:
        improved = False
        for place in range(len(kept)):
            for other in without(kept, cost.shape[1]):
                tried = kept.index_fill(0, torch.tensor(place), int(other))
                if total(cost, tried) < best:
                    kept, best, improved = tried, total(cost, tried), True
    return kept


def ranks(losses: Tensor) -> Tensor:
    """[clients, centres] from 0, each client's best, to 1, its worst; ties have equal ranks."""
    better = (losses[:, None, :] < losses[:, :, None]).sum(-1)
    return better.double() / max(losses.shape[1] - 1, 1)


def total(cost: Tensor, kept: Tensor) -> float:
    """What all clients' best ones among these cost."""
    return float(cost[:, kept].amin(1).sum())


def without(kept: Tensor, centres: int) -> Tensor:
    """The centres that are not kept."""
    everyone = torch.arange(centres)
    return everyone[~torch.isin(everyone, kept)]


def least(totals: list[float]) -> int:
    """Where the least one stands, the first among equals."""
    return totals.index(min(totals))
