"""How the work of a vectorised run is divided among chunks and threads."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torch import nn

from coterie.data.roster import Roster
from coterie.task import Task

MOST_AT_ONCE = 8192  # clients: more at once take memory and no less time


@dataclass(frozen=True)
class Plan:
    """The division of the work: kept with the run, so that a resumed one gives the same bits."""

    vectorise: bool  # False: the loop, on each worker
    chunk: int  # clients at once
    workers: int


def plan_for(task: Task, roster: Roster, cores: int | None = None) -> Plan:
    """A plan that depends on shapes and cores alone.

    Tiny models: one worker, thousands of clients at once. Convolutions: the loop, since `vmap`
    makes grouped convolutions, which are slower on CPUs. Between them, chunks whose models and rows
    stay in the cache.
    """
    cores = cores or len(os.sched_getaffinity(0))
    if task.device.type != "cpu":
        return Plan(True, 64, 1)
    if any(isinstance(m, nn.modules.conv._ConvNd) for m in task.module.modules()):
        return Plan(False, 8, cores)
    numbers = numbers_per_client(task, roster)
    if numbers < 20_000:
        at_once = min(MOST_AT_ONCE, 50_000_000 // numbers)
        return Plan(True, max(64, at_once), 1)
    largest = max(p.numel() * p.element_size() for p in task.module.parameters())
    unmapped = 32_000_000 // largest  # buffers over 32 MB are mapped anew each time they are made
    return Plan(True, max(4, min(256, unmapped, 19_500_000 // numbers)), cores)


def numbers_per_client(task: Task, roster: Roster) -> int:
    """How many numbers one client in training holds: two models, its rows and activations."""
    size = sum(p.numel() for p in task.module.parameters())
    return 2 * size + rows_and_activations(task, roster)


def rows_and_activations(task: Task, roster: Roster) -> int:
    """How many numbers the rows of a client of mean size and their activations hold, roughly."""
    row = 1
    for length in roster.row_shape:
        row *= length
    rows = int(roster.rows.train.float().mean().ceil())
    size = sum(p.numel() for p in task.module.parameters())
    widest = max(size // max(row, 1), 1)  # outputs of the first layer
    return rows * (row + 4 * widest)
