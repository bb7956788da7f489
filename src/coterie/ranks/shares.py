"""Which rank simulates which clients; it depends on row counts and the number of ranks alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coterie.data.roster import Roster


class Shares(NamedTuple):
    """The clients of each rank: neighbours, so that their rows stay together in the store."""

    clients: list[Tensor]  # by rank: int64, ids in the whole federation, unseen ones last
    owner: Tensor  # int64 [total] the rank of each client
    local: Tensor  # int64 [total] its id among the clients of its rank
    training: int  # clients that train; the ids of unseen ones begin here

    def positions(self, ids: Tensor) -> list[Tensor]:
        """By rank: at which positions of `ids` its clients stand."""
        owner = self.owner[ids]
        return [(owner == rank).nonzero()[:, 0] for rank in range(len(self.clients))]

    def training_clients(self, rank: int) -> Tensor:
        """The clients of a rank that train."""
        mine = self.clients[rank]
        return mine[mine < self.training]


def divide(roster: Roster, ranks: int) -> Shares:
    """As many rows for every rank as neighbours allow, but at least one client that trains."""
    training = cut_by_rows(roster.rows.train[: len(roster)], ranks)
    unseen = cut_by_rows(roster.rows.train[len(roster) :], ranks)
    clients = [torch.cat([a, b + len(roster)]) for a, b in zip(training, unseen)]
    owner = torch.zeros(roster.total, dtype=torch.long)
    local = torch.zeros(roster.total, dtype=torch.long)
    for rank, mine in enumerate(clients):
        owner[mine] = rank
        local[mine] = torch.arange(len(mine))
    return Shares(clients, owner, local, len(roster))


def cut_by_rows(rows: Tensor, ranks: int) -> list[Tensor]:
    """Cut clients into runs of neighbours of about as many rows each.

    No run is empty, unless there are fewer clients than ranks.
    """
    n = len(rows)
    ends = [0]
    for rank in range(1, ranks):
        before = rows.cumsum(0) - rows / 2  # a client belongs where the middle of its rows is
        end = int((before < int(rows.sum()) * rank / ranks).sum())
        end = max(end, ends[-1] + 1)  # at least one client for this rank
        ends.append(min(end, max(n - (ranks - rank), 0)))  # and for each that follows
    ends.append(n)
    return [torch.arange(start, max(start, end)) for start, end in pairwise(ends)]


# ------------------------------------------------------------------------------ checkpoints
def join_snapshots(snapshots: list[Any], shares: Shares) -> Any:
    """The snapshots of all ranks as one of a single process."""
    slots = torch.full((shares.training,), -1)
    contacted = torch.zeros(len(shares.owner), dtype=torch.bool)
    used = 0
    for rank, snapshot in enumerate(snapshots):
        own = snapshot["private"]["slots"]
        slots[shares.training_clients(rank)] = torch.where(own >= 0, own + used, -1)
        contacted[shares.clients[rank]] = snapshot["contacted"]
        for table in tree_leaves(snapshot["private"]["tables"])[:1]:
            used += len(table)
    tables = [snapshot["private"]["tables"] for snapshot in snapshots]
    joined = tree_map(lambda *parts: torch.cat(parts), *tables)
    return {"private": {"slots": slots, "tables": joined}, "contacted": contacted}


def cut_snapshot(snapshot: Any, shares: Shares, rank: int) -> Any:
    """The part of a whole snapshot that belongs to one rank."""
    slots = snapshot["private"]["slots"][shares.training_clients(rank)]
    kept = slots >= 0
    rows = slots[kept]
    tables = tree_map(lambda table: table[rows.to(table.device)], snapshot["private"]["tables"])
    own = torch.full_like(slots, -1)
    own[kept] = torch.arange(len(rows))
    contacted = snapshot["contacted"][shares.clients[rank]]
    return {"private": {"slots": own, "tables": tables}, "contacted": contacted}
