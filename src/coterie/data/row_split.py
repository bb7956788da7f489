"""Select the rows of each client: drop incomplete rows, then split into train, validation, test."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import torch

from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data.cells import Cells
from coterie.data.client_table import Table, client_cells
from coterie.data.dates import days_of_times
from coterie.data.federation import Federation, Ragged, split
from coterie.data.schema import first_few
from coterie.data.table_options import TableOptions

log = logging.getLogger("coterie")


def with_client_named(table: Table, column: str | None) -> Table:
    """A table of all clients without the rows that name no client."""
    missing = client_cells(table, column).missing
    if not missing.any():
        return table
    if missing.all():
        raise CoterieError(f"the client column {column} is empty in every row", "name the clients")
    log.info("left out: %d rows whose client column %s is empty", missing.sum(), column)
    return table.part(np.flatnonzero(~missing), table.where)


def with_labels(tables: Mapping[str, Table], label: str) -> dict[str, Table]:
    """The tables without the rows that have no label; a client without any other is left out."""
    complete = {}
    gaps = {}
    for name, table in tables.items():
        if label not in table.columns:
            raise unknown_name(f"label column of {table.where}:", label, table.columns)
        cells = table.columns[label]
        if not cells.empty_cells:
            complete[name] = table
            continue
        gaps[name] = cells.empty_cells
        if cells.empty_cells < table.rows:
            complete[name] = table.part(np.flatnonzero(~cells.missing), table.where)
    if gaps and not complete:
        raise CoterieError(f"the label column {label} is empty in every row", "give labels")
    if gaps:
        log_rows_without_label(label, gaps, gone=[name for name in gaps if name not in complete])
    return complete


def log_rows_without_label(label: str, gaps: Mapping[str, int], gone: list[str]) -> None:
    """Log how many rows have no label, at which clients, and who has no rows with one."""
    sentence = f"left out: {sum(gaps.values())} rows whose label {label} is empty ({listed(gaps)})"
    if gone:
        sentence += f"; no rows remain for {first_few(gone)}"
    log.info("%s", sentence)


def large_enough(tables: Mapping[str, Table], min_rows: int) -> dict[str, Table]:
    """The tables of clients with `min_rows` rows or more."""
    if min_rows == 1:
        return dict(tables)  # a client without rows is refused later, and named
    large = {name: table for name, table in tables.items() if table.rows >= min_rows}
    small = {name: table.rows for name, table in tables.items() if table.rows < min_rows}
    if not large:
        most = max(small.values(), default=0)
        raise CoterieError(
            f"no client has {min_rows} rows or more, but at most {most}",
            "lower {}",
            options=[Option("min_rows")],
        )
    if small:
        log.info(
            "left out: %d of %d clients, with %d rows in all, as each has fewer than %d (%s)",
            len(small), len(tables), sum(small.values()), min_rows, listed(small),
        )  # fmt: skip
    return large


def listed(counts: Mapping[str, int]) -> str:
    """Clients with their counts, the highest first, shortened."""
    ordered = sorted(counts, key=lambda name: -counts[name])
    return first_few([f"{name} {counts[name]}" for name in ordered])


PARTS = ("train", "test", "valid")


def split_rows(tables: Mapping[str, Table], options: TableOptions) -> Federation:
    """A federation of row numbers: who trains and tests on which rows of its table."""
    if options.split_column is not None and options.time_column is not None:
        raise CoterieError(
            "split_column and time_column both say which rows are for tests", "give one of them"
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
    """Train, test and validation rows by the word that a column has in each row."""
    words = {}
    for name, table in tables.items():
        words[name] = complete_column(table, column).column.astype(str).to_numpy()
        strange = sorted(set(words[name].tolist()) - set(PARTS))
        if strange:
            raise unknown_name(f"part in the column {column} of {table.where}:", strange[0], PARTS)
    train, test, valid = (
        stack([np.flatnonzero(of_client == part) for of_client in words.values()]) for part in PARTS
    )
    has_valid = len(valid.x) > 0
    return Federation(
        tuple(tables), train, test, "regression", None, valid=valid if has_valid else None
    )


def split_by_time(
    tables: Mapping[str, Table], column: str, train_sizes: list[int]
) -> tuple[Ragged, Ragged]:
    """The first rows of each client by a column of times for training, the last ones for tests."""
    early, late = [], []
    for table, size in zip(tables.values(), train_sizes):
        order = as_times(complete_column(table, column)).argsort(kind="stable")
        early.append(np.sort(order[:size]))
        late.append(np.sort(order[size:]))
    return stack(early), stack(late)


def stack(rows: list[np.ndarray]) -> Ragged:
    """The row numbers of each client in one store, as x and as y."""
    x = torch.from_numpy(np.concatenate(rows))
    return Ragged(x, x, torch.tensor([len(numbers) for numbers in rows]))


def complete_column(table: Table, column: str) -> Cells:
    """A column that says which rows are for tests; empty cells are refused."""
    if column not in table.columns:
        raise unknown_name(f"column of {table.where}:", column, table.columns)
    cells = table.columns[column]
    cells.refuse_missing("complete it")
    return cells


def as_times(cells: Cells) -> np.ndarray:
    """Numbers, or dates as numbers."""
    import pandas as pd

    if not cells.is_time and not np.isnan(cells.parsed).any():
        return cells.numbers()
    if not np.isnan(cells.days).any():
        return cells.days
    try:  # here 2010-11 can only be a month; as a feature it may also be a school year
        return days_of_times(pd.to_datetime(cells.column, format="ISO8601", utc=True))
    except (ValueError, TypeError):
        raise CoterieError(
            f"the column {cells.name} of {cells.where} is no time",
            "write numbers, or dates such as 2026-01-31 or 31.1.2026",
        ) from None
