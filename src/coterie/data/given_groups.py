"""Groups that users give: a column of the tables, or a CSV file of clients and their groups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from coterie.core.errors import CoterieError, unknown_name
from coterie.data.table_files import read_table
from coterie.data.table_options import TableOptions
from coterie.data.tables import Table


def read_groups(tables: Mapping[str, Table], options: TableOptions) -> dict[str, str] | None:
    """Return the group of each client; None if the options give none.

    Args:
        tables: The tables by client, with all columns.
        options: Name a column or a file in `groups`.

    Raises:
        CoterieError: If a client has no group or several, or the file names another client.
    """
    if options.groups is None:
        return None
    if options.group_column is None:
        return read_groups_file(Path(options.groups), list(tables))
    return {name: find_group(table, options.group_column) for name, table in tables.items()}


def find_group(table: Table, column: str) -> str:
    """Return the text that all rows of a client have in a column."""
    if column not in table.columns:
        raise unknown_name(f"column of {table.where}:", column, table.columns)
    cells = table.columns[column]
    cells.require_complete("name the group in every row")
    texts = sorted(cells.count_texts())
    if len(texts) > 1:
        raise CoterieError(
            f"the column {column} of {table.where} varies ({texts[0]} and {texts[1]}), so it names "
            "no group of clients",
            "choose a column that has the same value in all rows of a client",
        )
    return texts[0]


def read_groups_file(file: Path, clients: list[str]) -> dict[str, str]:
    """Read a CSV file whose first column names clients and whose second names their groups."""
    if not file.is_file():
        raise CoterieError(f"there is no file {file}", "give a CSV file of clients and groups")
    names = read_table(file).column_names
    if len(names) != 2:
        raise CoterieError(
            f"the file {file} has {len(names)} columns", "give it two: the client, and its group"
        )
    table = Table.of(read_table(file, names), f"the file {file}")
    columns = []
    for cells in table.columns.values():
        cells.require_complete("name the client and the group in every row")
        codes, texts = cells.text_codes
        columns.append([texts[code] for code in codes.tolist()])
    groups: dict[str, str] = {}
    for client, group in zip(*columns):
        if client in groups:
            raise CoterieError(f"the file {file} names the client {client!r} twice", "keep one row")
        if client not in clients:
            raise CoterieError(
                f"the file {file} names the unknown client {client!r}",
                f"remove it, or correct the name; clients are {', '.join(clients[:5])}, …",
            )
        groups[client] = group
    for client in clients:
        if client not in groups:
            raise CoterieError(
                f"the file {file} names no group for the client {client!r}", "add a row for it"
            )
    return groups
