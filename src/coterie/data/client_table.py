"""A client's table: its own, or its rows of a table of all clients, which is parsed as a whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.cells import Cells, to_nfc
from coterie.errors import CoterieError, Option, unknown

if TYPE_CHECKING:
    import pandas as pd


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
        dropped = set(names)
        left = {name: cells for name, cells in self.columns.items() if name not in dropped}
        return replace(self, columns=left)

    def part(self, rows: np.ndarray, where: str, own_numbers: bool = False) -> Table:
        """Some rows, in this order, of which nothing is parsed that is already parsed here.

        Errors number the rows as in this table or, with `own_numbers`, from 1 in the part.
        """
        columns: dict[str, Cells] = {}
        for name, cells in self.columns.items():
            columns[name] = PartOfCells(cells, rows, where, own_numbers)
        return Table(columns, len(rows), where)


class PartOfCells(Cells):
    """Some rows of a column. What can be read of the whole column at once is read there."""

    def __init__(self, whole: Cells, rows: np.ndarray, where: str, own_numbers: bool) -> None:
        self.whole = whole
        self.rows = rows
        self.name = whole.name
        self.where = where
        self.own_numbers = own_numbers

    def __len__(self) -> int:
        return len(self.rows)

    def row_number(self, row: int) -> int:
        if self.own_numbers:
            return row + 1
        return self.whole.row_number(int(self.rows[row]))

    @cached_property
    def column(self) -> pd.Series:
        return self.whole.column.iloc[self.rows]

    @cached_property
    def plain(self) -> np.ndarray | None:
        if self.whole.plain is None:
            return None
        return self.whole.plain[self.rows]

    @cached_property
    def objects(self) -> np.ndarray:
        return self.whole.objects[self.rows]

    @cached_property
    def missing(self) -> np.ndarray:
        return self.whole.missing[self.rows]

    def parse(self) -> np.ndarray:
        if self.whole.unreadable:
            return super().parse()  # which is right or names this part in its error
        return self.whole.parsed[self.rows]

    @cached_property
    def texts(self) -> list[str]:
        texts = self.whole.texts
        return [texts[row] for row in self.rows.tolist()]

    @cached_property
    def days(self) -> np.ndarray:
        return self.whole.days[self.rows]

    @property
    def is_time(self) -> bool:
        return self.whole.is_time


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


def tables_of_frames(frames: dict[str, pd.DataFrame]) -> dict[str, Table]:
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
        return {first: Table.of(frames[first], where(first))}
    whole = Table.of(pd.concat(list(frames.values()), ignore_index=True), where(first))
    tables = {}
    start = 0
    for name, frame in frames.items():
        rows = np.arange(start, start + len(frame))
        tables[name] = whole.part(rows, where(name), own_numbers=True)
        start += len(frame)
    return tables


def tables_by_column(table: Table, column: str | None) -> dict[str, Table]:
    """The rows of each client, which a column names, in the order of the clients' names."""
    import pandas as pd

    cells = client_cells(table, column)
    cells.refuse_missing(
        "name the client in every row, or leave these rows out with {}",
        [Option("drop_incomplete")],
        role="client column",
    )
    cells.refuse_rounded()
    codes, names = pd.factorize(np.array(cells.texts, dtype=object), sort=True)
    rows = np.split(codes.argsort(kind="stable"), np.bincount(codes).cumsum()[:-1])
    return {str(name): table.part(part, where(name)) for name, part in zip(names, rows)}


def client_cells(table: Table, column: str | None) -> Cells:
    """The column that names the client of each row."""
    if column is None:
        raise CoterieError(
            "one table of all clients needs client_column, the column that names the client",
            "give it",
        )
    if column not in table.columns:
        raise unknown("client column of the table:", column, table.columns)
    return table.columns[column]


def where(name: str) -> str:
    """What errors call a client's table."""
    return f"client {str(name)!r}"
