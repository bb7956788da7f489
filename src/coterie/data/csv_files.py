"""CSV files: every cell is read as text by Arrow, and columns are cast afterwards.

Arrow parses regular files. What it refuses (rows of different lengths) or would read differently
from Python's `csv` (blanks before quotes) is parsed by `csv`, which defines what is right. A large
file is parsed in blocks that go to a temporary Arrow file, from which columns are read one by one.
Small files with the same header are joined and parsed at once, if each of them would have the same
types by itself.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc

from coterie.core.errors import CoterieError
from coterie.data.columns import (
    DECIMAL_COMMA,
    MAX_EXACT_INT,
    MINUS_ONE,
    NO_TEXT,
    ArrowColumn,
    numbers_to_arrow,
    parse_numbers,
    texts_to_arrow,
    to_nfc,
    to_numpy,
)
from coterie.data.tables import Cells, ColumnsOnDisk

STAGED_ABOVE = 200_000_000  # bytes; the cells of larger CSV files go to a temporary file
MAX_JOINED_BYTES = 20_000_000  # bytes of files that are parsed together
BLOCK_BYTES = 2**22  # that Arrow parses at once
BLANK_BEFORE_QUOTE = re.compile(rb'(?:^|[\r\n,;\t]) +"')
# texts that are missing cells, as in pandas
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
BOOLEANS = {
    "True": True,
    "TRUE": True,
    "true": True,
    "False": False,
    "FALSE": False,
    "false": False,
}


class CsvStyle(NamedTuple):
    """Header, separator and decimal sign of a CSV file."""

    header: tuple[str, ...]  # names of the columns, without blanks around them
    separator: str
    decimal: str


# ------------------------------------------------------------------------------ one file
def read_csv(file: Path, text: Collection[str] = ()) -> Cells:
    """Read a CSV file that is separated by commas, semicolons or tabs.

    Args:
        file: The file, in UTF-8.
        text: Columns whose cells stay text.

    Returns:
        Its columns; they stay on disk if the file is large.

    Raises:
        CoterieError: If the file cannot be parsed.
    """
    try:
        style, start = find_style(file)
        if file.stat().st_size > STAGED_ABOVE:
            staged = stage_cells(file, style, start, text)
            if staged is not None:
                return staged
        return cast_columns(read_cells(file.read_bytes()[start:], style), style, text)
    except UnicodeDecodeError:
        raise CoterieError(
            f"the file {file} is not in UTF-8", "save it as UTF-8 (in Excel: CSV UTF-8)"
        ) from None
    except (csv.Error, OSError) as why:
        raise CoterieError(
            f"the file {file} cannot be read as CSV: {to_one_line(why)}", "fix the file"
        ) from None


def find_style(file: Path) -> tuple[CsvStyle, int]:
    """Return the style of a file, and where its rows begin, in bytes."""
    with open(file, encoding="utf-8-sig", newline="") as lines:
        blank = list(itertools.takewhile(lambda line: not line.strip("\r\n"), lines))
        lines.seek(0)
        some = list(itertools.islice(lines, len(blank), len(blank) + 100))
    if not some:
        raise CoterieError(f"the file {file} is empty", "give it a header and rows, or remove it")
    separator, decimal = detect_style(some)
    rows = csv.reader(some, skipinitialspace=True, delimiter=separator)
    header = [name.strip() for name in next(rows)]
    check_header(header, file)
    head = "".join([*blank, *some[: rows.line_num]])
    start = len(head.encode()) + 3 * has_byte_order_mark(file)
    return CsvStyle(tuple(header), separator, decimal), start


def has_byte_order_mark(file: Path) -> bool:
    """Whether a file begins with the mark of UTF-8."""
    with open(file, "rb") as raw:
        return raw.read(3) == b"\xef\xbb\xbf"


def detect_style(lines: list[str]) -> tuple[str, str]:
    """Detect the separator and the decimal sign of a CSV file from its first lines.

    Semicolons or tabs are separators if the header has them and no comma. Only then can a comma be
    the decimal sign.

    Returns:
        (separator, decimal sign)
    """
    header = lines[0] if lines else ""
    if "," in header:
        return ",", "."
    separator = next((sign for sign in ";\t" if sign in header), ",")
    cells = (cell.strip() for line in lines[1:] for cell in line.split(separator))
    if any(DECIMAL_COMMA.fullmatch(cell) for cell in cells):
        return separator, ","
    return separator, "."


def check_header(header: list[str], file: Path) -> None:
    """Raise for names that are empty or repeated."""
    for name, count in Counter(header).items():
        if not name:
            raise CoterieError(
                f"the file {file} has a column without a name",
                "name it, or save without row numbers",
            )
        if count > 1:
            raise CoterieError(
                f"the file {file} has more than one column {name}", "remove or rename one of them"
            )


def to_one_line(why: Exception) -> str:
    """Return the message of an exception in one line; a KeyError's is only a word."""
    text = " ".join(str(why).split())
    if text and not isinstance(why, KeyError):
        return text
    return f"{type(why).__name__} {text}".rstrip()


