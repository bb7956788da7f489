"""Rows and clients that are left out of a federation of tables because the user asked for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data.client_table import Table, client_cells
from coterie.data.schema_log import first_few

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
