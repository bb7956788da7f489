"""What is learnt from the columns of all clients' tables, one column after another.

A column is in memory while the clients' rows of it are described, and is then given up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import NamedTuple

from coterie.core.errors import (
    CoterieError,
    Option,
    capture_error,
    raise_column_errors,
    run_column_jobs,
)
from coterie.data.cells import Cells
from coterie.data.client_table import Table, forget_columns
from coterie.data.description import Description, description_jobs, join_columns
from coterie.data.encoding import rows_by_client
from coterie.data.federation import Federation
from coterie.data.table_options import TableOptions


class Reading(NamedTuple):
    """What was learnt from a client's columns, or why they cannot be used."""

    columns: dict[str, Description | CoterieError]
    gaps: dict[str, CoterieError]  # of columns with empty cells
    rows: int  # that are described

    def in_order(self, names: Iterable[str]) -> Reading:
        """The same, with the columns in this order."""
        order = list(names)
        columns = {name: self.columns[name] for name in order}
        gaps = {name: self.gaps[name] for name in order if name in self.gaps}
        return Reading(columns, gaps, self.rows)

    def description(self, label: str) -> Description:
        """The description of the client's table; all columns that cannot be used are refused."""
        return join_columns(raise_column_errors(self.columns), label, self.rows)

    def refuse_gaps(self, checked: Collection[str]) -> None:
        """Refuse empty cells in any column but those that were checked."""
        raise_column_errors({name: gap for name, gap in self.gaps.items() if name not in checked})


def read_by_column(
    tables: dict[str, Table], index: Federation, options: TableOptions
) -> dict[str, Reading]:
    """Describe the training rows of all clients, in the order of `index`."""
    train_rows = dict(zip(index.names[: len(index)], rows_by_client(index.train)))
    jobs = {}
    readings = {}
    for client in index.names:
        of_client = description_jobs(
            tables[client],
            options.label,
            options.kind,
            options.categories,
            train=train_rows.get(client, ()),
            min_rows_to_report=options.min_rows_to_report,
        )
        jobs[client] = of_client.columns
        readings[client] = Reading({}, {}, of_client.rows)
    for column in dict.fromkeys(name for of_client in jobs.values() for name in of_client):
        for client, reading in readings.items():
            if column not in jobs[client]:
                continue
            reading.columns[column] = capture_error(jobs[client][column])
            gap = capture_error(partial(refuse_gap, tables[client].columns[column]))
            if gap is not None:
                reading.gaps[column] = gap
        forget_columns(tables.values(), [column])
    return {client: reading.in_order(jobs[client]) for client, reading in readings.items()}


def refuse_gaps(table: Table) -> None:
    """Refuse empty cells in any column."""
    run_column_jobs({name: partial(refuse_gap, cells) for name, cells in table.columns.items()})


def refuse_gap(cells: Cells) -> None:
    """Refuse empty cells, and offer to fill them or to drop the column."""
    cells.refuse_missing(
        "fill them with {}, or drop the column with {}",
        [Option("fill", "median"), Option("drop", cells.name, of_data=True)],
    )
