"""--dry-run: the traffic, memory and plan of a run, without training.

The memory of an exchange is measured with fake tensors: the client function runs on tensors of the
real shapes without storage, and the bytes they would take are summed while they are alive. The
estimate adds the memory that the allocator keeps (`ALLOCATOR_FACTOR`) and the process itself
(`process_bytes`): interpreter, torch and other libraries, which dominate in small runs.
"""

from __future__ import annotations

import resource
import sys
import warnings
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.aggregation.pipeline import Pipeline
from coterie.core.call import Call, EvaluationData
from coterie.core.client_data import Store
from coterie.core.contract import Data
from coterie.core.execution import Execution
from coterie.core.params import nbytes
from coterie.core.task import Batch, Task
from coterie.core.trees import tree_leaves, tree_map
from coterie.data.roster import Roster
from coterie.data.shards import make_shards
from coterie.engines.dry_run import peak_bytes
from coterie.engines.plan import NUMBERS_PER_PLACE, Chunk, Plan, make_chunks, numbers_per_row
from coterie.engines.templates import UploadTemplates, example_batch, map_clients
from coterie.metrics import Row
from coterie.reporting.text import format_bytes
from coterie.runs.run import Run
from coterie.runs.start import Job

MAX_STEPS = 3  # per solver call: local steps repeat, and later ones hold no more memory
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

        def run_all(shared: Any, *rows: Any) -> Any:
            return map_clients(task, run_client, shared, rows)

        peak = peak_bytes(run_all, lambda: self._arguments(call, chunk), execution)
        new = [form for form in execution.solver_forms if form not in self.solver_forms]
        self.solver_forms += new
        self.wants_gram |= execution.wants_gram
        return peak

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


