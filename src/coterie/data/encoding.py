"""The rows of clients' tables as numbers, in the parts that they were assigned to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch

from coterie.data.client_table import Table
from coterie.data.federation import Federation, Ragged
from coterie.data.row_checks import check_values, count_classes, warn_of_thin_clients
from coterie.data.schema import Schema

BLOCK = 200_000  # rows that are encoded at once


def assemble(tables: Mapping[str, Table], index: Federation, schema: Schema) -> Federation:
    """The federation of the clients' rows; `index` numbers those of each part."""
    encoder = Encoder(tables, index.names, schema)
    parts = {name: encoder.rows(part) for name, part in index.parts().items()}
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


class Block(NamedTuple):
    """Rows of a table, and where they go."""

    table: Table
    places: np.ndarray  # int64 [rows], in the flat store


class Encoder:
    """Encodes the rows of all clients, straight into the store.

    Clients whose rows were cut out of one table are encoded together, a block of rows at a time.
    """

    def __init__(self, tables: Mapping[str, Table], names: tuple[str, ...], schema: Schema) -> None:
        self.tables = [tables[name] for name in names]
        self.schema = schema

    def rows(self, part: Ragged) -> Ragged:
        """The rows that a part of the index numbers."""
        y_type = torch.float64 if self.schema.classes is None else torch.int64
        x = torch.empty(len(part.x), len(self.schema.columns), dtype=torch.float32)
        y = torch.empty(len(part.x), dtype=y_type)
        for block in self.blocks(part):
            block_x, block_y = self.schema.encode_table(block.table)
            x.numpy()[block.places] = block_x
            y.numpy()[block.places] = block_y
        return Ragged(x, y, part.sizes)

    def blocks(self, part: Ragged) -> Iterator[Block]:
        """The rows of a part, in blocks of rows that one table has."""
        by_whole: dict[int, list[int]] = {}
        for client, table in enumerate(self.tables):
            by_whole.setdefault(id(whole_of(table)), []).append(client)
        numbers, starts = rows_by_client(part), part.starts.tolist()
        for clients in by_whole.values():
            rows = np.concatenate([rows_in_whole(self.tables[i], numbers[i]) for i in clients])
            places = np.concatenate([starts[i] + np.arange(len(numbers[i])) for i in clients])
            whole = whole_of(self.tables[clients[0]])
            where = self.tables[clients[0]].where
            for first in range(0, len(rows), BLOCK):
                some = slice(first, first + BLOCK)
                yield Block(whole.part(rows[some], where), places[some])


def whole_of(table: Table) -> Table:
    """The table that a client's rows were cut out of, in the end; itself if it is whole."""
    while table.origin is not None:
        table = table.origin.table
    return table


def rows_in_whole(table: Table, rows: np.ndarray) -> np.ndarray:
    """The numbers that these rows have in the table that they were cut out of."""
    while table.origin is not None:
        rows = table.origin.row_numbers()[rows]
        table = table.origin.table
    return rows


def rows_by_client(part: Ragged) -> list[np.ndarray]:
    """The row numbers of each client."""
    return np.split(part.x.numpy(), part.starts[1:].numpy())
