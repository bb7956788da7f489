"""One column of a table, read as numbers, dates or text; each cell is parsed once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.core.errors import CoterieError, Option
from coterie.data.dates import datetimes_to_days, parse_days

if TYPE_CHECKING:
    import pandas as pd

INTEGER_WITH_ZEROS = re.compile(r"[+-]?\d+\.0+")  # as spreadsheets write codes


def parse_numbers(cells: np.ndarray) -> np.ndarray:
    """The number of each of these different cells, NaN where there is none."""
    import pandas as pd

    numbers: np.ndarray = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    return numbers


def is_text_type(dtype: Any) -> bool:
    """Whether pandas promises that a column of this type holds texts alone."""
    import pandas as pd

    return isinstance(dtype, pd.StringDtype)


def to_text(cell: Any) -> str:
    """One cell as text; a whole number has no point, so that 1 and 1.0 are the same category."""
    if isinstance(cell, str):
        if INTEGER_WITH_ZEROS.fullmatch(cell):
            return cell.partition(".")[0]
        return to_nfc(cell)
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return to_nfc(str(cell))


def to_nfc(text: str) -> str:
    """Normalise to Unicode NFC, so that an é typed in two ways is one name."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text)


CellKind = Literal["number", "category", "date", "empty"]
DECIMAL_COMMA = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")  # as much of the world writes 1.5 and 1000.5
MAX_CATEGORIES = 50
MAX_EXACT_INT = 2**53  # float64 holds every whole number up to here
MAX_MAGNITUDE = 1e100  # the square of a number must be finite, too