# ------------------------------------------------------------------------------ cells as text
def read_cells(body: bytes, style: CsvStyle) -> pa.Table:
    """Read the rows of a file as text; missing cells are null."""
    quotes = body.count(b'"')
    if not body.strip():
        return pa.table({name: texts_to_arrow([]) for name in style.header})
    if quotes % 2 or (quotes and BLANK_BEFORE_QUOTE.search(body)):
        return read_row_by_row(body, style)
    try:
        table = pa.csv.read_csv(pa.BufferReader(body), **arrow_options(style, quotes > 0))
    except pa.ArrowInvalid:  # rows of different lengths, or not UTF-8
        return read_row_by_row(body, style)
    if quotes and not body.rstrip(b"\r\n").endswith(b'"'):
        last = table.column(table.num_columns - 1)[-1].as_py() or ""
        if "\n" in last:  # Arrow takes a quote that is never closed for a cell up to the end
            return read_row_by_row(body, style)
    return trim_cells(table)


def arrow_options(style: CsvStyle, quoted: bool, use_threads: bool = True) -> dict[str, Any]:
    """Return the options with which Arrow reads every cell as text."""
    return {
        "read_options": pa.csv.ReadOptions(
            column_names=list(style.header), block_size=BLOCK_BYTES, use_threads=use_threads
        ),
        "parse_options": pa.csv.ParseOptions(delimiter=style.separator, newlines_in_values=quoted),
        "convert_options": pa.csv.ConvertOptions(
            column_types=dict.fromkeys(style.header, pa.string()),
            null_values=MISSING,
            strings_can_be_null=True,
        ),
    }


def trim_cells(table: pa.Table) -> pa.Table:
    """Remove blanks at the beginning of cells, as in "1, 2"."""
    for place, name in enumerate(table.column_names):
        cells = table.column(place)
        if pc.any(pc.starts_with(cells, " ")).as_py():
            trimmed = pc.utf8_ltrim(cells, " ")
            table = table.set_column(place, name, clear_missing(trimmed))
    return table


def clear_missing(cells: ArrowColumn) -> ArrowColumn:
    """Make cells null whose text stands for a missing value."""
    return pc.if_else(pc.is_in(cells, texts_to_arrow(MISSING)), NO_TEXT, cells)


def read_row_by_row(body: bytes, style: CsvStyle) -> pa.Table:
    """Read rows as text with Python's `csv`; short rows end with missing cells."""
    lines = io.StringIO(body.decode(), newline="")
    rows = csv.reader(lines, delimiter=style.separator, skipinitialspace=True, strict=True)
    width = len(style.header)
    cells: list[list[str]] = []
    for row in rows:
        if not row or (len(row) == 1 and not row[0].strip()):
            continue  # a blank line
        if len(row) > width:
            raise csv.Error(
                f"data row {len(cells) + 1} has more values than the header has names, "
                f"{len(row)} and {width}"
            )
        cells.append(row + [""] * (width - len(row)))
    columns = zip(*cells) if cells else [()] * width
    arrays = [clear_missing(texts_to_arrow(column)) for column in columns]
    return pa.Table.from_arrays(arrays, names=list(style.header))


