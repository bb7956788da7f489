"""CSV files: detect the style, parse large files in chunks and many small files together.

Every path gives the same cells as `pandas.read_csv` on the whole file. A large file is parsed in
chunks, which go to a temporary file (`ChunkFile`). Small files with the same header are joined
and parsed at once, if each of them would be parsed in the same way by itself.
"""

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

CHUNKED_ABOVE = 200_000_000  # bytes; larger CSV files are parsed in chunks
CHUNK_ROWS = 500_000


def read_csv(file: Path, text: Collection[str] = ()) -> pd.DataFrame | LazyFrame:
    """Read a CSV file that is separated by commas, semicolons or tabs.

    Args:
        file: The file, in UTF-8.
        text: Columns whose cells are read as text.

    Returns:
        A DataFrame, or a `LazyFrame` for a large file.

    Raises:
        CoterieError: If the file cannot be parsed.
    """
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
            f"the file {file} has rows with more values than its header has names", "fix the file"
        ) from None
    except (pd.errors.ParserError, csv.Error, OSError) as why:
        raise CoterieError(
            f"the file {file} cannot be read as CSV: {to_one_line(why)}", "fix the file"
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
    """Header, separator and decimal sign of a CSV file."""

    header: tuple[str, ...]  # names of the columns as written, with spaces
    separator: str
    decimal: str


def parse_cells(
    source: Path | BytesIO, style: CsvStyle, text: Collection[str], **options: Any
) -> Any:
    """Call `pandas.read_csv`; raise `ParserWarning` for rows with more values than the header."""
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


# ------------------------------------------------------------------------------ large files
def parse_in_chunks(file: Path, style: CsvStyle, text: set[str]) -> pd.DataFrame | LazyFrame:
    """Parse a large file chunk by chunk; the cells go to a temporary file.

    Each chunk has its own dtypes. A column with numbers in one chunk and text in another is text,
    as when the file is parsed at once: the file is then parsed again with this column as text. A
    file with cells of other types, such as integers above 2^63, is parsed at once.
    """
    rows = 0
    on_disk = ChunkFile()
    columns: dict[str, list[ColumnReader]] = {}
    kinds: dict[str, set[str]] = {}
    with parse_cells(file, style, text, chunksize=CHUNK_ROWS) as chunks:
        for chunk in chunks:
            rows += len(chunk)
            for name, cells in chunk.items():
                columns.setdefault(name, []).append(on_disk.write(cells))
                kinds.setdefault(name, set()).add(infer_chunk_kind(cells))
    if any("other" in of_column for of_column in kinds.values()):
        return parse_at_once(file, style, text)
    mixed = {name for name, of_column in kinds.items() if len(of_column - {""}) > 1}
    if mixed:
        return parse_in_chunks(file, style, text | {to_nfc(name.strip()) for name in mixed})
    readers = {name.strip(): partial(concat_chunks, parts) for name, parts in columns.items()}
    return LazyFrame(readers, rows)


def infer_chunk_kind(chunk: pd.Series) -> str:
    """Return "number", "string", "boolean" or "other"; "" if all cells are missing."""
    import pandas as pd

    if chunk.isna().all():
        return ""
    kind = pd.api.types.infer_dtype(chunk, skipna=True)
    if kind in ("integer", "floating") and chunk.dtype.kind in "if":
        return "number"
    return kind if kind in ("string", "boolean") else "other"


def concat_chunks(parts: list[ColumnReader]) -> pd.Series:
    """Concatenate the chunks of a column, which are of one kind."""
    import pandas as pd

    chunks = [read() for read in parts]
    dtypes = [chunk.dtype for chunk in chunks if infer_chunk_kind(chunk)]
    dtype = (dtypes or [chunks[0].dtype])[0]
    has_missing_booleans = dtype.kind == "b" and any(chunk.isna().any() for chunk in chunks)
    if has_missing_booleans or any(other != dtype and other.kind == "O" for other in dtypes):
        dtype = np.dtype(object)
    if dtype.kind not in "if":  # an empty chunk has an arbitrary dtype
        chunks = [chunk.astype(dtype) for chunk in chunks]
    return pd.concat(chunks, ignore_index=True)


# ------------------------------------------------------------------------------ header and style
def skip_blank_lines(lines: Iterable[str]) -> Iterator[str]:
    """Skip blank lines before the header, as pandas does."""
    return itertools.dropwhile(lambda line: not line.strip("\r\n"), lines)


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
    """Raise for names that pandas would change: empty and repeated ones."""
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


MAX_JOINED_BYTES = 20_000_000  # bytes of joined files that are parsed at once
BOOLEAN_TEXTS = {"true", "false"}  # pandas may read them as booleans


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
    header: bytes
    bodies: list[bytes]
    counts: dict[str, int]  # rows by client


def group_files(files: Mapping[str, Path]) -> Iterator[CsvGroup]:
    """Group the files that can be parsed together, up to a size; single files are omitted."""
    unfinished: dict[tuple[bytes, CsvStyle], CsvGroup] = {}
    styles: dict[bytes, CsvStyle] = {}
    for name, file in files.items():
        text = read_plain_csv(file)
        if text is None:
            continue
        style = find_style(text, file, styles)
        if style is None:
            continue
        key = (text.header, style)
        group = unfinished.setdefault(key, CsvGroup(style, text.header, [], {}))
        group.bodies.append(text.body)
        group.counts[name] = text.rows
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


def find_style(text: PlainCsv, file: Path, known: dict[bytes, CsvStyle]) -> CsvStyle | None:
    """Find the style of a file; None if it is not UTF-8 or its header is invalid."""
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
    if separator == ",":  # otherwise the decimal sign may differ between files
        known[text.header] = style
    return style


# ------------------------------------------------------------------------------ parsing
def parse_group(group: CsvGroup, text: Collection[str]) -> pd.DataFrame | None:
    """Parse the files of a group; None if one of them may be parsed differently by itself."""
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
    """Whether a column of joined files has the same cells as in the separate files.

    Integers that became floats must be exact. A column of text must have text in every file that
    has values, because a file with only numbers or booleans would be parsed as such.

    Args:
        cells: The column of the joined files.
        starts: The first row of each file, int [files].
    """
    if cells.numpy_values is not None:
        return (
            cells.numpy_values.dtype.kind != "f"
            or not (np.abs(cells.numpy_values) >= MAX_EXACT_INT).any()
        )
    codes, uniques = cells.factorized
    if not all(isinstance(cell, str) for cell in uniques):
        return False
    is_text = [*map(is_only_text, uniques, parse_numbers(uniques)), False]
    has_text = np.logical_or.reduceat(np.array(is_text)[codes], starts)
    is_empty = np.logical_and.reduceat(codes < 0, starts)
    return bool((has_text | is_empty).all())


def is_only_text(cell: str, number: float) -> bool:
    """Whether a cell can only be text; `number` is its parsed value, NaN if it is not a number."""
    is_number = not np.isnan(number) or DECIMAL_COMMA.fullmatch(cell) is not None
    return not is_number and cell.strip().lower() not in BOOLEAN_TEXTS
