"""Thousands of clients at once: chunks of like size under `vmap`, one thread per worker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from coterie.data.federation import Federation
from coterie.engine.call import Call
from coterie.engine.chunks import Chunk, chunks_of_call
from coterie.engine.fold import Fold, Part
from coterie.engine.grams import Grams
from coterie.engine.loop import one_by_one
from coterie.engine.plan import Plan, plan_for
from coterie.engine.simulated import SimulatedClients
from coterie.local.gram import gram_wishes
from coterie.local.row_move import row_moves_are_taken
from coterie.task import Task


class Vectorised(SimulatedClients):
    """The engine that runs clients in chunks, divided among threads as the plan says."""

    def __init__(self, task: Task, fed: Federation, plan: Plan | None = None) -> None:
        super().__init__(task, fed)
        self.plan = plan or plan_for(task, fed.roster)
        self.tasks = [task.copy() for _ in range(self.plan.workers)]
        if self.plan.keeps_grams:
            sizes = self.parts["train"].sizes
            self.grams = Grams(sizes, lambda i: self.rows("train", i).x, self.like)
        self.divided: dict[str | None, tuple[Tensor, list[list[Chunk]]]] = {}
        self.pool = ThreadPoolExecutor(
            self.plan.workers, initializer=torch.set_num_threads, initargs=(1,)
        )

    def map(self, call: Call, fold: Fold) -> Part:
        """Run the call on its clients; every worker has a fixed share, so sums keep their order."""
        new = self.begin_call(call)
        shares = self._shares(call)

        def work(worker: int) -> Part:
            task = self.tasks[worker]
            return fold.merge(self._chunk(c.positions, task, call, fold) for c in shares[worker])

        part = fold.merge(self.pool.map(work, range(self.plan.workers)))
        return fold.complete(part)._replace(welcomed=new)

    def _chunk(self, at: Tensor, task: Task, call: Call, fold: Fold) -> Part:
        """The clients at these positions, at once."""
        if not self.plan.vectorise or len(at) == 1:  # `vmap` over one client only takes longer
            return one_by_one(self, task, call, fold, at)

        def one(shared: Any, *rows: Any) -> Any:
            return call.fn(task, shared, *rows, **call.static)

        private, data = self.clients(call, at, task)
        arguments = call.arguments(at, task.device)
        with gram_wishes() as wishes, row_moves_are_taken(fold.takes_row_moves):
            up, after = vmap(one, in_dims=(None, 0, 0, 0))(*arguments, private, data)
        if wishes and self.grams is not None:
            self.grams.wanted = True
        part = fold.digest(at, up)
        if call.keeps_private and tree_leaves(after):
            if len(part.accepted) < len(at):
                after = _unless_refused(torch.isin(at, part.accepted), after, private)
            self.private.write(call.ids[at], after)
        return part

    def _shares(self, call: Call) -> list[list[Chunk]]:
        """The chunks of each worker; kept, since most rounds ask the same clients again."""
        ids, shares = self.divided.get(call.exam, (None, []))
        if ids is None or not torch.equal(ids, call.ids):
            shares = chunks_of_call(call, self.roster, self.plan)
            self.divided[call.exam] = (call.ids, shares)
        return shares


def _unless_refused(accepted: Tensor, after: Any, before: Any) -> Any:
    """The states after, but before for the clients that were refused."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        mask = accepted.to(new.device).view(-1, *[1] * (new.dim() - 1))
        return torch.where(mask, new, old)

    return tree_map(choose, after, before)
