"""Federations of pandas DataFrames, and the encoding pipeline of all tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coterie.core.errors import (
    ColumnErrors,
    CoterieError,
    Option,
    capture_error,
    collect_errors,
    raise_column_errors,
    run_column_jobs,
    unknown_name,
)
from coterie.data.cells import Cells
from coterie.data.client_table import (
    Columns,
    Table,
    check_frames,
    forget_columns,
    tables_by_column,
    tables_of_frames,
)
from coterie.data.description import Description, describe_table, description_jobs, join_columns
from coterie.data.encoding import assemble, rows_by_client
from coterie.data.federation import Federation, Kind
from coterie.data.merging import merge
from coterie.data.row_split import large_enough, split_rows, with_client_named, with_labels
from coterie.data.schema import MIN_CATEGORY_COUNT, Fill, Schema, log_schema
from coterie.data.site_columns import describe_nearly_empty, site_columns, warn_of_constants
from coterie.data.table_files import read_table
from coterie.data.table_options import TableOptions, as_names

if TYPE_CHECKING:
    import pandas as pd


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


def from_frames(
    frames: Mapping[str, pd.DataFrame] | pd.DataFrame,
    label: str,
    client_column: str | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    unseen: int = 0,
    kind: Kind | None = None,
    fill: Fill | None = None,
    drop: Sequence[str] | None = None,
    categories: Sequence[str] | None = None,
    split_column: str | None = None,
    time_column: str | None = None,
    min_category_count: int = MIN_CATEGORY_COUNT,
    min_rows_to_report: int = 1,
    min_rows: int = 1,
    drop_incomplete: bool = False,
) -> Federation:
    """A federation of pandas DataFrames by client name, or of one with a `client_column`.

    Every column but the label is a feature, encoded by the `schema` of the training rows (see
    `coterie.data.schema`); `drop` leaves columns out, `categories` are read as text whatever they
    hold. Missing cells are refused, or filled with the "mean" or "median" over all clients. Labels
    that are text, booleans or at most 20 whole numbers are classes, other numbers regression
    targets, which stay as they are; `kind` overrules. `unseen` clients, drawn at random, never
    train.

    The test part is a random `test_share` of each client's rows; or with `time_column` (numbers, or
    dates such as 2026-01-31) its last share by that column; or `split_column` says train, test or
    valid for each row.

    A text that fewer than `min_category_count` training rows of all clients together have counts as
    "other" and is named nowhere. A client with fewer than `min_rows_to_report` training rows, or
    cells in a column, tells nothing of them: its rows are encoded by what the others tell.

    A client with fewer than `min_rows` rows is left out. With `drop_incomplete` so are rows without
    a label or, in one table of all clients, without a client; otherwise they are refused.
    """
    options = TableOptions(
        label=label,
        client_column=client_column,
        test_share=test_share,
        seed=seed,
        unseen=unseen,
        kind=kind,
        fill=fill,
        drop=as_names(drop),
        categories=as_names(categories),
        split_column=split_column,
        time_column=time_column,
        min_category_count=min_category_count,
        min_rows_to_report=min_rows_to_report,
        min_rows=min_rows,
        drop_incomplete=drop_incomplete,
    )
    if not isinstance(frames, Mapping):
        return encode_one_table(frames, options)
    if client_column is not None:
        raise CoterieError(
            f"client_column={client_column!r} is for one table of all clients", "leave it out"
        )
    return encode_frames(frames, options)


def encode_frames(frames: Mapping[str, pd.DataFrame], options: TableOptions) -> Federation:
    """The federation of one DataFrame per client."""
    return encode_tables(tables_of_frames(check_frames(frames)), options)


def encode_one_table(source: pd.DataFrame | Columns, options: TableOptions) -> Federation:
    """The federation of one table of all clients."""
    table = Table.of(source, "the table")
    if options.drop_incomplete:
        table = with_client_named(table, options.client_column)
    return encode_tables(tables_by_column(table, options.client_column), options)


def encode_tables(tables: dict[str, Table], options: TableOptions) -> Federation:
    """The federation of the clients' tables."""
    tables, index = split_tables(tables, options)
    index = index.with_unseen(options.unseen, options.seed)
    forget_columns(tables.values())
    tables = without_columns(tables, options)
    schema, descriptions = fit_schema(tables, index, options)
    of_sites = site_columns(descriptions)
    log_schema(schema, describe_nearly_empty(of_sites))
    warn_of_constants(of_sites.constants)
    return replace(assemble(tables, index, schema), site_columns=of_sites)


