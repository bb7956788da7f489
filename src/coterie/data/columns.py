"""One column of a table: Arrow cells as numbers, dates or text.

A `TableColumn` has an Arrow array of numbers, booleans, dates or text. Each representation
(numbers, text codes, days) is computed on first use and cached. Text has few distinct values, so
only these are parsed. A `ColumnView` selects some rows and shares the parsed values of the full
column.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.core.errors import CoterieError, Option
from coterie.data.dates import parse_days

CellKind = Literal["number", "category", "date", "empty"]
ArrowColumn: TypeAlias = pa.Array | pa.ChunkedArray
ColumnReader = Callable[[], ArrowColumn]
INTEGER_WITH_ZEROS = re.compile(r"[+-]?\d+\.0+")  # spreadsheets write integer codes as 1.0
DECIMAL_COMMA = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")  # 1,5 or 1.000,5
NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
INFINITY = r"(?i)^\s*[+-]?inf(inity)?\s*$"
MAX_CATEGORIES = 50
MAX_EXACT_INT = 2**53  # float64 represents every integer up to here
MAX_MAGNITUDE = 1e100  # larger numbers are rejected: their squares may overflow


# ------------------------------------------------------------------------------ constants
def numbers_to_arrow(values: np.ndarray) -> pa.Array:
    """Convert numbers to Arrow; `pa.array` and `pa.scalar` would import pandas, with 90 MB."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def texts_to_arrow(texts: Sequence[str]) -> pa.Array:
    """Convert texts to Arrow, without pandas."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def to_numpy(array: pa.Array) -> np.ndarray:
    """Convert numbers or booleans without nulls to NumPy, without pandas and without a copy."""
    if pa.types.is_boolean(array.type):
        return to_numpy(pc.cast(array, pa.uint8())).view(bool)
    dtype = np.dtype({"double": "float64"}.get(str(array.type), str(array.type)))
    if not len(array):
        return np.zeros(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def to_days(times: pa.Array) -> np.ndarray:
    """Convert Arrow dates to fractional days since 1970-01-01 UTC: float64, NaN if missing."""
    kind = pa.timestamp("us", getattr(times.type, "tz", None))
    micros = pc.cast(pc.cast(times, kind, safe=False), pa.int64())
    days = pc.divide(pc.cast(micros, pa.float64(), safe=False), MICROSECONDS_PER_DAY)
    return to_numpy(pc.fill_null(days, NAN))


NO_TEXT = pa.nulls(1, pa.string())[0]
NO_NUMBER = pa.nulls(1, pa.float64())[0]
NAN = numbers_to_arrow(np.array([np.nan]))[0]
MICROSECONDS_PER_DAY = numbers_to_arrow(np.array([86_400e6]))[0]
ZERO = numbers_to_arrow(np.zeros(1, dtype=np.int8))[0]
MINUS_ONE = numbers_to_arrow(np.array([-1], dtype=np.int32))[0]


# ------------------------------------------------------------------------------ text
def to_nfc(text: str) -> str:
    """Normalise to Unicode NFC, so that both encodings of é give the same name."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text)


def to_text(cell: Any) -> str:
    """Convert a cell to text; 1 and 1.0 give "1", so that they are the same category."""
    if isinstance(cell, str):
        if INTEGER_WITH_ZEROS.fullmatch(cell):
            return cell.partition(".")[0]
        return to_nfc(cell)
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return to_nfc(str(cell))


def parse_numbers(texts: pa.Array) -> np.ndarray:
    """Parse texts as float64, NaN for those that are not numbers; "inf" is infinite."""
    is_number = pc.or_(
        pc.match_substring_regex(texts, NUMBER), pc.match_substring_regex(texts, INFINITY)
    )
    trimmed = pc.utf8_trim_whitespace(texts)
    numbers = pc.cast(pc.if_else(is_number, trimmed, NO_TEXT), pa.float64())
    return to_numpy(pc.fill_null(numbers, NAN))


# ------------------------------------------------------------------------------ Arrow types
def simplify(array: ArrowColumn) -> pa.Array | None:
    """Return cells as one array of int64, uint64, float64, bool, text codes, dates or nulls.

    None: the cells are of another type, such as lists.
    """
    of = pa.types
    kind = array.type
    if of.is_null(kind):
        array = pc.cast(array, pa.float64())
    elif of.is_dictionary(kind):
        array = pc.cast(array, kind.value_type)
        return simplify(array)
    elif of.is_unsigned_integer(kind):
        array = pc.cast(array, pa.uint64())
    elif of.is_integer(kind):
        array = pc.cast(array, pa.int64())
    elif of.is_floating(kind) or of.is_decimal(kind):
        array = pc.cast(array, pa.float64())
    elif of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind):
        array = array.dictionary_encode()
    elif of.is_time(kind):
        array = pc.cast(array, pa.string()).dictionary_encode()
    elif not (of.is_boolean(kind) or of.is_date(kind) or of.is_timestamp(kind)):
        return None
    if isinstance(array, pa.ChunkedArray):
        array = array.unify_dictionaries().combine_chunks()
    return array


