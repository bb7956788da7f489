"""Encode the clients' tables with a schema, split by split and column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

from coterie.data.columns import ColumnView, TableColumn
from coterie.data.federation import Federation, Ragged
from coterie.data.memory import check_values, count_classes, warn_of_thin_clients
from coterie.data.schema import Schema
from coterie.data.tables import Table, release_columns

BLOCK_ROWS = 200_000  # rows encoded at once


def encode_federation(tables: Mapping[str, Table], index: Federation, schema: Schema) -> Federation:
    """Encode the clients' rows as a federation.

    Args:
        tables: The tables by client.
        index: A federation of row numbers: the rows of each split of each client.
        schema: Encodes the columns and the label.
    """
    parts = encode_splits(tables, index, schema)
    for name, part in parts.items():
        parts[name] = check_values(part, index.names, schema.kind)
    train, test = parts["train"], parts["test"]
    classes = None
    if schema.classes is not None:
        classes = count_classes(torch.cat([train.y, test.y]), schema.classes)
    warn_of_thin_clients(train, index.names, schema.kind)
    return Federation(
        index.names,
        train,
        test,
        schema.kind,
        classes,
        valid=parts.get("valid"),
        unseen=index.unseen,
        labels=schema.classes,
        schema=schema,
        source="frames",
    )


# ------------------------------------------------------------------------------ column by column
class RowBlock(NamedTuple):
    """Some rows of a table, and the arrays that they are encoded into."""

    table: Table
    rows: np.ndarray  # int64, row numbers in the table
    where: str  # names the rows in error messages
    x: np.ndarray  # float32 [rows, columns], a view of the result
    y: np.ndarray  # [rows], a view of the result

    def cells(self, column: str) -> TableColumn:
        """Return the rows of a column."""
        return ColumnView(self.table.column(column), self.rows, self.where, renumber=False)


def encode_splits(
    tables: Mapping[str, Table], index: Federation, schema: Schema
) -> dict[str, Ragged]:
    """Encode the rows of each split directly into preallocated tensors.

    Only one column at a time is in memory besides them. Clients whose rows come from one table are
    encoded together, in blocks of rows.
    """
    of_clients = [tables[name] for name in index.names]
    parts = {name: allocate_split(part, schema) for name, part in index.parts().items()}
    blocks: list[RowBlock] = []
    for name, part in index.parts().items():
        blocks += make_blocks(of_clients, part, parts[name])
    for block in blocks:
        schema.check_columns_present(block.table, schema.fill)
    start = 0
    for column in schema.features:
        stop = start + len(column.encoded)
        for block in blocks:
            block.x[:, start:stop] = column.encode(block.cells(column.name), schema.fill)
        release_columns(of_clients, [column.name])
        start = stop
    for block in blocks:
        block.y[:] = schema.encode_label(block.cells(schema.label))
    release_columns(of_clients, [schema.label])
    return parts


def allocate_split(part: Ragged, schema: Schema) -> Ragged:
    """Allocate the tensors of a split."""
    y_type = torch.float64 if schema.classes is None else torch.int64
    x = torch.empty(len(part.x), len(schema.columns), dtype=torch.float32)
    return Ragged(x, torch.empty(len(part.x), dtype=y_type), part.sizes)


def make_blocks(tables: Sequence[Table], part: Ragged, store: Ragged) -> Iterator[RowBlock]:
    """Yield blocks of a split's rows; consecutive clients of one table share blocks."""
    numbers = split_row_numbers(part)
    x, y = store.x.numpy(), store.y.numpy()
    start = 0
    for _, neighbours in groupby(range(len(tables)), key=lambda i: id(tables[i].whole)):
        clients = list(neighbours)
        first = tables[clients[0]]
        rows = np.concatenate([find_root_rows(tables[i], numbers[i]) for i in clients])
        for begin in range(0, len(rows), BLOCK_ROWS):
            some = rows[begin : begin + BLOCK_ROWS]
            places = slice(start + begin, start + begin + len(some))
            yield RowBlock(first.whole, some, first.where, x[places], y[places])
        start += len(rows)


def find_root_rows(table: Table, rows: np.ndarray) -> np.ndarray:
    """Convert row numbers to those of the full table."""
    while table.origin is not None:
        rows = table.origin.row_numbers()[rows]
        table = table.origin.table
    return rows


def split_row_numbers(part: Ragged) -> list[np.ndarray]:
    """Split an index by client: the row numbers of each client."""
    return np.split(part.x.numpy(), part.starts[1:].numpy())
