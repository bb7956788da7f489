"""The table of methods, as `coterie compare` prints it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean
from typing import NamedTuple

from coterie.metrics import METRICS, Row
from coterie.reporting.comparison import Comparison, any_diverged, average, has_diverged, spread
from coterie.reporting.text import NOTHING, TextTable, capitalise, format_bytes, metric_name

UNEVEN = 0.02  # difference between accuracy and balanced accuracy above which both are shown
DIVERGED = "diverged"  # instead of a score
MOST_SIZES = 10  # sizes of groups in a cell


class TableColumn(NamedTuple):
    title: str
    cell: Callable[[Sequence[Row]], str]  # from a method's runs; "" where they have no such value


def comparison_table(comparison: Comparison) -> TextTable:
    """Lay out one row per method; columns in which no method has a value are left out."""
    runs = comparison.runs
    columns = [c for c in all_columns(comparison) if any(map(c.cell, runs.values()))]
    best: list[str] = []
    if len(runs) > 1:
        best = comparison.best
    rows = []
    for label, same in runs.items():
        cells = [column.cell(same) or NOTHING for column in columns]
        if label in best:
            cells[0] += " *"
        rows.append([label, *cells])
    marked = tuple(i for i, label in enumerate(runs) if label in best)
    return TextTable(["method", *(column.title for column in columns)], rows, marked)


def all_columns(comparison: Comparison) -> list[TableColumn]:
    """List the columns from the main score to the cost."""
    metric = comparison.metric
    form = METRICS[metric].format
    kind = METRICS[metric].task

    def number(title: str, name: str, form: str = form) -> TableColumn:
        return TableColumn(title, lambda runs: format_measured(runs, name, form))

    over = "clients"
    if comparison.seeds > 1:
        over = "seeds"
    title = f"{metric_name(metric)} ± {over}"
    columns = [
        TableColumn(title, lambda runs: format_with_spread(runs, comparison, form)),
        number("client mean", f"{metric}_mean"),
        number("worst 10 %", f"{metric}_worst"),
    ]
    if is_uneven(comparison):
        columns.append(number("balanced", "balanced_accuracy"))
    others = [m for m in METRICS.values() if m.in_table and m.task in (kind, "any")]
    return [
        *columns,
        *(number(other.label, other.name, other.format) for other in others),
        number("unseen", f"unseen_{metric}"),
        number(METRICS["ari"].label, "ari", METRICS["ari"].format),
        TableColumn("group sizes", format_group_sizes),
        TableColumn("traffic", format_traffic),
        TableColumn("seconds", lambda runs: format_average(runs, "seconds", ".1f")),
    ]


def is_uneven(comparison: Comparison) -> bool:
    """Tell whether rare classes fare worse than common ones, in any run."""
    for runs in comparison.runs.values():
        for run in runs:
            balanced = run.get("balanced_accuracy")
            if balanced is not None and abs(balanced - run["accuracy"]) > UNEVEN:
                return True
    return False


# ------------------------------------------------------------------------------ cells
def format_average(runs: Sequence[Row], name: str, form: str) -> str:
    """Write the mean over seeds."""
    value = average(runs, name)
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:{form}}"


def format_measured(runs: Sequence[Row], name: str, form: str) -> str:
    """Write the mean over seeds of a score; nothing of a method that diverged."""
    if any_diverged(runs):
        return ""
    return format_average(runs, name, form)


def format_with_spread(runs: Sequence[Row], comparison: Comparison, form: str) -> str:
    """Write the score with the spread that the heading names; without it where it is another.

    Of a method that diverged, say so, and with how many of several seeds.
    """
    diverged = sum(map(has_diverged, runs))
    if diverged == len(runs):
        return DIVERGED
    if diverged:
        return f"{DIVERGED} ({diverged} of {len(runs)} seeds)"
    score = format_average(runs, comparison.metric, form)
    has_several = len(runs) > 1
    if has_several != (comparison.seeds > 1):
        return score
    width = spread(runs, comparison.metric)
    if width is None or not math.isfinite(width):
        return score
    return f"{score} ± {width:{form}}"


def format_group_sizes(runs: Sequence[Row]) -> str:
    """Write the sizes of the groups; with several seeds, only where all have the same."""
    sizes = [run["sizes"] for run in runs if "sizes" in run]
    if not sizes:
        return ""
    if len(runs) == 1:
        return list_sizes(sizes[0])
    descending = [sorted(counts, reverse=True) for counts in sizes]
    if any(counts != descending[0] for counts in descending):
        return "vary"
    return list_sizes(descending[0])


def list_sizes(counts: Sequence[int]) -> str:
    """Write the first few sizes, "12 8 …"."""
    text = " ".join(map(str, counts[:MOST_SIZES]))
    if len(counts) > MOST_SIZES:
        text += " …"
    return text


def format_traffic(runs: Sequence[Row]) -> str:
    """Write the bytes sent both ways, the mean over seeds."""
    return format_bytes(mean(run["bytes_down"] + run["bytes_up"] for run in runs))


def describe_comparison_table(comparison: Comparison) -> str:
    """Explain the columns of the table."""
    runs = next(iter(comparison.runs.values()))
    first = runs[0]
    over = f"the {first.get('evaluated', first['clients'])} clients"
    if comparison.seeds > 1:
        over = f"{comparison.seeds} seeds, means in the other columns"
    name = metric_name(comparison.metric)
    parts = [
        f"{name} over all test rows, ± standard deviation over {over}",
        "worst 10 %: mean of the clients that do worst",
    ]
    if METRICS[comparison.metric].task == "classification":
        parts += describe_commonest(runs)
    if len(comparison.runs) > 1 and comparison.best:
        parts.append("* best, or level with it: the 95 % interval of the difference holds 0")
    return capitalise("; ".join(parts)) + "."


def describe_commonest(runs: Sequence[Row]) -> list[str]:
    """Say what a constant guess scores: one class for all clients, or each client's own."""
    for_all = format_average(runs, "commonest", ".3f")
    own = format_average(runs, "commonest_own", ".3f")
    if not for_all:
        return []
    if not own:
        return [f"always the commonest class: {for_all}"]
    return [f"always the commonest class: {for_all}, each client's own: {own}"]
