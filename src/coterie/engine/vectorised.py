"""Thousands of clients at once: chunks of like size under `vmap`, one single-threaded worker per core."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from coterie.contract import Algorithm, Data
from coterie.data.federation import Federation
from coterie.engine.call import Call
from coterie.engine.fold import Fold, Part
from coterie.engine.loop import one_by_one
from coterie.engine.memory import Memory
from coterie.task import Task


class Plan(NamedTuple):
    """How the work is cut: kept with the run, so that a resumed one cuts it alike and gives the same bits."""

    vectorise: bool  # False: the loop, on each worker
    chunk: int  # clients at once
    workers: int


def plan(task: Task, fed: Federation, cores: int | None = None) -> Plan:
    """A function of shapes and cores alone.

    Tiny models: one worker, all clients at once. Convolutions: the loop, since `vmap` makes grouped convolutions,
    which are slower on CPUs. Between them, chunks whose models and rows stay in the cache.
    """
    cores = cores or len(os.sched_getaffinity(0))
    if task.device.type != "cpu":
        return Plan(True, 64, 1)
    if any(isinstance(m, nn.modules.conv._ConvNd) for m in task.module.modules()):
        return Plan(False, 8, cores)
    row = fed.train.x[0].numel()
    rows = int(fed.train.sizes.float().mean().ceil())
    size = sum(p.numel() for p in task.module.parameters())
    widest = max(size // max(row, 1), 1)  # of the first layer's outputs, roughly
    numbers = 2 * size + rows * (row + 4 * widest)
    if numbers < 20_000:
        return Plan(True, max(64, 50_000_000 // numbers), 1)
    largest = max(p.numel() * p.element_size() for p in task.module.parameters())
    whole = 32_000_000 // largest  # buffers over 32 MB are mapped anew each time they are made
    return Plan(True, max(4, min(256, whole, 19_500_000 // numbers)), cores)


class Vectorised(Memory):
    name = "vectorised"

    def __init__(self, task: Task, fed: Federation, cut: Plan | None = None) -> None:
        super().__init__(task, fed)
        self.cut = cut or plan(task, fed)
        self.tasks = [task.copy() for _ in range(self.cut.workers)]
        self.pool = ThreadPoolExecutor(
            self.cut.workers, initializer=torch.set_num_threads, initargs=(1,)
        )

    def enroll(self, method: Algorithm, welcome: Any, ids: Tensor, client_keys: Tensor) -> None:
        def work(at: Tensor) -> None:
            data = Data(self._padded("train", ids[at]), client_keys[at], client_keys[at])
            one = lambda d: method.enroll(self.task, welcome, d)
            self.keep(ids[at], tree_map(lambda v: v.contiguous(), vmap(one)(data)))

        if tree_leaves(
            method.enroll(self.task, welcome, Data(self.example, client_keys[0], client_keys[0]))
        ):
            for at in self._chunks(ids):
                work(at)

    def map(self, call: Call, fold: Fold) -> Part:
        chunks = self._chunks(call.ids)

        def work(at: Tensor, task: Task) -> Part:
            if not self.cut.vectorise:
                return one_by_one(self, task, call, fold, at)
            private, data = self.rows(call, at)
            one = lambda shared, *rows: call.fn(task, shared, *rows, **call.static)
            up, after = vmap(one, in_dims=(None, 0, 0, 0))(
                *call.sent(at, task.device), private, data
            )
            part = fold.digest(at, up)
            if call.keeps and tree_leaves(after):
                ok = part.accepted
                kept = (
                    after
                    if len(ok) == len(at)
                    else tree_map(lambda v: v[torch.isin(at, ok)], after)
                )
                self.keep(call.ids[ok], kept)
            return part

        def lane(
            w: int,
        ) -> Part:  # a fixed share per worker: the same sums in the same order every time
            return fold.all(work(at, self.tasks[w]) for at in chunks[w :: self.cut.workers])

        return fold.all(self.pool.map(lane, range(self.cut.workers)))

    def _chunks(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Positions in chunks of clients of like size; neighbours stay together, and every worker gets as many."""
        sizes = self.parts["train"].sizes[ids]
        order = torch.arange(len(ids))[(ids.argsort(stable=True))]
        order = order[sizes[order].argsort(stable=True)]
        lanes = math.ceil(len(ids) / (self.cut.chunk * self.cut.workers)) * self.cut.workers
        return order.tensor_split(min(lanes, len(ids))) if len(ids) else ()
