"""Runs the cells of an experiment, several at once, and saves each result when it is finished."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import Diverged
from reproduction.result_table import ResultTable
from reproduction.spec import Measured, TableCell

SAVE_EVERY = 2.0  # seconds
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class FinishedCell(NamedTuple):
    """A cell and its result."""

    cell: TableCell
    measured: Measured
    seconds: float
    error: str  # why it has no values; "": it has


def run_cells(
    results: ResultTable,
    cells: list[TableCell],
    jobs: int,
    on_done: Callable[[FinishedCell], None] = lambda done: None,
) -> None:
    """Run cells and add their results to the table, which is saved every few seconds.

    Cells with the same work are run once. If the process is stopped, a later call with the same
    cells continues from the runs' checkpoints.

    Args:
        results: The table, changed in place.
        cells: Cells that have no result yet.
        jobs: Number of processes, each with one thread; 1: run in this process.
        on_done: Called with each cell that was run.
    """
    same_work: dict[str, list[TableCell]] = {}
    for cell in cells:
        same_work.setdefault(cell.work_mark, []).append(cell)
    cells = [same[0] for same in same_work.values()]
    folder = results.path.with_suffix(".runs")
    finished = _run_in_turn(cells, folder)
    if jobs > 1 and len(cells) > 1:
        finished = _run_in_processes(cells, folder, min(jobs, len(cells)))
    saved = time.monotonic()
    try:
        for done in finished:
            results.add(done.cell, done.measured, done.seconds, done.error)
            for cell in same_work[done.cell.work_mark][1:]:
                results.add(cell, done.measured, 0.0, done.error)
            if time.monotonic() - saved > SAVE_EVERY:  # a table may have a thousand tiny cells
                results.save()
                saved = time.monotonic()
            on_done(done)
    finally:
        results.save()
    shutil.rmtree(folder, ignore_errors=True)


def _run_in_turn(cells: list[TableCell], folder: Path) -> Iterator[FinishedCell]:
    for cell in cells:
        yield FinishedCell(cell, *run_cell(cell, folder / cell.mark))


def _run_in_processes(cells: list[TableCell], folder: Path, jobs: int) -> Iterator[FinishedCell]:
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))  # inherited by the new processes
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = {
            pool.submit(
                _find_and_run, cell.experiment.name, cell.scale_name, cell.mark, folder / cell.mark
            ): cell
            for cell in cells
        }
        for future in as_completed(futures):
            yield FinishedCell(futures[future], *future.result())
    finally:
        pool.shutdown(cancel_futures=True)
        for variable, value in before.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value


def _find_and_run(name: str, scale: str, mark: str, folder: Path) -> tuple[Measured, float, str]:
    """Run a cell in another process, which finds it by name: cells cannot be pickled."""
    from reproduction import find

    cell = next(cell for cell in find(name).cells(scale) if cell.mark == mark)
    return run_cell(cell, folder)


def run_cell(cell: TableCell, folder: Path) -> tuple[Measured, float, str]:
    """Run one cell.

    Args:
        cell: The cell.
        folder: Where its runs write checkpoints, and from where they continue.

    Returns:
        What was measured, the seconds it took including earlier attempts, and "" or the reason why
        training diverged.
    """
    with stopwatch(folder.with_name(f"{folder.name}.seconds")) as seconds:
        try:
            return cell.run(folder), seconds(), ""
        except Diverged as e:
            return Measured({}), seconds(), str(e)


@contextmanager
def stopwatch(path: Path, every: float = 1.0) -> Iterator[Callable[[], float]]:
    """Measure time across interruptions.

    A thread writes the seconds to a file, so that they survive even a killed process.

    Args:
        path: The file. If it exists, its seconds are added.
        every: Seconds between two writes.

    Yields:
        A function that returns the seconds so far.
    """
    earlier = float(path.read_text() or 0) if path.exists() else 0.0
    began = time.monotonic()
    stopped = threading.Event()

    def seconds() -> float:
        return earlier + time.monotonic() - began

    def write() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{seconds():.3f}")

    def write_regularly() -> None:
        while not stopped.wait(every):
            write()

    thread = threading.Thread(target=write_regularly, daemon=True)
    thread.start()
    try:
        yield seconds
    finally:
        stopped.set()
        thread.join()
        write()
