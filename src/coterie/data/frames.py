"""Federations of pandas DataFrames, and the pipeline that encodes all tables.

    split_tables       drop rows and clients, split the others into train, validation and test
    fit_schema         describe each client's training rows, merge the descriptions into a schema
    encode_federation  encode the rows with the schema (`encoding.py`)

Tables are read column by column, so that a large one is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np

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
from coterie.data.columns import TableColumn
from coterie.data.description import Description, describe_table, join_columns, prepare_descriptions
from coterie.data.encoding import encode_federation, split_row_numbers
from coterie.data.federation import Federation
from coterie.data.given_groups import read_groups
from coterie.data.merging import find_lacking, merge
from coterie.data.row_split import (
    drop_rows_without_client,
    drop_rows_without_label,
    drop_small_clients,
    split_rows,
)
from coterie.data.schema import Schema, log_schema
from coterie.data.site_columns import (
    describe_nearly_empty,
    log_lacking,
    summarise_site_columns,
    warn_about_constants,
)
from coterie.data.table_files import read_table
from coterie.data.table_options import TableKeywords, TableOptions, show_table_options
from coterie.data.tables import (
    Cells,
    Table,
    check_frames,
    frames_to_tables,
    join_tables,
    release_columns,
    split_by_client,
)

if TYPE_CHECKING:
    import pandas as pd


@show_table_options(TableKeywords)
def from_frames(
    frames: Mapping[str, pd.DataFrame] | pd.DataFrame,
    label: str,
    client_column: str | None = None,
    **options: Unpack[TableKeywords],
) -> Federation:
    """Make a federation of pandas DataFrames.

    Every column except the label is a feature, encoded by the `Schema` of the training rows of all
    clients: numbers are standardised, dates and text become several columns.

    Args:
        frames: One DataFrame per client, by name, or one DataFrame of all clients.
        label: The column to predict.
        client_column: The column that names the client, if there is one DataFrame of all clients.
        **options: See `coterie.data.table_options.TableOptions`.

    Returns:
        The federation, with `schema` set.

    Raises:
        CoterieError: If a column cannot be used. Problems of several columns are reported at once.

    Example:
        >>> import pandas as pd
        >>> site = pd.DataFrame({"age": range(20, 40), "outcome": ["yes", "no"] * 10})
        >>> fed = from_frames({"north": site, "south": site}, label="outcome", test_share=0.5)
        >>> fed.names, fed.labels, fed.test.sizes.tolist()
        (('north', 'south'), ('no', 'yes'), [10, 10])
    """
    table_options = TableOptions(label=label, client_column=client_column, **options)
    if not isinstance(frames, Mapping):
        return encode_one_table(frames, table_options)
    if client_column is not None:
        raise CoterieError(
            f"client_column={client_column!r} is for one table of all clients", "omit it"
        )
    return encode_tables(frames_to_tables(check_frames(frames)), table_options)


def encode_one_table(source: Cells | pd.DataFrame, options: TableOptions) -> Federation:
    """Make a federation of one table of all clients."""
    table = Table.of(source, "the table")
    if options.drop_incomplete:
        table = drop_rows_without_client(table, options.client_column)
    return encode_tables(split_by_client(table, options.client_column), options)


def encode_tables(tables: dict[str, Table], options: TableOptions) -> Federation:
    """Make a federation of one table per client."""
    tables, index = split_tables(tables, options)
    index = index.with_unseen(options.unseen, options.seed)
    release_columns(tables.values())
    known = {name for table in tables.values() for name in table.columns}
    for name in options.ignored_columns:
        if name not in known and name != options.group_column:
            raise unknown_name("column to drop", name, known)
    groups = read_groups(tables, options)
    release_columns(tables.values())
    tables = {name: table.drop(options.ignored_columns) for name, table in tables.items()}
    schema, descriptions = fit_schema(tables, index, options)
    of_sites = summarise_site_columns(descriptions)
    log_schema(schema, describe_nearly_empty(of_sites))
    log_lacking(of_sites, options.columns)
    warn_about_constants(of_sites.constants)
    fed = encode_federation(tables, index, schema)
    if groups is not None:
        fed = replace(fed, groups=tuple(groups[name] for name in fed.names))
    return replace(fed, site_columns=of_sites)


def split_tables(
    tables: dict[str, Table], options: TableOptions
) -> tuple[dict[str, Table], Federation]:
    """Drop rows and clients as the options say, and split the other rows.

    Returns:
        The remaining tables, and a federation of row numbers: each split of each client.
    """
    if options.drop_incomplete:
        tables = drop_rows_without_label(tables, options.label)
    tables = drop_small_clients(tables, options.min_rows)
    return tables, split_rows(tables, options)


# ------------------------------------------------------------------------------ schema
class ColumnScan(NamedTuple):
    """The descriptions of one client's columns, or the reasons why they cannot be used."""

    columns: dict[str, Description | CoterieError]
    gaps: dict[str, CoterieError]  # of columns with missing cells
    rows: int  # number of described rows

    def refuse_gaps(self, checked: Collection[str]) -> None:
        """Raise for missing cells in columns that were not yet checked."""
        raise_column_errors({name: gap for name, gap in self.gaps.items() if name not in checked})


