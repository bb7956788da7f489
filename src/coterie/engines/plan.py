"""How the work of a vectorised run is divided among chunks and threads."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

from torch import nn

from coterie.core.task import Task
from coterie.data.roster import Roster

MOST_AT_ONCE = 8192  # clients: more at once take memory and no less time
NUMBERS_OF_GRAMS = 2**28  # that the matrices XXᵀ of all clients hold at most: 1 GB in float32
NUMBERS_OF_ROWS = 20_000_000  # that the rows of a chunk and their activations hold at most


@dataclass(frozen=True)
class Plan:
    """The division of the work: kept with the run, so that a resumed one gives the same bits."""

    vectorise: bool  # False: the loop, on each worker
    chunk: int  # most clients at once
    workers: int  # threads, each with a share of the clients (data/shards.py)
    rows: int = 32_768  # most rows at once, padding included; a larger client is alone
    keeps_grams: bool = False  # whether there is memory for all clients' XXᵀ (engines/grams.py)
    drawing: int = 0  # most clients at once in a function that declares `draws`; 0: as chunk


def plan_for(task: Task, roster: Roster, cores: int | None = None) -> Plan:
    """A plan that depends on shapes and cores alone.

    Tiny models: thousands of clients at once, and one worker if that is all of them. Convolutions:
    the loop, since `vmap` makes grouped convolutions, which are slower on CPUs. Between them,
    chunks whose models and rows stay in the cache.
    """
    plan = division_for(task, roster, cores or len(os.sched_getaffinity(0)))
    return replace(plan, keeps_grams=task.first is not None and grams_fit(roster))


def division_for(task: Task, roster: Roster, cores: int) -> Plan:
    """How many clients at once, on how many workers."""
    rows = max(1, NUMBERS_OF_ROWS // numbers_per_row(task, roster))
    if task.device.type != "cpu":
        return Plan(vectorise=True, chunk=64, workers=1, rows=rows)
    if any(isinstance(m, nn.modules.conv._ConvNd) for m in task.module.modules()):
        return Plan(vectorise=False, chunk=8, workers=cores, rows=rows)
    numbers = numbers_per_client(task, roster)
    if numbers < 20_000:
        at_once = min(MOST_AT_ONCE, 50_000_000 // numbers)
        chunk = max(64, at_once)
        workers = min(cores, math.ceil(len(roster) / chunk))
        return Plan(vectorise=True, chunk=chunk, workers=workers, rows=rows)
    largest = max(p.numel() * p.element_size() for p in task.module.parameters())
    unmapped = 32_000_000 // largest  # buffers over 32 MB are mapped anew each time they are made
    chunk = max(4, min(256, unmapped, 19_500_000 // numbers))
    of_models = 2 * sum(p.numel() for p in task.module.parameters())
    drawing = max(chunk, min(256, unmapped, 19_500_000 // of_models))
    return Plan(vectorise=True, chunk=chunk, workers=cores, rows=rows, drawing=drawing)


def grams_fit(roster: Roster) -> bool:
    """Whether XXᵀ of all clients takes no more memory than their rows, and less than a limit."""
    sizes = roster.rows.train
    numbers = int((sizes * sizes).sum())
    return numbers <= min(int(sizes.sum()) * math.prod(roster.row_shape), NUMBERS_OF_GRAMS)


def numbers_per_client(task: Task, roster: Roster) -> int:
    """How many numbers a client of mean size holds in training: two models, rows, activations."""
    size = sum(p.numel() for p in task.module.parameters())
    rows = int(roster.rows.train.float().mean().ceil())
    return 2 * size + rows * numbers_per_row(task, roster)


def numbers_per_row(task: Task, roster: Roster) -> int:
    """How many numbers a row and its activations hold, roughly."""
    row = 1
    for length in roster.row_shape:
        row *= length
    size = sum(p.numel() for p in task.module.parameters())
    widest = max(size // max(row, 1), 1)  # outputs of the first layer
    return row + 4 * widest
