"""What a command prints when its runs have ended: the table, the groups, or JSON."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coterie.cli.messages import escape_controls
from coterie.core.errors import Diverged
from coterie.core.version import __version__
from coterie.data.roster import natural_key
from coterie.metrics import Row, find_comparison_metric, main_metric
from coterie.reporting.comparison import (
    Comparison,
    average,
    compare_rows,
    comparison_table,
    describe_comparison_table,
    site_scores,
    spread,
)
from coterie.reporting.predictions import compare_with_constant, describe_constant_baseline
from coterie.reporting.run_records import has_fixed_clients
from coterie.reporting.verdict import (
    describe_agreement,
    describe_benefit,
    describe_no_groups,
    describe_verdict,
    group_benefit,
)
from coterie.result import Result
from coterie.runs.config import encode_readable
from coterie.runs.tables import GROUPS

NOT_SCORES = (
    "groups",
    "moves",
    "notes",
    "rejected",
    "clipped",
    "free_riders",
)  # in a row of metrics
NOT_PRINTED = ("by_site", "group_of")  # in JSON: scores of sites, and groups in another form
LINE = 110  # characters of a line of text under the table
WIDE = 400  # characters of a line of the table outside terminals: no line is wrapped
MAX_GROUPS = 12  # up to this many groups, their members are listed; else their sizes
MAX_LINES = 3  # for the members of one group
MAX_DOUBTFUL = 5  # uncertain clients that are listed
MAX_SIZES = 20  # sizes of groups in one line
INDENT = "  "


# ------------------------------------------------------------------------------ one run
def summary_row(result: Result) -> Row:
    """Summarise a run in one row: the last evaluation, groups, warnings and the total cost."""
    scores = {k: v for k, v in result.final.items() if k not in NOT_SCORES}
    folder = None
    if result.folder is not None:
        folder = str(result.folder)
    kind = result.trained.roster.kind
    honest = len(result.names) - result.options.attackers_among(len(result.names))
    evaluated = scores.pop("measured", 0)  # under secure sums
    if result.per_client:
        evaluated = int(np.isfinite(result.per_client["rows"]).sum())
    return {
        **scores,
        "method": result.method.name,
        "seed": result.options.seed,
        "kind": kind,
        "clients": len(result.names),
        "evaluated": evaluated,
        "attackers": len(result.names) - honest,
        "folder": folder,
        "rounds": result.history[-1]["round"],
        "rejected": sum(len(row["rejected"]) for row in result.history),
        "clipped": sum(len(row.get("clipped", [])) for row in result.history),
        "warnings": result.warnings,
        "members": group_members(result),
        "group_of": group_of_site(result),
        "by_site": site_scores(
            result.names,
            result.per_client,
            find_comparison_metric(result.per_client) or main_metric(kind),
        ),
        "doubtful": doubtful_members(result),
        "seconds": sum(row["seconds"] for row in result.history),
        "bytes_down": sum(row["bytes_down"] for row in result.history),
        "bytes_up": sum(row["bytes_up"] for row in result.history),
    }


def group_members(result: Result) -> dict[str, list[str]] | None:
    """Return the names of each group's clients, in natural order; None without groups."""
    groups = result.trained.hard_groups
    if groups is None:
        return None
    members: dict[str, list[str]] = {}
    for number in sorted(set(groups[groups >= 0].tolist())):
        names = [result.names[i] for i in (groups == number).nonzero()[0]]
        members[str(number)] = sorted(names, key=natural_key)
    return members


def group_of_site(result: Result) -> dict[str, int] | None:
    """Return the group of each client, to be compared between seeds; None if seeds differ."""
    groups = result.trained.hard_groups
    if groups is None or not has_fixed_clients(result.trained.roster.source):
        return None
    return dict(zip(result.names, groups.tolist()))


def doubtful_members(result: Result) -> dict[str, float] | None:
    """Return the membership confidence of uncertain clients, lowest first; None if unknown."""
    membership = result.trained.membership
    if membership is None:
        return None
    least_confident_first = membership.confidence.argsort(kind="stable")
    some = least_confident_first[membership.doubtful[least_confident_first]]
    return {result.names[i]: float(membership.confidence[i]) for i in some}


# ------------------------------------------------------------------------------ JSON
def print_json(
    runs: Sequence[Row], failures: Sequence[Diverged], references: Sequence[Row] = ()
) -> None:
    """Print runs, means over seeds, references and failures as one JSON document."""
    methods = {}
    conclusions: list[str] = []
    if runs:
        comparison = compare_rows(runs)
        conclusions = describe_conclusions(comparison)
        methods = {method: over_seeds(rows) for method, rows in comparison.runs.items()}
    document = {
        "coterie": __version__,
        "runs": [{k: v for k, v in run.items() if k not in NOT_PRINTED} for run in runs],
        "methods": methods,
        "conclusions": conclusions,
        "references": references,
        "failures": [str(failure) for failure in failures],
    }
    print(encode_readable(document), end="")


def over_seeds(rows: Sequence[Row]) -> dict[str, Row]:
    """Return mean and standard deviation of every number over the seeds of a method."""
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
    """Make a table; only terminals get rules."""
    box = None
    if sys.stdout.isatty():
        box = SIMPLE_HEAD
    return Table(box=box, pad_edge=False)


