"""What a run came to as tables for a spreadsheet: groups.csv and clients.csv.

They are made from a `Trained` alone, when a run has ended and again beside a report.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coterie.runs.files import is_unfinished, write_file
from coterie.runs.trained import Trained

GROUPS = "groups.csv"
CLIENTS = "clients.csv"
GROUPS_HEAD = ("client", "group", "sure", "margin", "second_group", "rows")
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")  # with which spreadsheets begin a formula
Cells = Sequence[Any]  # of one line


def write_outcome(folder: Path, trained: Trained) -> None:
    """Write groups.csv, where there are groups, and clients.csv."""
    if trained.hard_groups is not None:
        write_file(folder / GROUPS, as_csv(GROUPS_HEAD, groups_lines(trained)))
    write_file(folder / CLIENTS, as_csv(clients_head(trained), clients_lines(trained)))


def remove_outcome(folder: Path) -> None:
    """Remove the tables of a run that goes on."""
    for name in (GROUPS, CLIENTS):
        (folder / name).unlink(missing_ok=True)
    for path in folder.iterdir():  # one that was being written when its command was killed
        if path.is_file() and is_unfinished(path):
            path.unlink()


def complete_outcome(folder: Path, trained: Trained) -> None:
    """Write the tables of a run that has ended, if a kill kept it from doing so."""
    if not (folder / CLIENTS).exists():
        remove_outcome(folder)
        write_outcome(folder, trained)


# ------------------------------------------------------------------------------ lines
def groups_lines(trained: Trained) -> Iterator[Cells]:
    """A line per client, by `GROUPS_HEAD`, group by group; none for methods without groups."""
    if trained.hard_groups is None:
        return
    names = trained.roster.training_names
    groups = trained.hard_groups.tolist()
    certainty = trained.certainty
    columns: list[list[Any]] = [[], [], [], []]
    if certainty is not None:
        columns = [values.tolist() for values in certainty]
    sure, margin, second, rows = columns
    for i in sorted(range(len(names)), key=lambda i: (groups[i], natural_key(names[i]))):
        line: list[Any] = [names[i], number_of_group(groups[i]), None, None, None, None]
        if certainty is not None:
            line[2] = rounded(sure[i])
            line[3] = rounded(margin[i])
            line[4] = number_of_group(second[i])
            line[5] = rounded(rows[i])
        yield line


def clients_head(trained: Trained) -> list[str]:
    """The columns of clients.csv; after the rows, a column for each score."""
    return ["client", "train_rows", "test_rows", *score_names(trained)]


def clients_lines(trained: Trained) -> Iterator[Cells]:
    """A line per client, by `clients_head`."""
    names = trained.roster.training_names
    train_rows = trained.roster.rows.train.tolist()
    test_rows = trained.roster.rows.test.tolist()
    scores = [trained.client_scores[name].tolist() for name in score_names(trained)]
    for i in sorted(range(len(names)), key=lambda i: natural_key(names[i])):
        yield [names[i], train_rows[i], test_rows[i], *(rounded(values[i]) for values in scores)]


def score_names(trained: Trained) -> list[str]:
    """The scores that each client has; how many rows were measured is none."""
    return [name for name in trained.client_scores if name != "rows"]


def number_of_group(number: Any) -> int | None:
    """The number of a group; None where there is none."""
    if number < 0:
        return None
    return int(number)


def rounded(value: Any) -> float | int | None:
    """A number of a few digits, whole ones as such; None for NaN and infinity."""
    number = float(value)
    if not math.isfinite(number):
        return None
    if number.is_integer() and abs(number) < 2**53:
        return int(number)
    return float(f"{number:.6g}")


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts "school 2" before "school 10", whatever the case of letters."""
    key = []
    for part in re.findall(r"[0-9]+|[^0-9]+", name):
        if part.isdecimal():
            key.append((0, int(part[:300]), part))
        else:
            key.append((1, 0, part.casefold()))
    return key


# ------------------------------------------------------------------------------ as text
def as_csv(head: Cells, lines: Iterable[Cells]) -> str:
    """Lines as CSV, with no text that a spreadsheet would run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for line in lines:
        writer.writerow([safe_cell(cell) for cell in line])
    return text.getvalue()


def safe_cell(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: such a text begins with an apostrophe."""
    if isinstance(cell, str) and cell.startswith(FORMULA_SIGNS):
        return f"'{cell}"
    return cell
