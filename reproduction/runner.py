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
from reproduction.result_table import ResultTable
from reproduction.spec import Measured, TableCell

SAVE_EVERY = 2.0  # seconds
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class FinishedCell(NamedTuple):
    """A cell that was run."""

    cell: TableCell
    measured: Measured
    seconds: float
    error: str  # "" where it has values


def run_cells(
    results: ResultTable,
    cells: list[TableCell],
    jobs: int,
    on_done: Callable[[FinishedCell], None] = lambda done: None,
) -> None:
    """Run cells that have no result yet.

    jobs: how many processes run cells side by side, each with one thread; 1: this process.
    """
    alike: dict[str, list[TableCell]] = {}  # cells that the same work serves
    for cell in cells:
        alike.setdefault(cell.work_mark, []).append(cell)
    cells = [same[0] for same in alike.values()]
    folder = results.path.with_suffix(".runs")  # what a stopped cell goes on from
    ran = one_by_one(cells, folder)
    if jobs > 1 and len(cells) > 1:
        ran = side_by_side(cells, folder, min(jobs, len(cells)))
    saved = time.monotonic()
    try:
        for done in ran:
            results.add(done.cell, done.measured, done.seconds, done.error)
            for cell in alike[done.cell.work_mark][1:]:
                results.add(cell, done.measured, 0.0, done.error)
            if time.monotonic() - saved > SAVE_EVERY:  # a table may have a thousand tiny cells
                results.save()
                saved = time.monotonic()
            on_done(done)
    finally:
        results.save()
    shutil.rmtree(folder, ignore_errors=True)


def one_by_one(cells: list[TableCell], folder: Path) -> Iterator[FinishedCell]:
    """Run cells in this process."""
    for cell in cells:
        yield FinishedCell(cell, *run_cell(cell, folder / cell.mark))


def side_by_side(cells: list[TableCell], folder: Path, jobs: int) -> Iterator[FinishedCell]:
    """Run cells in processes of their own, which look each cell up by its name."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))  # of the new processes
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        asked: dict[Future[tuple[Measured, float, str]], TableCell] = {}
        for cell in cells:
            name = cell.experiment.name
            place = folder / cell.mark
            asked[pool.submit(find_and_run, name, cell.scale_name, cell.mark, place)] = cell
        for future in as_completed(asked):
            yield FinishedCell(asked[future], *future.result())
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


def run_cell(cell: TableCell, folder: Path) -> tuple[Measured, float, str]:
    """(what it came to, its seconds, why it has no values)."""
    began = time.monotonic()
    try:
        measured = cell.run(folder)
    except Diverged as e:
        return Measured({}), time.monotonic() - began, str(e)
    return measured, time.monotonic() - began, ""
