"""The engine of rank 0: it sends calls to all ranks and merges their aggregates."""

from __future__ import annotations

from typing import Any

import torch

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call
from coterie.core.contract import Algorithm
from coterie.core.task import Task
from coterie.core.trees import tree_leaves, tree_map
from coterie.data.federation import Federation
from coterie.data.shards import Shards
from coterie.engines.codec import decode, decode_part, encode
from coterie.engines.plan import Plan
from coterie.engines.protocol import Engine
from coterie.ranks.group import RankGroup
from coterie.ranks.launch import RankInfo
from coterie.ranks.shard import (
    RankCall,
    RankShard,
    check_gpus,
    encode_common,
    encode_own,
    select_clients,
)
from coterie.runs.config import RunConfig
from coterie.runs.config import encode as encode_config
from coterie.runs.options import Options, check_ranks
from coterie.runs.start import MakeEngine


class RanksEngine:
    """An engine whose clients are divided among the ranks of a group.

    Args:
        group: The connected ranks.
        shard: The clients of rank 0.
        config: Text from which the other ranks load their shards.
    """

    def __init__(self, group: RankGroup, shard: RankShard, config: str) -> None:
        self.federation = None  # the ranks have the data
        self.group = group
        self.shard = shard
        self.shares = shard.shares
        self.types = shard.types
        group.send("open", config.encode())
        group.wait_for_statuses()  # raises if the data differ

    def enroll(self, method: Algorithm, initial_payload: Any) -> None:
        """Send the initial message of clients to every rank."""
        self.group.send("enroll", encode(initial_payload, self.types))
        self.shard.enroll(initial_payload)
        self.group.wait_for_statuses()

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Run a call on the clients of all ranks and merge the aggregates in the order of ranks."""
        reduce = "stack" if aggregator.keeps_values else aggregator.reduce
        positions = self.shares.positions(call.ids)
        calls = [select_clients(call, some, self.shares) for some in positions]
        rank_call = RankCall(calls[0], reduce, aggregator.clipping)
        own = [encode_own(some, self.types) for some in calls]
        self.group.send("map", encode_common(rank_call, self.types), own)
        part = self.shard.run(rank_call, aggregator.template)
        self.group.wait_for_statuses(results_follow=True)
        totals, mass = self.group.reduce((part.totals, part.mass))
        parts = [part, *(decode_part(raw, self.types) for raw in self.group.gather())]
        # the sums over all ranks are complete: merge only what concerns single clients
        rest = [
            aggregator.absorb(part._replace(totals={}, mass={}).relabel(some))
            for part, some in zip(parts, positions)
        ]
        merged = aggregator.merge(rest)._replace(totals=totals, mass=mass)
        return aggregator.finish(merged)

    def snapshot(self) -> Any:
        """Return the private states of all ranks in the format of a single process."""
        self.group.send("snapshot")
        own = self.shard.engine.snapshot()
        self.group.wait_for_statuses(results_follow=True)
        others = [decode(raw, self.types)[0] for raw in self.group.gather()]
        on_cpu = tree_map(lambda v: v.cpu(), own)
        return join_snapshots([on_cpu, *others], self.shares)

    def restore(self, snapshot: Any) -> None:
        """Restore the engine from a snapshot of these ranks or of a single process."""
        pieces = [
            split_snapshot(snapshot, self.shares, rank) for rank in range(len(self.shares.clients))
        ]
        self.group.send("restore", own=[encode(piece, self.types) for piece in pieces])
        self.shard.engine.restore(pieces[0])
        self.group.wait_for_statuses()


class RankServer:
    """Rank 0 of a command: makes engines for its runs and ends the other ranks.

    Args:
        info: Rank 0.
    """

    def __init__(self, info: RankInfo) -> None:
        self.info = info
        self.group: RankGroup | None = None

    def engine_maker(self, config: RunConfig) -> MakeEngine:
        """Return a function that makes the engine of a run; every rank loads its own shard."""

        def make(
            method: Algorithm, task: Task, fed: Federation, options: Options, plan: Plan
        ) -> Engine:
            check_ranks(fed.roster, options)
            check_gpus(options.device, self.info)
            if self.group is None:
                self.group = RankGroup(self.info)
            shard = RankShard(0, method, task, fed, options, plan)  # while other ranks connect
            self.group.connect()
            return RanksEngine(self.group, shard, encode_config(config).decode())

        return make

    def close(self) -> None:
        """End all other ranks."""
        if self.group is not None:
            self.group.close()


# ------------------------------------------------------------------------------ checkpoints
def join_snapshots(snapshots: list[Any], shares: Shards) -> Any:
    """Join the snapshots of all ranks into one of a single process."""
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


def split_snapshot(snapshot: Any, shares: Shards, rank: int) -> Any:
    """Return the part of a snapshot that belongs to one rank."""
    slots = snapshot["private"]["slots"][shares.training_clients(rank)]
    kept = slots >= 0
    rows = slots[kept]
    tables = tree_map(lambda table: table[rows.to(table.device)], snapshot["private"]["tables"])
    own = torch.full_like(slots, -1)
    own[kept] = torch.arange(len(rows))
    contacted = snapshot["contacted"][shares.clients[rank]]
    return {"private": {"slots": own, "tables": tables}, "contacted": contacted}
