"""Many CSV files with the same columns, which are parsed at once.

What pandas needs to begin with a file is more than what it needs for a few hundred rows. So files
of one header are joined as text, line by line. The cells must be read as if each file were read by
itself: wherever that is in doubt, the files are.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coterie.core.errors import CoterieError
from coterie.data.cell_text import parse_numbers
from coterie.data.cells import DECIMAL_COMMA, EXACT, Cells
from coterie.data.client_table import Table, cut_table, tables_of_frames
from coterie.data.csv_file import CsvStyle, check_header, csv_style, parse_at_once
from coterie.data.tables import read_table

if TYPE_CHECKING:
    import pandas as pd

TOGETHER = 20_000_000  # bytes of text that are parsed at once
TRUTH = {"true", "false"}  # which pandas may read as booleans


def read_tables(files: Mapping[str, Path], text: Collection[str] = ()) -> dict[str, Table]:
    """The table of each client's file; the cells of columns in `text` stay as they are written."""
    tables: dict[str, Table] = {}
    alone = dict(files)
    for group in groups_of_files(files):
        frame = parse_group(group, text)
        if frame is not None:
            tables |= cut_table(frame, group.counts)
            alone = {name: file for name, file in alone.items() if name not in group.counts}
    tables |= tables_of_frames({name: read_table(file, text) for name, file in alone.items()})
    return {name: tables[name] for name in files}


# ------------------------------------------------------------------------------ joining
class Text(NamedTuple):
    """A CSV file without quotes or blank lines, so that each line is a row."""

    header: bytes
    body: bytes

    @property
    def rows(self) -> int:
        """The number of rows below the header."""
        return self.body.count(b"\n")


class Group(NamedTuple):
    """Files of one style, joined."""

    style: CsvStyle
    header: bytes
    bodies: list[bytes]
    counts: dict[str, int]  # by client: rows


def groups_of_files(files: Mapping[str, Path]) -> Iterator[Group]:
    """Join the files that can be joined, up to a size; files of which there is one are left out."""
    unfinished: dict[tuple[bytes, CsvStyle], Group] = {}
    styles: dict[bytes, CsvStyle] = {}
    for name, file in files.items():
        text = plain_text(file)
        if text is None:
            continue
        style = style_of(text, file, styles)
        if style is None:
            continue
        key = (text.header, style)
        group = unfinished.setdefault(key, Group(style, text.header, [], {}))
        group.bodies.append(text.body)
        group.counts[name] = text.rows
        if sum(map(len, group.bodies)) > TOGETHER:
            yield unfinished.pop(key)
    yield from (group for group in unfinished.values() if len(group.bodies) > 1)


def plain_text(file: Path) -> Text | None:
    """The text of a CSV file; None for one in which a line may be no row, or that has no rows."""
    if file.suffix.lower() != ".csv" or file.stat().st_size > TOGETHER:
        return None
    try:
        raw = file.read_bytes()
    except OSError:
        return None
    raw = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    header, _, body = raw.partition(b"\n")
    if not body.endswith(b"\n"):
        body += b"\n"
    odd = any(sign in raw for sign in (b'"', b"\r", b"\0", b"\n\n"))
    if odd or not header.strip() or body.startswith(b"\n"):
        return None
    return Text(header, body)


def style_of(text: Text, file: Path, known: dict[bytes, CsvStyle]) -> CsvStyle | None:
    """How a file is written; None where it is not UTF-8 or its header cannot be used."""
    if text.header in known:
        return known[text.header]
    try:
        lines = (text.header + b"\n" + text.body).decode().split("\n", 101)[:100]
        separator, decimal = csv_style(lines)
        header = next(csv.reader(lines, skipinitialspace=True, delimiter=separator))
        check_header([name.strip() for name in header], file)
    except (UnicodeDecodeError, csv.Error, CoterieError):
        return None
    style = CsvStyle(tuple(header), separator, decimal)
    if separator == ",":  # else the decimal sign is each file's own
        known[text.header] = style
    return style


# ------------------------------------------------------------------------------ parsing
def parse_group(group: Group, text: Collection[str]) -> pd.DataFrame | None:
    """The rows of all files of a group; None if one of them may read otherwise by itself."""
    import pandas as pd

    source = BytesIO(b"".join([group.header, b"\n", *group.bodies]))
    group.bodies.clear()
    try:
        frame = parse_at_once(source, group.style, text)
    except (ValueError, pd.errors.ParserWarning, OSError):  # pandas' errors are ValueErrors
        return None
    if len(frame) != sum(group.counts.values()):
        return None
    starts = np.cumsum([0, *group.counts.values()])[:-1]
    for name, column in frame.items():
        if name not in text and not reads_alike(Cells(column, str(name), ""), starts):
            return None
    return frame


def reads_alike(cells: Cells, starts: np.ndarray) -> bool:
    """Whether a column of joined files is what each file by itself would give.

    Whole numbers that became floats must be exact. Text must be text in every file that has any
    cell: with numbers or booleans alone it would be read as such.
    """
    if cells.plain is not None:
        return cells.plain.dtype.kind != "f" or not (np.abs(cells.plain) >= EXACT).any()
    numbers, different = cells.different
    if not all(isinstance(cell, str) for cell in different):
        return False
    is_text = [*map(is_only_text, different, parse_numbers(different)), False]
    has_text = np.logical_or.reduceat(np.array(is_text)[numbers], starts)
    is_empty = np.logical_and.reduceat(numbers < 0, starts)
    return bool((has_text | is_empty).all())


def is_only_text(cell: str, number: float) -> bool:
    """Whether a cell can be read as nothing but text; number: NaN if it is none."""
    is_number = not np.isnan(number) or DECIMAL_COMMA.fullmatch(cell) is not None
    return not is_number and cell.strip().lower() not in TRUTH
