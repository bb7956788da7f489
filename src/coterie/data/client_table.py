"""Tables of clients, with columns that are parsed once and can stay on disk.

A `Table` holds one `TableColumn` per column. Clients whose rows come from one file or DataFrame
share its parsed columns: their tables are views made by `Table.take`. A `LazyFrame` reads a
column from disk when it is used, and `release_columns` frees it again.
"""

from __future__ import annotations

import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.core.errors import CoterieError, CoterieWarning, Option, unknown_name
from coterie.data.cells import ColumnView, Rows, TableColumn, count_rows, to_nfc, to_text

if TYPE_CHECKING:
    import pandas as pd

ColumnReader = Callable[[], "pd.Series"]


@dataclass(frozen=True)
class LazyFrame:
    """A table on disk. A column is read each time it is used, and only that column."""

    readers: Mapping[str, ColumnReader]  # by column name, in order
    rows: int

    def __len__(self) -> int:
        return self.rows

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.readers)

    @property
    def empty(self) -> bool:
        """Whether the table has no rows or no columns."""
        return not self.rows or not self.readers

    def load(self) -> pd.DataFrame:
        """Read all columns into a DataFrame."""
        import pandas as pd

        return pd.DataFrame({name: read() for name, read in self.readers.items()}, copy=False)


class DiskColumn(TableColumn):
    """A column that is read from disk on first use and freed by `release`."""

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
        """Free the cells and everything parsed from them; the next use reads them again."""
        for name in list(vars(self)):
            if isinstance(getattr(type(self), name, None), cached_property):
                del vars(self)[name]


class ChunkFile:
    """Chunks of columns in an unnamed temporary file, which is deleted with this object.

    The file is in the folder of `tempfile` (TMPDIR). A chunk that does not fit on the disk stays in
    memory. The file contains numbers; of text it contains the codes, and the distinct texts of a
    chunk stay in memory.
    """

    def __init__(self) -> None:
        self._end = 0
        try:
            self._file: Any = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        except OSError:
            self._file = None

    def write(self, chunk: pd.Series) -> ColumnReader:
        """Write a chunk and return a function that reads it back."""
        import pandas as pd

        if isinstance(chunk.dtype, np.dtype) and chunk.dtype.kind in "biuf":
            return partial(_read_numbers, self._write_numbers(chunk.to_numpy()), chunk.name)
        codes, uniques = pd.factorize(chunk)
        read_codes = self._write_numbers(codes.astype(np.int32))
        uniques = pd.Series(uniques, dtype=chunk.dtype).array
        return partial(_read_text, read_codes, uniques, chunk.name)

    def _write_numbers(self, numbers: np.ndarray) -> Callable[[], np.ndarray]:
        """Write numbers and return a function that reads them back."""
        data = numbers.tobytes()
        if not self._append(data):
            return lambda: numbers
        start = self._end
        self._end += len(data)
        return partial(self._read, start, len(data), numbers.dtype)

    def _append(self, data: bytes) -> bool:
        """Append to the file; return False if it does not fit."""
        if self._file is None:
            return False
        try:
            self._file.seek(self._end)
            return bool(self._file.write(data) == len(data))
        except OSError:
            return False

    def _read(self, start: int, size: int, dtype: np.dtype) -> np.ndarray:
        self._file.seek(start)
        return np.frombuffer(self._file.read(size), dtype)


def _read_numbers(read: Callable[[], np.ndarray], name: Any) -> pd.Series:
    """Read a column of numbers."""
    import pandas as pd

    return pd.Series(read(), name=name)


def _read_text(read_codes: Callable[[], np.ndarray], uniques: Any, name: Any) -> pd.Series:
    """Read a column of codes of distinct cells; −1 is a missing cell."""
    import pandas as pd

    return pd.Series(pd.api.extensions.take(uniques, read_codes(), allow_fill=True), name=name)


@dataclass(frozen=True)
class Table:
    """The columns of a client's table by name.

    Attributes:
        columns: The columns, in order.
        rows: Number of rows.
        where: Names the table in error messages, such as "client 'north'".
        origin: The table that the rows were taken from; None for a full table.
    """

    columns: dict[str, TableColumn]
    rows: int
    where: str
    origin: RowOrigin | None = None

    @classmethod
    def from_frame(cls, source: pd.DataFrame | LazyFrame, where: str) -> Table:
        """Make a table of a DataFrame or of columns on disk; raise if a column name is repeated."""
        found: list[TableColumn]
        if isinstance(source, LazyFrame):
            readers = source.readers.items()
            found = [DiskColumn(read, to_nfc(name), where, source.rows) for name, read in readers]
        else:
            found = [TableColumn(cells, to_nfc(str(name)), where) for name, cells in source.items()]
        columns: dict[str, TableColumn] = {}
        for cells in found:
            if cells.name in columns:
                raise CoterieError(
                    f"{where} has more than one column {cells.name}", "remove or rename one of them"
                )
            columns[cells.name] = cells
        return cls(columns, len(source), where)

    @property
    def whole(self) -> Table:
        """The full table that the rows were taken from; the table itself if it is full."""
        table = self
        while table.origin is not None:
            table = table.origin.table
        return table

    def drop(self, names: Collection[str]) -> Table:
        """Return the table without some columns; parsed cells are kept."""
        dropped = set(names)
        left = {name: cells for name, cells in self.columns.items() if name not in dropped}
        return replace(self, columns=left)

    def take(self, rows: Rows, where: str, renumber: bool = False) -> Table:
        """Select rows. The result shares the parsed cells of this table.

        Args:
            rows: A slice, or row numbers in the order of the result.
            where: Names the result in error messages.
            renumber: Error messages count rows from 1 in the result, not as in this table.
        """
        columns: dict[str, TableColumn] = {}
        for name, cells in self.columns.items():
            columns[name] = ColumnView(cells, rows, where, renumber)
        return Table(columns, count_rows(rows), where, RowOrigin(self, rows))