class TableColumn:
    """One column of a table, with cached representations of its cells.

    Args:
        read: Returns the cells; it is called on first use.
        name: The name of the column, in Unicode NFC.
        where: Names the table in error messages, such as "client 'north'".
        rows: Number of rows.
        on_disk: Whether `release` frees the cells, which are then read again.
    """

    def __init__(
        self, read: ColumnReader, name: str, where: str, rows: int, on_disk: bool = False
    ) -> None:
        self.read = read
        self.name = name
        self.where = where
        self.num_rows = rows
        self.on_disk = on_disk

    def __len__(self) -> int:
        return self.num_rows

    def release(self) -> None:
        """Free cells that can be read again from disk, and everything parsed from them."""
        if self.on_disk:
            for name in list(vars(self)):
                if isinstance(getattr(type(self), name, None), cached_property):
                    del vars(self)[name]

    def row_number(self, row: int) -> int:
        """Return the row number for error messages, counted from 1."""
        return row + 1

    # -- cells
    @cached_property
    def simplified(self) -> tuple[pa.Array | None, str]:
        """The cells, as `simplify` returns them, and what they hold if that is None."""
        raw = self.read()
        if pa.types.is_nested(raw.type):
            return None, "more than one value per cell"
        return simplify(raw), str(raw.type)

    @property
    def array(self) -> pa.Array:
        """The cells as one array; raises if they are of a type that cannot be used."""
        array, content = self.simplified
        if array is None:
            raise self.unsupported_error(content)
        return array

    @property
    def is_text(self) -> bool:
        """Whether the cells are text."""
        return bool(pa.types.is_dictionary(self.array.type))

    @property
    def is_datetime(self) -> bool:
        """Whether the cells are dates by their type."""
        return bool(pa.types.is_temporal(self.array.type))

    def cell(self, row: int) -> Any:
        """Return one cell as a Python object; None if it is missing."""
        return self.array[row].as_py()

    @cached_property
    def values(self) -> np.ndarray | None:
        """Numbers or booleans, [rows]; missing cells are 0, False or NaN. None for other types."""
        if self.is_text or self.is_datetime:
            return None
        if not self.array.null_count:
            return to_numpy(self.array)
        gap = NAN if pa.types.is_floating(self.array.type) else ZERO.cast(self.array.type)
        return to_numpy(pc.fill_null(self.array, gap))

    @cached_property
    def missing(self) -> np.ndarray:
        """bool [rows]: True for missing cells."""
        if self.values is not None and self.values.dtype.kind == "f":
            return np.isnan(self.values)
        if not self.array.null_count:
            return np.zeros(len(self), dtype=bool)
        return to_numpy(self.array.is_null())

    @cached_property
    def num_missing(self) -> int:
        """Number of missing cells."""
        return int(np.count_nonzero(self.missing))

    @cached_property
    def codes(self) -> np.ndarray:
        """int32 [rows], the index of each cell of text in `uniques`; −1 if it is missing."""
        return to_numpy(pc.fill_null(self.array.indices, MINUS_ONE))

    @property
    def uniques(self) -> pa.Array:
        """The distinct cells of text, as they are written."""
        return self.array.dictionary

    def map_uniques(self, values: np.ndarray) -> np.ndarray:
        """Map values of the distinct cells to all cells: float64 [rows], NaN for missing cells."""
        return np.append(values, np.nan)[self.codes]

    # -- numbers
    @cached_property
    def parsed(self) -> np.ndarray:
        """float64 [rows], NaN for cells that are missing or not numeric; booleans are 0 and 1."""
        if self.is_datetime:
            raise self.unsupported_error("dates")
        if self.values is None:
            return self.map_uniques(parse_numbers(self.uniques))
        numbers = self.values.astype(np.float64, copy=False)
        if self.num_missing and self.values.dtype.kind != "f":
            numbers[self.missing] = np.nan
        return numbers

    @cached_property
    def not_numeric(self) -> np.ndarray:
        """bool [rows]: True for cells that are neither missing nor numbers."""
        if self.values is not None:
            return np.zeros(len(self), dtype=bool)
        return np.isnan(self.parsed) & ~self.missing

    @cached_property
    def all_valid(self) -> bool:
        """Whether every cell is missing or a number up to `MAX_MAGNITUDE`."""
        return not self.is_datetime and not self.invalid.any()

    @cached_property
    def invalid(self) -> np.ndarray:
        """bool [rows]: `not_numeric`, or a number above `MAX_MAGNITUDE`."""
        return self.not_numeric | (np.abs(self.parsed) > MAX_MAGNITUDE)

    @property
    def is_boolean(self) -> bool:
        """Whether all cells are True, False or missing."""
        if self.num_missing == len(self):
            return True
        return self.values is not None and self.values.dtype.kind == "b"

    def require_numbers(self, remedy: str = "") -> np.ndarray:
        """Return the cells as numbers, or raise if a cell is not a finite number.

        Args:
            remedy: The advice of the error message; default: correct the cell.

        Returns:
            float64 [rows], NaN for missing cells.
        """
        if self.invalid.any():
            raise self._number_error(int(self.invalid.argmax()), remedy)
        return self.parsed

    # -- categories
    @cached_property
    def text_codes(self) -> tuple[np.ndarray, list[str]]:
        """The cells as categories.

        Returns:
            Codes, int32 [rows], −1 for missing cells; and the distinct texts.
        """
        codes, uniques = self._encode_values()
        texts = list(map(to_text, uniques))
        place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        lookup = np.array([*(place[text] for text in texts), -1], dtype=np.int32)
        return lookup[codes], list(place)

    def _encode_values(self) -> tuple[np.ndarray, Iterable[Any]]:
        """Return codes and distinct cells of any type."""
        if self.is_text:
            return self.codes, self.uniques.to_pylist()
        array = self.array
        if pa.types.is_floating(array.type):  # NaN is missing, too
            array = pc.if_else(pc.is_nan(array), NO_NUMBER, array)
        encoded = array.dictionary_encode()
        codes = to_numpy(pc.fill_null(encoded.indices, MINUS_ONE))
        return codes, encoded.dictionary.to_pylist()

    def count_texts(self) -> dict[str, int]:
        """Return the number of cells of each text, in order of appearance."""
        codes, texts = self.text_codes
        counts = np.bincount(codes[codes >= 0], minlength=len(texts)).tolist()
        return {text: count for text, count in zip(texts, counts) if count}

    def spellings(self) -> dict[str, int]:
        """Return the distinct cells of text as they are written, and the first row of each."""
        if not self.is_text:
            return {}
        present, rows = np.unique(self.codes, return_index=True)
        texts = self.uniques.to_pylist()
        first = {
            texts[code]: row for code, row in zip(present.tolist(), rows.tolist()) if code >= 0
        }
        return dict(sorted(first.items(), key=lambda item: item[1]))

    # -- dates
    @cached_property
    def days(self) -> np.ndarray:
        """float64 [rows]: days since 1970-01-01, NaN for cells that are missing or not dates."""
        if self.is_datetime:
            return to_days(self.array)
        if self.values is not None:
            return np.full(len(self), np.nan)
        return self.map_uniques(parse_days(self.uniques.to_pylist()))

    def require_days(self) -> np.ndarray:
        """Return the cells as days since 1970-01-01, or raise if a cell is not a date.

        Returns:
            float64 [rows], NaN for missing cells.
        """
        wrong = np.isnan(self.days) & ~self.missing
        if wrong.any():
            row = int(wrong.argmax())
            raise CoterieError(
                f"the column {self.name} of {self.where} has {str(self.cell(row))!r} in data "
                f"row {self.row_number(row)}, which is not a date",
                "write dates such as 2026-01-31 or 31.1.2026",
                where=self.name,
            )
        return self.days

    # -- the kind of a column
    @cached_property
    def kind(self) -> CellKind:
        """The kind of the column, inferred from its cells.

        A column is text or dates if more than half of its cells are not numbers. Fewer such cells
        are treated as mistakes.

        Raises:
            CoterieError: If some cells of a column of numbers are not numbers.
        """
        present = len(self) - self.num_missing
        if not present:
            return "empty"
        if self.is_datetime:
            return "date"
        if 2 * np.count_nonzero(self.not_numeric) > present:
            first = str(self.cell(int(self.not_numeric.argmax())))
            if not DECIMAL_COMMA.fullmatch(first):
                is_date = not np.isnan(self.days[~self.missing]).any()
                return "date" if is_date else "category"
        self.require_numbers()
        return "number"

    # -- errors
    def require_exact(self) -> None:
        """Raise if floats hold ids above 2^53: rounding may have made two of them equal."""
        if self.values is None or self.values.dtype.kind != "f":
            return
        present = self.values[~self.missing]
        if len(present) and np.abs(present).max() >= MAX_EXACT_INT:
            place = f" of {self.where}" if self.where else ""
            raise CoterieError(
                f"the column {self.name}{place} has ids above 2^53 that are stored as "
                "floats, which lose their last digits",
                "store them as text or integers",
                where=self.name,
            )

    def require_complete(
        self, remedy: str, options: Sequence[Option] = (), role: str = "column"
    ) -> None:
        """Raise if cells are missing.

        Args:
            remedy: The advice of the error message; each `{}` stands for an option.
            options: The options of the advice.
            role: What the message calls the column, such as "label column".
        """
        if self.num_missing:
            place = f" of {self.where}" if self.where else ""
            gaps = f"{self.num_missing} missing values in {len(self)} rows"
            raise CoterieError(
                f"the {role} {self.name}{place} has {gaps}",
                remedy,
                options=options,
                where=self.name,
            )

    def unsupported_error(self, content: str) -> CoterieError:
        """Return an error for a column whose cells are neither numbers nor text."""
        return CoterieError(
            f"the column {self.name} of {self.where} holds {content}",
            "convert it to numbers, or drop it with {}",
            options=[Option("drop", self.name, of_data=True)],
            where=self.name,
        )

    def _number_error(self, row: int, remedy: str) -> CoterieError:
        """Return an error for a cell that is not a number."""
        value = str(self.cell(row))
        shown = value if len(value) <= 40 else f"{value[:37]}..."
        options = []
        fault = "not a number"
        if not self.not_numeric[row]:
            fault = f"not a number between -{MAX_MAGNITUDE:g} and {MAX_MAGNITUDE:g}"
        if DECIMAL_COMMA.fullmatch(value):
            remedy = "write numbers with a decimal point and without thousands separators"
        elif not remedy:
            remedy = "correct or clear the cell"
            if len(self.count_texts()) <= MAX_CATEGORIES:
                remedy += ", or read the column as text with {}"
                options.append(Option("categories", self.name, of_data=True))
        return CoterieError(
            f"the column {self.name} of {self.where} has {shown!r} in data row "
            f"{self.row_number(row)}, which is {fault}",
            remedy,
            options=options,
            where=self.name,
        )


