"""How the vectorised engine divides its work: the plan of a run, and the chunks of a call.

A chunk is a set of clients that run at once under `vmap`, padded to the largest of them. Clients of
very different sizes in one chunk would take the time and memory of as many large ones, so chunks
are limited in samples as well as in clients.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.core.call import Call
from coterie.core.execution import Execution
from coterie.core.params import Params, nbytes
from coterie.core.task import Batch, Task
from coterie.data.roster import Roster
from coterie.data.shards import Shards
from coterie.engines.dry_run import peak_bytes
from coterie.engines.templates import example_batch

CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
MAX_CLIENTS_AT_ONCE = 8192  # more take memory and no less time
MAX_GRAM_NUMBERS = 2**28  # in the Gram matrices of all clients: 1 GB in float32
MAX_CHUNK_NUMBERS = 20_000_000  # in the samples of a chunk and their activations
MIN_RELATIVE_SIZE = 0.75  # clients at least this large relative to the largest may be padded to it
NUMBERS_PER_PLACE = 8  # of a sample that is only drawn: place, target, mask, weight, random key
MAX_ON_ACCELERATOR = 64  # clients at once
MEMORY_SHARE = 0.5  # of an accelerator: the rest holds samples, buffers and cached kernels
UNKNOWN_MEMORY = 4 << 30  # bytes, assumed if torch does not report the memory of a device
SAMPLES_IN_DRY_RUN = 4096  # enough that the peak is where activations are
FREE_PADDING = 1 / 64  # of the plan's samples: padding that costs less than another chunk


@dataclass(frozen=True)
class Plan:
    """How a vectorised run divides its work.

    The plan is stored with the run, so that a resumed run gives the same bits.

    Args:
        vectorise: Run chunks under `vmap`; False: one client after another on each worker.
        chunk: Largest number of clients in a chunk.
        workers: Number of threads; each owns a shard of the clients.
        rows: Largest number of samples in a chunk, padding included; a larger client is alone.
        keeps_grams: Whether there is memory to cache the Gram matrices of all clients.
        drawing: Largest chunk in functions that only draw samples; 0: as `chunk`.

    Example:
        >>> import coterie as ct
        >>> plan = ct.Plan(vectorise=True, chunk=64, workers=2)
        >>> plan.rows
        32768
    """

    vectorise: bool
    chunk: int
    workers: int
    rows: int = 32_768
    keeps_grams: bool = False
    drawing: int = 0


def plan_for(task: Task, roster: Roster, cores: int | None = None) -> Plan:
    """Make a plan that depends only on shapes and the number of cores.

    Tiny models run thousands of clients at once, with one worker if that is all of them. Models
    with convolutions run in a loop, because `vmap` makes grouped convolutions, which are slower on
    CPUs, and so do models that `vmap` has no rules for. For other models chunks are small enough
    that models and samples stay in the cache. Elsewhere than on a CPU, chunks fit into half of the
    device's memory.

    Args:
        task: Model and loss.
        roster: The clients.
        cores: Number of cores; by default those available to this process.
    """
    plan = _divide_work(task, roster, cores or len(os.sched_getaffinity(0)))
    return replace(plan, keeps_grams=task.first is not None and grams_fit(roster))


def _divide_work(task: Task, roster: Roster, cores: int) -> Plan:
    """Choose the chunk size and the number of workers."""
    rows = max(1, MAX_CHUNK_NUMBERS // numbers_per_row(task, roster))
    if task.needs_loop:
        return Plan(vectorise=False, chunk=8, workers=cores, rows=rows)
    if task.device.type != "cpu":
        return _plan_for_accelerator(task, roster)
    if any(isinstance(m, CONVOLUTIONS) for m in task.module.modules()):
        return Plan(vectorise=False, chunk=8, workers=cores, rows=rows)
    numbers = _numbers_per_client(task, roster)
    if numbers < 20_000:
        at_once = min(MAX_CLIENTS_AT_ONCE, 50_000_000 // numbers)
        chunk = max(64, at_once)
        workers = min(cores, math.ceil(len(roster) / chunk))
        return Plan(vectorise=True, chunk=chunk, workers=workers, rows=rows)
    largest = max(p.numel() * p.element_size() for p in task.module.parameters())
    unmapped = 32_000_000 // largest  # malloc maps larger buffers anew each time
    chunk = max(4, min(256, unmapped, 19_500_000 // numbers))
    of_models = 2 * sum(p.numel() for p in task.module.parameters())
    drawing = max(chunk, min(256, unmapped, 19_500_000 // of_models))
    return Plan(vectorise=True, chunk=chunk, workers=cores, rows=rows, drawing=drawing)


def _plan_for_accelerator(task: Task, roster: Roster) -> Plan:
    """As many clients at once as fit into a share of the device's memory, by a dry run."""
    available = MEMORY_SHARE * accelerator_bytes(task.device)
    per_client, per_sample = training_bytes(task, roster)
    chunk = max(1, min(MAX_ON_ACCELERATOR, int(available / 2 // per_client)))
    rows = max(1, int(available / 2 // per_sample))
    return Plan(vectorise=True, chunk=chunk, workers=1, rows=rows)


def accelerator_bytes(device: torch.device) -> int:
    """The memory of a device; a low guess if torch does not report it."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return UNKNOWN_MEMORY


def training_bytes(task: Task, roster: Roster) -> tuple[int, int]:
    """Measure the memory of training: (bytes of a client's models, bytes of each sample).

    A dry run on the CPU: it holds as much on any device.
    """
    task = task.copy().with_execution(Execution())
    task.module = task.module.to("cpu")
    task.device = torch.device("cpu")
    model = {k: v.detach() for k, v in task.module.named_parameters() if v.requires_grad}

    def peak(samples: int) -> int:
        def make_arguments() -> tuple[Any, Any, Any]:
            example = example_batch(task, roster)
            batch = example.map_rows(lambda v: v.new_empty(samples, *v.shape[1:]))
            return (), {k: torch.empty_like(v) for k, v in model.items()}, batch

        def train(_: Any, w: Params, batch: Batch) -> Any:
            gradient = torch.func.grad(task.loss)(w, batch)
            return {k: v - gradient[k] for k, v in w.items()}

        return peak_bytes(train, make_arguments, task.execution)

    few, many = peak(2), peak(2 + SAMPLES_IN_DRY_RUN)
    per_sample = max(1, (many - few) // SAMPLES_IN_DRY_RUN)
    # the momentum of the optimizer and the upload are two more models
    models = max(1, few - 2 * per_sample) + 2 * nbytes(model)
    return models, per_sample


def grams_fit(roster: Roster) -> bool:
    """Whether all Gram matrices take no more memory than the samples, and less than a limit."""
    sizes = roster.rows.train
    numbers = int((sizes * sizes).sum())
    return numbers <= min(int(sizes.sum()) * math.prod(roster.row_shape), MAX_GRAM_NUMBERS)


def _numbers_per_client(task: Task, roster: Roster) -> int:
    """Numbers that a client of mean size holds: two models, samples and activations."""
    size = sum(p.numel() for p in task.module.parameters())
    rows = int(roster.rows.train.float().mean().ceil())
    return 2 * size + rows * numbers_per_row(task, roster)


def numbers_per_row(task: Task, roster: Roster) -> int:
    """Approximate count of numbers in a sample and its activations."""
    row = math.prod(roster.row_shape)
    size = sum(p.numel() for p in task.module.parameters())
    widest = max(size // max(row, 1), 1)  # outputs of the first layer
    return row + 4 * widest


# ------------------------------------------------------------------------------ chunks
class Chunk(NamedTuple):
    """Clients that run at once, padded to the same length."""

    positions: Tensor  # int64, in the call
    lengths: tuple[int, ...]  # padded samples per client, by part of the data

    @property
    def rows(self) -> int:
        """Samples with padding; the work is proportional to them."""
        return len(self.positions) * sum(self.lengths)


def make_chunks(call: Call, roster: Roster, plan: Plan, shards: Shards) -> list[list[Chunk]]:
    """Divide the clients of a call into chunks.

    Args:
        call: The exchange.
        roster: The clients.
        plan: Limits of chunks.
        shards: A chunk never mixes clients of two shards.

    Returns:
        The chunks of each shard, the largest first.
    """
    parts = [roster.rows.train]
    if call.split is not None:
        parts.append(getattr(roster.rows, call.split))
    sizes = torch.stack([part[call.ids] for part in parts])
    plan = adapt_plan(call, roster, plan)
    chunks = []
    for positions in shards.positions(call.ids):
        of_shard = chunk_clients(call.ids[positions], sizes[:, positions], plan)
        chunks.append([chunk._replace(positions=positions[chunk.positions]) for chunk in of_shard])
    return chunks


def adapt_plan(call: Call, roster: Roster, plan: Plan) -> Plan:
    """The plan for one call: if the function only draws samples, more clients fit at once."""
    if call.sample_size is None or not plan.drawing:
        return plan
    if call.sample_size >= int(roster.rows.train[call.ids].max()):  # all samples are read
        return plan
    clients = max(1, min(plan.drawing, plan.rows // call.sample_size))
    lighter = max(1, math.prod(roster.row_shape) // NUMBERS_PER_PLACE)
    return replace(plan, chunk=clients, rows=lighter * plan.rows)


def chunk_clients(ids: Tensor, sizes: Tensor, plan: Plan) -> list[Chunk]:
    """Divide the clients of one shard into chunks, the largest first.

    Args:
        ids: int64 [n], the clients.
        sizes: int64 [parts, n], samples of each client in each part of the data.
        plan: Limits of chunks.
    """
    # the largest client first; neighbours stay together, so that their samples can be a view
    order = ids.argsort(stable=True)
    order = order[sizes.sum(0)[order].argsort(stable=True, descending=True)]
    chunks = []
    for group in group_by_size(order, sizes, plan):
        at_once = max(1, min(plan.chunk, plan.rows // sum(group.lengths)))
        pieces = math.ceil(len(group.positions) / at_once)
        for positions in group.positions.tensor_split(pieces):
            chunks.append(pad_chunk(positions, sizes))
    return sorted(chunks, key=lambda chunk: -chunk.rows)


def group_by_size(order: Tensor, sizes: Tensor, plan: Plan) -> list[Chunk]:
    """Split sorted clients where padding to the largest would cost more than another chunk."""
    groups = []
    while len(order):
        of_parts = sizes[:, order]
        real = of_parts.sum(0)
        padded = of_parts.cummax(1).values.sum(0)  # if this client were the last of its group
        clients = torch.arange(1, len(order) + 1)
        padding = padded * clients - real.cumsum(0)
        fits = (real >= MIN_RELATIVE_SIZE * padded) | (padding <= FREE_PADDING * plan.rows)
        count = len(order)
        if not bool(fits.all()):
            count = int(fits.long().argmin())
        groups.append(pad_chunk(order[:count], sizes))
        order = order[count:]
    return groups


def pad_chunk(positions: Tensor, sizes: Tensor) -> Chunk:
    """A chunk of the clients at these positions."""
    lengths = sizes[:, positions].amax(1).clamp(min=1)
    return Chunk(positions, tuple(lengths.tolist()))


def order_chunks(shards: list[list[Chunk]]) -> list[tuple[int, int]]:
    """The order in which workers take chunks: (shard, number of the chunk in it).

    The largest come first, so that all workers finish at about the same time; chunks of one shard
    keep their order.
    """
    order = []
    for shard, chunks in enumerate(shards):
        for number, chunk in enumerate(chunks):
            order.append((-chunk.rows, number, shard))
    return [(shard, number) for _, number, shard in sorted(order)]