class RowOrigin(NamedTuple):
    """The table and the rows that a table was taken from."""

    table: Table
    rows: Rows

    def row_numbers(self) -> np.ndarray:
        """Return the row numbers in the original table."""
        if isinstance(self.rows, slice):
            return np.arange(self.rows.start, self.rows.stop)
        return self.rows


# ------------------------------------------------------------------------------ all clients
def check_frames(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the DataFrames with names as text; raise for other types and repeated names."""
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
    """Make a table of each client's DataFrame.

    DataFrames with the same columns and dtypes are concatenated and parsed together, which is much
    faster for many clients. Concatenating different dtypes would change cells.
    """
    import pandas as pd

    alike: dict[Any, list[str]] = {}
    for name, frame in frames.items():
        types = (tuple(frame.columns), tuple(frame.dtypes))
        alike.setdefault(types, []).append(name)
    tables: dict[str, Table] = {}
    for names in alike.values():
        if len(names) == 1:
            tables[names[0]] = Table.from_frame(frames[names[0]], quote_client(names[0]))
            continue
        joined = pd.concat([frames[name] for name in names], ignore_index=True)
        tables |= split_table(joined, {name: len(frames[name]) for name in names})
    return {name: tables[name] for name in frames}


def split_table(joined: pd.DataFrame, counts: Mapping[str, int]) -> dict[str, Table]:
    """Split a DataFrame of all clients' rows, one client after another.

    Args:
        joined: The rows.
        counts: Number of rows by client, in the order of the rows.
    """
    whole = Table.from_frame(joined, quote_client(next(iter(counts))))
    tables = {}
    start = 0
    for name, count in counts.items():
        tables[name] = whole.take(slice(start, start + count), quote_client(name), renumber=True)
        start += count
    return tables


def release_columns(tables: Iterable[Table], names: Collection[str] | None = None) -> None:
    """Free the memory of columns that are on disk; `names` selects columns, default all."""
    wholes = {id(table.whole): table.whole for table in tables}
    for whole in wholes.values():
        for name, cells in whole.columns.items():
            if names is None or name in names:
                cells.release()


def split_by_client(table: Table, column: str | None) -> dict[str, Table]:
    """Split a table by the column that names the client; the result is sorted by client name."""
    cells = find_client_column(table, column)
    cells.require_complete(
        "name the client in every row, or drop these rows with {}",
        [Option("drop_incomplete")],
        role="client column",
    )
    cells.require_exact()
    warn_of_similar_names(cells)
    codes, names = cells.text_codes
    counts = np.bincount(codes, minlength=len(names))
    rows = np.split(codes.argsort(kind="stable"), counts.cumsum()[:-1])
    order = sorted(range(len(names)), key=names.__getitem__)
    return {names[i]: table.take(rows[i], quote_client(names[i])) for i in order}


def warn_of_similar_names(cells: TableColumn) -> None:
    """Warn of the first client that is spelled in two ways which look the same."""
    first_rows = cells.spellings()
    seen: dict[str, str] = {}
    for spelling in first_rows:
        other = seen.setdefault(normalise_look(spelling), spelling)
        if other == spelling:
            continue
        outcome = "two clients"
        if to_text(other) == to_text(spelling):
            outcome = "one client"
        both = [f"{s!a} (data row {cells.row_number(first_rows[s])})" for s in (other, spelling)]
        warnings.warn(
            CoterieWarning(
                f"{' and '.join(both)} in the client column {cells.name} look the same and are "
                f"{outcome}",
                "write the name of a client in the same way in every row",
            ),
            stacklevel=5,
        )
        return


def normalise_look(name: str) -> str:
    """Return a name without what does not show: kinds of characters, blanks, invisible signs."""
    shown = "".join(c for c in unicodedata.normalize("NFKC", name) if is_shown(c))
    return to_text(" ".join(shown.split()))


def is_shown(c: str) -> bool:
    """Whether a character can be seen, or separates words."""
    return c.isspace() or unicodedata.category(c) not in ("Cc", "Cf")


def find_client_column(table: Table, column: str | None) -> TableColumn:
    """Return the column that names the client of each row, or raise if there is none."""
    if column is None:
        raise CoterieError(
            "one table of all clients needs client_column, the column that names the client",
            "give it",
        )
    if column not in table.columns:
        raise unknown_name("client column of the table:", column, table.columns)
    return table.columns[column]


def quote_client(name: str) -> str:
    """Name a client's table in error messages."""
    return f"client {str(name)!r}"
