"""`coterie search`, and the tuning in `coterie compare --tune`: settings are chosen on held-out training rows."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coterie.cli import estimate
from coterie.cli.flags import flags_of
from coterie.cli.progress import Watcher
from coterie.cli.setup import Setup, setup
from coterie.cli.train import TUNE, check, parse_plan, refuse_existing
from coterie.errors import Diverged
from coterie.metrics import to_json
from coterie.runs.folder import write_file
from coterie.runs.options import Options
from coterie.runs.run import Run
from coterie.runs.search import WINNER, Cell, Follow, Search, as_flag, has_begun, refuse_other
from coterie.runs.start import load_shared
from coterie.version import __version__


def search(words: list[str], argv: list[str]) -> int:
    asked = setup("search", words, argv)
    name, base = next(iter(asked.methods)), asked.folder()
    watcher = Watcher(asked.general.quiet)
    with watcher():
        found = plan(asked, name, None if asked.general.dry_run else base, asked.general.seeds)
        if asked.general.dry_run:
            first = estimate.estimate(check(asked, name, asked.seeds[0]))
        else:
            go(found, base, watcher)
    if asked.general.dry_run:
        runs = len(found.cells) * len(found.seeds)
        text = f"{estimate.as_text(first)}\n  {'search':<12} {runs} such runs"
        print(
            json.dumps(to_json({**first, "runs": runs}), indent=1) if asked.general.json else text
        )
        return 0
    return conclude(asked, name, base, found)


def plan(asked: Setup, name: str, base: Path | None, seeds: int) -> Search:
    """A search in which nothing is trained yet, but every run is checked."""
    general, options, origin = asked.general, asked.options, asked.origin
    cut = None
    if general.plan is not None:
        cut = parse_plan(
            general.plan, load_shared(**origin(asked.seeds[0])), general.model, Options(**options)
        )
    return Search(
        asked.methods[name],
        lambda seed: load_shared(**origin(seed)),
        general.model,
        over=asked.over[name],
        random=asked.random,
        seeds=seeds,
        out=base,
        plan=cut,
        **options,
    )


def go(found: Search, base: Path, watcher: Watcher) -> Search:
    """Search; `base` is the --out with which a command that was stopped goes on."""
    try:
        return found.go(shown(watcher))
    except KeyboardInterrupt:
        watcher.say(f"stopped; the same command with --out {shlex.quote(str(base))} goes on")
        raise KeyboardInterrupt("said") from None


def shown(watcher: Watcher) -> Follow:
    """Progress of a run that is measured on held-out rows only."""

    def follow(title: str, run: Run) -> Any:
        show = watcher.follow(f"{run.method.name} {title} (valid)", run)
        return lambda row: show({k.removeprefix("valid_"): v for k, v in row.items()})

    return follow


# ---------------------------------------------------------------------------------------------- coterie search
def conclude(asked: Setup, name: str, base: Path, found: Search) -> int:
    """The table or the JSON document, and the winner's file; an error where there is no winner."""
    command = f"coterie run {shlex.quote(name)} --config {shlex.quote(str(base / WINNER))}"
    won = found.table[0].mean is not None
    if won:
        write_file(base / WINNER, config(asked, found))
    if asked.general.json:
        document = {
            "coterie": __version__,
            "method": found.method.name,
            "metric": f"valid_{found.metric}",
            "cells": [cell.row() for cell in found.table],
            "best": found.best if won else None,
            "edges": found.edges if won else [],
            "folder": str(base),
            "command": command if won else None,
        }
        print(json.dumps(to_json(document), indent=1, ensure_ascii=False))
    else:
        print_cells(found)
        if won and found.edges:
            print(f"{'; '.join(found.edges)}: values beyond may do better.")
        print(f"search kept in {base}" + (f"; train the winner with\n  {command}" if won else ""))
    _ = found.best  # an error where every cell diverged
    return 0


def print_cells(found: Search) -> None:
    """A line per cell, the best first; on a terminal with colour, elsewhere as plain text."""
    terminal, seeds = sys.stdout.isatty(), len(found.seeds)
    console = Console(file=sys.stdout, width=None if terminal else 400, highlight=False)
    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False)
    for name in found.over:
        table.add_column(name, justify="right", no_wrap=True)
    metric = found.metric.replace("mse", "MSE")
    table.add_column(f"valid {metric}" + " ± seeds" * (seeds > 1), justify="right", no_wrap=True)
    for i, cell in enumerate(found.table):
        best = i == 0 and cell.mean is not None
        text = score(cell, seeds, ".3f" if metric == "accuracy" else ".4g")
        table.add_row(
            *map(as_flag, cell.values.values()), text + " *" * best, style="bold" if best else None
        )
    with console.capture() as plain:
        console.print(table)
    print("\n".join(line.rstrip() for line in plain.get().rstrip().splitlines()))
    over = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ""
    print(
        f"{metric} over training rows that were held out{over}; * best. No test row was looked at."
    )


def score(cell: Cell, seeds: int, digits: str) -> str:
    if cell.mean is None:
        return "diverged" if seeds == 1 else f"diverged with {len(cell.diverged)} of {seeds} seeds"
    return f"{cell.mean:{digits}}" + ("" if cell.std is None else f" ± {cell.std:{digits}}")


def config(asked: Setup, found: Search) -> str:
    """The winner as a file for `coterie run --config`."""
    winner = found.winner
    settings = {flag.key: getattr(winner, flag.key) for flag in flags_of(type(winner), "")}
    general = {
        k: v for k in ("model", "plan", "seeds") if (v := getattr(asked.general, k)) is not None
    }
    parts = {
        "": {**general, **asked.options},
        winner.name: settings,
        "data": {"spec": asked.spec, **asked.data},
    }
    lines = [
        "# The winner of a search. It trains without the rows that were held out; --valid 0 gives them back."
    ]
    for title, values in parts.items():
        lines += [f"\n[{title}]"] * bool(title) + [f"{k} = {toml(v)}" for k, v in values.items()]
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    """A plain value in TOML, whose strings, numbers and lists are those of JSON."""
    return json.dumps("none" if value is None else value, ensure_ascii=False)


# ---------------------------------------------------------------------------------------------- coterie compare --tune
def tune(
    asked: Setup, base: Path, watcher: Watcher
) -> tuple[Setup, list[Path | Run], list[Diverged]]:
    """Choose each method's settings with the first seed: (what to run then, its folders, methods that diverged).

    What an earlier call with the same folder has done is not done again.
    """
    room = base / TUNE
    if not room.exists():
        refuse_existing(base)
    for _, name, seed in asked.jobs(base):
        check(asked, name, seed)  # mistakes show before anything is trained
    searches = {
        name: plan(asked, name, room / asked.methods[name].name, seeds=1) for name in asked.over
    }
    methods, lost = dict(asked.methods), []
    for name, found in searches.items():
        try:
            methods[name] = go(found, base, watcher).winner
        except Diverged as e:
            del methods[name]
            lost.append(e)
            continue
        if found.edges:
            watcher.note(f"{found.method.name}: {'; '.join(found.edges)}")
    asked = asked._replace(methods=methods)
    return asked, [folder_of(asked, *job) for job in asked.jobs(base)], lost


def folder_of(asked: Setup, folder: Path, name: str, seed: int) -> Path:
    """A run's folder, new or as it was left."""
    job = check(asked, name, seed)
    if has_begun(folder):
        refuse_other(folder, job)
    else:
        job.create_folder(folder)
    return folder
