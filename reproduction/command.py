"""The command `python -m reproduction NAME`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import NoReturn

from coterie.core.errors import CoterieError, unknown_name
from coterie.reporting.plots import save
from coterie.runs.files import hold_lock, write_text
from reproduction import all_experiments, find
from reproduction.claims import FAILS
from reproduction.page import COMMAND, command_for, judge_all, make_page
from reproduction.result_table import ResultTable
from reproduction.runner import FinishedCell, run_cells
from reproduction.spec import SCALES, Experiment, TableCell
from reproduction.work import repeat_searches

DESCRIPTION = """\
Reproduce a table or figure of a paper: our numbers beside the paper's, with figures.
A stopped table continues with the same command; finished cells are not run again."""


def main(argv: list[str]) -> int:
    """Run the command.

    Args:
        argv: The arguments after `python -m reproduction`.

    Returns:
        The exit status: 0, 2 for bad input, 130 for Ctrl-C. A bug raises its exception.
    """
    try:
        return execute(argument_parser().parse_args(argv))
    except SystemExit as e:  # argparse, after --help
        return int(e.code or 0)
    except KeyboardInterrupt as e:
        print_error(str(e) or "stopped.")
        return 130
    except (CoterieError, OSError) as e:
        if "--debug" in argv:
            traceback.print_exc()
        print_error(str(e))
        return 2


def print_error(message: str) -> None:
    """Print one line on stderr."""
    print(f"reproduction: {' '.join(message.split())}", file=sys.stderr)


class ArgumentParser(argparse.ArgumentParser):
    """Raises its errors, so that they are printed like all others."""

    def error(self, message: str) -> NoReturn:
        """Raise an error about the arguments."""
        raise CoterieError(f"{message}; see `{COMMAND} --help`.")


def argument_parser() -> ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = ArgumentParser(
        COMMAND, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="an experiment, for example ifca.table1-mnist")
    add(
        "--scale",
        choices=SCALES,
        default="medium",
        help="size of the experiment; full: the paper's (default: medium)",
    )
    add(
        "--out",
        type=Path,
        default=Path("reproduction/results"),
        metavar="DIR",
        help="folder of the results (default: reproduction/results)",
    )
    add("--seeds", type=positive, metavar="N", help="run only the first N seeds")
    add("--line", action="append", default=[], help="run only this line; can be repeated")
    add("--column", action="append", default=[], help="run only this column; can be repeated")
    add(
        "--jobs",
        type=positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="number of processes that run cells (default: number of cores)",
    )
    add("--show", action="store_true", help="run nothing; write the page of the finished cells")
    add("--search", action="store_true", help="run no cell; repeat the hyper-parameter searches")
    add("--list", action="store_true", help="list the experiments")
    add("--quiet", action="store_true", help="print no progress")
    add("--debug", action="store_true", help="print tracebacks")
    return parser


def positive(text: str) -> int:
    """Convert text to a whole number of at least 1."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def execute(arguments: argparse.Namespace) -> int:
    """Do what the arguments ask for; return the exit status."""
    if arguments.list:
        print(listing())
        return 0
    if arguments.name is None:
        raise CoterieError(
            f"the name of an experiment is missing: add one, as in `{COMMAND} ifca.table1-mnist`; "
            f"`{COMMAND} --list` lists them."
        )
    experiment = find(arguments.name)
    if arguments.search:
        return search(experiment, arguments.scale)
    results = ResultTable.open(experiment, arguments.scale, arguments.out)
    if not arguments.show:
        run(results, arguments)
    if not results.cells:
        raise CoterieError(
            f"no cell of {experiment.name} has been run at scale {arguments.scale}: omit --show."
        )
    print(write_page(results))
    return 0


def search(experiment: Experiment, scale: str) -> int:
    """Repeat the hyper-parameter searches of an experiment and print their results."""
    if not experiment.tuned:
        raise CoterieError(f"{experiment.name} has no hyper-parameter search: omit --search.")
    for found in repeat_searches(experiment, scale):
        print(found, flush=True)
    return 0


def listing() -> str:
    """Return the name and title of every experiment, by paper."""
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


def run(results: ResultTable, arguments: argparse.Namespace) -> None:
    """Run the selected cells that have no result yet and print progress."""
    cells = selected_cells(results, arguments)
    total = len(cells) + len(results.cells)

    def report(line: str) -> None:
        if not arguments.quiet:
            print(line, file=sys.stderr)

    def report_cell(done: FinishedCell) -> None:
        value = done.error or describe(results, done)
        report(
            f"{len(results.cells)} of {total}: {done.cell.title}: {value} in {done.seconds:.0f} s"
        )

    results.path.parent.mkdir(parents=True, exist_ok=True)
    lock = results.path.with_suffix(".lock")
    with (
        warnings.catch_warnings(),
        hold_lock(lock, f"another process is running {results.experiment.name}"),
    ):
        warnings.showwarning = lambda message, *_, **__: report(f"warning: {message}")
        if results.cells and cells:
            report(f"continuing after {len(results.cells)} of {total} cells")
        try:
            run_cells(results, cells, arguments.jobs, report_cell)
        except KeyboardInterrupt:
            again = command_for(results, arguments.line, arguments.column, arguments.seeds)
            raise KeyboardInterrupt(f"stopped; continue with: {again}") from None


def selected_cells(results: ResultTable, arguments: argparse.Namespace) -> list[TableCell]:
    """Return the missing cells of the selected lines, columns and seeds."""
    every = list(results.experiment.cells(results.scale))
    check_labels("line", arguments.line, {cell.line.label for cell in every})
    check_labels("column", arguments.column, {cell.column.label for cell in every})
    cells = results.missing
    if arguments.line:
        cells = [cell for cell in cells if cell.line.label in arguments.line]
    if arguments.column:
        cells = [cell for cell in cells if cell.column.label in arguments.column]
    if arguments.seeds is not None:
        cells = [cell for cell in cells if cell.seed in results.first_seeds(arguments.seeds)]
    return cells


def check_labels(what: str, labels: list[str], known: set[str]) -> None:
    """Raise an error for a label that no cell of this scale has."""
    for label in labels:
        if label not in known:
            raise unknown_name(what, label, known)


def describe(results: ResultTable, done: FinishedCell) -> str:
    """Return the first quantity of a cell as text."""
    quantity = results.experiment.quantities[0]
    value = done.measured.values.get(quantity.name)
    if value is None:
        return "done"
    return f"{quantity.label} {value * quantity.factor:.{quantity.digits}f}"


def write_page(results: ResultTable) -> str:
    """Write the page and its figures; return the page with a summary."""
    text = make_page(results)
    write_text(results.path.with_suffix(".md"), text)
    files = [results.path.with_suffix(".md")]
    for suffix, draw in results.experiment.figures.items():
        file = results.path.with_name(f"{results.path.stem}{suffix}.svg")
        files.append(save(draw(results), file))
    failed = sum(verdict.mark == FAILS for verdict in judge_all(results))
    written = ", ".join(map(str, files))
    return f"{text}\n{failed} of {len(judge_all(results))} claims do not hold; written: {written}"
