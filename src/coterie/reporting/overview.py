"""The top and the end of a page: data, method names, empty cells, settings and versions."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Collection, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.version import __version__
from coterie.data.paths import shorten_word
from coterie.data.schema import Schema
from coterie.data.site_columns import SiteColumns, describe_nearly_empty
from coterie.methods import registry
from coterie.metrics import METRICS
from coterie.reporting.run_records import Methods, RunRecord
from coterie.reporting.text import NOTHING, TextTable, capitalise, join_names
from coterie.reporting.verdict import method_name
from coterie.runs.run_list import LIST

MOST_NAMED = 5  # unseen clients
MOST_COLUMNS = 12  # columns with empty cells
MOST_VALUES = 20  # of a list in a table cell


# ------------------------------------------------------------------------------ data and names
def describe_title(methods: Methods) -> str:
    """Return the page's title: what is predicted, and where."""
    run = next(iter(methods.values()))[0]
    where = f"{len(run.training_names):,} {'sites' if run.has_sites else 'clients'}"
    label = name_label(run)
    if label:
        return f"Predicting {label} at {where}"
    return f"Predictions for {where}: {name_data(run)}"


def name_label(run: RunRecord) -> str:
    """Return the column that is predicted; "" for data without columns."""
    schema = run.roster.schema
    return "" if schema is None else str(schema["label"])


def name_data(run: RunRecord) -> str:
    """Return a short name of the data, without the path."""
    maker, colon, first = run.data.partition("?")[0].partition(":")
    if maker in ("folder", "table"):
        return f"the {maker} {Path(first).name or first}"
    if maker == "frames":
        return "tables in memory"
    if maker == "memory":
        return "data in memory"
    return f"{maker}{colon}{first}"


def describe_data(runs: Sequence[RunRecord]) -> str:
    """State the number of clients, the source of the data, and the number of rounds and seeds."""
    run = runs[0]
    who = f"{len(run.training_names):,} {'sites' if run.has_sites else 'clients'}"
    if run.roster.unseen:
        unseen = run.roster.names[len(run.training_names) :]
        who += f" and {len(unseen)} that never train"
        if len(unseen) <= MOST_NAMED and len(runs) == 1:
            who += f" ({', '.join(unseen)})"
    data = f"{who} from {name_data(run)}"
    sentences = [f"{data}."]
    if run.has_sites:
        sentences.append("Each site is one client.")
    rounds = f"Up to {run.options.rounds} rounds"
    if len(runs) > 1:
        rounds += f", {len(runs)} seeds"
    sentences.append(f"{rounds}.")
    return " ".join(sentences)


def describe_kind(label: str, with_groups: Collection[str]) -> str:
    """Return a phrase about the models that a method trains; "" for a user's own method."""
    if label in with_groups:
        return "groups of similar sites with a model for each group"
    method = registry.methods().get(method_name(label))
    return "" if method is None else method.summary


def describe_names(methods: Sequence[str], with_groups: Collection[str], metric: str) -> str:
    """Explain the names of methods and of the metric.

    Args:
        methods: The methods of the page.
        with_groups: Those that found several groups.
        metric: The metric that decides.
    """
    known = [label for label in methods if describe_kind(label, with_groups)]
    parts = [f"{label}, {describe_kind(label, with_groups)}" for label in known]
    grouping = [label for label in methods if label in with_groups]
    if len(grouping) > 1:
        parts = [part for label, part in zip(known, parts) if label not in grouping]
        parts.append(f"{join_names(grouping)}, {describe_kind(grouping[0], with_groups)}")
    sentences = [f"The methods are {'; '.join(parts)}."] if parts else []
    shown = METRICS[metric]
    better = "higher" if shown.higher_is_better else "lower"
    sentences.append(f"{capitalise(shown.label)} is {shown.description}: {better} is better.")
    sentences.append("Scores are measured on test rows, which no model was trained on.")
    return " ".join(sentences)


# ------------------------------------------------------------------------------ what to do next
class NextStep(NamedTuple):
    """How to use the best model."""

    sentence: str
    commands: list[tuple[str, str]]  # (for whom, command)


def next_step(
    run: RunRecord, leader: str, with_groups: Collection[str], error: str
) -> NextStep | None:
    """Recommend a model, with the commands for owners of sites; None without a folder.

    Args:
        run: The best method's first run.
        leader: Its label.
        with_groups: Methods that found several groups.
        error: Its typical error as a phrase; "": unknown.
    """
    kind = describe_kind(leader, with_groups)
    sentence = f"Use {leader}" + (f": {kind}." if kind else ".")
    if error:
        sentence += f" {capitalise(error)}."
    if run.folder is None or run.roster.schema is None:
        return NextStep(sentence, [])
    folder = shlex.quote(name_run(run.folder))
    site = shlex.quote(run.training_names[0])
    commands = [
        (
            f"a site that participated, such as {run.training_names[0]}",
            f"coterie predict {folder} new_rows.csv --client {site} --out predictions.csv",
        ),
        (
            "a new site with some labelled rows",
            f"coterie predict {folder} new_rows.csv --support its_rows.csv --out predictions.csv",
        ),
        ("to take the models elsewhere", f"coterie export {folder} models"),
    ]
    return NextStep(sentence, commands)


