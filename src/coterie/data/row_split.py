"""Select the rows of each client: drop incomplete rows, then split into train, validation, test."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import torch

from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data.columns import TableColumn
from coterie.data.dates import parse_months
from coterie.data.federation import Federation, Ragged, split
from coterie.data.schema import join_first
from coterie.data.table_options import TableOptions
from coterie.data.tables import Table, find_client_column

log = logging.getLogger("coterie")
# texts of a split column, and the splits that they select
SPLITS = {"train": "train", "test": "test", "validation": "validation", "valid": "validation"}


# ------------------------------------------------------------------------------ dropping
def drop_rows_without_client(table: Table, column: str | None) -> Table:
    """Drop the rows of a table of all clients that name no client."""
    missing = find_client_column(table, column).missing
    if not missing.any():
        return table
    if missing.all():
        raise CoterieError(f"the client column {column} is empty in every row", "name the clients")
    log.info("dropped %d rows whose client column %s is empty", missing.sum(), column)
    return table.take(np.flatnonzero(~missing), table.where)


def drop_rows_without_label(tables: Mapping[str, Table], label: str) -> dict[str, Table]:
    """Drop the rows without a label, and the clients that have no other rows.

    Args:
        tables: The tables by client.
        label: The label column.

    Returns:
        The remaining tables. The number of dropped rows is logged.

    Raises:
        CoterieError: If a table has no label column, or no row of any client has a label.
    """
    complete = {}
    gaps = {}
    for name, table in tables.items():
        if label not in table.columns:
            raise unknown_name(f"label column of {table.where}:", label, table.columns)
        cells = table.columns[label]
        if not cells.num_missing:
            complete[name] = table
            continue
        gaps[name] = cells.num_missing
        if cells.num_missing < table.rows:
            complete[name] = table.take(np.flatnonzero(~cells.missing), table.where)
    if gaps and not complete:
        raise CoterieError(f"the label column {label} is empty in every row", "give labels")
    if gaps:
        message = f"dropped {sum(gaps.values())} rows whose label {label} is empty"
        message += f" ({list_counts(gaps)})"
        gone = [name for name in gaps if name not in complete]
        if gone:
            message += f"; no rows remain for {join_first(gone)}"
        log.info("%s", message)
    return complete


def drop_small_clients(tables: Mapping[str, Table], min_rows: int) -> dict[str, Table]:
    """Drop the clients with fewer than `min_rows` rows, and log them.

    Raises:
        CoterieError: If no client remains.
    """
    if min_rows == 1:
        return dict(tables)  # a client without rows is rejected later, by name
    large = {name: table for name, table in tables.items() if table.rows >= min_rows}
    small = {name: table.rows for name, table in tables.items() if table.rows < min_rows}
    if not large:
        most = max(small.values(), default=0)
        raise CoterieError(
            f"no client has {min_rows} rows or more, the largest has {most}",
            "lower {}",
            options=[Option("min_rows")],
        )
    if small:
        log.info(
            "dropped %d of %d clients with fewer than %d rows, %d rows in all (%s)",
            len(small), len(tables), min_rows, sum(small.values()), list_counts(small),
        )  # fmt: skip
    return large


def list_counts(counts: Mapping[str, int]) -> str:
    """List a few clients with their counts, the highest first."""
    ordered = sorted(counts, key=lambda name: -counts[name])
    return join_first([f"{name} {counts[name]}" for name in ordered])


# ------------------------------------------------------------------------------ splitting
def split_rows(tables: Mapping[str, Table], options: TableOptions) -> Federation:
    """Split each client's rows by a split column, by time, or at random.

    Args:
        tables: The tables by client.
        options: Selects the split: `split_column`, `time_column`, or `test_share` and `seed`.

    Returns:
        A federation whose rows are row numbers of the tables, as x and as y.
    """
    if options.split_column is not None and options.time_column is not None:
        raise CoterieError(
            "split_column and time_column both select the test rows", "give one of them"
        )
    names = tuple(tables)
    if not names:
        raise CoterieError("a federation needs at least one client, and none was given.")
    if options.split_column is not None:
        return split_by_column(tables, options.split_column)
    all_rows = stack([np.arange(table.rows) for table in tables.values()])
    train, test = split(all_rows, names, options.test_share, options.seed, "test")
    if options.time_column is not None:
        train, test = split_by_time(tables, options.time_column, train.sizes.tolist())
    return Federation(names, train, test, "regression", None)


def split_by_column(tables: Mapping[str, Table], column: str) -> Federation:
    """Split rows by the text of a column: train, test or validation."""
    rows: dict[str, list[np.ndarray]] = {"train": [], "test": [], "validation": []}
    for table in tables.values():
        cells = complete_column(table, column)
        unknown = sorted(set(cells.count_texts()) - set(SPLITS))
        if unknown:
            raise unknown_name(f"split in the column {column} of {table.where}:", unknown[0], rows)
        codes, words = cells.text_codes
        for name, of_clients in rows.items():
            chosen = [code for code, word in enumerate(words) if SPLITS.get(word) == name]
            of_clients.append(np.flatnonzero(np.isin(codes, chosen)))
    train, test, validation = (stack(of_clients) for of_clients in rows.values())
    return Federation(
        tuple(tables),
        train,
        test,
        "regression",
        None,
        valid=validation if len(validation.x) else None,
    )


def split_by_time(
    tables: Mapping[str, Table], column: str, train_sizes: list[int]
) -> tuple[Ragged, Ragged]:
    """Assign the first rows of each client by time to training, the last ones to the test split."""
    early, late = [], []
    for table, size in zip(tables.values(), train_sizes):
        order = read_times(complete_column(table, column)).argsort(kind="stable")
        early.append(np.sort(order[:size]))
        late.append(np.sort(order[size:]))
    return stack(early), stack(late)


def stack(rows: list[np.ndarray]) -> Ragged:
    """Concatenate the row numbers of all clients."""
    x = torch.from_numpy(np.concatenate(rows))
    return Ragged(x, x, torch.tensor([len(numbers) for numbers in rows]))


def complete_column(table: Table, column: str) -> TableColumn:
    """Return a column without missing cells, or raise."""
    if column not in table.columns:
        raise unknown_name(f"column of {table.where}:", column, table.columns)
    cells = table.columns[column]
    cells.require_complete("fill in the missing cells")
    return cells


def read_times(cells: TableColumn) -> np.ndarray:
    """Read a column of numbers or dates as numbers that can be sorted, float64 [rows]."""
    if not cells.is_datetime and not np.isnan(cells.parsed).any():
        return cells.require_numbers()
    days = cells.days
    if cells.is_text:  # here 2010-11 can only be a month; as a feature it may be a school year
        days = cells.map_uniques(parse_months(cells.uniques.to_pylist()))
    if np.isnan(days).any():
        raise CoterieError(
            f"the column {cells.name} of {cells.where} contains no times",
            "write numbers, or dates such as 2026-01-31 or 31.1.2026",
        )
    return days