def fit_schema(
    tables: dict[str, Table], index: Federation, options: TableOptions
) -> tuple[Schema, dict[str, Description]]:
    """Fit a schema to the training rows.

    Returns:
        The schema, and the descriptions by client that it was merged from.

    Raises:
        ColumnErrors: Names all columns that cannot be used.
    """
    problems: dict[str, list[CoterieError]] = {}
    descriptions = {}
    scans = scan_columns(tables, index, options)
    for name, scan in scans.items():
        with collect_errors(problems):
            columns = raise_column_errors(scan.columns)
            descriptions[name] = join_columns(columns, options.label, scan.rows)
    if not problems:
        check_reporting_clients(descriptions, options.min_rows_to_report)
        with collect_errors(problems):
            schema = merge(descriptions, options.min_category_count, columns=options.columns)
    if options.fill is None:
        checked = {options.label, *problems}
        if options.columns == "common":
            checked |= find_lacking(descriptions).keys()
        for name in tables:
            with collect_errors(problems):
                scans[name].refuse_gaps(checked)
    if problems:
        raise ColumnErrors(problems)
    return replace(schema, fill=options.fill, ignored=options.ignored_columns), descriptions


def scan_columns(
    tables: dict[str, Table], index: Federation, options: TableOptions
) -> dict[str, ColumnScan]:
    """Describe the training rows of all clients, one column after another."""
    train_rows = dict(zip(index.names[: len(index)], split_row_numbers(index.train)))
    known = {name for table in tables.values() for name in table.columns}
    jobs = {}
    scans = {}
    for client in index.names:
        of_client = prepare_descriptions(
            tables[client],
            options.label,
            options.table_kind,
            select_categories(options, tables[client], known),
            train=train_rows.get(client, ()),
            min_rows_to_report=options.min_rows_to_report,
        )
        jobs[client] = of_client.columns
        scans[client] = ColumnScan({}, {}, of_client.rows)
    for column in dict.fromkeys(name for of_client in jobs.values() for name in of_client):
        for client, scan in scans.items():
            if column not in jobs[client]:
                continue
            scan.columns[column] = capture_error(jobs[client][column])
            gap = capture_error(partial(check_no_missing, tables[client].columns[column]))
            if gap is not None:
                scan.gaps[column] = gap
        release_columns(tables.values(), [column])
    # errors and descriptions list the columns in the order of the client's own table
    for client, scan in scans.items():
        ordered = {name: scan.columns[name] for name in jobs[client]}
        gaps = {name: scan.gaps[name] for name in jobs[client] if name in scan.gaps}
        scans[client] = scan._replace(columns=ordered, gaps=gaps)
    return scans


def select_categories(options: TableOptions, table: Table, known: Collection[str]) -> list[str]:
    """Return the categories of the options, without those that only this table lacks."""
    if options.columns is None:
        return list(options.categories)
    return [name for name in options.categories if name in table.columns or name not in known]


def check_no_missing(cells: TableColumn) -> None:
    """Raise for missing cells; the error suggests filling them or dropping the column."""
    cells.require_complete(
        "fill them with {}, or drop the column with {}",
        [Option("fill", "median"), Option("drop", cells.name, of_data=True)],
    )


def check_reporting_clients(
    descriptions: Mapping[str, Description], min_rows_to_report: int
) -> None:
    """Raise if no client has enough rows to report statistics."""
    if not any(description["rows"] for description in descriptions.values()):
        raise CoterieError(
            f"no client has {min_rows_to_report} training rows or more, so that none can "
            "describe its columns",
            "lower {}",
            options=[Option("min_rows_to_report", of_data=True)],
        )


# ------------------------------------------------------------------------------ one site
class SiteTable:
    """The table of one real site, read and split as `folder:` reads and splits a file.

    Args:
        client: The name of the site.
        file: Its table.
        options: The options that all sites of the run share.
        columns: The features that may be used, as if the table had no others; (): all.
    """

    def __init__(
        self, client: str, file: Path, options: TableOptions, columns: tuple[str, ...] = ()
    ) -> None:
        self.client = client
        self.options = options
        cells = read_table(file, options.categories)
        tables, self.index = split_tables(join_tables({client: cells}), options)
        self.table = tables[client].drop(options.ignored_columns)
        for name in columns:
            if name not in tables[client].columns:
                raise unknown_name(f"column of {file} in the policy:", name, tables[client].columns)
        if columns:
            self.table = self.table.drop(self.table.columns.keys() - {*columns, options.label})

    def describe(self) -> Description:
        """Describe the training rows for the server, or raise if the table cannot be used.

        A quantile may be the value of a single cell, so quantiles leave the site only if medians
        fill missing cells. Otherwise the mean, which leaves the site anyway, replaces them.
        """
        options = self.options
        description = describe_table(
            self.table,
            options.label,
            options.table_kind,
            options.categories,
            train=split_row_numbers(self.index.train)[0],
            min_rows_to_report=options.min_rows_to_report,
        )
        if options.fill is None:
            features = self.table.drop([options.label]).columns
            run_column_jobs(
                {name: partial(check_no_missing, cells) for name, cells in features.items()}
            )
        if options.fill != "median":
            for column in description["columns"].values():
                if column.get("count"):
                    column["quantiles"] = [column["mean"]]
        return description

    def count_classes(self) -> dict[str, int]:
        """Count the rows of each class of the label, training and others."""
        codes, texts = self.table.columns[self.options.label].text_codes
        return dict(zip(texts, np.bincount(codes, minlength=len(texts)).tolist()))

    def encode(self, schema: Schema) -> Federation:
        """Encode the rows as a federation of this site alone."""
        return encode_federation({self.client: self.table}, self.index, schema)
