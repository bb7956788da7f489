"""One column of a table, parsed as numbers, dates or text.

A `TableColumn` wraps a pandas Series. Each representation (numbers, text codes, days) is computed
on first use and cached. Columns of text have few distinct values, so only the distinct values are
parsed. A `ColumnView` selects some rows and shares the parsed values of the full column.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.core.errors import CoterieError, Option
from coterie.data.dates import datetimes_to_days, parse_days

if TYPE_CHECKING:
    import pandas as pd

INTEGER_WITH_ZEROS = re.compile(r"[+-]?\d+\.0+")  # spreadsheets write integer codes as 1.0


def parse_numbers(cells: np.ndarray) -> np.ndarray:
    """Parse distinct cells as float64, NaN for cells that are not numbers."""
    import pandas as pd

    numbers: np.ndarray = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    return numbers


def to_text(cell: Any) -> str:
    """Convert a cell to text; 1 and 1.0 give "1", so that they are the same category."""
    if isinstance(cell, str):
        if INTEGER_WITH_ZEROS.fullmatch(cell):
            return cell.partition(".")[0]
        return to_nfc(cell)
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return to_nfc(str(cell))


def to_nfc(text: str) -> str:
    """Normalise to Unicode NFC, so that both encodings of é give the same name."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text)


CellKind = Literal["number", "category", "date", "empty"]
DECIMAL_COMMA = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")  # 1,5 or 1.000,5
MAX_CATEGORIES = 50
MAX_EXACT_INT = 2**53  # float64 represents every integer up to here
MAX_MAGNITUDE = 1e100  # larger numbers are rejected: their squares may overflow


