"""A column of a table, whose cells are read as numbers, dates or text; each is parsed once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.data.dates import days_of_cells, days_of_times
from coterie.errors import CoterieError, Option

if TYPE_CHECKING:
    import pandas as pd

Form = Literal["number", "category", "date", "empty"]
DECIMAL_COMMA = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")  # as much of the world writes 1.5 and 1000.5
WHOLE_WITH_POINT = re.compile(r"[+-]?\d+\.0+")  # as spreadsheets write codes
MOST_CATEGORIES = 50
EXACT = 2**53  # float64 holds every whole number up to here
HUGE = 1e100  # the square of a number must be finite, too


class Cells:
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

    @cached_property
    def plain(self) -> np.ndarray | None:
        """The cells where they are numbers or booleans of NumPy, else None."""
        dtype = self.column.dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "iufb":
            return self.column.to_numpy()
        return None

    @cached_property
    def objects(self) -> np.ndarray:
        """The cells as Python objects."""
        return self.column.to_numpy(dtype=object)

    @cached_property
    def missing(self) -> np.ndarray:
        """bool [rows]: which cells are empty."""
        if self.plain is None:
            return np.asarray(self.column.array.isna())
        if self.plain.dtype.kind == "f":
            return np.isnan(self.plain)
        return np.zeros(len(self.plain), dtype=bool)

    @cached_property
    def empty_cells(self) -> int:
        """The number of empty cells."""
        return int(np.count_nonzero(self.missing))

    @cached_property
    def parsed(self) -> np.ndarray:
        """float64 [rows], NaN where there is no number; booleans are 0 and 1."""
        return self.parse()

    def parse(self) -> np.ndarray:
        """Read the cells as numbers, for `parsed`."""
        if self.plain is not None:
            return self.plain.astype(np.float64)
        if self.column.dtype.kind in "mMc":  # times and complex numbers
            raise self.unusable(str(self.column.dtype))
        try:
            number = parse_numbers(dict.fromkeys(self.objects[~self.missing]))
            number_or_nan = [number.get(cell, np.nan) for cell in self.objects]
        except TypeError:  # lists and the like
            raise self.unusable("more than one value per cell") from None
        except OverflowError:
            raise CoterieError(
                f"the column {self.name} of {self.where} has a number beyond all measure",
                "correct it",
                where=self.name,
            ) from None
        return np.array(number_or_nan, dtype=np.float64)

    @cached_property
    def unreadable(self) -> bool:
        """Whether the cells cannot even be tried as numbers: times, lists and the like."""
        try:
            _ = self.parsed
        except CoterieError:
            return True
        return False

    @cached_property
    def texts(self) -> list[str]:
        """Every cell as text."""
        return as_texts(self.objects)

    @cached_property
    def days(self) -> np.ndarray:
        """float64 [rows]: days from 1970-01-01, NaN where there is no date."""
        if self.is_time:
            return days_of_times(self.column)
        if self.plain is not None:
            return np.full(len(self), np.nan)
        try:
            day = days_of_cells(dict.fromkeys(self.objects[~self.missing]))
        except TypeError:  # lists and the like
            raise self.unusable("more than one value per cell") from None
        return np.array([day.get(cell, np.nan) for cell in self.objects])

    @property
    def is_time(self) -> bool:
        """Whether pandas holds the cells as points in time."""
        return self.column.dtype.kind == "M"

    @cached_property
    def form(self) -> Form:
        """What the column holds; some text among numbers is a mistake, not a category."""
        present = len(self) - self.empty_cells
        if not present:
            return "empty"
        if self.is_time:
            return "date"
        if 2 * np.count_nonzero(self.strange) > present:
            first = str(self.objects[self.strange.argmax()])
            if not DECIMAL_COMMA.fullmatch(first):
                return self._date_or_category()
        self.numbers()
        return "number"

    def _date_or_category(self) -> Form:
        """A column with a cell that is neither empty nor a date is text."""
        if np.isnan(self.days[~self.missing]).any():
            return "category"
        return "date"

    @property
    def boolean(self) -> bool:
        """Whether all cells that are not empty are True or False."""
        return all(isinstance(value, bool) for value in self.objects[~self.missing])

    @cached_property
    def strange(self) -> np.ndarray:
        """bool [rows]: which cells are neither empty nor numbers."""
        return np.isnan(self.parsed) & ~self.missing

    @cached_property
    def bad(self) -> np.ndarray:
        """bool [rows]: which cells are neither empty nor numbers of a usable size."""
        return self.strange | (np.abs(self.parsed) > HUGE)

    def numbers(self, remedy: str = "") -> np.ndarray:
        """float64 [rows], NaN where cells are empty; text and infinite numbers are refused."""
        if self.bad.any():
            raise self._not_a_number(int(self.bad.argmax()), remedy)
        return self.parsed

    def dates(self) -> np.ndarray:
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

    def refuse_rounded(self) -> None:
        """Refuse whole numbers beyond 2^53 in floats: two names may have become one."""
        if self.plain is None or self.plain.dtype.kind != "f":
            return
        present = self.plain[~self.missing]
        if len(present) and np.abs(present).max() >= EXACT:
            place = f" of {self.where}" if self.where else ""
            raise CoterieError(
                f"the column {self.name}{place} names things by numbers above 2^53 that "
                "are stored as floats, so that their last digits are lost",
                "store them as text or whole numbers",
                where=self.name,
            )

    def unusable(self, content: str) -> CoterieError:
        """An error for a column that holds neither numbers nor text."""
        return CoterieError(
            f"the column {self.name} of {self.where} holds {content}",
            "turn it into numbers, or drop it with {}",
            options=[Option("drop", self.name, of_data=True)],
            where=self.name,
        )

    def _not_a_number(self, row: int, remedy: str) -> CoterieError:
        """An error for the cell in this row."""
        value = str(self.objects[row])
        options = []
        if DECIMAL_COMMA.fullmatch(value):
            remedy = "write numbers with points, and without signs between thousands"
        elif not remedy:
            remedy = "correct or empty the cell"
            if self.column.nunique() <= MOST_CATEGORIES:
                remedy += ", or read the column as text with {}"
                options.append(Option("categories", self.name, of_data=True))
        return CoterieError(
            f"the column {self.name} of {self.where} has {value!r} in data row "
            f"{self.row_number(row)}, where a number belongs",
            remedy,
            options=options,
            where=self.name,
        )

    def refuse_missing(
        self, remedy: str, options: Sequence[Option] = (), role: str = "column"
    ) -> None:
        """Refuse empty cells; `role` says what the column is, as in "label column"."""
        if self.empty_cells:
            place = f" of {self.where}" if self.where else ""
            gaps = f"{self.empty_cells} missing values in {len(self)} rows"
            raise CoterieError(
                f"the {role} {self.name}{place} has {gaps}",
                remedy,
                options=options,
                where=self.name,
            )


def parse_numbers(cells: Iterable[Any]) -> dict[Any, float]:
    """The number of each of these different cells, NaN where there is none.

    Columns of text have few different cells. To parse each of them once is what makes it fast.
    """
    import pandas as pd

    different = np.fromiter(cells, dtype=object)
    numbers = pd.to_numeric(different, errors="coerce").astype(np.float64)
    return dict(zip(different, numbers))


def as_texts(cells: Iterable[Any]) -> list[str]:
    """Cells as text; a whole number has no point, so that 1 and 1.0 are the same category."""
    return [as_text(cell) for cell in cells]


def as_text(cell: Any) -> str:
    """One cell as text."""
    if isinstance(cell, str):
        if WHOLE_WITH_POINT.fullmatch(cell):
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
