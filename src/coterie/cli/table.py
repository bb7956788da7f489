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

MOST_NAMES, MOST_LINES = 40, 12  # clients that are named in the terminal, and groups


def facts(result: Result) -> Row:
    """One run in one flat row: the last evaluation, and what the whole run cost."""
    cost = {
        name: sum(row[name] for row in result.history)
        for name in ("seconds", "bytes_down", "bytes_up")
    }
    last = {k: v for k, v in result.final.items() if k not in ("groups", "notes", "refused")}
    who = {
        "method": result.method.name,
        "seed": result.options.seed,
        "kind": result.trained.roster.kind,
        "clients": len(result.names),
        "folder": None if result.folder is None else str(result.folder),
        "rounds": result.history[-1]["round"],
        "refused": sum(len(row["refused"]) for row in result.history),
        "warnings": result.warnings,
        "members": members(result),
    }
    return {**last, **who, **cost}


def members(result: Result) -> dict[str, list[str]] | None:
    """The clients of each group, by name, at the end."""
    if result.clusters is None or len(result.names) > MOST_NAMES:
        return None
    last = result.clusters[-1]
    return {
        str(k): [n for n, g in zip(result.names, last) if g == k]
        for k in sorted({*last.tolist()} - {-1})
    }


# ---------------------------------------------------------------------------------------------- JSON
def print_json(runs: Sequence[Row], failures: Sequence[Diverged]) -> None:
    methods = {}
    for method, rows in by_method(runs).items():
        names = [
            k
            for k, v in rows[0].items()
            if isinstance(v, float | int) and k not in ("seed", "round", "rounds")
        ]
        over_seeds = [row for row in rows if len(rows) > 1]
        methods[method] = {
            n: {"mean": average(rows, n), "std": spread(over_seeds, n)} for n in names
        }
    document = {
        "coterie": __version__,
        "runs": runs,
        "methods": methods,
        "failures": [str(f) for f in failures],
    }
    print(json.dumps(to_json(document), indent=1, ensure_ascii=False))


# ---------------------------------------------------------------------------------------------- the table


def print_table(runs: Sequence[Row]) -> None:
    """One line per method; on a terminal with colour, elsewhere as plain text."""
    methods, first = by_method(runs), runs[0]
    main = "mse" if first["kind"] == "regression" else "accuracy"
    seeds = max(len(rows) for rows in methods.values())
    best = best_of(methods, main)
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 400, highlight=False)
    table = Table(box=SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False)
    table.add_column("method")
    cells = [
        (title, cell)
        for title, cell in columns(main, seeds, runs)
        if any(cell(r) for r in methods.values())
    ]
    for title, _ in cells:
        table.add_column(title, justify="right", no_wrap=True)
    for method, rows in methods.items():
        marked = method in best and len(methods) > 1
        texts = [cell(rows) or "–" for _, cell in cells]
        if marked and texts[0] != "–":
            texts[0] += " *"
        table.add_row(method, *texts, style="bold" if marked else None)
    with console.capture() as plain:
        console.print(table)
    print("\n".join(line.rstrip() for line in plain.get().rstrip().splitlines()))
    print(legend(main, seeds, first, len(methods) > 1))


def print_groups(runs: Sequence[Row]) -> None:
    """Who is with whom, where that takes few lines; of several seeds, with the first."""
    first = min(run["seed"] for run in runs)
    with_seed = f" (seed {first})" if any(run["seed"] != first for run in runs) else ""
    mine = [run for run in runs if run["seed"] == first]
    found = [
        (run["method"], k, names) for run in mine for k, names in (run["members"] or {}).items()
    ]
    if len(found) <= MOST_LINES:
        for method, k, names in found:
            print(f"{method}{with_seed} group {k}: {', '.join(names)}")
