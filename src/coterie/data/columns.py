"""The columns of a table that is not held in memory: each is read when it is asked for."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

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
    memory. Only this process can write to the file, so what is unpickled is its own.
    """

    def __init__(self) -> None:
        self._end = 0
        try:
            self._file: Any = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        except OSError:
            self._file = None

    def put(self, piece: pd.Series) -> ReadColumn:
        """Write a piece; the function that reads it again."""
        data = pickle.dumps(piece, protocol=5)
        if not self._write(data):
            return lambda: piece
        start = self._end
        self._end += len(data)
        return partial(self._get, start, len(data))

    def _write(self, data: bytes) -> bool:
        """Write at the end of the file; False if it does not fit."""
        if self._file is None:
            return False
        try:
            self._file.seek(self._end)
            return bool(self._file.write(data) == len(data))
        except OSError:
            return False

    def _get(self, start: int, size: int) -> pd.Series:
        self._file.seek(start)
        return pickle.loads(self._file.read(size))