class TableColumn:
    """One column of a table, with cached representations of its cells.

    Args:
        column: The cells.
        name: The name of the column, in Unicode NFC.
        where: Names the table in error messages, such as "client 'north'".
    """

    def __init__(self, column: pd.Series, name: str, where: str) -> None:
        self.column = column
        self.name = name
        self.where = where

    def __len__(self) -> int:
        return len(self.column)

    def row_number(self, row: int) -> int:
        """Return the row number for error messages, counted from 1."""
        return row + 1

    def release(self) -> None:
        """Free memory that can be read again from disk; does nothing for a DataFrame."""

    @cached_property
    def numpy_values(self) -> np.ndarray | None:
        """The cells as a NumPy array of numbers or booleans; None for other dtypes."""
        dtype = self.column.dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "iufb":
            return self.column.to_numpy()
        return None

    @cached_property
    def objects(self) -> np.ndarray:
        """The cells as Python objects."""
        return self.column.to_numpy(dtype=object)

    def cell(self, row: int) -> Any:
        """Return one cell as a Python object."""
        if self.numpy_values is not None:
            return self.numpy_values[row].item()
        return self.column.iloc[row]

    @cached_property
    def missing(self) -> np.ndarray:
        """bool [rows]: True for missing cells."""
        if self.numpy_values is None:
            return np.asarray(self.column.array.isna())
        if self.numpy_values.dtype.kind == "f":
            return np.isnan(self.numpy_values)
        return np.zeros(len(self.numpy_values), dtype=bool)

    @cached_property
    def num_missing(self) -> int:
        """Number of missing cells."""
        return int(np.count_nonzero(self.missing))

    @cached_property
    def factorized(self) -> tuple[np.ndarray, np.ndarray]:
        """The codes and distinct values of `pandas.factorize`.

        Columns of text have few distinct values; parsing each of them once makes reading fast.

        Returns:
            Codes, int32 [rows], −1 for missing cells; and the distinct values, object [values].
        """
        import pandas as pd

        try:
            codes, uniques = pd.factorize(self.column.array)
        except TypeError:  # lists and the like
            raise self.unsupported_error("more than one value per cell") from None
        return codes.astype(np.int32), np.asarray(uniques, dtype=object)

    def map_uniques(self, values: Iterable[float]) -> np.ndarray:
        """Map values of the distinct cells to all cells: float64 [rows], NaN for missing cells."""
        codes, _ = self.factorized
        return np.array([*values, np.nan], dtype=np.float64)[codes]

    @cached_property
    def parsed(self) -> np.ndarray:
        """float64 [rows], NaN for cells that are missing or not numeric; booleans are 0 and 1."""
        return self.parse()

    def parse(self) -> np.ndarray:
        """Compute `parsed`, or raise if the dtype cannot hold numbers."""
        if self.numpy_values is not None:
            return self.numpy_values.astype(np.float64, copy=False)
        if self.column.dtype.kind in "mMc":  # datetimes and complex numbers
            raise self.unsupported_error(str(self.column.dtype))
        _, uniques = self.factorized
        try:
            return self.map_uniques(parse_numbers(uniques))
        except TypeError:  # tuples and the like
            raise self.unsupported_error("more than one value per cell") from None
        except OverflowError:
            raise CoterieError(
                f"the column {self.name} of {self.where} contains a number too large for float64",
                "correct it",
                where=self.name,
            ) from None

    @cached_property
    def unparsable(self) -> bool:
        """Whether the dtype cannot be parsed as numbers, as for datetimes and lists."""
        if self.numpy_values is not None:
            return False
        try:
            _ = self.parsed
        except CoterieError:
            return True
        return False

    @cached_property
    def all_valid(self) -> bool:
        """Whether every cell is missing or a number up to `MAX_MAGNITUDE`."""
        if self.numpy_values is not None:
            return not (np.abs(self.numpy_values) > MAX_MAGNITUDE).any()
        return not self.unparsable and not self.invalid.any()

    @cached_property
    def text_codes(self) -> tuple[np.ndarray, list[str]]:
        """The cells as categories.

        Returns:
            Codes, int32 [rows], −1 for missing cells; and the distinct texts.
        """
        codes, uniques = self._factorize_text()
        texts = list(map(to_text, uniques))
        place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        lookup = np.array([*(place[text] for text in texts), -1], dtype=np.int32)
        return lookup[codes], list(place)

    def _factorize_text(self) -> tuple[np.ndarray, Iterable[Any]]:
        """Factorise, but distinguish equal cells with different text, such as 1 and True."""
        import pandas as pd

        if self.numpy_values is not None:
            codes, uniques = pd.factorize(self.numpy_values)
            return codes, uniques.tolist()
        if isinstance(self.column.dtype, pd.StringDtype):
            return self.factorized
        present = self.objects[~self.missing]
        if all(isinstance(cell, str) for cell in present):
            return self.factorized
        codes = np.full(len(self), -1)
        codes[~self.missing] = np.arange(len(present))
        return codes, present.tolist()

    def spellings(self) -> dict[str, int]:
        """Return the distinct cells of text as they are written, and the first row of each."""
        if self.numpy_values is not None:
            return {}
        codes, uniques = self._factorize_text()
        present, rows = np.unique(codes, return_index=True)
        cells = list(uniques)
        first: dict[str, int] = {}
        for code, row in sorted(zip(present.tolist(), rows.tolist()), key=itemgetter(1)):
            if code >= 0:
                first.setdefault(str(cells[code]), row)
        return first

    @cached_property
    def texts(self) -> list[str]:
        """Every cell as text, "nan" for missing cells."""
        codes, names = self.text_codes
        padded = [*names, "nan"]
        return [padded[code] for code in codes.tolist()]

    @cached_property
    def days(self) -> np.ndarray:
        """float64 [rows]: days since 1970-01-01, NaN for cells that are missing or not dates."""
        if self.is_datetime:
            return datetimes_to_days(self.column)
        if self.numpy_values is not None:
            return np.full(len(self), np.nan)
        _, uniques = self.factorized
        return self.map_uniques(parse_days(uniques))

    @property
    def is_datetime(self) -> bool:
        """Whether the dtype is a datetime."""
        return self.column.dtype.kind == "M"

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

    @property
    def is_boolean(self) -> bool:
        """Whether all cells are True, False or missing."""
        if self.num_missing == len(self):
            return True
        if self.numpy_values is not None:
            return self.numpy_values.dtype.kind == "b"
        if not isinstance(self.cell(int((~self.missing).argmax())), bool):
            return False
        return all(isinstance(value, bool) for value in self.objects[~self.missing])

    @cached_property
    def not_numeric(self) -> np.ndarray:
        """bool [rows]: True for cells that are neither missing nor numbers."""
        if self.numpy_values is not None:
            return np.zeros(len(self), dtype=bool)
        return np.isnan(self.parsed) & ~self.missing

    @cached_property
    def invalid(self) -> np.ndarray:
        """bool [rows]: `not_numeric`, or a number above `MAX_MAGNITUDE`."""
        return self.not_numeric | (np.abs(self.parsed) > MAX_MAGNITUDE)

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

    def require_days(self) -> np.ndarray:
        """Return the cells as days since 1970-01-01, or raise if a cell is not a date.

        Returns:
            float64 [rows], NaN for missing cells.
        """
        wrong = np.isnan(self.days) & ~self.missing
        if wrong.any():
            row = int(wrong.argmax())
            raise CoterieError(
                f"the column {self.name} of {self.where} has {str(self.objects[row])!r} in data "
                f"row {self.row_number(row)}, which is not a date",
                "write dates such as 2026-01-31 or 31.1.2026",
                where=self.name,
            )
        return self.days

    def require_exact(self) -> None:
        """Raise if floats hold ids above 2^53: rounding may have made two of them equal."""
        if self.numpy_values is None or self.numpy_values.dtype.kind != "f":
            return
        present = self.numpy_values[~self.missing]
        if len(present) and np.abs(present).max() >= MAX_EXACT_INT:
            place = f" of {self.where}" if self.where else ""
            raise CoterieError(
                f"the column {self.name}{place} has ids above 2^53 that are stored as "
                "floats, which lose their last digits",
                "store them as text or integers",
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
        value = str(self.objects[row])
        options = []
        if DECIMAL_COMMA.fullmatch(value):
            remedy = "write numbers with a decimal point and without thousands separators"
        elif not remedy:
            remedy = "correct or clear the cell"
            if self.column.nunique() <= MAX_CATEGORIES:
                remedy += ", or read the column as text with {}"
                options.append(Option("categories", self.name, of_data=True))
        return CoterieError(
            f"the column {self.name} of {self.where} has {value!r} in data row "
            f"{self.row_number(row)}, which is not a number",
            remedy,
            options=options,
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
    def column(self) -> pd.Series:
        return self.whole.column.iloc[self.rows]

    @property
    def numpy_values(self) -> np.ndarray | None:
        if self.whole.numpy_values is None:
            return None
        return self.whole.numpy_values[self.rows]

    @property
    def objects(self) -> np.ndarray:
        return self.whole.objects[self.rows]

    @property
    def missing(self) -> np.ndarray:
        return self.whole.missing[self.rows]

    @cached_property
    def num_missing(self) -> int:
        if not self.whole.num_missing:
            return 0
        return int(np.count_nonzero(self.missing))

    @property
    def factorized(self) -> tuple[np.ndarray, np.ndarray]:
        codes, uniques = self.whole.factorized
        return codes[self.rows], uniques

    @property
    def parsed(self) -> np.ndarray:
        if self.whole.unparsable:
            return self._parsed_alone  # raises an error that names the table of these rows
        if self.whole.numpy_values is not None:
            return self.whole.numpy_values[self.rows].astype(np.float64, copy=False)
        return self.whole.parsed[self.rows]

    @cached_property
    def _parsed_alone(self) -> np.ndarray:
        return TableColumn(self.column, self.name, self.where).parsed

    @property
    def not_numeric(self) -> np.ndarray:
        if self.whole.unparsable:
            return np.isnan(self.parsed) & ~self.missing
        return self.whole.not_numeric[self.rows]

    @property
    def invalid(self) -> np.ndarray:
        return self.not_numeric | (np.abs(self.parsed) > MAX_MAGNITUDE)

    @cached_property
    def kind(self) -> CellKind:
        if not self.whole.all_valid:
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
        codes, texts = self.whole.text_codes
        return codes[self.rows], texts

    @property
    def days(self) -> np.ndarray:
        return self.whole.days[self.rows]

    @property
    def is_datetime(self) -> bool:
        return self.whole.is_datetime
