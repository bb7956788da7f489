"""`coterie search`, and the tuning in `coterie compare --tune`.

Settings are chosen on training rows that are held out.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from coterie.cli import estimate
from coterie.cli.flags import flags_of
from coterie.cli.own_files import load_model
from coterie.cli.progress import Watcher
from coterie.cli.setup import Setup, setup
from coterie.cli.table import new_table, print_columns
from coterie.cli.train import TUNE, make_job, read_plan, refuse_existing
from coterie.core.errors import Diverged
from coterie.core.version import __version__
from coterie.metrics import METRICS, Row
from coterie.runs.config import encode_readable
from coterie.runs.files import write_text
from coterie.runs.folder import lock_folder
from coterie.runs.load import load_cached_data
from coterie.runs.run import Run
from coterie.runs.run_list import is_run_folder
from coterie.runs.search import (
    WINNER_FILE,
    Follow,
    Search,
    SearchCell,
    check_same_search,
    format_flag,
)


# ------------------------------------------------------------------------------ coterie search
def search(words: list[str], argv: list[str]) -> int:
    """`coterie search METHOD`"""
    asked = setup("search", words, argv)
    (name,) = asked.methods
    watcher = Watcher(asked.general.quiet)
    if asked.general.dry_run:
        return dry_run(asked, name, watcher)
    with watcher():
        search = prepare(asked, name, asked.given_folder, asked.general.seeds)
        base = asked.folder()
        search.out = base
        go(search, base, watcher)
    return conclude(asked, name, base, search)


def prepare(asked: Setup, name: str, base: Path | None, seeds: int) -> Search:
    """A search in which nothing is trained yet, but every run is checked."""

    def load(seed: int) -> Any:
        return load_cached_data(**asked.origin(seed))

    return Search(
        asked.methods[name],
        load,
        load_model(asked.general.model),
        over=asked.over[name],
        random=asked.random,
        seeds=seeds,
        out=base,
        plan=read_plan(asked, load(asked.seeds[0])),
        **asked.options,
    )


def go(search: Search, base: Path, watcher: Watcher) -> Search:
    """Search; `base` is the --out with which a command that was stopped goes on."""
    try:
        return search.go(follow_valid(watcher))
    except KeyboardInterrupt:
        out = shlex.quote(str(base))
        raise KeyboardInterrupt(f"stopped; the same command with --out {out} goes on.") from None


def follow_valid(watcher: Watcher) -> Follow:
    """Show the progress of runs that are measured on held-out rows only."""

    def follow(title: str, run: Run) -> Any:
        show = watcher.follow(f"{run.method.name} {title} (valid)", run)
        return lambda row: show({k.removeprefix("valid_"): v for k, v in row.items()})

    return follow


def dry_run(asked: Setup, name: str, watcher: Watcher) -> int:
    """Show what one run would take, and how many there would be."""
    with watcher():
        search = prepare(asked, name, None, asked.general.seeds)
        first = estimate.estimate(make_job(asked, name, asked.seeds[0]))
    runs = len(search.cells) * len(search.seeds)
    if asked.general.json:
        print(encode_readable({**first, "runs": runs}), end="")
    else:
        print(f"{estimate.as_text(first)}\n  {'search':<12} {runs} such runs")
    return 0


# ------------------------------------------------------------------------------ what came of it
def conclude(asked: Setup, name: str, base: Path, search: Search) -> int:
    """Print the table or the JSON document and write the winner's file; raise if there is none."""
    has_winner = search.table[0].mean is not None
    if has_winner:
        write_text(base / WINNER_FILE, winner_config(asked, search))
    command = f"coterie run {shlex.quote(name)} --config {shlex.quote(str(base / WINNER_FILE))}"
    if asked.general.json:
        print_json(search, base, command)
    else:
        print_cells(search)
        print_end(search, base, command)
    _ = search.best  # raises where every cell diverged
    return 0


def print_json(search: Search, base: Path, command: str) -> None:
    """Print the search as one JSON document."""
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
    if search.table[0].mean is not None:
        document |= {"best": search.best, "edges": search.edges, "command": command}
    print(encode_readable(document), end="")


def print_end(search: Search, base: Path, command: str) -> None:
    """Print where the search is kept and how its winner is trained."""
    if search.table[0].mean is None:
        print(f"search kept in {base}")
        return
    if search.edges:
        print(f"{'; '.join(search.edges)}: values beyond may do better.")
    print(f"search kept in {base}; train the winner with\n  {command}")


