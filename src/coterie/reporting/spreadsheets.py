"""The tables beside a page: groups and clients as CSV, and with the scores as one Excel file.

For report.html they are report-groups.csv, report-clients.csv and report.xlsx. Files of these names
that Coterie did not write are left as they are.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import CoterieError
from coterie.reporting.source import Source
from coterie.runs.files import write_bytes, write_text
from coterie.runs.tables import (
    CLIENTS,
    GROUP_COLUMNS,
    GROUPS,
    as_csv,
    client_columns,
    client_rows,
    escape_formula,
    group_rows,
    round_cell,
)
from coterie.runs.trained import TrainedRun

OF_RUN = ("method", "seed")  # the first columns where there are several runs
FIRST_COLUMNS = {"groups": GROUP_COLUMNS[:3], "clients": ("client", "train_rows", "test_rows")}
CREATOR = "Coterie"  # in the properties of an Excel file
NOT_COMPARED = ("round", "seed", "clients")  # numbers of a run that are no scores
LONGEST_CELL = 32_000  # characters, a limit of Excel


class Sheet(NamedTuple):
    """One table."""

    head: list[str]
    lines: list[list[Any]]


# ------------------------------------------------------------------------------ the tables
def write_spreadsheets(
    page: Path, runs: Sequence[Source], tell: Callable[[str], object]
) -> list[Path]:
    """Write the tables of these runs beside their page; the files that were written."""
    sheets = collect_sheets(runs)
    written = []
    for name, file in (("groups", GROUPS), ("clients", CLIENTS)):
        path = page.with_name(f"{page.stem}-{file}")
        if is_other_csv(path, FIRST_COLUMNS[name]):
            tell(f"{path} is no table of Coterie, and was left as it is.")
        elif name in sheets:
            write_text(path, as_csv(sheets[name].head, sheets[name].lines))
            written.append(path)
        else:
            path.unlink(missing_ok=True)  # of an older page of this name
    if find_spec("openpyxl") is None:
        return written
    path = page.with_suffix(".xlsx")
    if is_other_workbook(path):
        tell(f"{path} is no file of Coterie, and was left as it is.")
        return written
    write_bytes(path, as_workbook(sheets))
    return [*written, path]


def collect_sheets(runs: Sequence[Source]) -> dict[str, Sheet]:
    """The tables of these runs by name; without groups where no run has any."""
    groups: list[dict[str, Any]] = []
    clients: list[dict[str, Any]] = []
    for run in runs:
        trained = read_trained(run)
        if trained is None:
            continue
        of_run: dict[str, Any] = {}
        if len(runs) > 1:
            of_run = {"method": run.label, "seed": run.seed}
        for line in group_rows(trained):
            groups.append({**of_run, **dict(zip(GROUP_COLUMNS, line))})
        for line in client_rows(trained):
            clients.append({**of_run, **dict(zip(client_columns(trained), line))})
    tables = {"groups": groups, "clients": clients, "comparison": compare(runs)}
    return {name: as_sheet(lines) for name, lines in tables.items() if lines}


def as_sheet(lines: Sequence[dict[str, Any]]) -> Sheet:
    """Lines as a table with all columns that any of them has."""
    head = list(dict.fromkeys(name for line in lines for name in line))
    return Sheet(head, [[line.get(name) for name in head] for line in lines])


def read_trained(run: Source) -> TrainedRun | None:
    """What a run came to; None where it cannot be read, which the page says."""
    try:
        return run.trained()
    except (CoterieError, OSError):
        return None


def compare(runs: Sequence[Source]) -> list[dict[str, Any]]:
    """The scores and the cost of each run."""
    lines = []
    for run in runs:
        line: dict[str, Any] = {"method": run.label, "seed": run.seed}
        for name, value in run.facts.items():
            if isinstance(value, int | float) and name not in NOT_COMPARED:
                line[name] = round_cell(value)
        lines.append(line)
    return lines


# ------------------------------------------------------------------------------ Excel
def as_workbook(sheets: dict[str, Sheet]) -> bytes:
    """The tables as an Excel file with a sheet for each."""
    from openpyxl import Workbook

    book = Workbook(write_only=True)
    book.properties.creator = CREATOR
    for name, sheet in sheets.items():
        page = book.create_sheet(name)
        page.freeze_panes = "A2"
        page.append(sheet.head)
        for line in sheet.lines:
            page.append([as_cell(cell) for cell in line])
    raw = io.BytesIO()
    book.save(raw)
    return raw.getvalue()


def as_cell(cell: Any) -> Any:
    """A cell that Excel takes: no formula, no control characters, not too long."""
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    if not isinstance(cell, str):
        return cell
    text: str = ILLEGAL_CHARACTERS_RE.sub("", cell)
    return escape_formula(text[:LONGEST_CELL])


# ------------------------------------------------------------------------------ other files
def is_other_csv(path: Path, columns: Sequence[str]) -> bool:
    """Whether a file is there that does not begin with these columns, after those of a run."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        head = file.readline(1000).rstrip("\n").split(",")
    of_client = [name for name in head if name not in OF_RUN]
    return of_client[: len(columns)] != list(columns)


def is_other_workbook(path: Path) -> bool:
    """Whether a file is there that is no Excel file of Coterie."""
    if not path.is_file() or not path.stat().st_size:
        return False
    try:
        with zipfile.ZipFile(path) as book:
            properties = book.read("docProps/core.xml").decode(errors="replace")
    except (OSError, zipfile.BadZipFile, KeyError):
        return True
    return f">{CREATOR}<" not in properties
