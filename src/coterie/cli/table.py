"""The final table, and the same as JSON."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coterie.cli.groups import doubtful_members, group_members
from coterie.core.errors import Diverged
from coterie.core.version import __version__
from coterie.metrics import Row, main_metric
from coterie.reporting.benefit import describe_benefit, group_benefit
from coterie.reporting.comparison import (
    Comparison,
    average,
    compare_rows,
    site_scores,
    spread,
)
from coterie.reporting.comparison_table import comparison_table, describe_comparison_table
from coterie.reporting.constant_guess import describe_constant_guess, find_no_better
from coterie.reporting.verdict import describe_verdict, judge
from coterie.result import Result
from coterie.runs.config import encode_readable

NOT_SCORES = ("groups", "moves", "notes", "refused", "screened")  # of a row of metrics
LINE = 110  # characters of a line of text under the table
WIDE = 400  # characters of a line that is not for a terminal: no line is wrapped


# ------------------------------------------------------------------------------ one run
def summary_row(result: Result) -> Row:
    """One run in one flat row: the last evaluation, and what the run cost in all."""
    scores = {k: v for k, v in result.final.items() if k not in NOT_SCORES}
    folder = None
    if result.folder is not None:
        folder = str(result.folder)
    kind = result.trained.roster.kind
    honest = len(result.names) - result.options.attackers_among(len(result.names))
    return {
        **scores,
        "method": result.method.name,
        "seed": result.options.seed,
        "kind": kind,
        "clients": len(result.names),
        "evaluated": min(result.options.eval_clients or honest, honest),
        "attackers": len(result.names) - honest,
        "folder": folder,
        "rounds": result.history[-1]["round"],
        "refused": sum(len(row["refused"]) for row in result.history),
        "screened": sum(len(row.get("screened", [])) for row in result.history),
        "warnings": result.warnings,
        "members": group_members(result),
        "by_site": site_scores(result.names, result.per_client, main_metric(kind)),
        "doubtful": doubtful_members(result),
        "seconds": sum(row["seconds"] for row in result.history),
        "bytes_down": sum(row["bytes_down"] for row in result.history),
        "bytes_up": sum(row["bytes_up"] for row in result.history),
    }


# ------------------------------------------------------------------------------ JSON
def print_json(runs: Sequence[Row], failures: Sequence[Diverged]) -> None:
    """Print runs, means over seeds and failures as one JSON document."""
    methods = {}
    conclusions: list[str] = []
    if runs:
        comparison = compare_rows(runs)
        conclusions = describe_conclusions(comparison)
        methods = {method: over_seeds(rows) for method, rows in comparison.runs.items()}
    document = {
        "coterie": __version__,
        "runs": [{k: v for k, v in run.items() if k != "by_site"} for run in runs],
        "methods": methods,
        "conclusions": conclusions,
        "failures": [str(failure) for failure in failures],
    }
    print(encode_readable(document), end="")


def over_seeds(rows: Sequence[Row]) -> dict[str, Row]:
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
    comparison = compare_rows(runs)
    content = comparison_table(comparison)
    table = new_table()
    table.add_column(content.head[0])
    for title in content.head[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    for number, cells in enumerate(content.rows):
        if number in content.marked:
            table.add_row(*cells, style="bold")
        else:
            table.add_row(*cells)
    print_columns(table)
    for sentence in (describe_comparison_table(comparison), *describe_conclusions(comparison)):
        print(textwrap.fill(sentence, LINE))
    first = runs[0]
    if first["evaluated"] < first["clients"]:
        honest = "honest " if first["attackers"] else ""
        print(
            f"Scores are those of {first['evaluated']} {honest}of the {first['clients']} clients."
        )


def describe_conclusions(comparison: Comparison) -> list[str]:
    """Say which method is best, whether groups pay and where models are useless, as the page does.

    Of one method only the last is said.
    """
    sentences = []
    verdict = judge(comparison)
    if verdict is not None and (len(comparison.runs) > 1 or verdict.diverged):
        sentences.append(describe_verdict(verdict))
    benefit = group_benefit(comparison)
    if benefit is not None:
        sentences.append(describe_benefit(benefit))
    no_better = find_no_better(comparison)
    if no_better is not None:
        sentences.append(describe_constant_guess(no_better))
    return sentences
