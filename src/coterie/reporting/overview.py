"""The top and the end of a page: data, method names, empty cells, settings and versions."""

from __future__ import annotations

import platform
import re
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
from coterie.metrics import METRICS
from coterie.reporting.run_records import Methods, RunRecord
from coterie.reporting.text import NOTHING, TextTable, capitalise, join_names
from coterie.reporting.verdict import ONE_EACH, ONE_FOR_ALL, method_name

MOST_TITLED = 5  # methods in the title
MOST_NAMED = 5  # unseen clients
MOST_COLUMNS = 12  # columns with empty cells
MOST_VALUES = 20  # of a list in a table cell


# ------------------------------------------------------------------------------ data and names
def describe_title(methods: Methods) -> str:
    """Name the methods and the data."""
    who = f"{len(methods)} methods"
    if len(methods) <= MOST_TITLED:
        who = join_names(list(methods))
    first = next(iter(methods.values()))[0]
    return f"{who} on {name_data(first)}"


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
    label = re.search(r"[?&]label=([^&]*)", run.data)
    if label is not None:
        data += f", label {label[1]}"
    sentences = [f"{data}."]
    if run.has_sites:
        sentences.append("Each site is one client.")
    rounds = f"Up to {run.options.rounds} rounds"
    if len(runs) > 1:
        rounds += f", {len(runs)} seeds"
    sentences.append(f"{rounds}.")
    return " ".join(sentences)


def describe_names(methods: Sequence[str], with_groups: Collection[str], metric: str) -> str:
    """Explain the names of methods and of the metric.

    Args:
        methods: The methods of the page.
        with_groups: Those that found groups.
        metric: The main metric.
    """
    parts = []
    for label in methods:
        name = method_name(label)
        if name in ONE_FOR_ALL:
            parts.append(f"{label} trains one model for all clients")
        elif name == "local":
            parts.append(f"{label} trains a model for each client separately")
        elif name in ONE_EACH:
            parts.append(f"{label} trains a model for each client that also learns from the others")
    grouping = [label for label in methods if label in with_groups]
    if grouping:
        verb = "finds groups and trains" if len(grouping) == 1 else "find groups and train"
        parts.append(f"{join_names(grouping)} {verb} a model for each group")
    sentences = [f"{'; '.join(parts)}."] if parts else []
    shown = METRICS[metric]
    better = "higher" if shown.higher_is_better else "lower"
    sentences.append(f"{capitalise(shown.label)} is {shown.description}: {better} is better.")
    sentences.append("Scores are measured on test rows, which no model was trained on.")
    return " ".join(sentences)


# ------------------------------------------------------------------------------ empty cells
class EmptyCells(NamedTuple):
    """The empty cells in the training rows of all clients."""

    fill: str  # what replaces numbers: "mean" or "median"; "" if only texts are missing
    columns: list[tuple[str, int]]  # (name, empty cells), most first
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
    fill = ""
    if any(column.kind != "category" for column in with_gaps):
        fill = schema.fill or ""
    nearly_empty = "" if site_columns is None else describe_nearly_empty(site_columns)
    columns = sorted(((c.name, c.missing) for c in with_gaps), key=lambda column: -column[1])
    return EmptyCells(fill, columns, schema.rows, nearly_empty)


def describe_empty_cells(result: EmptyCells, one_seed: str = "") -> str:
    """State how many cells of which columns were filled, and with what.

    Args:
        result: The empty cells.
        one_seed: The seed whose training rows were counted, if there are several.
    """
    what = 'Empty cells count as the category "other"'
    if result.fill:
        what = f"Empty cells were filled with the {result.fill} over all clients"
    columns = [f"{name} {empty:,}" for name, empty in result.columns]
    of = f"of {result.rows:,} training rows"
    if one_seed:
        of += f" with {one_seed}"
    return f"{what}, {of}: {join_names(columns, MOST_COLUMNS)}."


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