def print_rich_table(table: Table) -> None:
    """Print a table, with colour on a terminal."""
    if sys.stdout.isatty():
        console = Console(file=sys.stdout, highlight=False)
    else:
        console = Console(file=sys.stdout, highlight=False, width=WIDE)
    with console.capture() as plain:
        console.print(table)
    print("\n".join(line.rstrip() for line in plain.get().rstrip().splitlines()))


def print_table(runs: Sequence[Row], references: Sequence[Row] = ()) -> None:
    """Print one line per method and reference, the meaning of the columns, and conclusions."""
    comparison = compare_rows(runs, references)
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
    print_rich_table(table)
    for sentence in (describe_comparison_table(comparison), *describe_conclusions(comparison)):
        print(textwrap.fill(sentence, LINE))
    first = runs[0]
    if first["evaluated"] < first["clients"]:
        honest = "honest clients " if first["attackers"] else ""
        print(
            f"Scores are those of {first['evaluated']} {honest}of the {first['clients']} clients."
        )


def describe_conclusions(comparison: Comparison) -> list[str]:
    """State whether groups help, the best method, and which models are useless, as in the report.

    For a single method, only the last, and the verdict if it diverged.
    """
    sentences = []
    benefit = group_benefit(comparison)
    if benefit is not None:
        sentences += [describe_benefit(benefit), describe_agreement(benefit)]
    elif len(comparison.runs) > 1:
        sentences.append(describe_no_groups(comparison))
    if len(comparison.runs) > 1 or comparison.diverged:
        sentences.append(describe_verdict(comparison))
    no_better = compare_with_constant(comparison)
    if no_better is not None:
        sentences.append(describe_constant_baseline(no_better))
    return [sentence for sentence in sentences if sentence]


# ------------------------------------------------------------------------------ groups
def print_groups(runs: Sequence[Row]) -> None:
    """Print the members of each method's groups, for the first seed."""
    first = min(run["seed"] for run in runs)
    with_seed = ""
    if any(run["seed"] != first for run in runs):
        with_seed = f" (seed {first})"
    with_groups = [run for run in runs if run["seed"] == first and run["members"] is not None]
    shown = [run for run in with_groups if len(run["members"]) > 1]
    listed = sum(len(run["members"]) for run in shown) <= MAX_GROUPS
    for run in shown:
        title = f"{run['method']}{with_seed}"
        members = run["members"]
        if len(members) > 1 and all(len(names) == 1 for names in members.values()):
            names = sorted((name for (name,) in members.values()), key=natural_key)
            start = f"{title}: no two clients are alike; every group has one client, as in local"
            print(describe_names(start, names, file_of(run), line_width()))
        elif listed:
            for group, names in members.items():
                print(describe_group(f"{title} group {group}", names, file_of(run), line_width()))
        else:
            print(describe_sizes(title, members, file_of(run), line_width()))
        if run["doubtful"]:
            print(describe_doubtful(title, run["doubtful"], file_of(run), line_width()))


def describe_group(title: str, names: Sequence[str], file: str, width: int) -> str:
    """Describe one group in a few lines: its size, and as many clients as fit."""
    clients = "1 client" if len(names) == 1 else f"{len(names)} clients"
    return describe_names(f"{title} ({clients})", names, file, width)


def describe_names(title: str, names: Sequence[str], file: str, width: int) -> str:
    """List clients after a title, as many as fit in a few lines."""
    start = f"{title}: "
    room = MAX_LINES * (width - len(INDENT)) - len(start) - len(more(len(names), file))
    text = ""
    for number, name in enumerate(names):
        separator = ", " if text else ""
        longer = f"{text}{separator}{escape_controls(name)}"
        if number and len(longer) > room:
            return wrap(start + text + more(len(names) - number, file), width)
        text = longer
    return wrap(start + text, width)


def describe_sizes(title: str, members: dict[str, list[str]], file: str, width: int) -> str:
    """Describe many groups by their sizes, in a sentence."""
    sizes = sorted((len(names) for names in members.values()), reverse=True)
    some = ", ".join(map(str, sizes[:MAX_SIZES]))
    if len(sizes) > MAX_SIZES:
        some += ", …"
    return wrap(f"{title}: {len(sizes)} groups of {some} clients: see {file}", width)


def describe_doubtful(title: str, doubtful: dict[str, float], file: str, width: int) -> str:
    """List clients whose group is uncertain, with their membership confidence."""
    named = list(doubtful.items())[:MAX_DOUBTFUL]
    text = ", ".join(f"{escape_controls(name)} ({sure:.2f})" for name, sure in named)
    if len(doubtful) > len(named):
        text += more(len(doubtful) - len(named), file)
    clients = "1 client" if len(doubtful) == 1 else f"{len(doubtful)} clients"
    return wrap(f"{title}: the group of {clients} is uncertain (confidence): {text}", width)


def more(number: int, file: str) -> str:
    """Count the clients that are not listed, and name the file that lists them."""
    return f" and {number} more: see {file}"


def file_of(run: Row) -> str:
    """Return the file that lists all clients."""
    if run["folder"] is None:
        return GROUPS
    return str(Path(run["folder"]) / GROUPS)


def line_width() -> int:
    """Return the number of characters of a line of text."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return LINE


def wrap(text: str, width: int) -> str:
    """Wrap text, with all lines but the first indented; names are not broken."""
    return textwrap.fill(
        text,
        max(width, 40),
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
