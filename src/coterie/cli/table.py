"""The final table, and the same as JSON."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from statistics import mean, stdev

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coterie.cli.progress import sizes
from coterie.errors import Diverged
from coterie.metrics import HIGHER_IS_BETTER, Row, to_json
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
        "kind": result._run.fed.kind,
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


def by_method(runs: Sequence[Row]) -> dict[str, list[Row]]:
    """The runs of each method, one per seed."""
    found: dict[str, list[Row]] = {}
    for run in runs:
        found.setdefault(run["method"], []).append(run)
    return found


def average(runs: Sequence[Row], name: str) -> float | None:
    values = [run[name] for run in runs if run.get(name) is not None]
    return mean(values) if values else None


def spread(runs: Sequence[Row], name: str) -> float | None:
    """Standard deviation over the seeds; with one seed, over the clients."""
    if len(runs) == 1:
        return average(runs, f"{name}_std")
    values = [run[name] for run in runs if run.get(name) is not None]
    return stdev(values) if len(values) > 1 else None


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
Cell = Callable[[list[Row]], str]


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


def columns(main: str, seeds: int, runs: Sequence[Row]) -> list[tuple[str, Cell]]:
    """(title, what a method's runs show); columns in which nobody shows anything are left out."""
    digits = ".3f" if main == "accuracy" else ".4g"

    def number(name: str, form: str = digits) -> Cell:
        return lambda rows: "" if (value := average(rows, name)) is None else f"{value:{form}}"

    def score(rows: list[Row]) -> str:
        wide = spread(rows, main) if (len(rows) > 1) == (seeds > 1) else None
        return number(main)(rows) + ("" if wide is None else f" ± {wide:{digits}}")

    shown: list[tuple[str, Cell]] = [
        (f"{main.replace('mse', 'MSE')} ± {'seeds' if seeds > 1 else 'clients'}", score),
        ("client mean", number(f"{main}_mean")),
        ("worst 10 %", number(f"{main}_worst")),
    ]
    uneven = any(
        abs(run.get("balanced_accuracy", 0) - run.get("accuracy", 0)) > 0.02 for run in runs
    )
    if uneven:
        shown.append(("balanced", number("balanced_accuracy")))
    return [
        *shown,
        ("F1", number("f1")),
        ("R²", number("r2", ".3f")),
        ("unseen", number(f"unseen_{main}")),
        ("ARI", number("ari", ".2f")),
        ("group sizes", groups),
        ("traffic", lambda rows: human(mean(run["bytes_down"] + run["bytes_up"] for run in rows))),
        ("seconds", number("seconds", ".1f")),
    ]


def groups(rows: list[Row]) -> str:
    """The groups' sizes; with several seeds, only where all found the same."""
    found = [sorted(run["sizes"], reverse=True) for run in rows if "sizes" in run]
    if len(rows) == 1 and found:
        return sizes(rows[0]["sizes"])
    return "" if not found else sizes(found[0]) if all(f == found[0] for f in found) else "vary"


def best_of(methods: dict[str, list[Row]], main: str) -> list[str]:
    """The best method, and those level with it: within its standard deviation over seeds, or equal to three digits."""
    scores = {
        method: score
        for method, rows in methods.items()
        if (score := average(rows, main)) is not None
    }
    if not scores:
        return []
    top = (max if HIGHER_IS_BETTER[main] else min)(scores, key=scores.__getitem__)
    wide = {
        method: spread(rows, main) or 0.0 if len(rows) > 1 else 0.0
        for method, rows in methods.items()
    }

    def level(method: str) -> bool:
        one, best = scores[method], scores[top]
        apart = (
            wide[top] if len(methods[top]) > 1 else wide[method]
        )  # a single run is judged by the others' spread
        return abs(one - best) <= apart or f"{one:.3g}" == f"{best:.3g}"

    return [method for method in scores if level(method)]


def legend(main: str, seeds: int, first: Row, several: bool) -> str:
    over = (
        f"{seeds} seeds, means in the other columns"
        if seeds > 1
        else f"the {first['clients']} clients"
    )
    parts = [f"{main.replace('mse', 'MSE')} over all test rows, ± standard deviation over {over}"]
    parts += ["worst 10 %: mean of the clients that do worst"]
    if main == "accuracy" and "commonest" in first:
        parts += [f"always the commonest class: {first['commonest']:.3f}"]
    parts += ["* best" + " or within one standard deviation of it" * (seeds > 1)] if several else []
    return textwrap.fill("; ".join(parts) + ".", 110)


def human(size: float) -> str:
    """12.3 MB"""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
