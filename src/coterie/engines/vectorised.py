"""Thousands of clients at once: chunks of like size under `vmap`, one thread per worker.

Each worker has a share of the clients, whose sums are added in the order of its chunks. A worker
who is done takes chunks of another share: who works on a chunk does not change what it comes to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call
from coterie.core.task import Task
from coterie.data.federation import Federation
from coterie.data.shards import ClientSubset, make_shards
from coterie.engines.chunks import Chunk, chunks_of_call, in_turn
from coterie.engines.grams import Grams
from coterie.engines.loop import one_by_one
from coterie.engines.plan import Plan, plan_for
from coterie.engines.simulated import SimulatedClients
from coterie.optim.gram import gram_wishes
from coterie.optim.low_rank import row_moves_are_taken


class Vectorised(SimulatedClients):
    """The engine that runs clients in chunks, divided among threads as the plan says."""

    def __init__(
        self,
        task: Task,
        fed: Federation,
        plan: Plan | None = None,
        among: ClientSubset | None = None,
    ) -> None:
        """among: as in `SimulatedClients`."""
        super().__init__(task, fed, among)
        self.plan = plan or plan_for(task, fed.roster)
        self.shares = make_shards(fed.roster, self.plan.workers)
        self.tasks = [task.copy() for _ in range(self.plan.workers)]
        if self.plan.keeps_grams:
            sizes = self.parts["train"].sizes
            starts = None
            if among is not None:
                starts = among.aligned_starts("train", self.like.element_size(), power=2)
            self.grams = Grams(sizes, lambda i: self.rows("train", i).x, self.like, starts)
        self.divided: dict[Any, tuple[Tensor, list[list[Chunk]]]] = {}
        self.pool = ThreadPoolExecutor(
            self.plan.workers, initializer=torch.set_num_threads, initargs=(1,)
        )

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Run the call on its clients; sums keep their order, whoever works on which chunk."""
        new = self.begin_call(call)
        chunks = self._chunks(call)
        sums = [SumsInOrder(aggregator) for _ in chunks]
        wishes: set[int] = set()  # shares whose local training wished for XXᵀ
        turns = Turns(in_turn(chunks))

        def work(task: Task) -> None:
            for share, number in turns:
                with gram_wishes() as wished:
                    part = self._chunk(chunks[share][number].positions, task, call, aggregator)
                if wished:
                    wishes.add(share)
                sums[share].add(number, part)

        list(self.pool.map(work, self.tasks))
        self._keep_grams(wishes)
        part = aggregator.merge_shards([of_share.total() for of_share in sums])
        return aggregator.finish(part)._replace(first_contacts=new)

    def _keep_grams(self, shares: set[int]) -> None:
        """Keep XXᵀ of the clients of these shares, from the next call on."""
        if self.grams is None:
            return
        for share in shares:
            self.grams.wanted[self.shares.clients[share]] = True

    def _chunk(
        self, at: Tensor, task: Task, call: Call, aggregator: Aggregator
    ) -> PartialAggregate:
        """The clients at these positions, at once."""
        if not self.plan.vectorise or len(at) == 1:  # `vmap` over one client only takes longer
            return one_by_one(self, task, call, aggregator, at)

        def one(shared: Any, *rows: Any) -> Any:
            return call.fn(task, shared, *rows, **call.static)

        private, data = self.clients(call, at, task)
        arguments = call.arguments(at, task.device)
        with row_moves_are_taken(aggregator.accepts_low_rank):
            up, after = vmap(one, in_dims=(None, 0, 0, 0))(*arguments, private, data)
        part = aggregator.add(at, up)
        if call.keeps_private and tree_leaves(after):
            if len(part.accepted) < len(at):
                after = _unless_refused(torch.isin(at, part.accepted), after, private)
            self.private.write(call.ids[at], after)
        return part

    def _chunks(self, call: Call) -> list[list[Chunk]]:
        """The chunks of each share; kept, since most rounds ask the same clients again."""
        kind = (call.split, call.sample_size)  # beside the clients, what their chunks depend on
        ids, chunks = self.divided.get(kind, (None, []))
        if ids is None or not torch.equal(ids, call.ids):
            chunks = chunks_of_call(call, self.roster, self.plan, self.shares)
            self.divided[kind] = (call.ids, chunks)
        return chunks


class Turns:
    """Chunks that workers take one after another: (share, number in it)."""

    def __init__(self, turns: list[tuple[int, int]]) -> None:
        self.left = iter(turns)
        self.lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Those that this worker gets, until none is left."""
        while True:
            with self.lock:
                turn = next(self.left, None)
            if turn is None:
                return
            yield turn


class SumsInOrder:
    """The parts of one share, added in the order of its chunks, in whatever order they come."""

    def __init__(self, aggregator: Aggregator) -> None:
        self.aggregator = aggregator
        self.merged: list[PartialAggregate] = []  # the sum so far, if there is one
        self.early: dict[int, PartialAggregate] = {}  # by number: parts that came before their turn
        self.next = 0
        self.lock = threading.Lock()

    def add(self, number: int, part: PartialAggregate) -> None:
        """Add the part of a chunk as soon as all before it were added."""
        with self.lock:
            self.early[number] = part
            while self.next in self.early:
                self.merged = [self.aggregator.merge([*self.merged, self.early.pop(self.next)])]
                self.next += 1

    def total(self) -> PartialAggregate:
        """What all clients of the share come to."""
        return self.aggregator.merge(self.merged)


def _unless_refused(accepted: Tensor, after: Any, before: Any) -> Any:
    """The states after, but before for the clients that were refused."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        mask = accepted.to(new.device).view(-1, *[1] * (new.dim() - 1))
        return torch.where(mask, new, old)

    return tree_map(choose, after, before)