def print_cells(search: Search) -> None:
    """Print a line per cell, the best first."""
    seeds = len(search.seeds)
    metric = METRICS[search.metric].label
    title, over = f"valid {metric}", ""
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
    print_columns(table)
    print(
        f"{metric} over training rows that were held out{over}; * best. No test row was looked at."
    )


def score(cell: SearchCell, metric: str, seeds: int) -> str:
    """A cell's score as text."""
    if cell.mean is None and seeds == 1:
        return "diverged"
    if cell.mean is None:
        return f"diverged with {len(cell.diverged)} of {seeds} seeds"
    digits = METRICS[metric].format
    if cell.std is None:
        return f"{cell.mean:{digits}}"
    return f"{cell.mean:{digits}} ± {cell.std:{digits}}"


def winner_config(asked: Setup, search: Search) -> str:
    """The winner as a file for `coterie run --config`."""
    winner = search.winner
    general = {name: getattr(asked.general, name) for name in ("model", "plan", "seeds")}
    given = {name: value for name, value in general.items() if value is not None}
    settings = {flag.key: getattr(winner, flag.key) for flag in flags_of(type(winner))}
    lines = [
        "# The winner of a search, to be trained on all training rows.",
        *toml_lines({**given, **asked.refit().options}),
        f"\n[{winner.name}]",
        *toml_lines(settings),
        "\n[data]",
        *toml_lines({"spec": asked.spec, **asked.data}),
    ]
    return "\n".join(lines) + "\n"


def toml_lines(values: dict[str, Any]) -> list[str]:
    """A line of TOML per value; its strings, numbers and lists are those of JSON."""
    lines = []
    for name, value in values.items():
        if value is None:
            value = "none"
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return lines


# ------------------------------------------------------------------------------ compare --tune
class Tuned(NamedTuple):
    """What came of the choice of settings."""

    asked: Setup  # with the settings that were chosen
    base: Path  # the folder of the command
    runs: list[Path | Run]  # the folders of the runs to train now
    diverged: list[Diverged]  # an error for each method whose every cell diverged


def tune(asked: Setup, watcher: Watcher) -> Tuned:
    """Choose each method's settings with the first seed.

    The runs with these settings train on all training rows, those of the search held some out.
    What an earlier call with the same folder has done is not done again.
    """
    given = asked.given_folder
    if given is not None and not (given / TUNE).exists():
        refuse_existing(given)
    for _, name, seed in asked.planned_runs():
        make_job(asked, name, seed)  # mistakes show before anything is trained
    searches = {}
    for name in asked.over:
        folder = None if given is None else tune_folder(asked, given, name)
        searches[name] = prepare(asked, name, folder, seeds=1)
    base = asked.folder()
    base.mkdir(parents=True, exist_ok=True)
    with lock_folder(base):
        for name, search in searches.items():
            search.out = tune_folder(asked, base, name)
        asked, diverged = choose(asked.refit(), searches, base, watcher)
        runs: list[Path | Run] = []
        for below, name, seed in asked.planned_runs():
            runs.append(tuned_run(asked, base / below, name, seed))
    return Tuned(asked, base, runs, diverged)


def tune_folder(asked: Setup, base: Path, name: str) -> Path:
    """The folder of the search for a method's settings."""
    return base / TUNE / asked.methods[name].name


def choose(
    asked: Setup, searches: dict[str, Search], base: Path, watcher: Watcher
) -> tuple[Setup, list[Diverged]]:
    """(what to run with the best settings, the methods whose every cell diverged)"""
    methods = dict(asked.methods)
    diverged = []
    for name, search in searches.items():
        try:
            methods[name] = go(search, base, watcher).winner
        except Diverged as e:
            del methods[name]
            diverged.append(e)
            continue
        if search.edges:
            watcher.note(f"{search.method.name}: {'; '.join(search.edges)}")
    return asked._replace(methods=methods), diverged


def tuned_run(asked: Setup, folder: Path, name: str, seed: int) -> Path:
    """A run's folder, new or as it was left."""
    job = make_job(asked, name, seed)
    if is_run_folder(folder):
        check_same_search(folder, job)
    else:
        job.create_folder(folder)
    return folder
