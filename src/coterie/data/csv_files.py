"""CSV files."""

from __future__ import annotations

import csv
import itertools
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.core.errors import CoterieError
from coterie.data.cells import DECIMAL_COMMA, MAX_EXACT_INT, TableColumn, parse_numbers, to_nfc
from coterie.data.client_table import ChunkFile, ColumnReader, LazyFrame

if TYPE_CHECKING:
    import pandas as pd

CHUNKED_ABOVE = 200_000_000  # bytes: a larger CSV file is read in pieces
CHUNK_ROWS = 500_000  # rows


def read_csv(file: Path, text: Collection[str] = ()) -> pd.DataFrame | LazyFrame:
    """The table in a CSV file with commas, semicolons or tabs between cells."""
    import pandas as pd

    try:
        return parse_csv(file, text)
    except UnicodeDecodeError:
        raise CoterieError(
            f"the file {file} is not in UTF-8", "save it as UTF-8 (in Excel: CSV UTF-8)"
        ) from None
    except pd.errors.EmptyDataError:
        raise CoterieError(
            f"the file {file} is empty", "give it a header and rows, or remove it"
        ) from None
    except pd.errors.ParserWarning:
        raise CoterieError(
            f"the file {file} has rows with more values than its header has names", "mend it"
        ) from None
    except (pd.errors.ParserError, csv.Error, OSError) as why:
        raise CoterieError(
            f"the file {file} cannot be read as CSV: {to_one_line(why)}", "mend it"
        ) from None


def parse_csv(file: Path, text: Collection[str]) -> pd.DataFrame | LazyFrame:
    with open(file, encoding="utf-8-sig", newline="") as lines:
        separator, decimal = detect_style(list(itertools.islice(skip_blank_lines(lines), 100)))
        lines.seek(0)
        rows = csv.reader(skip_blank_lines(lines), skipinitialspace=True, delimiter=separator)
        header = next(rows, [])
        check_header([name.strip() for name in header], file)
    style = CsvStyle(tuple(header), separator, decimal)
    if file.stat().st_size > CHUNKED_ABOVE:
        return parse_in_chunks(file, style, set(text))
    return parse_at_once(file, style, text)


def parse_at_once(source: Path | BytesIO, style: CsvStyle, text: Collection[str]) -> pd.DataFrame:
    frame: pd.DataFrame = parse_cells(source, style, text)
    frame.columns = frame.columns.str.strip()
    return frame


class CsvStyle(NamedTuple):
    """How a CSV file is written."""

    header: tuple[str, ...]  # the names of the columns, as they stand there
    separator: str
    decimal: str


