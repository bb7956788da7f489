"""The columns of a table that is not held in memory: each is read when it is asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.cells import Cells, to_nfc

if TYPE_CHECKING:
    import pandas as pd

ReadColumn = Callable[[], "pd.Series"]


@dataclass(frozen=True)
class Columns:
    """A table whose columns are read one at a time, as often as they are asked for."""

    readers: Mapping[str, ReadColumn]  # by the names of the columns, in their order
    rows: int

    def __len__(self) -> int:
        return self.rows

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.readers)

    @property
    def empty(self) -> bool:
        """Whether there is no cell."""
        return not self.rows or not self.readers

    def frame(self) -> pd.DataFrame:
        """All columns in memory."""
        import pandas as pd

        return pd.DataFrame({name: read() for name, read in self.readers.items()}, copy=False)

    def cells(self, where: str) -> list[Cells]:
        """The columns, of which nothing is read yet; `where` names the table in errors."""
        return [
            CellsOnDisk(read, to_nfc(name), where, self.rows) for name, read in self.readers.items()
        ]


class CellsOnDisk(Cells):
    """One column of a table, which is in memory only from when it is used until `forget`."""

    def __init__(self, read: ReadColumn, name: str, where: str, rows: int) -> None:
        self.read = read
        self.name = name
        self.where = where
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    @cached_property
    def column(self) -> pd.Series:
        return self.read()

    def forget(self) -> None:
        """Give up the cells and all readings of them; what is asked for again is read again."""
        for name in list(vars(self)):
            if isinstance(getattr(type(self), name, None), cached_property):
                del vars(self)[name]


class PieceFile:
    """Pieces of columns in a temporary file, which has no name and ends with this object.

    It lies where `tempfile` puts files (TMPDIR). Where there is no room for a piece, it stays in
    memory. The file holds bare numbers. Of text it holds which cell is which, and each different
    cell of a piece is in memory once.
    """

    def __init__(self) -> None:
        self._end = 0
        try:
            self._file: Any = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        except OSError:
            self._file = None

    def put(self, piece: pd.Series) -> ReadColumn:
        """Write a piece; the function that reads it again."""
        import pandas as pd

        if isinstance(piece.dtype, np.dtype) and piece.dtype.kind in "biuf":
            return partial(_numbers_of, self._put_numbers(piece.to_numpy()), piece.name)
        numbers, different = pd.factorize(piece)
        read_which = self._put_numbers(numbers.astype(np.int32))
        different = pd.Series(different, dtype=piece.dtype).array
        return partial(_cells_of, read_which, different, piece.name)

    def _put_numbers(self, numbers: np.ndarray) -> Callable[[], np.ndarray]:
        """Write numbers; the function that reads them again."""
        data = numbers.tobytes()
        if not self._write(data):
            return lambda: numbers
        start = self._end
        self._end += len(data)
        return partial(self._get, start, len(data), numbers.dtype)

    def _write(self, data: bytes) -> bool:
        """Write at the end of the file; False if it does not fit."""
        if self._file is None:
            return False
        try:
            self._file.seek(self._end)
            return bool(self._file.write(data) == len(data))
        except OSError:
            return False

    def _get(self, start: int, size: int, dtype: np.dtype) -> np.ndarray:
        self._file.seek(start)
        return np.frombuffer(self._file.read(size), dtype)


def _numbers_of(read: Callable[[], np.ndarray], name: Any) -> pd.Series:
    """A column of numbers."""
    import pandas as pd

    return pd.Series(read(), name=name)


def _cells_of(which: Callable[[], np.ndarray], different: Any, name: Any) -> pd.Series:
    """A column of which each different cell is known; −1 is an empty one."""
    import pandas as pd

    return pd.Series(pd.api.extensions.take(different, which(), allow_fill=True), name=name)
