"""Thousands of clients at once: chunks of like size under `vmap`, one thread per core."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from coterie.data.federation import Federation
from coterie.engine.call import Call
from coterie.engine.fold import Fold, Part
from coterie.engine.loop import one_by_one
from coterie.engine.plan import Plan, plan_for
from coterie.engine.simulated import SimulatedClients
from coterie.task import Task


class Vectorised(SimulatedClients):
    """The engine that runs clients in chunks, divided among threads as the plan says."""

    def __init__(self, task: Task, fed: Federation, plan: Plan | None = None) -> None:
        super().__init__(task, fed)
        self.plan = plan or plan_for(task, fed.roster)
        self.tasks = [task.copy() for _ in range(self.plan.workers)]
        self.pool = ThreadPoolExecutor(
            self.plan.workers, initializer=torch.set_num_threads, initargs=(1,)
        )

    def map(self, call: Call, fold: Fold) -> Part:
        """Run the call on its clients; every worker has a fixed share, so sums keep their order."""
        new = self.begin_call(call)
        chunks = self._chunks(call.ids)

        def work(worker: int) -> Part:
            mine = chunks[worker :: self.plan.workers]
            return fold.merge(self._chunk(at, self.tasks[worker], call, fold) for at in mine)

        part = fold.merge(self.pool.map(work, range(self.plan.workers)))
        return fold.complete(part)._replace(welcomed=new)

    def _chunk(self, at: Tensor, task: Task, call: Call, fold: Fold) -> Part:
        """The clients at these positions, at once."""
        if not self.plan.vectorise:
            return one_by_one(self, task, call, fold, at)

        def one(shared: Any, *rows: Any) -> Any:
            return call.fn(task, shared, *rows, **call.static)

        private, data = self.clients(call, at, task)
        arguments = call.arguments(at, task.device)
        up, after = vmap(one, in_dims=(None, 0, 0, 0))(*arguments, private, data)
        part = fold.digest(at, up)
        if call.keeps_private and tree_leaves(after):
            if len(part.accepted) < len(at):
                after = _unless_refused(torch.isin(at, part.accepted), after, private)
            self.private.write(call.ids[at], after)
        return part

    def _chunks(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Positions in chunks of clients of like size, as many for every worker.

        Neighbours stay together, so that their rows need not be copied.
        """
        if not len(ids):
            return ()
        sizes = self.parts["train"].sizes[ids]
        order = ids.argsort(stable=True)
        order = order[sizes[order].argsort(stable=True)]
        each = self.plan.chunk * self.plan.workers
        chunks = math.ceil(len(ids) / each) * self.plan.workers
        return order.tensor_split(min(chunks, len(ids)))


def _unless_refused(accepted: Tensor, after: Any, before: Any) -> Any:
    """The states after, but before for the clients that were refused."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        mask = accepted.to(new.device).view(-1, *[1] * (new.dim() - 1))
        return torch.where(mask, new, old)

    return tree_map(choose, after, before)
