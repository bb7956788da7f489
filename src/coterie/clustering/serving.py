"""The few of many centres that serve the clients best, by the losses that clients report.

Hostile clients whose uploads look alike are a group like any other among uploads. So where means
are robust, the server makes twice as many centres as it needs, clients report their loss under
each, and those are kept that serve the clients best: nobody is served by the attackers' centre.

Losses count by their order alone: the best centre of a client costs it 0, the worst 1. So a client
that reports what is not true has as much say as any other, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.clustering.kmeans import coordinates, kmeans
from coterie.core.contract import Ask
from coterie.core.params import Params, argmin_finite, flatten, pick_rows, repeated

Rate = Callable[..., Any]  # a client function that reports the "losses" [centres]


class Served(NamedTuple):
    """The centres that serve the clients best, and who is served by which."""

    centres: Params  # every leaf [k, ...]
    ids: Tensor  # the clients that answered
    labels: Tensor  # int64, the kept centre of least loss for each of them


def find_centres(
    uploads: Params, ids: Tensor, common: Params, k: int, ask: Ask, rate: Rate
) -> Served:
    """k centres from the stacked uploads of these clients, of which some may be hostile.

    common: the model near which all of them started. Uploads are clustered by the direction in
        which they moved from there: a long move must not count for more than a short one.
    """
    made = num_candidates(k, len(ids))
    labels = kmeans(update_directions(uploads, common), made, ask.rng("k-means")).labels
    weight = torch.ones(len(labels))
    centres = ask.group_mean(uploads, labels, weight, empty=repeated(common, made))
    return select_centres(centres, k, ask, rate, ids)


def update_directions(uploads: Params, common: Params) -> Tensor:
    """[N, ≤ N] in which direction each upload moved from the common model."""
    moves = flatten(uploads) - flatten(repeated(common, 1))
    lengths = moves.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return coordinates(moves / lengths)


def num_candidates(k: int, clients: int) -> int:
    """How many centres are made where k are kept: twice as many, if there are enough clients.

    A single centre is the robust mean of all clients, which needs no other to be compared with.
    """
    if k == 1:
        return 1
    return max(k, min(2 * k, clients))


def select_centres(
    centres: Params, k: int, ask: Ask, rate: Rate, clients: Tensor | None = None
) -> Served:
    """The k centres that serve the clients best, by the losses that they report now."""
    answers = ask(rate, clients, shared=centres)
    losses = answers.report["losses"]
    kept = select_by_losses(losses, k)
    ask.note("start_kept", kept)
    return Served(pick_rows(centres, kept), answers.ids, argmin_finite(losses[:, kept]))


def select_by_losses(losses: Tensor, k: int) -> Tensor:
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
