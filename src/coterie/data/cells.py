"""A client's table, whose cells are read as numbers or as text; each column is parsed once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.errors import CoterieError, Option

if TYPE_CHECKING:
    import pandas as pd

Form = Literal["number", "category", "empty"]
DECIMAL_COMMA = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")  # as much of the world writes 1.5 and 1000.5
MOST_CATEGORIES = 50
HUGE = 1e100  # the square of a number must be finite, too


@dataclass(frozen=True)
class Table:
    """The columns of a client's table by name; `where` names the table in errors."""

    columns: dict[str, Cells]
    rows: int
    where: str

    @classmethod
    def of(cls, frame: pd.DataFrame, where: str) -> Table:
        """The table of a DataFrame; two columns of one name are refused."""
        columns: dict[str, Cells] = {}
        for raw_name, column in frame.items():
            name = to_nfc(str(raw_name))
            if name in columns:
                raise CoterieError(
                    f"{where} has more than one column {name}", "remove or rename one of them"
                )
            columns[name] = Cells(column, name, where)
        return cls(columns, len(frame), where)

    def without(self, names: Collection[str]) -> Table:
        """The same table, and what was parsed of it, without some columns."""
        left = {name: cells for name, cells in self.columns.items() if name not in names}
        return replace(self, columns=left)


class Cells:
    """One column of a table. Each reading of it is made when it is first asked for, and kept."""

    def __init__(self, column: pd.Series, name: str, where: str) -> None:
        self.column = column
        self.name = name
        self.where = where

    def __len__(self) -> int:
        return len(self.column)

    @cached_property
    def plain(self) -> np.ndarray | None:
        """The cells where they are numbers or booleans of NumPy, else None."""
        dtype = self.column.dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "iufb":
            return self.column.to_numpy()
        return None

    @cached_property
    def missing(self) -> np.ndarray:
        """bool [rows]: which cells are empty."""
        if self.plain is None:
            return self.column.isna().to_numpy()
        if self.plain.dtype.kind == "f":
            return np.isnan(self.plain)
        return np.zeros(len(self.plain), dtype=bool)

    @cached_property
    def parsed(self) -> np.ndarray:
        """float64 [rows], NaN where there is no number; booleans are 0 and 1."""
        if self.plain is not None:
            return self.plain.astype(np.float64)
        import pandas as pd

        column = self.column
        if column.dtype.kind in "mMc":  # times and complex numbers
            raise CoterieError(
                f"the column {self.name} of {self.where} holds {column.dtype}",
                "turn it into numbers, or drop it with {}",
                options=[Option("drop", self.name, of_data=True)],
                where=self.name,
            )
        if isinstance(column.dtype, pd.CategoricalDtype):
            column = column.astype(object)
        try:
            numbers = pd.to_numeric(column, errors="coerce")
            return numbers.to_numpy(dtype=np.float64, na_value=np.nan)
        except OverflowError:
            raise CoterieError(
                f"the column {self.name} of {self.where} has a number beyond all measure",
                "correct it",
                where=self.name,
            ) from None

    @cached_property
    def texts(self) -> list[str]:
        """Every cell as text."""
        return as_texts(self.column.tolist())

    @cached_property
    def form(self) -> Form:
        """What the column holds; some text among numbers is a mistake, not a category."""
        strange = np.isnan(self.parsed) & ~self.missing
        present = len(self) - int(self.missing.sum())
        if not present:
            return "empty"
        if 2 * strange.sum() > present:
            first = str(self.column.iloc[strange.argmax()])
            if not DECIMAL_COMMA.fullmatch(first):
                return "category"
        self.numbers()
        return "number"

    @property
    def boolean(self) -> bool:
        """Whether all cells that are not empty are True or False."""
        return all(isinstance(value, bool) for value in self.column.dropna().tolist())

    def numbers(self, remedy: str = "") -> np.ndarray:
        """float64 [rows], NaN where cells are empty; text and infinite numbers are refused."""
        bad = (np.isnan(self.parsed) & ~self.missing) | (np.abs(self.parsed) > HUGE)
        if bad.any():
            raise self._no_number(int(bad.argmax()), remedy)
        return self.parsed

    def _no_number(self, row: int, remedy: str) -> CoterieError:
        """An error for the cell in this row."""
        value = str(self.column.iloc[row])
        options = []
        if DECIMAL_COMMA.fullmatch(value):
            remedy = "write numbers with points, and without signs between thousands"
        elif not remedy:
            remedy = "correct or empty the cell"
            if self.column.nunique() <= MOST_CATEGORIES:
                remedy += ", or read the column as text with {}"
                options.append(Option("categories", self.name, of_data=True))
        return CoterieError(
            f"the column {self.name} of {self.where} has {value!r} in data row {row + 1}, "
            "where a number belongs",
            remedy,
            options=options,
            where=self.name,
        )

    def refuse_missing(
        self, remedy: str, options: Sequence[Option] = (), role: str = "column"
    ) -> None:
        """Refuse empty cells; `role` says what the column is, as in "label column"."""
        missing = int(self.missing.sum())
        if missing:
            place = f" of {self.where}" if self.where else ""
            raise CoterieError(
                f"the {role} {self.name}{place} has {missing} missing values in {len(self)} rows",
                remedy,
                options=options,
                where=self.name,
            )


def as_texts(cells: Iterable[Any]) -> list[str]:
    """Cells as text; a whole number has no point, so that 1 and 1.0 are the same category."""
    return [as_text(cell) for cell in cells]


def as_text(cell: Any) -> str:
    if isinstance(cell, str):
        return to_nfc(cell)
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return to_nfc(str(cell))


def to_nfc(text: str) -> str:
    """Normalise to Unicode NFC, so that an é typed in two ways is one name."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", text)