class TableColumn:
    """One column of a table. Each reading of it is made when it is first asked for, and kept."""

    def __init__(self, column: pd.Series, name: str, where: str) -> None:
        self.column = column
        self.name = name
        self.where = where

    def __len__(self) -> int:
        return len(self.column)

    def row_number(self, row: int) -> int:
        """The number of a row in errors, from 1."""
        return row + 1

    def release(self) -> None:
        """Give up the memory of what can be read again from disk: of a DataFrame, nothing."""

    @cached_property
    def numpy_values(self) -> np.ndarray | None:
        """The cells where they are numbers or booleans of NumPy, else None."""
        dtype = self.column.dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "iufb":
            return self.column.to_numpy()
        return None

    @cached_property
    def objects(self) -> np.ndarray:
        """The cells as Python objects."""
        return self.column.to_numpy(dtype=object)

    def cell(self, row: int) -> Any:
        """One cell as a Python object."""
        if self.numpy_values is not None:
            return self.numpy_values[row].item()
        return self.column.iloc[row]

    @cached_property
    def missing(self) -> np.ndarray:
        """bool [rows]: which cells are empty."""
        if self.numpy_values is None:
            return np.asarray(self.column.array.isna())
        if self.numpy_values.dtype.kind == "f":
            return np.isnan(self.numpy_values)
        return np.zeros(len(self.numpy_values), dtype=bool)

    @cached_property
    def num_missing(self) -> int:
        """The number of empty cells."""
        return int(np.count_nonzero(self.missing))

    @cached_property
    def factorized(self) -> tuple[np.ndarray, np.ndarray]:
        """(the number of each cell among the different ones, −1 if it is empty; these as objects)

        Columns of text have few different cells. To read each of them once is what makes it fast.
        """
        import pandas as pd

        try:
            numbers, different = pd.factorize(self.column.array)
        except TypeError:  # lists and the like
            raise self.unsupported_error("more than one value per cell") from None
        return numbers.astype(np.int32), np.asarray(different, dtype=object)

    def map_uniques(self, values: Iterable[float]) -> np.ndarray:
        """float64 [rows]: each cell's value, given those of the different cells; NaN if empty."""
        numbers, _ = self.factorized
        return np.array([*values, np.nan], dtype=np.float64)[numbers]

    @cached_property
    def parsed(self) -> np.ndarray:
        """float64 [rows], NaN where there is no number; booleans are 0 and 1."""
        return self.parse()

    def parse(self) -> np.ndarray:
        """Read the cells as numbers, for `parsed`."""
        if self.numpy_values is not None:
            return self.numpy_values.astype(np.float64, copy=False)
        if self.column.dtype.kind in "mMc":  # times and complex numbers
            raise self.unsupported_error(str(self.column.dtype))
        _, different = self.factorized
        try:
            return self.map_uniques(parse_numbers(different))
        except TypeError:  # tuples and the like
            raise self.unsupported_error("more than one value per cell") from None
        except OverflowError:
            raise CoterieError(
                f"the column {self.name} of {self.where} has a number beyond all measure",
                "correct it",
                where=self.name,
            ) from None

    @cached_property
    def unparsable(self) -> bool:
        """Whether the cells cannot even be tried as numbers: times, lists and the like."""
        if self.numpy_values is not None:
            return False
        try:
            _ = self.parsed
        except CoterieError:
            return True
        return False

    @cached_property
    def all_valid(self) -> bool:
        """Whether every cell is empty or a number of a usable size."""
        if self.numpy_values is not None:
            return not (np.abs(self.numpy_values) > MAX_MAGNITUDE).any()
        return not self.unparsable and not self.invalid.any()

    @cached_property
    def text_codes(self) -> tuple[np.ndarray, list[str]]:
        """(the number of each cell's text, −1 if it is empty; the different texts)"""
        numbers, different = self.text_sources()
        texts = list(map(to_text, different))
        place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        lookup = np.array([*(place[text] for text in texts), -1], dtype=np.int32)
        return lookup[numbers], list(place)

    def text_sources(self) -> tuple[np.ndarray, Iterable[Any]]:
        """As `different`, but cells that are equal and no texts, as 1 and True, stay apart."""
        if self.numpy_values is not None:
            import pandas as pd

            numbers, different = pd.factorize(self.numpy_values)
            return numbers, different.tolist()
        if is_text_type(self.column.dtype):
            return self.factorized
        present = self.objects[~self.missing]
        if all(isinstance(cell, str) for cell in present):
            return self.factorized
        numbers = np.full(len(self), -1)
        numbers[~self.missing] = np.arange(len(present))
        return numbers, present.tolist()

    @cached_property
    def texts(self) -> list[str]:
        """Every cell as text, "nan" where it is empty."""
        numbers, names = self.text_codes
        padded = [*names, "nan"]
        return [padded[number] for number in numbers.tolist()]

    @cached_property
    def days(self) -> np.ndarray:
        """float64 [rows]: days from 1970-01-01, NaN where there is no date."""
        if self.is_datetime:
            return datetimes_to_days(self.column)
        if self.numpy_values is not None:
            return np.full(len(self), np.nan)
        _, different = self.factorized
        return self.map_uniques(parse_days(different))

    @property
    def is_datetime(self) -> bool:
        """Whether pandas holds the cells as points in time."""
        return self.column.dtype.kind == "M"

    @cached_property
    def kind(self) -> CellKind:
        """What the column holds; some text among numbers is a mistake, not a category."""
        present = len(self) - self.num_missing
        if not present:
            return "empty"
        if self.is_datetime:
            return "date"
        if 2 * np.count_nonzero(self.not_numeric) > present:
            first = str(self.cell(int(self.not_numeric.argmax())))
            if not DECIMAL_COMMA.fullmatch(first):
                return self._date_or_category()
        self.require_numbers()
        return "number"

    def _date_or_category(self) -> CellKind:
        """A column with a cell that is neither empty nor a date is text."""
        if np.isnan(self.days[~self.missing]).any():
            return "category"
        return "date"

    @property
    def is_boolean(self) -> bool:
        """Whether all cells that are not empty are True or False."""
        if self.num_missing == len(self):
            return True
        if self.numpy_values is not None:
            return self.numpy_values.dtype.kind == "b"
        if not isinstance(self.cell(int((~self.missing).argmax())), bool):
            return False
        return all(isinstance(value, bool) for value in self.objects[~self.missing])

    @cached_property
    def not_numeric(self) -> np.ndarray:
        """bool [rows]: which cells are neither empty nor numbers."""
        if self.numpy_values is not None:
            return np.zeros(len(self), dtype=bool)
        return np.isnan(self.parsed) & ~self.missing

    @cached_property
    def invalid(self) -> np.ndarray:
        """bool [rows]: which cells are neither empty nor numbers of a usable size."""
        return self.not_numeric | (np.abs(self.parsed) > MAX_MAGNITUDE)

    def require_numbers(self, remedy: str = "") -> np.ndarray:
        """float64 [rows], NaN where cells are empty; text and infinite numbers are refused."""
        if self.invalid.any():
            raise self._number_error(int(self.invalid.argmax()), remedy)
        return self.parsed

    def require_days(self) -> np.ndarray:
        """float64 [rows]: days from 1970-01-01, NaN where cells are empty; others are refused."""
        wrong = np.isnan(self.days) & ~self.missing
        if wrong.any():
            row = int(wrong.argmax())
            raise CoterieError(
                f"the column {self.name} of {self.where} has {str(self.objects[row])!r} in data "
                f"row {self.row_number(row)}, where a date belongs",
                "write dates such as 2026-01-31 or 31.1.2026",
                where=self.name,
            )
        return self.days

    def require_exact(self) -> None:
        """Refuse whole numbers beyond 2^53 in floats: two names may have become one."""
        if self.numpy_values is None or self.numpy_values.dtype.kind != "f":
            return
        present = self.numpy_values[~self.missing]
        if len(present) and np.abs(present).max() >= MAX_EXACT_INT:
            place = f" of {self.where}" if self.where else ""
            raise CoterieError(
                f"the column {self.name}{place} names things by numbers above 2^53 that "
                "are stored as floats, so that their last digits are lost",
                "store them as text or whole numbers",
                where=self.name,
            )

    def unsupported_error(self, content: str) -> CoterieError:
        """An error for a column that holds neither numbers nor text."""
        return CoterieError(
            f"the column {self.name} of {self.where} holds {content}",
            "turn it into numbers, or drop it with {}",
            options=[Option("drop", self.name, of_data=True)],
            where=self.name,
        )

    def _number_error(self, row: int, remedy: str) -> CoterieError:
        """An error for the cell in this row."""
        value = str(self.objects[row])
        options = []
        if DECIMAL_COMMA.fullmatch(value):
            remedy = "write numbers with points, and without signs between thousands"
        elif not remedy:
            remedy = "correct or empty the cell"
            if self.column.nunique() <= MAX_CATEGORIES:
                remedy += ", or read the column as text with {}"
                options.append(Option("categories", self.name, of_data=True))
        return CoterieError(
            f"the column {self.name} of {self.where} has {value!r} in data row "
            f"{self.row_number(row)}, where a number belongs",
            remedy,
            options=options,
            where=self.name,
        )

    def require_complete(
        self, remedy: str, options: Sequence[Option] = (), role: str = "column"
    ) -> None:
        """Refuse empty cells; `role` says what the column is, as in "label column"."""
        if self.num_missing:
            place = f" of {self.where}" if self.where else ""
            gaps = f"{self.num_missing} missing values in {len(self)} rows"
            raise CoterieError(
                f"the {role} {self.name}{place} has {gaps}",
                remedy,
                options=options,
                where=self.name,
            )


Rows = slice | np.ndarray  # of a table: from start to stop, or their numbers


def count_rows(rows: Rows) -> int:
    """How many rows these are."""
    if isinstance(rows, slice):
        return int(rows.stop - rows.start)
    return len(rows)


class ColumnView(TableColumn):
    """Some rows of a column. What can be read of the whole column at once is read there.

    Only what is made anew is kept, so that a column is not held once more by the parts of it.
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
        numbers, different = self.whole.factorized
        return numbers[self.rows], different

    @property
    def parsed(self) -> np.ndarray:
        if self.whole.unparsable:
            return self._parsed_alone  # which is right or names this part in its error
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
        numbers, texts = self.whole.text_codes
        return numbers[self.rows], texts

    @property
    def days(self) -> np.ndarray:
        return self.whole.days[self.rows]

    @property
    def is_datetime(self) -> bool:
        return self.whole.is_datetime