# ------------------------------------------------------------------------------ casting
def cast_columns(table: pa.Table, style: CsvStyle, text: Collection[str]) -> pa.Table:
    """Cast the columns of text that hold numbers or booleans, except those named in `text`."""
    arrays = []
    for name, cells in zip(style.header, table.columns):
        arrays.append(cells if to_nfc(name) in text else cast_cells(cells, style.decimal))
    return pa.Table.from_arrays(arrays, names=list(style.header))


def cast_cells(cells: ArrowColumn, decimal: str = ".") -> ArrowColumn:
    """Cast cells of text to float64 or booleans if every cell is a number or a boolean.

    Integers that a float64 cannot hold stay text, so that ids keep their digits.
    """
    for point in dict.fromkeys((".", decimal)):
        numbers = cast_numbers(cells, point)
        if numbers is not None:
            return numbers
    distinct = pc.drop_null(pc.unique(cells.slice(0, 1000)))
    if len(distinct) <= len(BOOLEANS) and all(cell in BOOLEANS for cell in distinct.to_pylist()):
        codes = pc.index_in(cells, texts_to_arrow(list(BOOLEANS)))
        if codes.null_count == cells.null_count:
            is_true = numbers_to_arrow(np.array([*BOOLEANS.values()], dtype=np.int8))
            return pc.take(pc.cast(is_true, pa.bool_()), codes)
    return cells


def cast_numbers(cells: ArrowColumn, point: str) -> ArrowColumn | None:
    """Cast text to float64; None if a cell is not a number with this decimal sign."""
    if cells.null_count == len(cells):
        return pa.nulls(len(cells), pa.float64())
    if point != ".":
        if pc.any(pc.match_substring(cells, ".")).as_py():
            return None
        cells = pc.replace_substring(cells, point, ".")
    if pc.any(pc.ends_with(cells, " ")).as_py():
        cells = pc.utf8_rtrim(cells, " ")
    try:
        # a cast of many cells that are not numbers is slow, so that a few are tried first
        pc.cast(cells.slice(0, 1000), pa.float64())
        numbers = pc.cast(cells, pa.float64())
    except pa.ArrowInvalid:
        return None
    largest = pc.max(pc.abs(numbers)).as_py()
    if pc.any(pc.is_nan(numbers)).as_py() or largest >= MAX_EXACT_INT:
        return None
    return numbers


# ------------------------------------------------------------------------------ large files
def stage_cells(
    file: Path, style: CsvStyle, start: int, text: Collection[str]
) -> ColumnsOnDisk | None:
    """Parse a large file in blocks that go to a temporary file in the folder TMPDIR.

    Returns:
        The columns on disk; None if the file must be read at once, because it is irregular or the
        disk is full.
    """
    quotes = 0
    with open(file, "rb") as raw:
        while block := raw.read(BLOCK_BYTES):
            quotes += block.count(b'"')
            if quotes and BLANK_BEFORE_QUOTE.search(block):
                return None
    if quotes % 2:
        return None
    staged = tempfile.NamedTemporaryFile(suffix=".arrow")  # noqa: SIM115  # readers keep it
    rows = 0
    try:
        source = pa.OSFile(str(file))
        source.seek(start)
        blocks = pa.csv.open_csv(source, **arrow_options(style, quotes > 0, use_threads=False))
        with pa.ipc.new_file(pa.PythonFile(staged, mode="w"), blocks.schema) as writer:
            for block in blocks:
                rows += block.num_rows
                writer.write_table(trim_cells(pa.Table.from_batches([block])))
        staged.flush()
    except (pa.ArrowInvalid, OSError):
        return None
    readers = {}
    for place, name in enumerate(style.header):
        decimal = None if to_nfc(name) in text else style.decimal
        readers[name] = partial(read_staged, staged, place, decimal)
    return ColumnsOnDisk(readers, rows)