def name_run(path: Path) -> str:
    """Name a run for a command without the folders above it, since a page may be sent to others.

    A run of a comparison is COMPARISON/METHOD, or COMPARISON/METHOD/seed-0 if there are several.
    """
    path = path.resolve()
    base = next((above for above in path.parents[:2] if (above / LIST).exists()), path)
    return path.relative_to(base.parent).as_posix()


# ------------------------------------------------------------------------------ empty cells
class EmptyCells(NamedTuple):
    """The empty cells in the training rows of all clients."""

    fill: str  # what replaces numbers: "mean" or "median"
    numbers: list[tuple[str, int]]  # columns of numbers and dates (name, empty cells), most first
    texts: list[tuple[str, int]]  # columns of texts, in the same way
    rows: int  # in total
    nearly_empty: str  # columns that are nearly empty at some sites; "": none, or unknown


def count_empty_cells(schema: Schema | None, site_columns: SiteColumns | None) -> EmptyCells | None:
    """Collect the columns with empty cells; None if there are none.

    Args:
        schema: The columns of the tables; None for other data.
        site_columns: Empty cells by site; None: unknown.
    """
    if schema is None:
        return None
    with_gaps = [column for column in schema.features if column.missing]
    if not with_gaps:
        return None
    nearly_empty = "" if site_columns is None else describe_nearly_empty(site_columns)
    with_gaps = sorted(with_gaps, key=lambda column: -column.missing)
    return EmptyCells(
        fill=schema.fill or "",
        numbers=[(c.name, c.missing) for c in with_gaps if c.kind != "category"],
        texts=[(c.name, c.missing) for c in with_gaps if c.kind == "category"],
        rows=schema.rows,
        nearly_empty=nearly_empty,
    )


def describe_empty_cells(result: EmptyCells, one_seed: str = "") -> str:
    """State how many cells of which columns were filled, and with what.

    Args:
        result: The empty cells.
        one_seed: The seed whose training rows were counted, if there are several.
    """
    of = f"of {result.rows:,} training rows"
    if one_seed:
        of += f" with {one_seed}"
    treatments = (
        (f"Empty cells were filled with the {result.fill} over all clients", result.numbers),
        ('Empty texts count as the category "other"', result.texts),
    )
    sentences = []
    for what, columns in treatments:
        if columns:
            listed = join_names([f"{name} {empty:,}" for name, empty in columns], MOST_COLUMNS)
            sentences.append(f"{what}, {of}: {listed}.")
    return " ".join(sentences)


# ------------------------------------------------------------------------------ settings, versions
class Provenance(NamedTuple):
    """How the runs and the page were made."""

    settings: dict[str, TextTable]  # by method
    commands: list[str]  # as typed; empty if all runs were started from Python
    versions: TextTable


def provenance(methods: Methods) -> Provenance:
    """Collect settings, commands and versions."""
    every_run = [run for runs in methods.values() for run in runs]
    commands = set()
    for words in (run.command for run in every_run if run.command):
        program = Path(words[0]).name  # no folder, as in `shorten_word` for arguments
        start = ["coterie"] if program in ("coterie", "__main__.py") else ["python", program]
        commands.add(shlex.join([*start, *map(shorten_word, words[1:])]))
    settings = {}
    for label, runs in methods.items():
        first = runs[0]
        rows = [
            ["data", first.data],
            ["model", first.model_name],
            ["seeds", ", ".join(str(run.seed) for run in runs)],
        ]
        for name, value in {**first.method.settings, **asdict(first.options)}.items():
            if name != "seed":
                text = NOTHING if value is None else format_value(value)
                rows.append([name.replace("_", " "), text])
        settings[label] = TextTable(["setting", "value"], rows)
    versions = [
        ["coterie, of the runs", ", ".join(sorted({run.version for run in every_run}))],
        ["coterie, of this page", __version__],
        ["Python", platform.python_version()],
        *([name, version(name)] for name in ("torch", "numpy")),
    ]
    return Provenance(settings, sorted(commands), TextTable(["part", "version"], versions))


def format_value(value: Any) -> str:
    """Format a setting or a note for a table cell."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {format_value(part)}" for name, part in value.items())
    if isinstance(value, list):
        text = ", ".join(map(format_value, value[:MOST_VALUES]))
        return f"{text} …" if len(value) > MOST_VALUES else text
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
