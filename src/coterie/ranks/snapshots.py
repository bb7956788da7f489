"""The checkpoints of all ranks as one of a single process, and the other way round."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from coterie.data.shards import Shares


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