class CountingEngine:
    """An engine whose clients reply with zeros of the right shape; nothing is computed."""

    def __init__(self, working: WorkingMemory) -> None:
        self.working = working
        self.most_bytes = 0  # memory of the largest exchange: work and uploads of the clients

    federation = None

    def enroll(self, method: Any, initial_payload: Any) -> None:
        """Do nothing."""

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Return zeros from every client."""
        self.most_bytes = max(
            self.most_bytes, self.working.estimate(call) + nbytes(aggregator.buffers)
        )
        for table in tree_leaves((aggregator.buffers, aggregator.norms)):
            table.zero_()
        everyone = torch.arange(len(call.ids))
        part = aggregator.empty()._replace(accepted=everyone)
        return aggregator.finish(part)._replace(bytes_up=aggregator.update_bytes * len(everyone))

    def snapshot(self) -> Any:
        """Return nothing."""
        return ()

    def restore(self, snapshot: Any) -> None:
        """Do nothing."""


class Counts(NamedTuple):
    """Traffic and memory of a run; None where a method cannot continue with replies of zeros."""

    start: tuple[int, int] | None  # bytes down and up
    round: tuple[int, int] | None
    working: int | None  # bytes of memory while clients work
    keeps_grams: bool  # whether the Gram matrix XXᵀ of every client is cached
    forms: list[str]  # kind of the local steps, with the reason


def count_exchanges(job: Job) -> Counts:
    """Count the traffic of the start and of the first round, and the memory of exchanges.

    All clients get the initial message at the start, with the first evaluation.
    """
    roster = job.fed.roster
    traffic: list[tuple[int, int]] = []
    with warnings.catch_warnings(action="ignore"):
        method_start = job.method.start_secure if job.options.only_sums else job.method.start
        _, initial_payload = method_start(job.task, len(roster), job.options.seed)
        private = UploadTemplates(job.task, roster, job.method, initial_payload).private
        engine = CountingEngine(WorkingMemory(job.task, roster, used_plan(job), private))
        try:
            run = Run(job.method, job.task, roster, engine, job.options)
            for r in (0, 1):
                ask = replace(run.round_context(r), pipeline=Pipeline(min_clients=run.min_clients))
                method: Any = ask.root.method
                if r == 0:
                    run.state = method.begin(run.state, ask)
                else:
                    run.state = method.round(run.state, ask)
                initial = run.initial_payload_bytes * len(roster) if r == 0 else 0
                traffic.append((ask.bytes_down + initial, ask.bytes_up))
        except Exception:  # a method may fail on replies of zeros
            traffic = []
        forms = list(engine.working.solver_forms)
        with suppress(Exception):  # so may the scores
            run.evaluate(1)
    start, first_round = traffic or (None, None)
    return Counts(
        start=start,
        round=first_round,
        working=engine.most_bytes or None,
        keeps_grams=engine.working.wants_gram,
        forms=forms,
    )


def used_plan(job: Job) -> Plan:
    """Return the plan that the engine of this run follows."""
    if job.options.engine == "vectorised":
        return job.plan
    return replace(job.plan, vectorise=False, workers=1)


def estimate(job: Job) -> Row:
    """Estimate the cost of a run that has not started: sizes, traffic, memory and plan."""
    fed = job.fed
    loaded = process_bytes()  # before the estimate, which imports more than a run does
    counts = count_exchanges(job)
    return {
        "method": job.method.name,
        "data": fed.source,
        "clients": len(fed),
        "unseen": fed.unseen,
        "train_rows": len(fed.train.y),
        "test_rows": len(fed.test.y),
        "parameters": sum(p.numel() for p in job.task.module.parameters()),
        "rounds": job.options.rounds,
        "bytes_start": counts.start,
        "bytes_round": counts.round,
        "memory": estimate_memory(job, counts, loaded),
        "local_steps": counts.forms,
        "plan": {
            "engine": job.options.engine,
            **asdict(job.plan),
            "clients_of_ranks": clients_of_ranks(job),
        },
    }


def clients_of_ranks(job: Job) -> list[int]:
    """Return the number of clients on each rank; one number for a single process."""
    shards = make_shards(job.fed.roster, job.options.ranks, job.plan.workers)
    return [len(shards.training_clients(rank)) for rank in range(job.options.ranks)]


def estimate_memory(job: Job, counts: Counts, loaded: int) -> dict[str, int | None]:
    """Return the bytes of the process, the data, the states, cached Gram matrices and a round.

    Args:
        job: The run.
        counts: The measured exchanges.
        loaded: Resident memory of this process, with libraries and data.
    """
    fed = job.fed
    state, initial_payload = job.method.start(job.task, len(fed), job.options.seed)
    private = UploadTemplates(job.task, fed.roster, job.method, initial_payload).private
    sizes = fed.train.sizes
    products = int((sizes * sizes).sum()) * job.task.dtype.itemsize
    working = counts.working
    if working is not None:
        working = round(working * ALLOCATOR_FACTOR) * job.options.ranks  # each rank has its workers
    data = sum(
        nbytes(tuple(part))
        for part in fed.parts().values()
        if not (fed.stored and fed.stored.has(part.x))
    )
    return {
        "process": max(0, loaded - data) * job.options.ranks,  # Python, torch, libraries
        "data": data,
        "states": nbytes(state) + nbytes(private) * len(fed),
        "products of rows": products if counts.keeps_grams else None,
        "working": working,
    }


def as_text(estimated: Row) -> str:
    """Return an estimate as lines of text."""
    plan = estimated["plan"]
    sizes = estimated["memory"]
    first_round = describe_traffic(estimated["bytes_round"])
    known = {name: size for name, size in sizes.items() if size is not None}
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in known.items())
    lines = {
        "clients": f"{estimated['clients']} train, {estimated['unseen']} unseen",
        "rows": f"{estimated['train_rows']:,} train, {estimated['test_rows']:,} test",
        "model": f"{estimated['parameters']:,} parameters",
        "start": describe_traffic(estimated["bytes_start"]),
        "first round": f"{first_round}; {estimated['rounds']} rounds",
        "memory": f"about {format_bytes(sum(known.values()))} ({parts})",
        "plan": f"{plan['engine']}: {describe_plan(plan)}",
        "local steps": "; ".join(estimated["local_steps"]) or "unknown without training",
    }
    title = f"{estimated['method']} on {estimated['data']}"
    return "\n".join([title, *(f"  {name:<12} {text}" for name, text in lines.items())])


def describe_traffic(pair: tuple[int, int] | None) -> str:
    """Describe bytes down and up."""
    if pair is None:
        return "unknown without training"
    return f"{format_bytes(pair[0])} down, {format_bytes(pair[1])} up"


def describe_plan(plan: Row) -> str:
    """Describe how many clients train at once."""
    if plan["engine"] != "vectorised":
        return "one client at a time"
    text = f"{plan['chunk']} clients in a loop, {plan['workers']} threads"
    if plan["vectorise"]:
        most = f"{plan['chunk']} clients and {plan['rows']} rows"
        text = f"at most {most} at once (vmap), {plan['workers']} threads"
    ranks = plan["clients_of_ranks"]
    if len(ranks) == 1:
        return text
    clients = f"{min(ranks)} to {max(ranks)}"
    if min(ranks) == max(ranks):
        clients = str(ranks[0])
    return f"{text}; on each of {len(ranks)} ranks, with {clients} clients"
