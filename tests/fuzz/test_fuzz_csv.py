"""Odd and damaged CSV files: the cells that Python's own reader finds, or an error."""

from __future__ import annotations

import csv
import io
import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness import case, command, fresh_copy, fuzz, said, time_is_over
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes
from valid_files import SETTINGS, Files

from coterie.core.errors import CoterieError
from coterie.data import load
from coterie.data.csv_files import MISSING, detect_style
from coterie.data.table_files import read_table

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
KIND = "csv"
ASSIGN = "assign run case.csv --json"
PREDICT = "predict run case.csv --cluster 0 --keep sex --fill median"
ODD_CELLS = (
    "",
    " ",
    "NA",
    "nan",
    "None",
    "inf",
    "-Infinity",
    "1e400",
    "1e99",
    "1e101",
    "9" * 30,
    "9" * 400,
    "007",
    "+1",
    "1_000",
    "0x10",
    "1,5",
    "1.234,5",
    "1 000",
    "٣",
    "½",
    "True",
    "false",
    "ill ",
    " ill",
    "ILL",
    'a "quoted" word',
    "a\nb",
    "a\r\nb",
    "a;b",
    "a\tb",
    "\x00",
    "\ufeff",
    "\u200b",
    "e\u0301",
    "=1+1",
    "<script>",
    "x" * 5000,
    "2020-01-31",
    "12:30",
)
odd_cells = st.one_of(
    st.sampled_from(ODD_CELLS), st.text(max_size=8), st.floats().map(repr), st.integers().map(str)
)


class Style(NamedTuple):
    """How a table is written; all of these mean the same."""

    separator: str = ","
    newline: str = "\n"
    quoting: int = csv.QUOTE_MINIMAL
    mark: str = ""  # a byte order mark
    space: bool = False  # after each separator
    end: str = "\n"
    order: tuple[int, ...] = ()  # of the columns


styles = st.builds(
    Style,
    separator=st.sampled_from(",;\t"),
    newline=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    mark=st.sampled_from(["", "\ufeff"]),
    space=st.booleans(),
    end=st.sampled_from(["", "\n", "\n\n"]),
    order=st.permutations(range(4)).map(tuple),
)


def write(table: list[list[str]], style: Style) -> bytes:
    """A table as CSV."""
    lines = io.StringIO(newline="")
    writer = csv.writer(
        lines, delimiter=style.separator, lineterminator=style.newline, quoting=style.quoting
    )
    for row in table:
        ordered = row
        if style.order and len(row) == len(style.order):
            ordered = [row[i] for i in style.order]
        writer.writerow(ordered)
    text = lines.getvalue().rstrip("\r\n") + style.end
    if style.space:
        text = text.replace(style.separator, style.separator + " ")
    return (style.mark + text).encode(errors="surrogatepass")


def lines_of(text: str) -> list[str]:
    """The lines of a file from its header on."""
    lines = io.StringIO(text, newline="")
    return list(itertools.dropwhile(lambda line: not line.strip("\r\n"), lines))[:100]


def rows_of(file: Path) -> list[list[str]]:
    """The cells of a file as Python's csv reads them, blank lines left out."""
    text = file.read_bytes().decode("utf-8-sig")
    separator, _ = detect_style(lines_of(text))
    lines = io.StringIO(text, newline="")
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=True)
    return [row for row in rows if row and (len(row) > 1 or row[0].strip())]


def same_cell(written: str, read: Any, decimal: str) -> bool:
    """Whether a cell of a table is the one that stands in the file."""
    if isinstance(read, str):
        return read == written
    if isinstance(read, bool):
        return str(read).lower() == written.lower()
    if read is None:
        return written in MISSING
    number = float(written.strip().replace(decimal, "."))
    return math.isclose(read, number, rel_tol=1e-12) or read == number


def check_cells(file: Path) -> None:
    """Assert that a table holds the cells of its file, or is refused."""
    frame = said(lambda: read_table(file))
    if isinstance(frame, CoterieError):
        return
    header, *rows = rows_of(file)
    _, decimal = detect_style(lines_of(file.read_bytes().decode("utf-8-sig")))
    assert [name.strip() for name in header] == frame.column_names
    assert len(rows) == frame.num_rows, f"{len(rows)} rows are read as {frame.num_rows}"
    for j, name in enumerate(frame.column_names):
        for row, value in zip(rows, frame.column(name).to_pylist()):
            cell = row[j] if j < len(row) else ""
            assert same_cell(cell, value, decimal), f"{cell!r} of {name} is read as {value!r}"


