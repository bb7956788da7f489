"""Labels that keep their meaning: the groups of one round matched to what was there before."""

from __future__ import annotations

import torch
from torch import Tensor


def matched(cost: Tensor) -> Tensor:
    """int64 [G]: for each of G ≤ K groups a centre of its own, at the least total of cost [K, G]."""
    from scipy.optimize import linear_sum_assignment

    centre, group = linear_sum_assignment(cost.detach().cpu().double().numpy())
    to = torch.full((cost.shape[1],), -1)
    to[torch.from_numpy(group)] = torch.from_numpy(centre)
    return to


def overlap(before: Tensor, now: Tensor, k: int, g: int) -> Tensor:
    """[K, G] how many points had one label before and have the other now; −1 before: new."""
    seen = torch.zeros(k, g, dtype=torch.long)
    return seen.index_put(
        (before[before >= 0], now[before >= 0]), torch.ones((), dtype=torch.long), accumulate=True
    )
