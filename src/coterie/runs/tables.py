"""The result of a run as tables for a spreadsheet: groups.csv and clients.csv.

They are written after the last round, and again beside a report.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from coterie.data.roster import natural_key
from coterie.runs.files import is_temporary, write_text
from coterie.runs.trained import TrainedRun

GROUPS = "groups.csv"
CLIENTS = "clients.csv"
GROUP_COLUMNS = ("client", "group", "confidence", "margin", "second_group", "rows")
FORMULA_SIGNS = ("=", "+", "-", "@")  # a spreadsheet takes such a cell for a formula
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]inf", re.ASCII | re.IGNORECASE)
Cells = Sequence[Any]  # of one line


def write_tables(folder: Path, trained: TrainedRun) -> None:
    """Write clients.csv and, if there are clusters, groups.csv.

    Under secure sums groups.csv has the sizes of the groups: only a client knows its own group.
    """
    sizes = trained.history[-1].get("sizes")
    if trained.options.only_sums and sizes is not None:
        write_text(folder / GROUPS, as_csv(("group", "clients"), enumerate(sizes)))
    if trained.hard_groups is not None:
        write_text(folder / GROUPS, as_csv(GROUP_COLUMNS, group_rows(trained)))
    write_text(folder / CLIENTS, as_csv(client_columns(trained), client_rows(trained)))


def remove_tables(folder: Path) -> None:
    """Remove the tables of a run that is resumed."""
    for name in (GROUPS, CLIENTS):
        (folder / name).unlink(missing_ok=True)
    for path in folder.iterdir():  # left by a killed process
        if path.is_file() and is_temporary(path):
            path.unlink()


def write_missing_tables(folder: Path, trained: TrainedRun) -> None:
    """Write the tables of a finished run if its process was killed before it wrote them."""
    if not (folder / CLIENTS).exists():
        remove_tables(folder)
        write_tables(folder, trained)


# ------------------------------------------------------------------------------ lines
def group_rows(trained: TrainedRun) -> Iterator[Cells]:
    """Yield a row per client with `GROUP_COLUMNS`, by cluster; none without clusters."""
    if trained.hard_groups is None:
        return
    names = trained.roster.training_names
    groups = trained.hard_groups.tolist()
    membership = trained.membership
    columns: list[list[Any]] = [[], [], [], []]
    if membership is not None:
        columns = [values.tolist() for values in membership]
    confidence, margin, second, rows = columns
    for i in sorted(range(len(names)), key=lambda i: (groups[i], natural_key(names[i]))):
        line: list[Any] = [names[i], number_of_group(groups[i]), None, None, None, None]
        if membership is not None:
            line[2] = round_cell(confidence[i])
            line[3] = round_cell(margin[i])
            line[4] = number_of_group(second[i])
            line[5] = round_cell(rows[i])
        yield line


def client_columns(trained: TrainedRun) -> list[str]:
    """Return the columns of clients.csv."""
    return ["client", "train_rows", "test_rows", *score_names(trained)]


def client_rows(trained: TrainedRun) -> Iterator[Cells]:
    """Yield a row per client with `client_columns`."""
    names = trained.roster.training_names
    train_rows = trained.roster.rows.train.tolist()
    test_rows = trained.roster.rows.test.tolist()
    scores = [trained.client_scores[name].tolist() for name in score_names(trained)]
    for i in sorted(range(len(names)), key=lambda i: natural_key(names[i])):
        yield [names[i], train_rows[i], test_rows[i], *(round_cell(values[i]) for values in scores)]


def score_names(trained: TrainedRun) -> list[str]:
    """Return the names of the clients' scores."""
    return [name for name in trained.client_scores if name != "rows"]


def number_of_group(number: Any) -> int | None:
    """Return the number of a cluster; None for −1."""
    if number < 0:
        return None
    return int(number)


def round_cell(value: Any) -> float | int | None:
    """Round to six significant digits; None for NaN and infinity."""
    number = float(value)
    if not math.isfinite(number):
        return None
    if number.is_integer() and abs(number) < 2**53:
        return int(number)
    return float(f"{number:.6g}")


# ------------------------------------------------------------------------------ as text
def as_csv(head: Cells, lines: Iterable[Cells]) -> str:
    """Return rows as CSV, with formulas escaped."""
    text = io.StringIO()
    write_csv(text, head, lines)
    return text.getvalue()


def write_csv(file: TextIO, head: Cells, lines: Iterable[Cells]) -> None:
    """Write rows as CSV, with formulas escaped."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(escape_formula, head))
    writer.writerows(map(escape_formula, line) for line in lines)


def escape_formula(cell: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet could take for a formula.

    Spreadsheets may skip blanks and invisible characters, and some read full-width signs as the
    plain ones, so both are ignored. Numbers as text are left alone.
    """
    if not isinstance(cell, str) or cell[:1].isalnum() or NUMBER.fullmatch(cell):
        return cell
    first = next((c for c in cell if unicodedata.category(c)[0] not in "CZ"), "")
    is_formula = unicodedata.normalize("NFKC", first).startswith(FORMULA_SIGNS)
    if is_formula or cell.startswith(("\t", "\r", "\n")):
        return f"'{cell}"
    return cell
