"""Shards: which clients belong to which worker thread or rank.

A chunk never mixes clients of two shards, and sums are added shard by shard (`pairwise_sum`). So a
shard gives the same bits wherever its clients are simulated: the result of a thread in one process
is that of a rank with one thread among several ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.data.roster import Roster

T = TypeVar("T")
ALIGNMENT = 16  # bytes


class Shards(NamedTuple):
    """The clients of each shard."""

    clients: list[Tensor]  # by shard: int64, sorted ids in the whole federation
    owner: Tensor  # int64 [total], the shard of each client
    local: Tensor  # int64 [total], its id among the clients of its shard
    training: int  # number of training clients; ids of unseen clients begin here

    def positions(self, ids: Tensor) -> list[Tensor]:
        """For each shard, the positions of its clients in `ids`."""
        owner = self.owner[ids]
        return [(owner == shard).nonzero()[:, 0] for shard in range(len(self.clients))]

    def training_clients(self, shard: int) -> Tensor:
        """The training clients of a shard."""
        clients = self.clients[shard]
        return clients[clients < self.training]


def make_shards(roster: Roster, ranks: int, workers: int = 1) -> Shards:
    """Divide the clients among ranks, with about the same number of samples each.

    The division depends only on sample counts, `ranks` and `workers`. A rank owns as many
    consecutive shards as it has workers: those of one process with `ranks · workers` workers.

    Args:
        roster: All clients. With fewer training clients than workers, one worker per rank counts.
        ranks: Number of ranks, or of workers in one process.
        workers: Number of workers of each rank.

    Returns:
        One shard per rank.
    """
    if len(roster) < ranks * workers:
        workers = 1
    training = balance_samples(roster.rows.train[: len(roster)], ranks * workers)
    unseen = balance_samples(roster.rows.train[len(roster) :], ranks * workers)
    clients = []
    for first in range(0, ranks * workers, workers):
        end = first + workers
        later = [some + len(roster) for some in unseen[first:end]]
        clients.append(torch.cat([*training[first:end], *later]).sort().values)
    owner = torch.zeros(roster.total, dtype=torch.long)
    local = torch.zeros(roster.total, dtype=torch.long)
    for shard, ids in enumerate(clients):
        owner[ids] = shard
        local[ids] = torch.arange(len(ids))
    return Shards(clients, owner, local, len(roster))


def balance_samples(samples: Tensor, shards: int) -> list[Tensor]:
    """Divide clients, sorted by size, into shards with about the same number of samples."""
    order = samples.argsort(stable=True, descending=True)
    return [order[run].sort().values for run in split_by_samples(samples[order], shards)]


def split_by_samples(samples: Tensor, shards: int) -> list[Tensor]:
    """Split clients into consecutive runs with about the same number of samples.

    The splits follow `pairwise_sum`: the four shards of one process are the two shards of each of
    two ranks. No run is empty unless there are fewer clients than shards.
    """
    n = len(samples)
    if shards == 1:
        return [torch.arange(n)]
    left = shards // 2
    middle = samples.cumsum(0) - samples / 2  # of each client's samples
    end = int((middle < int(samples.sum()) * left / shards).sum())
    end = max(end, min(left, n // 2))  # at least one client for each shard on the left
    end = min(end, n - min(shards - left, n - n // 2))  # and on the right
    right = split_by_samples(samples[end:], shards - left)
    return split_by_samples(samples[:end], left) + [run + end for run in right]


def pairwise_sum(parts: Sequence[T], add: Callable[[T, T], T]) -> T:
    """Add the sum of the first half to the sum of the second half, recursively."""
    if len(parts) == 1:
        return parts[0]
    left = len(parts) // 2
    return add(pairwise_sum(parts[:left], add), pairwise_sum(parts[left:], add))


class ClientSubset(NamedTuple):
    """The clients of this process among those of all processes."""

    clients: Tensor  # int64, ids in the whole federation
    roster: Roster  # of all clients

    def aligned_starts(self, part: str, item_bytes: int, power: int = 1) -> Tensor:
        """Where each client's data begin so that they are aligned as in a store of all clients.

        Matrix products may differ in the last bit with another alignment.

        Args:
            part: "train", "test" or "valid".
            item_bytes: Size of an item.
            power: 2 if n samples take n² items.

        Returns:
            int64 [clients], in items.
        """
        sizes_of_all = getattr(self.roster.rows, part) ** power
        wanted = (sizes_of_all.cumsum(0) - sizes_of_all)[self.clients]
        sizes = sizes_of_all[self.clients]
        dense = sizes.cumsum(0) - sizes
        period = ALIGNMENT // math.gcd(ALIGNMENT, item_bytes)  # items between aligned addresses
        shift = (wanted - dense) % period
        gaps = shift.diff(prepend=shift.new_zeros(1)) % period
        return dense + gaps.cumsum(0)
