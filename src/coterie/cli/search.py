"""`coterie search`, and `coterie compare --tune`: choose hyper-parameters on a validation split."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from coterie.cli import dry_run
from coterie.cli.flags import flags_of
from coterie.cli.progress import ProgressDisplay
from coterie.cli.run_flags import load_model
from coterie.cli.setup import Setup, read_setup
from coterie.cli.table import new_table, print_rich_table
from coterie.cli.train import TUNE, make_job, read_plan, refuse_existing
from coterie.core.errors import Diverged
from coterie.core.version import __version__
from coterie.metrics import METRICS, Row
from coterie.runs.config import encode_readable
from coterie.runs.files import make_private_folder, write_text
from coterie.runs.folder import lock_folder
from coterie.runs.load import load_cached_data
from coterie.runs.run import Run
from coterie.runs.run_list import is_run_folder
from coterie.runs.search import WINNER_FILE, Search, SearchCell, check_same_search, format_flag


# ------------------------------------------------------------------------------ coterie search
def search(names: list[str], argv: list[str]) -> int:
    """`coterie search METHOD`"""
    setup = read_setup("search", names, argv)
    (name,) = setup.methods
    display = ProgressDisplay(setup.flags.quiet)
    if setup.flags.dry_run:
        return estimate(setup, name, display)
    with display.active():
        search = make_search(setup, name, setup.given_folder, setup.flags.seeds)
        base = setup.folder()
        search.out = base
        run_search(search, base, display)
    return conclude(setup, name, base, search)


def make_search(setup: Setup, name: str, base: Path | None, seeds: int) -> Search:
    """Make a search and check all of its runs; nothing is trained yet."""

    def load(seed: int) -> Any:
        return load_cached_data(**setup.data_arguments(seed))

    return Search(
        setup.methods[name],
        load,
        load_model(setup.flags.model),
        over=setup.grids[name],
        random=setup.random,
        seeds=seeds,
        out=base,
        plan=read_plan(setup, load(setup.seeds[0])),
        **setup.options,
    )


def run_search(search: Search, base: Path, display: ProgressDisplay) -> Search:
    """Run a search; `base` is the --out that continues it after Ctrl-C."""

    def follow(title: str, run: Run) -> Any:
        show = display.follow(f"{run.method.name} {title} (validation)", run)
        return lambda row, run: show({k.removeprefix("valid_"): v for k, v in row.items()}, run)

    try:
        return search.run(follow)
    except KeyboardInterrupt:
        out = shlex.quote(str(base))
        raise KeyboardInterrupt(f"stopped; continue with: the same command, --out {out}") from None


def estimate(setup: Setup, name: str, display: ProgressDisplay) -> int:
    """--dry-run: print the cost of one run, and the number of runs."""
    with display.active():
        search = make_search(setup, name, None, setup.flags.seeds)
        first = dry_run.estimate(make_job(setup, name, setup.seeds[0]))
    runs = len(search.cells) * len(search.seeds)
    if setup.flags.json:
        print(encode_readable({**first, "runs": runs}), end="")
    else:
        print(f"{dry_run.as_text(first)}\n  {'search':<12} {runs} such runs")
    return 0


# ------------------------------------------------------------------------------ results
def conclude(setup: Setup, name: str, base: Path, search: Search) -> int:
    """Print the table or a JSON document, and write winner.toml.

    Raises:
        Diverged: Every combination of values diverged.
    """
    document: Row = {
        "coterie": __version__,
        "method": search.method.name,
        "metric": f"valid_{search.metric}",
        "cells": [cell.row() for cell in search.table],
        "best": None,
        "edges": [],
        "folder": str(base),
        "command": None,
    }
    end = f"search saved in {base}"
    if search.table[0].mean is not None:
        write_text(base / WINNER_FILE, winner_config(setup, search))
        command = f"coterie run {shlex.quote(name)} --config {shlex.quote(str(base / WINNER_FILE))}"
        document |= {"best": search.best, "edges": search.edges, "command": command}
        end += f"; train the winner with\n  {command}"
    if setup.flags.json:
        print(encode_readable(document), end="")
    else:
        print_cells(search)
        if search.table[0].mean is not None and search.edges:
            print(f"{'; '.join(search.edges)}: values beyond it may be better.")
        print(end)
    _ = search.best  # raises if every cell diverged
    return 0


def print_cells(search: Search) -> None:
    """Print one line per combination of values, the best first."""
    seeds = len(search.seeds)
    metric = METRICS[search.metric].label
    title, over = f"validation {metric}", ""
    if seeds > 1:
        title += " ± seeds"
        over = f", mean ± standard deviation over {seeds} seeds"
    table = new_table()
    for name in [*search.over, title]:
        table.add_column(name, justify="right", no_wrap=True)
    for cell in search.table:
        cells = [*map(format_flag, cell.values.values()), score(cell, search.metric, seeds)]
        if cell is search.table[0] and cell.mean is not None:
            cells[-1] += " *"
            table.add_row(*cells, style="bold")
        else:
            table.add_row(*cells)
    print_rich_table(table)
    print(
        f"{metric} on a validation split of the training rows{over}; * best. "
        "Test rows were not used."
    )


def score(cell: SearchCell, metric: str, seeds: int) -> str:
    """Return the score of a cell as text."""
    if cell.mean is None and seeds == 1:
        return "diverged"
    if cell.mean is None:
        return f"diverged with {len(cell.diverged)} of {seeds} seeds"
    digits = METRICS[metric].format
    if cell.std is None:
        return f"{cell.mean:{digits}}"
    return f"{cell.mean:{digits}} ± {cell.std:{digits}}"


def winner_config(setup: Setup, search: Search) -> str:
    """Return the winner as a file for `coterie run --config`."""
    winner = search.winner
    flags = {name: getattr(setup.flags, name) for name in ("model", "plan", "seeds")}
    given = {name: value for name, value in flags.items() if value is not None}
    settings = {flag.key: getattr(winner, flag.key) for flag in flags_of(type(winner))}
    lines = [
        "# The winner of a search, for training on all training rows.",
        *toml_lines({**given, **setup.without_validation_split().options}),
        f"\n[{winner.name}]",
        *toml_lines(settings),
        "\n[data]",
        *toml_lines({"spec": setup.spec, **setup.data}),
    ]
    return "\n".join(lines) + "\n"


def toml_lines(values: dict[str, Any]) -> list[str]:
    """Return a line of TOML per value; strings, numbers and lists are written as in JSON."""
    lines = []
    for name, value in values.items():
        if value is None:
            value = "none"
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return lines


# ------------------------------------------------------------------------------ compare --tune
class Tuned(NamedTuple):
    """The result of choosing hyper-parameters."""

    setup: Setup  # with the chosen hyper-parameters
    base: Path  # the folder of the command
    runs: list[Path | Run]  # the folders of the runs to train now
    diverged: list[Diverged]  # an error for each method whose every cell diverged


def tune(setup: Setup, display: ProgressDisplay) -> Tuned:
    """Choose the hyper-parameters of each method with the first seed.

    The searches use a validation split; the runs with the chosen values train on all training rows.
    Work that an earlier call finished in the same folder is not repeated.
    """
    given = setup.given_folder
    if given is not None and not (given / TUNE).exists():
        refuse_existing(given)
    for _, name, seed in setup.planned_runs():
        make_job(setup, name, seed)  # so that mistakes show before training
    searches = {}
    for name in setup.grids:
        folder = None if given is None else tune_folder(setup, given, name)
        searches[name] = make_search(setup, name, folder, seeds=1)
    base = setup.folder()
    make_private_folder(base)
    with lock_folder(base):
        for name, search in searches.items():
            search.out = tune_folder(setup, base, name)
        setup, diverged = choose(setup.without_validation_split(), searches, base, display)
        runs: list[Path | Run] = []
        for below, name, seed in setup.planned_runs():
            job = make_job(setup, name, seed)
            if is_run_folder(base / below):  # as an earlier call left it
                check_same_search(base / below, job)
            else:
                job.create_folder(base / below)
            runs.append(base / below)
    return Tuned(setup, base, runs, diverged)


def tune_folder(setup: Setup, base: Path, name: str) -> Path:
    """Return the folder of the search for a method's hyper-parameters."""
    return base / TUNE / setup.methods[name].name


def choose(
    setup: Setup, searches: dict[str, Search], base: Path, display: ProgressDisplay
) -> tuple[Setup, list[Diverged]]:
    """Run the searches; return the setup with the best values, and the methods that diverged."""
    methods = dict(setup.methods)
    diverged = []
    for name, search in searches.items():
        try:
            methods[name] = run_search(search, base, display).winner
        except Diverged as e:
            del methods[name]
            diverged.append(e)
            continue
        if search.edges:
            display.note(f"{search.method.name}: {'; '.join(search.edges)}")
    return setup._replace(methods=methods), diverged
