"""The vectorised engine: chunks of clients of similar size under `vmap`, one thread per worker.

The clients are divided into as many shards as there are workers, and the shards into chunks. All
workers take chunks from one queue; the sums of a shard are added in the order of its chunks, so
which thread runs a chunk does not change the result.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call
from coterie.core.execution import Execution
from coterie.core.task import Task
from coterie.core.trees import tree_leaves, tree_map
from coterie.data.federation import Federation
from coterie.data.shards import ClientSubset, make_shards
from coterie.engines.clients import GramCache, SimulatedClients
from coterie.engines.loop import run_one_by_one
from coterie.engines.plan import Chunk, Plan, make_chunks, order_chunks, plan_for


class Vectorised(SimulatedClients):
    """The engine that runs clients in chunks, divided among threads.

    Args:
        task: Model and loss.
        fed: The clients' data.
        plan: How the work is divided; by default it depends on shapes and cores.
        subset: Which of all clients `fed` has, if other processes have the others.
    """

    def __init__(
        self,
        task: Task,
        fed: Federation,
        plan: Plan | None = None,
        subset: ClientSubset | None = None,
    ) -> None:
        super().__init__(task, fed, subset)
        self.plan = plan or plan_for(task, fed.roster)
        self.shards = make_shards(fed.roster, self.plan.workers)
        self.tasks = [task.copy() for _ in range(self.plan.workers)]
        if self.plan.keeps_grams:
            sizes = self.parts["train"].sizes
            starts = None
            if subset is not None:
                starts = subset.aligned_starts("train", self.like.element_size(), power=2)
            self.grams = GramCache(sizes, lambda i: self.rows("train", i).x, self.like, starts)
        self.solver_forms: dict[str, None] = {}  # chosen by local training so far
        self.cached_chunks: dict[Any, tuple[Tensor, list[list[Chunk]]]] = {}
        self.pool = ThreadPoolExecutor(
            self.plan.workers, initializer=torch.set_num_threads, initargs=(1,)
        )

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Run the call on its clients; see `Engine.map`. Sums do not depend on thread timing."""
        new = self.begin_call(call)
        chunks = self._chunks(call)
        sums = [OrderedSum(aggregator) for _ in chunks]
        wants_gram: set[int] = set()  # shards
        queue = ChunkQueue(order_chunks(chunks))

        def work(task: Task) -> None:
            for shard, number in queue:
                execution = Execution()
                positions = chunks[shard][number].positions
                partial = self._run_chunk(positions, task, call, aggregator, execution)
                if execution.wants_gram:
                    wants_gram.add(shard)
                self.solver_forms.update(dict.fromkeys(execution.solver_forms))
                sums[shard].add(number, partial)

        list(self.pool.map(work, self.tasks))
        if self.grams is not None:
            for shard in wants_gram:  # cached from the next call on
                self.grams.wanted[self.shards.clients[shard]] = True
        result = aggregator.merge_shards([of_shard.total() for of_shard in sums])
        return aggregator.finish(result)._replace(first_contacts=new)

    def _run_chunk(
        self,
        positions: Tensor,
        task: Task,
        call: Call,
        aggregator: Aggregator,
        execution: Execution,
    ) -> PartialAggregate:
        """Run the clients at these positions at once."""
        task = task.with_execution(execution)
        if not self.plan.vectorise or len(positions) == 1:  # `vmap` over one client is slower
            return run_one_by_one(self, task, call, aggregator, positions)
        execution.low_rank = aggregator.accepts_low_rank

        def run_client(shared: Any, *rows: Any) -> Any:
            return call.fn(task, shared, *rows, **call.static)

        private, data = self.inputs_of_clients(call, positions, task)
        arguments = call.arguments(positions, task.device)
        updates, after = vmap(run_client, in_dims=(None, 0, 0, 0))(*arguments, private, data)
        partial = aggregator.add(positions, updates)
        if call.keeps_private and tree_leaves(after):
            if len(partial.accepted) < len(positions):
                after = _select(torch.isin(positions, partial.accepted), after, private)
            self.private.write(call.ids[positions], after)
        return partial

    def _chunks(self, call: Call) -> list[list[Chunk]]:
        """The chunks of each shard; cached, since most rounds select the same clients again."""
        key = (call.split, call.sample_size)  # what chunks depend on besides the clients
        ids, chunks = self.cached_chunks.get(key, (None, []))
        if ids is None or not torch.equal(ids, call.ids):
            chunks = make_chunks(call, self.roster, self.plan, self.shards)
            self.cached_chunks[key] = (call.ids, chunks)
        return chunks


class ChunkQueue:
    """Chunks that worker threads take one by one: (shard, number in the shard)."""

    def __init__(self, chunks: list[tuple[int, int]]) -> None:
        self.left = iter(chunks)
        self.lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Take chunks from the queue until none is left."""
        while True:
            with self.lock:
                chunk = next(self.left, None)
            if chunk is None:
                return
            yield chunk


class OrderedSum:
    """Adds the partial aggregates of a shard in the order of its chunks, as they arrive."""

    def __init__(self, aggregator: Aggregator) -> None:
        self.aggregator = aggregator
        self.merged: PartialAggregate | None = None  # all chunks before `next`
        self.early: dict[int, PartialAggregate] = {}  # waiting for earlier chunks, by number
        self.next = 0
        self.lock = threading.Lock()

    def add(self, number: int, partial: PartialAggregate) -> None:
        """Add the aggregate of a chunk once all earlier chunks were added."""
        with self.lock:
            self.early[number] = partial
            while self.next in self.early:
                partial = self.early.pop(self.next)
                if self.merged is not None:  # not 0 + partial, which would turn −0 into 0
                    partial = self.aggregator.merge([self.merged, partial])
                self.merged = partial
                self.next += 1

    def total(self) -> PartialAggregate:
        """The aggregate of the whole shard."""
        return self.aggregator.empty() if self.merged is None else self.merged


def _select(accepted: Tensor, after: Any, before: Any) -> Any:
    """The new states of accepted clients and the old states of the others."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        mask = accepted.to(new.device).view(-1, *[1] * (new.dim() - 1))
        return torch.where(mask, new, old)

    return tree_map(choose, after, before)
