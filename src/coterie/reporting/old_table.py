"""The cells of a table that compares methods."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

from coterie.metrics import HIGHER_IS_BETTER, Row

Cell = Callable[[list[Row]], str]


def sizes(counts: list[Any], most: int = 10) -> str:
    """The sizes of groups; of many, the first."""
    return " ".join(map(str, counts[:most])) + (" …" if len(counts) > most else "")


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
    """The best method, and those level with it.

    Within its standard deviation over seeds, or equal to three digits.
    """
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
