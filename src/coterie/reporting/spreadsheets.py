"""The tables next to a page: groups and clients as CSV, and with the scores as one Excel file.

For report.html they are report-groups.csv, report-clients.csv and report.xlsx. Existing files of
these names are replaced only if Coterie wrote them.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import CoterieError
from coterie.reporting.run_records import RunRecord
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

RUN_COLUMNS = ("method", "seed")  # the first columns if there are several runs
FIRST_COLUMNS = {"groups": GROUP_COLUMNS[:3], "clients": ("client", "train_rows", "test_rows")}
CREATOR = "Coterie"  # in the properties of an Excel file
NOT_COMPARED = ("round", "seed", "clients")  # numbers that are not scores
MAX_CELL = 32_000  # characters, a limit of Excel


class Sheet(NamedTuple):
    """One table of values."""

    head: list[str]
    lines: list[list[Any]]


# ------------------------------------------------------------------------------ the tables
def write_spreadsheets(
    page: Path, sheets: Mapping[str, Sheet], warn: Callable[[str], object]
) -> list[Path]:
    """Write tables next to their page.

    Args:
        page: The path of the page.
        sheets: The tables by name.
        warn: Called with a sentence for each file that is not replaced.

    Returns:
        The files that were written.
    """
    written = []
    for name, file in (("groups", GROUPS), ("clients", CLIENTS)):
        path = page.with_name(f"{page.stem}-{file}")
        if is_other_csv(path, FIRST_COLUMNS[name]):
            warn(f"{path} is not a table of Coterie and was not replaced.")
        elif name in sheets:
            write_text(path, as_csv(sheets[name].head, sheets[name].lines))
            written.append(path)
        else:
            path.unlink(missing_ok=True)  # from an older page of this name
    if find_spec("openpyxl") is None:
        return written
    path = page.with_suffix(".xlsx")
    if is_other_workbook(path):
        warn(f"{path} is not a file of Coterie and was not replaced.")
        return written
    write_bytes(path, as_workbook(sheets))
    return [*written, path]


def collect_sheets(
    runs: Sequence[RunRecord],
) -> tuple[dict[str, Sheet], list[tuple[RunRecord, int | Exception]]]:
    """Collect the tables of runs.

    Returns:
        The tables by name, without groups if no run has any. And the runs that they do not show as
        they ended, each with the round of the checkpoint that they show instead, or with the error
        why they are without it.
    """
    groups: list[dict[str, Any]] = []
    clients: list[dict[str, Any]] = []
    scores: list[dict[str, Any]] = []
    incomplete: list[tuple[RunRecord, int | Exception]] = []
    for run in runs:
        names = {"method": run.label, "seed": run.seed}
        numbers = {
            name: round_cell(value)
            for name, value in run.summary.items()
            if isinstance(value, int | float) and name not in NOT_COMPARED
        }
        scores.append({**names, **numbers})
        try:
            trained = run.load_trained()
        except (CoterieError, OSError) as error:
            incomplete.append((run, error))
            continue
        if trained.round < run.history[-1]["round"]:
            incomplete.append((run, trained.round))
        first = names if len(runs) > 1 else {}
        for line in group_rows(trained):
            groups.append({**first, **dict(zip(GROUP_COLUMNS, line))})
        for line in client_rows(trained):
            clients.append({**first, **dict(zip(client_columns(trained), line))})
    sheets = {}
    for name, lines in (("groups", groups), ("clients", clients), ("comparison", scores)):
        if lines:
            head = list(dict.fromkeys(column for line in lines for column in line))
            sheets[name] = Sheet(head, [[line.get(column) for column in head] for line in lines])
    return sheets, incomplete


# ------------------------------------------------------------------------------ Excel
def as_workbook(sheets: Mapping[str, Sheet]) -> bytes:
    """Return an Excel file with one sheet per table."""
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
    """Return a cell that Excel accepts: no formula, no control characters, not too long."""
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    if not isinstance(cell, str):
        return cell
    text: str = ILLEGAL_CHARACTERS_RE.sub("", cell)
    return escape_formula(text[:MAX_CELL])


# ------------------------------------------------------------------------------ other files
def is_other_csv(path: Path, columns: Sequence[str]) -> bool:
    """Return whether a file exists that does not start with RUN_COLUMNS and these columns."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        head = file.readline(1000).rstrip("\n").split(",")
    renamed = ["confidence" if name == "sure" else name for name in head]  # version 0.2
    found = [name for name in renamed if name not in RUN_COLUMNS]
    return found[: len(columns)] != list(columns)


def is_other_workbook(path: Path) -> bool:
    """Return whether a file exists that is not an Excel file of Coterie."""
    if not path.is_file() or not path.stat().st_size:
        return False
    try:
        with zipfile.ZipFile(path) as book:
            properties = book.read("docProps/core.xml").decode(errors="replace")
    except (OSError, zipfile.BadZipFile, KeyError):
        return True
    return f">{CREATOR}<" not in properties
