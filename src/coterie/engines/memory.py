"""Estimates of the memory of a run, without running it.

The memory of an exchange is measured with fake tensors: the client function runs on tensors of the
real shapes without storage, and the bytes they would take are summed while they are alive. The
estimate adds the memory that the allocator keeps (`ALLOCATOR_FACTOR`) and the process itself
(`process_bytes`): interpreter, torch and other libraries, which dominate in small runs.
"""

from __future__ import annotations

import resource
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.core.call import Call, EvaluationData
from coterie.core.client_data import Store
from coterie.core.contract import Data
from coterie.core.execution import Execution
from coterie.core.task import Batch, Task
from coterie.core.trees import tree_leaves, tree_map
from coterie.data.roster import Roster
from coterie.data.shards import make_shards
from coterie.engines.plan import NUMBERS_PER_PLACE, Chunk, Plan, make_chunks, numbers_per_row
from coterie.engines.templates import example_batch, map_clients

MAX_OPERATIONS = 1_000  # local steps repeat: later ones hold no more memory
MAX_STEPS = 3  # per solver call, for the same reason
# glibc keeps freed buffers below 32 MB in the arenas of threads: in six runs the peak was 1.4 to
# 2.3 times the live tensors; with MALLOC_MMAP_THRESHOLD_=65536 it equals them
ALLOCATOR_FACTOR = 1.75


def process_bytes() -> int:
    """Return the resident memory of this process: interpreter, libraries and loaded data.

    Imports the libraries that a run needs and that are not loaded yet, so that they are counted.
    """
    # torch imports sympy (44 MB) when it first vectorises a loss
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except OSError:  # not Linux: the peak so far is the best approximation
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class MaxOperationsReached(Exception):
    """Enough operations were counted: the rest would hold no more memory."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors while they are alive."""

    def __init__(self, execution: Execution) -> None:
        super().__init__()
        self.execution = execution
        self.now = 0
        self.peak = 0
        self.operations = 0
        self.alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count its results."""
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, Tensor):
                self.count(value)
        self.operations += 1
        # an exception inside a batched operation would abort torch
        if self.operations > MAX_OPERATIONS and not self.execution.in_batched_op:
            raise MaxOperationsReached
        return out

    def count(self, value: Tensor) -> None:
        """Count a tensor's storage until it is freed; views share the storage of their base."""
        storage = value.untyped_storage()
        key = id(storage)
        if key in self.alive:
            return
        size = storage.nbytes()

        def free(_: Any) -> None:
            del self.alive[key]
            self.now -= size

        self.alive[key] = weakref.ref(storage, free)
        self.now += size
        self.peak = max(self.peak, self.now)


class WorkingMemory:
    """Estimates the memory that the workers need for an exchange.

    Args:
        task: Model and loss.
        roster: The clients.
        plan: How the work is divided.
        private: One client's private state.

    Attributes:
        solver_forms: The forms of local steps that were chosen, and why.
        wants_gram: Whether local training would use cached Gram matrices.
    """

    def __init__(self, task: Task, roster: Roster, plan: Plan, private: Any) -> None:
        self.task = task
        self.roster = roster
        self.plan = plan
        self.shards = make_shards(roster, plan.workers)
        self.private = private
        self.example = example_batch(task, roster)
        self.known: dict[Any, int] = {}  # peaks by shape
        self.solver_forms: list[str] = []
        self.wants_gram = False

    def estimate(self, call: Call) -> int:
        """The bytes of the largest chunks, one per worker at the same time."""
        shards = make_chunks(call, self.roster, self.plan, self.shards)
        chunks = [chunk for shard in shards for chunk in shard]
        chunks.sort(key=lambda chunk: self._numbers(call, chunk), reverse=True)
        largest = chunks[: self.plan.workers]
        top = largest[0]
        shape = (call.path, call.name, call.split, repr(call.static), self._at_once(top))
        if shape not in self.known:
            self.known[shape] = self._measure_peak(call, top)
        numbers = [self._numbers(call, chunk) for chunk in largest]
        return round(self.known[shape] * (sum(numbers) / numbers[0]))

    def _at_once(self, chunk: Chunk) -> tuple[int, tuple[int, ...]]:
        """(clients at once, samples of each by part)"""
        if not self.plan.vectorise:
            return 1, chunk.lengths
        return len(chunk.positions), chunk.lengths

    def _numbers(self, call: Call, chunk: Chunk) -> int:
        """Approximate count of numbers that a chunk holds, to compare chunks."""
        clients, lengths = self._at_once(chunk)
        size = sum(p.numel() for p in self.task.module.parameters())
        per_sample = numbers_per_row(self.task, self.roster)
        samples = sum(lengths) * per_sample
        if call.sample_size is not None and clients > 1:
            samples = min(call.sample_size, lengths[0]) * per_sample
            samples += lengths[0] * NUMBERS_PER_PLACE
        return clients * (4 * size + samples)

    def _measure_peak(self, call: Call, chunk: Chunk) -> int:
        """The peak bytes of one worker on a chunk."""
        execution = Execution(max_steps=MAX_STEPS)
        task = self.task.with_execution(execution)

        def run_client(*arguments: Any) -> Any:
            return call.fn(task, *arguments, **call.static)

        live = LiveBytes(execution)
        with FakeTensorMode(allow_non_fake_inputs=True):
            shared, per_client, private, data = self._arguments(call, chunk)
            with live, suppress(MaxOperationsReached):
                for value in tree_leaves((per_client, private, data)):
                    live.count(value)
                map_clients(task, run_client, shared, (per_client, private, data))
        new = [form for form in execution.solver_forms if form not in self.solver_forms]
        self.solver_forms += new
        self.wants_gram |= execution.wants_gram
        return live.peak

    def _arguments(self, call: Call, chunk: Chunk) -> tuple[Any, Any, Any, Any]:
        """The arguments of the client function for a chunk, as fake tensors."""
        clients, lengths = self._at_once(chunk)
        sent = call.arguments(chunk.positions[:clients], self.task.device)
        shared, per_client = tree_map(torch.empty_like, sent)
        key = torch.empty(clients, dtype=torch.long, device=self.task.device)
        parts = [self._samples(clients, length) for length in lengths]
        data: Any = Data(parts[0], key, key)
        if call.sample_size is not None and clients > 1:  # a single client has its own samples
            places = torch.empty(clients, lengths[0], dtype=torch.long, device=self.task.device)
            store = Store(torch.empty_like(self.example.x), lambda rows: rows)
            data = data._replace(own=parts[0]._replace(x=places), store=store)
        if self.plan.keeps_grams:  # counted separately, for all clients
            empty = torch.empty(clients, 0, 0, dtype=self.task.dtype, device=self.task.device)
            data = data._replace(gram=empty)
        if call.split is not None:
            data = EvaluationData(data, parts[1])
        private: Any = ()
        if call.enrolled:
            private = tree_map(lambda v: v.new_empty(clients, *v.shape), self.private)
        return shared, per_client, private, data

    def _samples(self, clients: int, length: int) -> Batch:
        return self.example.map_rows(lambda v: v.new_empty(clients, length, *v.shape[1:]))
