"""The rows of clients' tables as numbers, in the parts that they were assigned to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

from coterie.data.cells import ColumnView, TableColumn
from coterie.data.client_table import Table, release_columns
from coterie.data.federation import Federation, Ragged
from coterie.data.memory import check_values, count_classes, warn_of_thin_clients
from coterie.data.schema import Schema

BLOCK_ROWS = 200_000  # rows that are encoded at once


def encode_federation(tables: Mapping[str, Table], index: Federation, schema: Schema) -> Federation:
    """The federation of the clients' rows; `index` numbers those of each part."""
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
class Block(NamedTuple):
    """Some rows of a table, and where they go."""

    table: Table
    rows: np.ndarray  # int64, their numbers in the table
    where: str  # what errors call them
    x: np.ndarray  # float32 [rows, columns], in the store
    y: np.ndarray  # [rows], in the store

    def cells(self, column: str) -> TableColumn:
        """The rows of a column."""
        return ColumnView(self.table.columns[column], self.rows, self.where, renumber=False)


def encode_splits(
    tables: Mapping[str, Table], index: Federation, schema: Schema
) -> dict[str, Ragged]:
    """The rows that each part of the index numbers, straight into the store.

    Only one column is in memory beside it. Clients whose rows were cut out of one table are encoded
    together, a block of rows at a time.
    """
    of_clients = [tables[name] for name in index.names]
    parts = {name: empty_store(part, schema) for name, part in index.parts().items()}
    blocks: list[Block] = []
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


def empty_store(part: Ragged, schema: Schema) -> Ragged:
    """Room for the rows of a part."""
    y_type = torch.float64 if schema.classes is None else torch.int64
    x = torch.empty(len(part.x), len(schema.columns), dtype=torch.float32)
    return Ragged(x, torch.empty(len(part.x), dtype=y_type), part.sizes)


def make_blocks(tables: Sequence[Table], part: Ragged, store: Ragged) -> Iterator[Block]:
    """The rows of a part; those of neighbours in the store that one table has are together."""
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
            yield Block(first.whole, some, first.where, x[places], y[places])
        start += len(rows)


def find_root_rows(table: Table, rows: np.ndarray) -> np.ndarray:
    """The numbers that these rows have in the table that they were cut out of."""
    while table.origin is not None:
        rows = table.origin.row_numbers()[rows]
        table = table.origin.table
    return rows


def split_row_numbers(part: Ragged) -> list[np.ndarray]:
    """The row numbers of each client."""
    return np.split(part.x.numpy(), part.starts[1:].numpy())
