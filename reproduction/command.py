"""`coterie reproduce`: the papers' tables and figures, made again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from coterie.cli.progress import Watcher
from coterie.cli.values import read_flags
from coterie.core.errors import CoterieError, unknown
from coterie.core.settings import setting
from coterie.reporting.plots import save
from coterie.runs.files import locked, write_file
from reproduction import all_experiments, find
from reproduction.claims import FAILS
from reproduction.outcome import Outcome
from reproduction.page import command, page, verdicts
from reproduction.runner import Done, run_cells
from reproduction.spec import SCALES, Cell, Experiment
from reproduction.tuning import search_all


@dataclass(frozen=True, kw_only=True)
class ReproduceFlags:
    """The flags of `coterie reproduce`."""

    scale: str = setting("medium", "how much of it is run; full: as the paper did", choices=SCALES)
    out: str = setting("reproduction/results", "folder of the results")
    seeds: int | None = setting(None, "run only the first of its seeds; none: all", least=1)
    line: tuple[str, ...] = setting(
        (), "run only this line; give it again for more lines", repeated="LINE"
    )
    column: tuple[str, ...] = setting(
        (), "run only this column; give it again for more", repeated="COLUMN"
    )
    jobs: int | None = setting(None, "cells run side by side; none: as many as cores", least=1)
    show: bool = setting(False, "run nothing: the page of what was run so far", switch=True)
    search: bool = setting(
        False,
        "run no cell: repeat the searches for what the paper leaves out",
        switch=True,
    )
    list: bool = setting(False, "name the experiments", switch=True)
    quiet: bool = setting(False, "no progress", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


def reproduce(words: list[str], argv: list[str]) -> int:
    """`coterie reproduce NAME`"""
    about = (
        "Make a paper's table or figure again: ours beside the paper's, with figures.\n"
        "A stopped table goes on with the same command; done cells are not run again."
    )
    asked = read_flags("coterie reproduce NAME", ReproduceFlags, about, argv)
    if asked.list:
        print(listing())
        return 0
    if len(words) != 1:
        raise CoterieError(
            "reproduce needs the name of one experiment, as in `coterie reproduce "
            "ifca.table1-mnist`; `coterie reproduce --list` names them."
        )
    experiment = find(words[0])
    if asked.search:
        return search(experiment, asked)
    outcome = Outcome.open(experiment, asked.scale, Path(asked.out))
    if not asked.show:
        run(outcome, asked)
    if not outcome.cells:
        raise CoterieError(
            f"no cell of {experiment.name} was run at scale {asked.scale}: leave out --show."
        )
    print(write_page(outcome))
    return 0


def search(experiment: Experiment, asked: ReproduceFlags) -> int:
    """Repeat the searches of an experiment and print what they come to."""
    if not experiment.tuned:
        raise CoterieError(f"nothing was searched for in {experiment.name}: leave out --search.")
    with Watcher(asked.quiet, level=40)():
        for found in search_all(experiment, asked.scale):
            print(found, flush=True)
    return 0


def listing() -> str:
    """Every experiment with its title, by paper."""
    every = all_experiments()
    width = max(map(len, every))
    papers: dict[str, list[Experiment]] = {}
    for experiment in every.values():
        papers.setdefault(experiment.paper, []).append(experiment)
    parts = []
    for paper, experiments in papers.items():
        lines = [f"  {e.name:{width}}  {e.title}" for e in experiments]
        parts.append("\n".join([paper, *lines]))
    return "\n\n".join(parts)


def run(outcome: Outcome, asked: ReproduceFlags) -> None:
    """Run the cells that are missing, with progress over the whole table."""
    watcher = Watcher(asked.quiet, level=40)  # runs speak in their logs
    cells = asked_cells(outcome, asked)
    total = len(cells) + len(outcome.cells)
    jobs = asked.jobs or os.cpu_count() or 1

    def tell(done: Done) -> None:
        value = done.error or describe(outcome, done)
        watcher.note(
            f"{len(outcome.cells)} of {total}: {done.cell.title}: {value} in {done.seconds:.0f} s"
        )

    outcome.path.parent.mkdir(parents=True, exist_ok=True)
    lock = outcome.path.with_suffix(".lock")
    with watcher(), locked(lock, f"another process is running {outcome.experiment.name}"):
        if outcome.cells and cells:
            watcher.note(f"{len(outcome.cells)} of {total} cells are done; going on")
        try:
            run_cells(outcome, cells, jobs, tell)
        except KeyboardInterrupt:
            again = command(outcome, asked.line, asked.column, asked.seeds)
            raise KeyboardInterrupt(f"stopped; go on with: {again}") from None


def asked_cells(outcome: Outcome, asked: ReproduceFlags) -> list[Cell]:
    """The missing cells of the lines, the columns and the seeds that are asked for."""
    every = list(outcome.experiment.cells(outcome.scale))
    refuse_unknown("line", asked.line, {cell.line.label for cell in every})
    refuse_unknown("column", asked.column, {cell.column.label for cell in every})
    cells = outcome.missing
    if asked.line:
        cells = [cell for cell in cells if cell.line.label in asked.line]
    if asked.column:
        cells = [cell for cell in cells if cell.column.label in asked.column]
    if asked.seeds is not None:
        cells = [cell for cell in cells if cell.seed in outcome.first_seeds(asked.seeds)]
    return cells


def refuse_unknown(what: str, labels: tuple[str, ...], known: set[str]) -> None:
    """Refuse a label that no cell of this scale has."""
    for label in labels:
        if label not in known:
            raise unknown(what, label, known)


def describe(outcome: Outcome, done: Done) -> str:
    """The first quantity of a cell."""
    quantity = outcome.experiment.quantities[0]
    value = done.measured.values.get(quantity.name)
    if value is None:
        return "done"
    return f"{quantity.label} {value * quantity.factor:.{quantity.digits}f}"


def write_page(outcome: Outcome) -> str:
    """Write the page and the figures; a few lines on them."""
    text = page(outcome)
    write_file(outcome.path.with_suffix(".md"), text)
    files = [outcome.path.with_suffix(".md")]
    for suffix, draw in outcome.experiment.figures.items():
        file = outcome.path.with_name(f"{outcome.path.stem}{suffix}.svg")
        files.append(save(draw(outcome), file))
    failed = sum(verdict.mark == FAILS for verdict in verdicts(outcome))
    written = ", ".join(map(str, files))
    return f"{text}\n{failed} of {len(verdicts(outcome))} claims do not hold; written: {written}"