def split_tables(
    tables: dict[str, Table], options: TableOptions
) -> tuple[dict[str, Table], Federation]:
    """(the tables with the rows that count, which of these are for training and for tests)"""
    if options.drop_incomplete:
        tables = with_labels(tables, options.label)
    tables = large_enough(tables, options.min_rows)
    return tables, split_rows(tables, options)


def without_columns(tables: dict[str, Table], options: TableOptions) -> dict[str, Table]:
    """The tables without the columns to leave out, each of which some client must have."""
    known = {name for table in tables.values() for name in table.columns}
    for name in options.left_out:
        if name not in known:
            raise unknown_name("column to drop", name, known)
    return {client: table.without(options.left_out) for client, table in tables.items()}


# ------------------------------------------------------------------------------ columns
def fit_schema(
    tables: dict[str, Table], index: Federation, options: TableOptions
) -> tuple[Schema, dict[str, Description]]:
    """(the schema of the training rows, the clients' descriptions that it was made from)

    All columns that cannot be used are named at once.
    """
    problems: dict[str, list[CoterieError]] = {}
    descriptions = {}
    readings = read_by_column(tables, index, options)
    for name, reading in readings.items():
        with collect_errors(problems):
            descriptions[name] = reading.description(options.label)
    if not problems:
        refuse_all_small(descriptions, options.min_rows_to_report)
        with collect_errors(problems):
            schema = merge(descriptions, options.min_category_count)
    if options.fill is None:
        checked = {options.label, *problems}
        for name in tables:
            with collect_errors(problems):
                readings[name].refuse_gaps(checked)
    if problems:
        raise ColumnErrors(problems)
    return replace(schema, fill=options.fill, ignored=options.left_out), descriptions


def refuse_all_small(descriptions: Mapping[str, Description], min_rows_to_report: int) -> None:
    """Refuse clients none of which has rows enough to tell anything of them."""
    if not any(description["rows"] for description in descriptions.values()):
        raise CoterieError(
            f"no client has {min_rows_to_report} training rows or more, so that none may "
            "describe its columns",
            "lower {}",
            options=[Option("min_rows_to_report", of_data=True)],
        )


class SiteTable:
    """A site's table, read and split as `folder:` reads and splits one of its files."""

    def __init__(self, client: str, file: Path, options: TableOptions) -> None:
        self.client = client
        self.options = options
        frame = read_table(file, options.categories)
        tables, self.index = split_tables(tables_of_frames({client: frame}), options)
        self.table = tables[client].without(options.left_out)

    def describe(self) -> Description:
        """The columns in a few numbers each; a table that cannot be used is refused.

        Quantiles may be cells, so they leave the site only where medians fill missing cells. Else
        the mean stands for them, which leaves anyway.
        """
        options = self.options
        description = describe_table(
            self.table,
            options.label,
            options.kind,
            options.categories,
            train=rows_by_client(self.index.train)[0],
            min_rows_to_report=options.min_rows_to_report,
        )
        if options.fill is None:
            refuse_gaps(self.table.without([options.label]))
        if options.fill != "median":
            for column in description["columns"].values():
                if column.get("count"):
                    column["quantiles"] = [column["mean"]]
        return description

    def encode(self, schema: Schema) -> Federation:
        """A federation of this site alone."""
        return assemble({self.client: self.table}, self.index, schema)
