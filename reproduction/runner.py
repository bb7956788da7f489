"""Runs the cells of an experiment, side by side; each is kept as soon as it is done."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import Diverged
from reproduction.outcome import Outcome
from reproduction.spec import Cell, Measured

SAVE_EVERY = 2.0  # seconds
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Done(NamedTuple):
    """A cell that was run."""

    cell: Cell
    measured: Measured
    seconds: float
    error: str  # "" where it has values


def run_cells(
    outcome: Outcome,
    cells: list[Cell],
    jobs: int,
    on_done: Callable[[Done], None] = lambda done: None,
) -> None:
    """Run cells that have no result yet.

    jobs: how many processes run cells side by side, each with one thread; 1: this process.
    """
    alike: dict[str, list[Cell]] = {}  # cells that the same work serves
    for cell in cells:
        alike.setdefault(cell.work_mark, []).append(cell)
    cells = [same[0] for same in alike.values()]
    folder = outcome.path.with_suffix(".runs")  # what a stopped cell goes on from
    ran = one_by_one(cells, folder)
    if jobs > 1 and len(cells) > 1:
        ran = side_by_side(cells, folder, min(jobs, len(cells)))
    saved = time.monotonic()
    try:
        for done in ran:
            outcome.add(done.cell, done.measured, done.seconds, done.error)
            for cell in alike[done.cell.work_mark][1:]:
                outcome.add(cell, done.measured, 0.0, done.error)
            if time.monotonic() - saved > SAVE_EVERY:  # a table may have a thousand tiny cells
                outcome.save()
                saved = time.monotonic()
            on_done(done)
    finally:
        outcome.save()
    shutil.rmtree(folder, ignore_errors=True)


def one_by_one(cells: list[Cell], folder: Path) -> Iterator[Done]:
    """Run cells in this process."""
    for cell in cells:
        yield Done(cell, *run_cell(cell, folder / cell.mark))


def side_by_side(cells: list[Cell], folder: Path, jobs: int) -> Iterator[Done]:
    """Run cells in processes of their own, which look each cell up by its name."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))  # of the new processes
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        asked: dict[Future[tuple[Measured, float, str]], Cell] = {}
        for cell in cells:
            name = cell.experiment.name
            place = folder / cell.mark
            asked[pool.submit(find_and_run, name, cell.scale_name, cell.mark, place)] = cell
        for future in as_completed(asked):
            yield Done(asked[future], *future.result())
    finally:
        pool.shutdown(cancel_futures=True)
        for variable, value in before.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value


def find_and_run(name: str, scale: str, mark: str, folder: Path) -> tuple[Measured, float, str]:
    """Run the cell of a name; cells themselves do not travel between processes."""
    from reproduction import find

    cell = next(cell for cell in find(name).cells(scale) if cell.mark == mark)
    return run_cell(cell, folder)


def run_cell(cell: Cell, folder: Path) -> tuple[Measured, float, str]:
    """(what it came to, its seconds, why it has no values)."""
    began = time.monotonic()
    try:
        measured = cell.run(folder)
    except Diverged as e:
        return Measured({}), time.monotonic() - began, str(e)
    return measured, time.monotonic() - began, ""
