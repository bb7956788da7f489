"""Tables of clients, with columns that are parsed once and can stay on disk.

A `Table` holds one `TableColumn` per column. Clients whose rows come from one file or DataFrame
share its parsed columns: their tables are views made by `Table.take`. The columns of a
`ColumnsOnDisk` are read when they are used, and `release_columns` frees them again.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from coterie.core.errors import CoterieError, CoterieWarning, Option, unknown_name
from coterie.data.columns import (
    ColumnReader,
    ColumnView,
    Rows,
    TableColumn,
    count_rows,
    to_nfc,
    to_text,
)

if TYPE_CHECKING:
    import pandas as pd


class ColumnsOnDisk(NamedTuple):
    """A table on disk. A column is read each time it is used, and only that column."""

    readers: Mapping[str, ColumnReader]  # by column name, in order
    num_rows: int

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.readers)

    def load(self) -> pa.Table:
        """Read all columns."""
        return pa.table({name: read() for name, read in self.readers.items()})


Cells: TypeAlias = pa.Table | ColumnsOnDisk  # a table before it is parsed


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
    def of(cls, cells: Cells | pd.DataFrame, where: str) -> Table:
        """Make a table of Arrow columns or a DataFrame; raise if a column name is repeated."""
        if not isinstance(cells, Cells):
            cells = frame_to_arrow(cells)
        on_disk = isinstance(cells, ColumnsOnDisk)
        columns: dict[str, TableColumn] = {}
        for place, column in enumerate(cells.column_names):
            name = to_nfc(column)
            if name in columns:
                raise CoterieError(
                    f"{where} has more than one column {name}", "remove or rename one of them"
                )
            if isinstance(cells, ColumnsOnDisk):
                read = cells.readers[column]
            else:
                read = partial(cells.column, place)
            columns[name] = TableColumn(read, name, where, cells.num_rows, on_disk)
        return cls(columns, cells.num_rows, where)

    @property
    def whole(self) -> Table:
        """The full table that the rows were taken from; the table itself if it is full."""
        table = self
        while table.origin is not None:
            table = table.origin.table
        return table

    def column(self, name: str) -> TableColumn:
        """Return a column; one that the table lacks has only missing cells."""
        if name in self.columns:
            return self.columns[name]
        return TableColumn(partial(pa.nulls, self.rows), name, self.where, self.rows)

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


# ------------------------------------------------------------------------------ Python objects
def frame_to_arrow(frame: pd.DataFrame) -> pa.Table:
    """Convert a pandas DataFrame to Arrow columns."""
    names = [str(name) for name in frame.columns]
    arrays = [series_to_arrow(frame.iloc[:, place]) for place in range(len(names))]
    return pa.Table.from_arrays(arrays, names=names)


def series_to_arrow(series: pd.Series) -> pa.Array:
    """Convert one column of a DataFrame; cells of several types become text."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind == "O":
        return objects_to_arrow(series.tolist())
    if isinstance(series.dtype, np.dtype) and series.dtype.kind == "c":
        return pa.array([[str(cell)] for cell in series.tolist()])
    return pa.array(series, from_pandas=True)


def objects_to_arrow(cells: list[Any]) -> pa.Array:
    """Convert Python objects; None and NaN are missing, and cells of several types become text."""
    try:
        return pa.array(cells, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    if any(isinstance(cell, list | tuple | dict | set | np.ndarray) for cell in cells):
        return pa.array([[str(cell)] for cell in cells])
    return pa.array([as_written(cell) for cell in cells], pa.string())


def as_written(cell: Any) -> str | None:
    """Return an object as text, dates in the format of ISO 8601; None if it is missing."""
    try:
        if cell is None or bool(cell != cell):
            return None
    except TypeError:  # pandas.NA
        return None
    if hasattr(cell, "isoformat"):
        return str(cell.isoformat())
    if isinstance(cell, np.generic):
        cell = cell.item()
    return to_text(cell)


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


def frames_to_tables(frames: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """Make a table of each client's DataFrame.

    DataFrames with the same columns and dtypes are concatenated first, which is much faster for
    many clients.
    """
    alike: dict[Any, list[str]] = {}
    for name, frame in frames.items():
        alike.setdefault((tuple(frame.columns), tuple(frame.dtypes)), []).append(name)
    tables: dict[str, Table] = {}
    for names in alike.values():
        joined = frames[names[0]]
        if len(names) > 1:
            import pandas as pd

            joined = pd.concat([frames[name] for name in names], ignore_index=True)
        counts = {name: len(frames[name]) for name in names}
        tables |= split_table(frame_to_arrow(joined), counts)
    return {name: tables[name] for name in frames}


def join_tables(cells: Mapping[str, pa.Table]) -> dict[str, Table]:
    """Make a table of each client's columns; those with the same columns are parsed together."""
    alike: dict[pa.Schema, list[str]] = {}
    for name, table in cells.items():
        alike.setdefault(table.schema.remove_metadata(), []).append(name)
    tables: dict[str, Table] = {}
    for schema, names in alike.items():
        joined = pa.concat_tables([cells[name].cast(schema) for name in names])
        tables |= split_table(joined, {name: cells[name].num_rows for name in names})
    return {name: tables[name] for name in cells}


def split_table(joined: pa.Table, counts: Mapping[str, int]) -> dict[str, Table]:
    """Split a table of all clients' rows, one client after another.

    Args:
        joined: The rows.
        counts: Number of rows by client, in the order of the rows.
    """
    whole = Table.of(joined, quote_client(next(iter(counts))))
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