def read_staged(staged: Any, place: int, decimal: str | None) -> ArrowColumn:
    """Read one column of a temporary file, and cast it unless there is no decimal sign.

    The file is mapped into memory, so that only the pages of this column are read.
    """
    cells = pa.ipc.open_file(pa.memory_map(staged.name)).read_all().column(place)
    if decimal is None:
        return cells
    return cast_cells(cells, decimal)


# ------------------------------------------------------------------------------ many files
class PlainCsv(NamedTuple):
    """A CSV file without quotes or blank lines, so that each line is a row."""

    header: bytes
    body: bytes

    @property
    def rows(self) -> int:
        """Number of rows below the header."""
        return self.body.count(b"\n")


class CsvGroup(NamedTuple):
    """Files with the same header and style, to be parsed together."""

    style: CsvStyle
    bodies: list[bytes]
    counts: dict[str, int]  # rows by client


def group_files(files: Mapping[str, Path]) -> Iterator[CsvGroup]:
    """Group the files that can be parsed together, up to a size; single files are omitted."""
    unfinished: dict[tuple[bytes, CsvStyle], CsvGroup] = {}
    styles: dict[bytes, CsvStyle] = {}
    for name, file in files.items():
        plain = read_plain_csv(file)
        if plain is None:
            continue
        style = styles.get(plain.header)
        if style is None:
            try:
                style, _ = find_style(file)
            except (UnicodeDecodeError, csv.Error, CoterieError):
                continue
            if style.separator == ",":  # otherwise the decimal sign may differ between files
                styles[plain.header] = style
        key = (plain.header, style)
        group = unfinished.setdefault(key, CsvGroup(style, [], {}))
        group.bodies.append(plain.body)
        group.counts[name] = plain.rows
        if sum(map(len, group.bodies)) > MAX_JOINED_BYTES:
            yield unfinished.pop(key)
    yield from (group for group in unfinished.values() if len(group.bodies) > 1)


def read_plain_csv(file: Path) -> PlainCsv | None:
    """Read a CSV file; None if a line may not be a row (quotes, blank lines) or it has no rows."""
    if file.suffix.lower() != ".csv" or file.stat().st_size > MAX_JOINED_BYTES:
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
    return PlainCsv(header, body)


def parse_group(group: CsvGroup, text: Collection[str]) -> pa.Table | None:
    """Parse the files of a group; None if one of them may have other types by itself."""
    body = b"".join(group.bodies)
    group.bodies.clear()
    try:
        table = pa.csv.read_csv(pa.BufferReader(body), **arrow_options(group.style, quoted=False))
    except pa.ArrowInvalid:
        return None
    if table.num_rows != sum(group.counts.values()):
        return None
    table = cast_columns(trim_cells(table), group.style, text)
    starts = np.cumsum([0, *group.counts.values()])[:-1]
    for name, cells in zip(group.style.header, table.columns):
        is_text = pa.types.is_string(cells.type)
        if is_text and to_nfc(name) not in text and not is_text_in_every_file(cells, starts):
            return None
    return table


def is_text_in_every_file(cells: ArrowColumn, starts: np.ndarray) -> bool:
    """Whether each of several files, by itself, would have text in this column, or no values.

    Args:
        cells: The column of the joined files.
        starts: The first row of each file, int [files].
    """
    encoded = cells.combine_chunks().dictionary_encode()
    distinct = encoded.dictionary
    is_text = [
        np.isnan(number) and cell not in BOOLEANS and not DECIMAL_COMMA.fullmatch(cell)
        for cell, number in zip(distinct.to_pylist(), parse_numbers(distinct))
    ]
    codes = to_numpy(pc.fill_null(encoded.indices, MINUS_ONE))
    has_text = np.logical_or.reduceat(np.array([*is_text, False])[codes], starts)
    is_empty = np.logical_and.reduceat(codes < 0, starts)
    return bool((has_text | is_empty).all())