# ------------------------------------------------------------------------------ some rows
Rows = slice | np.ndarray  # rows of a table: start to stop, or row numbers


def count_rows(rows: Rows) -> int:
    """Return the number of selected rows."""
    if isinstance(rows, slice):
        return int(rows.stop - rows.start)
    return len(rows)


class ColumnView(TableColumn):
    """Some rows of a column. Cells are parsed in the full column, once for all its views.

    Slices of the full column's arrays are not cached, so that views hold no copy of the column.

    Args:
        whole: The full column.
        rows: The selected rows.
        where: Names the table of these rows in error messages.
        renumber: Error messages count rows from 1 in the view, not as in the full column.
    """

    def __init__(self, whole: TableColumn, rows: Rows, where: str, renumber: bool) -> None:
        self.whole = whole
        self.rows = rows
        self.name = whole.name
        self.where = where
        self.renumber = renumber

    def __len__(self) -> int:
        return count_rows(self.rows)

    def row_number(self, row: int) -> int:
        if self.renumber:
            return row + 1
        return self.whole.row_number(self._row_of_whole(row))

    def cell(self, row: int) -> Any:
        return self.whole.cell(self._row_of_whole(row))

    def _row_of_whole(self, row: int) -> int:
        if isinstance(self.rows, slice):
            return int(self.rows.start) + row
        return int(self.rows[row])

    @property
    def simplified(self) -> tuple[pa.Array | None, str]:
        return self.whole.simplified

    @cached_property
    def usable(self) -> TableColumn:
        """The full column; raises an error that names this table if its type cannot be used."""
        _ = self.array
        return self.whole

    @property
    def codes(self) -> np.ndarray:
        return self.usable.codes[self.rows]

    @property
    def values(self) -> np.ndarray | None:
        values = self.usable.values
        return None if values is None else values[self.rows]

    @property
    def missing(self) -> np.ndarray:
        return self.usable.missing[self.rows]

    @cached_property
    def num_missing(self) -> int:
        if not self.usable.num_missing:
            return 0
        return int(np.count_nonzero(self.missing))

    @property
    def parsed(self) -> np.ndarray:
        return self.usable.parsed[self.rows]

    @property
    def not_numeric(self) -> np.ndarray:
        return self.usable.not_numeric[self.rows]

    @property
    def invalid(self) -> np.ndarray:
        return self.usable.invalid[self.rows]

    @cached_property
    def kind(self) -> CellKind:
        if not self.usable.all_valid:
            return super().kind
        if self.num_missing == len(self):
            return "empty"
        return "number"

    def require_numbers(self, remedy: str = "") -> np.ndarray:
        if self.whole.all_valid:
            return self.parsed
        return super().require_numbers(remedy)

    @property
    def text_codes(self) -> tuple[np.ndarray, list[str]]:
        codes, texts = self.usable.text_codes
        return codes[self.rows], texts

    @property
    def days(self) -> np.ndarray:
        return self.usable.days[self.rows]
