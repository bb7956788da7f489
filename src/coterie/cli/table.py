"""The final table, and the same as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coterie.errors import Diverged
from coterie.metrics import Row, to_json
from coterie.reporting.old_table import average, best_of, by_method, columns, legend, spread
from coterie.result import Result
from coterie.version import __version__

MOST_NAMES = 40  # clients that are named in the terminal
MOST_GROUPS = 12  # groups that are shown there
WIDE = 400  # characters of a line that is not for a terminal: no line is wrapped


# ------------------------------------------------------------------------------ one run
def summary_row(result: Result) -> Row:
    """One run in one flat row: the last evaluation, and what the run cost in all."""
    scores = {k: v for k, v in result.final.items() if k not in ("groups", "notes", "refused")}
    folder = None
    if result.folder is not None:
        folder = str(result.folder)
    return {
        **scores,
        "method": result.method.name,
        "seed": result.options.seed,
        "kind": result.trained.roster.kind,
        "clients": len(result.names),
        "evaluated": min(result.options.eval_clients or len(result.names), len(result.names)),
        "folder": folder,
        "rounds": result.history[-1]["round"],
        "refused": sum(len(row["refused"]) for row in result.history),
        "warnings": result.warnings,
        "members": group_members(result),
        "seconds": sum(row["seconds"] for row in result.history),
        "bytes_down": sum(row["bytes_down"] for row in result.history),
        "bytes_up": sum(row["bytes_up"] for row in result.history),
    }


def group_members(result: Result) -> dict[str, list[str]] | None:
    """The names of each group's clients at the end; None without groups, or of many clients."""
    if result.clusters is None or len(result.names) > MOST_NAMES:
        return None
    members: dict[str, list[str]] = {}
    clients = sorted(zip(result.clusters[-1].tolist(), result.names), key=lambda pair: pair[0])
    for group, name in clients:
        if group >= 0:
            members.setdefault(str(group), []).append(name)
    return members


# ------------------------------------------------------------------------------ JSON
def print_json(runs: Sequence[Row], failures: Sequence[Diverged]) -> None:
    """Print runs, means over seeds and failures as one JSON document."""
    document = {
        "coterie": __version__,
        "runs": runs,
        "methods": {method: over_seeds(rows) for method, rows in by_method(runs).items()},
        "failures": [str(failure) for failure in failures],
    }
    print(json.dumps(to_json(document), indent=1, ensure_ascii=False))


def over_seeds(rows: list[Row]) -> dict[str, Row]:
    """Mean and standard deviation of every number over the seeds of a method."""
    numbers = {}
    for name, value in rows[0].items():
        if isinstance(value, float | int) and name not in ("seed", "round", "rounds"):
            deviation = None
            if len(rows) > 1:
                deviation = spread(rows, name)
            numbers[name] = {"mean": average(rows, name), "std": deviation}
    return numbers


# ------------------------------------------------------------------------------ tables
def new_table() -> Table:
    """A table with rules on a terminal, elsewhere without."""
    box = None
    if sys.stdout.isatty():
        box = SIMPLE_HEAD
    return Table(box=box, pad_edge=False)


def print_columns(table: Table) -> None:
    """Print a table: with colour on a terminal, elsewhere as plain text."""
    if sys.stdout.isatty():
        console = Console(file=sys.stdout, highlight=False)
    else:
        console = Console(file=sys.stdout, highlight=False, width=WIDE)
    with console.capture() as plain:
        console.print(table)
    print("\n".join(line.rstrip() for line in plain.get().rstrip().splitlines()))


def print_table(runs: Sequence[Row]) -> None:
    """Print one line per method, and what the columns mean."""
    methods = by_method(runs)
    main = "accuracy"
    if runs[0]["kind"] == "regression":
        main = "mse"
    seeds = max(len(rows) for rows in methods.values())
    best = best_of(methods, main)
    shown = [
        (title, cell)
        for title, cell in columns(main, seeds, runs)
        if any(cell(rows) for rows in methods.values())
    ]
    table = new_table()
    table.add_column("method")
    for title, _ in shown:
        table.add_column(title, justify="right", no_wrap=True)
    for method, rows in methods.items():
        cells = [cell(rows) or "–" for _, cell in shown]
        if method in best and len(methods) > 1:
            cells[0] += " *"
            table.add_row(method, *cells, style="bold")
        else:
            table.add_row(method, *cells)
    print_columns(table)
    first = runs[0]
    print(legend(main, seeds, {**first, "clients": first["evaluated"]}, len(methods) > 1))
    if first["evaluated"] < first["clients"]:
        print(f"Scores are those of {first['evaluated']} of the {first['clients']} clients.")


def print_groups(runs: Sequence[Row]) -> None:
    """Print who is with whom, where that takes few lines; of several seeds, with the first."""
    first = min(run["seed"] for run in runs)
    with_seed = ""
    if any(run["seed"] != first for run in runs):
        with_seed = f" (seed {first})"
    lines = []
    for run in runs:
        if run["seed"] != first or run["members"] is None:
            continue
        for group, names in run["members"].items():
            lines.append(f"{run['method']}{with_seed} group {group}: {', '.join(names)}")
    if lines and len(lines) <= MOST_GROUPS:
        print("\n".join(lines))
