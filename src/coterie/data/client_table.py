"""Clients' tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data.cells import ColumnView, Rows, TableColumn, count_rows, to_nfc

if TYPE_CHECKING:
    import pandas as pd

ColumnReader = Callable[[], "pd.Series"]


@dataclass(frozen=True)
class LazyFrame:
    """A table whose columns are read one at a time, as often as they are asked for."""

    readers: Mapping[str, ColumnReader]  # by the names of the columns, in their order
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

    def cells(self, where: str) -> list[TableColumn]:
        """The columns, of which nothing is read yet; `where` names the table in errors."""
        return [
            DiskColumn(read, to_nfc(name), where, self.rows) for name, read in self.readers.items()
        ]


class DiskColumn(TableColumn):
    """One column of a table, which is in memory only from when it is used until `forget`."""

    def __init__(self, read: ColumnReader, name: str, where: str, rows: int) -> None:
        self.read = read
        self.name = name
        self.where = where
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    @cached_property
    def column(self) -> pd.Series:
        return self.read()

    def release(self) -> None:
        """Give up the cells and all readings of them; what is asked for again is read again."""
        for name in list(vars(self)):
            if isinstance(getattr(type(self), name, None), cached_property):
                del vars(self)[name]


class ChunkFile:
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

    def put(self, piece: pd.Series) -> ColumnReader:
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


@dataclass(frozen=True)
class Table:
    """The columns of a client's table by name; `where` names the table in errors."""

    columns: dict[str, TableColumn]
    rows: int
    where: str
    origin: Origin | None = None  # where its rows were cut out, if it is not whole

    @classmethod
    def from_frame(cls, source: pd.DataFrame | LazyFrame, where: str) -> Table:
        """The table of a DataFrame, or of columns on disk; two of one name are refused."""
        columns: dict[str, TableColumn] = {}
        for cells in all_cells(source, where):
            if cells.name in columns:
                raise CoterieError(
                    f"{where} has more than one column {cells.name}", "remove or rename one of them"
                )
            columns[cells.name] = cells
        return cls(columns, len(source), where)

    @property
    def whole(self) -> Table:
        """The table that the rows were cut out of, in the end; itself if it is whole."""
        table = self
        while table.origin is not None:
            table = table.origin.table
        return table

    def drop(self, names: Collection[str]) -> Table:
        """The same table, and what was parsed of it, without some columns."""
        dropped = set(names)
        left = {name: cells for name, cells in self.columns.items() if name not in dropped}
        return replace(self, columns=left)

    def take(self, rows: Rows, where: str, renumber: bool = False) -> Table:
        """Some rows, in this order, of which nothing is parsed that is already parsed here.

        Errors number the rows as in this table or, with `renumber`, from 1 in the part.
        """
        columns: dict[str, TableColumn] = {}
        for name, cells in self.columns.items():
            columns[name] = ColumnView(cells, rows, where, renumber)
        return Table(columns, count_rows(rows), where, Origin(self, rows))


def all_cells(source: pd.DataFrame | LazyFrame, where: str) -> list[TableColumn]:
    """The columns of a table, which `where` names in errors."""
    if isinstance(source, LazyFrame):
        return source.cells(where)
    return [TableColumn(column, to_nfc(str(name)), where) for name, column in source.items()]


class Origin(NamedTuple):
    """Where the rows of a table were cut out."""

    table: Table
    rows: Rows

    def row_numbers(self) -> np.ndarray:
        """The numbers of the rows in the other table."""
        if isinstance(self.rows, slice):
            return np.arange(self.rows.start, self.rows.stop)
        return self.rows


# ------------------------------------------------------------------------------ all clients
def check_frames(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The DataFrames by name as text; anything else, or a name that occurs twice, is refused."""
    for name, frame in frames.items():
        if not hasattr(frame, "columns"):
            raise CoterieError(
                f"client {name!r} is a {type(frame).__name__}", "give a pandas DataFrame"
            )
    by_name = {str(name): frame for name, frame in frames.items()}
    if len(by_name) < len(frames):
        raise CoterieError(
            "two clients have the same name as text, such as 1 and '1'", "rename one of them"
        )
    return by_name


def make_tables(frames: dict[str, pd.DataFrame]) -> dict[str, Table]:
    """The table of each client's DataFrame.

    Frames whose columns are of the same types are joined and parsed at once, which is much faster
    for many clients. To join others would change some cells.
    """
    alike: dict[Any, list[str]] = {}
    for name, frame in frames.items():
        types = (tuple(frame.columns), tuple(frame.dtypes))
        alike.setdefault(types, []).append(name)
    tables: dict[str, Table] = {}
    for names in alike.values():
        tables |= parse_together({name: frames[name] for name in names})
    return {name: tables[name] for name in frames}


def parse_together(frames: dict[str, pd.DataFrame]) -> dict[str, Table]:
    """The tables of DataFrames that have the same columns of the same types."""
    import pandas as pd

    first = next(iter(frames))
    if len(frames) == 1:
        return {first: Table.from_frame(frames[first], where(first))}
    joined = pd.concat(list(frames.values()), ignore_index=True)
    return split_table(joined, {name: len(frame) for name, frame in frames.items()})


def split_table(joined: pd.DataFrame, counts: Mapping[str, int]) -> dict[str, Table]:
    """The tables of clients whose rows follow one another in a DataFrame; counts: rows of each."""
    whole = Table.from_frame(joined, where(next(iter(counts))))
    tables = {}
    start = 0
    for name, count in counts.items():
        tables[name] = whole.take(slice(start, start + count), where(name), renumber=True)
        start += count
    return tables


def release_columns(tables: Iterable[Table], names: Collection[str] | None = None) -> None:
    """Give up the memory of columns on disk, by name or all; what is used again is read again."""
    wholes = {id(table.whole): table.whole for table in tables}
    for whole in wholes.values():
        for name, cells in whole.columns.items():
            if names is None or name in names:
                cells.release()


def split_by_client(table: Table, column: str | None) -> dict[str, Table]:
    """The rows of each client, which a column names, in the order of the clients' names."""
    cells = find_client_column(table, column)
    cells.require_complete(
        "name the client in every row, or leave these rows out with {}",
        [Option("drop_incomplete")],
        role="client column",
    )
    cells.require_exact()
    numbers, names = cells.text_codes
    counts = np.bincount(numbers, minlength=len(names))
    rows = np.split(numbers.argsort(kind="stable"), counts.cumsum()[:-1])
    return {names[i]: table.take(rows[i], where(names[i])) for i in in_order_of(names)}


def in_order_of(names: list[str]) -> list[int]:
    """The places of the names, sorted by name."""
    return sorted(range(len(names)), key=names.__getitem__)


def find_client_column(table: Table, column: str | None) -> TableColumn:
    """The column that names the client of each row."""
    if column is None:
        raise CoterieError(
            "one table of all clients needs client_column, the column that names the client",
            "give it",
        )
    if column not in table.columns:
        raise unknown_name("client column of the table:", column, table.columns)
    return table.columns[column]


def where(name: str) -> str:
    """What errors call a client's table."""
    return f"client {str(name)!r}"