def table_of(files: Files) -> list[list[str]]:
    """The newcomer's table as text."""
    return rows_of(files.new)


@fuzz(60)
@given(styles)
def test_the_same_table(files: Files, style: Style) -> None:
    """However a table is written, the answer is the same."""
    if time_is_over(KIND):
        return
    (files.base / "case.csv").write_bytes(write(table_of(files), style))
    with case(KIND):
        answer = command(*ASSIGN.split())
        assert answer == command(*ASSIGN.replace("case", "new").split())


@fuzz(120)
@given(st.data())
def test_odd_cells(files: Files, data: st.DataObject) -> None:
    """Cells, names and whole rows are changed, then the table is written in some style."""
    if time_is_over(KIND):
        return
    table = table_of(files)
    for _ in range(data.draw(st.integers(1, 3))):
        change_table(data, table)
    style = data.draw(styles)._replace(space=False)
    file = files.base / "case.csv"
    file.write_bytes(write(table, style))
    with case(KIND):
        check_cells(file)
        command(*ASSIGN.split())


def change_table(data: st.DataObject, table: list[list[str]]) -> None:
    """Change a cell, a name, a row or a column of a table."""
    rows = st.integers(0, len(table) - 1)
    change = data.draw(st.sampled_from(("cell", "cell", "name", "column", "row", "rows")))
    if change == "name" and table:
        table[0][data.draw(st.integers(0, len(table[0]) - 1))] = data.draw(
            st.one_of(odd_cells, st.sampled_from(table[0]))
        )
    elif change == "cell":
        row = table[data.draw(rows)]
        if row:
            row[data.draw(st.integers(0, len(row) - 1))] = data.draw(odd_cells)
    elif change == "column":
        column = data.draw(st.integers(0, 3))
        cell = data.draw(odd_cells)
        for row in table[1:]:
            row[column : column + 1] = [cell]
    elif change == "row":
        table[data.draw(rows)] = data.draw(st.lists(odd_cells, max_size=6))
    else:
        del table[data.draw(st.integers(1, max(1, len(table) - 1))) :]


@fuzz(80)
@given(st.data())
def test_damaged_bytes(files: Files, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    content = data.draw(damaged_bytes(files.new.read_bytes()))
    encoding = data.draw(st.sampled_from(["", "utf-16", "latin-1", "utf-32"]))
    if encoding:
        content = content.decode(errors="replace").encode(encoding, errors="replace")
    file = files.base / "case.csv"
    file.write_bytes(content)
    with case(KIND):
        check_cells(file)
        command(*ASSIGN.split())
        command(*PREDICT.split())


@fuzz(60)
@given(st.data())
def test_training_tables(files: Files, data: st.DataObject) -> None:
    """One client of four brings an odd table to training."""
    if time_is_over(KIND):
        return
    folder = fresh_copy(files.data)
    file = folder / "south.csv"
    table = rows_of(file)
    for _ in range(data.draw(st.integers(1, 3))):
        change_table(data, table)
    content = write(table, data.draw(styles)._replace(space=False))
    if data.draw(st.booleans()):
        content = data.draw(damaged_bytes(content, most=1))
    file.write_bytes(content)
    with case(KIND):
        fed = said(lambda: load("folder:case", 0, label="outcome"))
        if isinstance(fed, CoterieError):
            return
        rows = len(rows_of(file)) - 1
        assert fed.train.sizes[2] + fed.test.sizes[2] == rows
        assert bool(fed.train.x.isfinite().all())
        command(*f"run ifca --data folder:case {SETTINGS} --dry-run".split())


@fuzz(40)
@given(st.data())
def test_one_table_of_all(files: Files, data: st.DataObject) -> None:
    """All clients' rows in one file, with a column that names the client."""
    if time_is_over(KIND):
        return
    table = table_of(files)
    table[0].append("site")
    for number, row in enumerate(table[1:]):
        row.append("abc"[number % 3])
    for _ in range(data.draw(st.integers(1, 3))):
        change_table(data, table)
    file = files.base / "case.csv"
    file.write_bytes(write(table, data.draw(styles)._replace(space=False)))
    with case(KIND):
        fed = said(lambda: load("table:case.csv", 0, label="outcome", client_column="site"))
        if isinstance(fed, CoterieError):
            return
        sites = [row[4].strip() for row in rows_of(file)[1:]]
        for name, train, test in zip(fed.names, fed.train.sizes, fed.test.sizes):
            assert train + test == sites.count(name)