def parse_cells(
    source: Path | BytesIO, style: CsvStyle, text: Collection[str], **options: Any
) -> Any:
    """What pandas reads, by these options of its own; more values than names are an error."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return pd.read_csv(
            source,
            index_col=False,
            skipinitialspace=True,
            low_memory=False,
            sep=style.separator,
            decimal=style.decimal,
            dtype={name: str for name in style.header if to_nfc(name.strip()) in text},
            **options,
        )


# ------------------------------------------------------------------------------ in pieces
def parse_in_chunks(file: Path, style: CsvStyle, text: set[str]) -> pd.DataFrame | LazyFrame:
    """A large file, of which a piece is in memory at a time; the cells go to a temporary file.

    Each piece has types of its own. A column that is numbers here and text there is text, as it is
    when the file is read at once: then all is read again with this column as text.
    Whole numbers above 2^63 and the like are read at once.
    """
    rows = 0
    on_disk = ChunkFile()
    columns: dict[str, list[ColumnReader]] = {}
    kinds: dict[str, set[str]] = {}
    with parse_cells(file, style, text, chunksize=CHUNK_ROWS) as pieces:
        for piece in pieces:
            rows += len(piece)
            for name, cells in piece.items():
                columns.setdefault(name, []).append(on_disk.write(cells))
                kinds.setdefault(name, set()).add(kind_of(cells))
    if any("other" in of_column for of_column in kinds.values()):
        return parse_at_once(file, style, text)
    mixed = {name for name, of_column in kinds.items() if len(of_column - {""}) > 1}
    if mixed:
        return parse_in_chunks(file, style, text | {to_nfc(name.strip()) for name in mixed})
    readers = {name.strip(): partial(concat_chunks, parts) for name, parts in columns.items()}
    return LazyFrame(readers, rows)


def kind_of(piece: pd.Series) -> str:
    """What a piece of a column holds; "" if it is empty."""
    import pandas as pd

    if piece.isna().all():
        return ""
    kind = pd.api.types.infer_dtype(piece, skipna=True)
    if kind in ("integer", "floating") and piece.dtype.kind in "if":
        return "number"
    return kind if kind in ("string", "boolean") else "other"


def concat_chunks(parts: list[ColumnReader]) -> pd.Series:
    """The column of pieces that are of one kind."""
    import pandas as pd

    pieces = [read() for read in parts]
    of_values = [piece.dtype for piece in pieces if kind_of(piece)]
    dtype = (of_values or [pieces[0].dtype])[0]
    is_truth_with_gaps = dtype.kind == "b" and any(piece.isna().any() for piece in pieces)
    if is_truth_with_gaps or any(other != dtype and other.kind == "O" for other in of_values):
        dtype = np.dtype(object)
    if dtype.kind not in "if":  # an empty piece has no type of its own
        pieces = [piece.astype(dtype) for piece in pieces]
    return pd.concat(pieces, ignore_index=True)


# ------------------------------------------------------------------------------ header and style
def skip_blank_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines from the header on; pandas passes over blank lines before it."""
    return itertools.dropwhile(lambda line: not line.strip("\r\n"), lines)


def detect_style(lines: list[str]) -> tuple[str, str]:
    """(separator, decimal sign) of a CSV file, by its first lines.

    Semicolons or tabs separate where the header has them and no comma; only then can commas be
    decimal signs.
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
    """Refuse names that pandas would change: empty ones, and those that occur twice."""
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
    """What an error of another library says, in one line."""
    return " ".join(str(why).split())


MAX_JOINED_BYTES = 20_000_000  # bytes of text that are parsed at once
TRUTH = {"true", "false"}  # which pandas may read as booleans


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


def group_files(files: Mapping[str, Path]) -> Iterator[Group]:
    """Join the files that can be joined, up to a size; files of which there is one are left out."""
    unfinished: dict[tuple[bytes, CsvStyle], Group] = {}
    styles: dict[bytes, CsvStyle] = {}
    for name, file in files.items():
        text = read_plain_csv(file)
        if text is None:
            continue
        style = find_style(text, file, styles)
        if style is None:
            continue
        key = (text.header, style)
        group = unfinished.setdefault(key, Group(style, text.header, [], {}))
        group.bodies.append(text.body)
        group.counts[name] = text.rows
        if sum(map(len, group.bodies)) > MAX_JOINED_BYTES:
            yield unfinished.pop(key)
    yield from (group for group in unfinished.values() if len(group.bodies) > 1)


def read_plain_csv(file: Path) -> Text | None:
    """The text of a CSV file; None for one in which a line may be no row, or that has no rows."""
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
    return Text(header, body)


def find_style(text: Text, file: Path, known: dict[bytes, CsvStyle]) -> CsvStyle | None:
    """How a file is written; None where it is not UTF-8 or its header cannot be used."""
    if text.header in known:
        return known[text.header]
    try:
        lines = (text.header + b"\n" + text.body).decode().split("\n", 101)[:100]
        separator, decimal = detect_style(lines)
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
        if name not in text and not parses_the_same(TableColumn(column, str(name), ""), starts):
            return None
    return frame


def parses_the_same(cells: TableColumn, starts: np.ndarray) -> bool:
    """Whether a column of joined files is what each file by itself would give.

    Whole numbers that became floats must be exact. Text must be text in every file that has any
    cell: with numbers or booleans alone it would be read as such.
    """
    if cells.numpy_values is not None:
        return (
            cells.numpy_values.dtype.kind != "f"
            or not (np.abs(cells.numpy_values) >= MAX_EXACT_INT).any()
        )
    numbers, different = cells.factorized
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
