"""Some rows of a column, which is read as a whole."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.cells import HUGE, Cells, Form

if TYPE_CHECKING:
    import pandas as pd

Rows = slice | np.ndarray  # of a table: from start to stop, or their numbers


def count_rows(rows: Rows) -> int:
    """How many rows these are."""
    if isinstance(rows, slice):
        return int(rows.stop - rows.start)
    return len(rows)


class PartOfCells(Cells):
    """Some rows of a column. What can be read of the whole column at once is read there.

    Only what is made anew is kept, so that a column is not held once more by the parts of it.
    """

    def __init__(self, whole: Cells, rows: Rows, where: str, own_numbers: bool) -> None:
        self.whole = whole
        self.rows = rows
        self.name = whole.name
        self.where = where
        self.own_numbers = own_numbers

    def __len__(self) -> int:
        return count_rows(self.rows)

    def row_number(self, row: int) -> int:
        if self.own_numbers:
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
    def plain(self) -> np.ndarray | None:
        if self.whole.plain is None:
            return None
        return self.whole.plain[self.rows]

    @property
    def objects(self) -> np.ndarray:
        return self.whole.objects[self.rows]

    @property
    def missing(self) -> np.ndarray:
        return self.whole.missing[self.rows]

    @cached_property
    def empty_cells(self) -> int:
        if not self.whole.empty_cells:
            return 0
        return int(np.count_nonzero(self.missing))

    @property
    def different(self) -> tuple[np.ndarray, np.ndarray]:
        numbers, different = self.whole.different
        return numbers[self.rows], different

    @property
    def parsed(self) -> np.ndarray:
        if self.whole.unreadable:
            return self._parsed_alone  # which is right or names this part in its error
        if self.whole.plain is not None:
            return self.whole.plain[self.rows].astype(np.float64, copy=False)
        return self.whole.parsed[self.rows]

    @cached_property
    def _parsed_alone(self) -> np.ndarray:
        return Cells(self.column, self.name, self.where).parsed

    @property
    def strange(self) -> np.ndarray:
        if self.whole.unreadable:
            return np.isnan(self.parsed) & ~self.missing
        return self.whole.strange[self.rows]

    @property
    def bad(self) -> np.ndarray:
        return self.strange | (np.abs(self.parsed) > HUGE)

    @cached_property
    def form(self) -> Form:
        if not self.whole.clean:
            return super().form
        if self.empty_cells == len(self):
            return "empty"
        return "number"

    def numbers(self, remedy: str = "") -> np.ndarray:
        if self.whole.clean:
            return self.parsed
        return super().numbers(remedy)

    @property
    def coded(self) -> tuple[np.ndarray, list[str]]:
        numbers, texts = self.whole.coded
        return numbers[self.rows], texts

    @property
    def days(self) -> np.ndarray:
        return self.whole.days[self.rows]

    @property
    def is_time(self) -> bool:
        return self.whole.is_time
