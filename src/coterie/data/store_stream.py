"""Clients that come one by one, straight into a store: one is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.client_files import client_files
from coterie.data.federation import Federation, Kind, Ragged, split
from coterie.data.memory import client_rows
from coterie.data.row_checks import check_values, warn_of_thin_clients
from coterie.data.store_writer import StoreWriter
from coterie.data.tables import read_npz


class Stream(NamedTuple):
    """Clients that come one by one, and how they become a federation; see `write_store`."""

    clients: Iterator[tuple[Any, ...]]
    seed: int
    test_share: float = 0.25
    unseen: int = 0
    kind: Kind | None = None
    labels: Sequence[str] | None = None
    byte_scale: float = 1.0


def npz_files(name: str, arguments: dict[str, Any]) -> dict[str, Path]:
    """The files of a folder of npz files; none for other data."""
    if name != "folder":
        return {}
    files = client_files(Path(arguments["path"]))
    if next(iter(files.values())).suffix.lower() != ".npz":
        return {}
    return files


def clients_in(files: dict[str, Path]) -> Iterator[tuple[Any, ...]]:
    """The clients of npz files, one by one."""
    for name, file in files.items():
        arrays = read_npz(file)
        rows = (arrays["x"], arrays["y"])
        if "x_test" in arrays:
            yield name, rows, (arrays["x_test"], arrays["y_test"])
        else:
            yield name, rows


def write_stream(stream: Stream, path: Path) -> None:
    """Write clients as they come."""
    with StoreWriter(path) as writer:
        sizes: dict[str, list[int]] = {"train": [], "test": []}
        names: list[str] = []
        checks = LikeTheFirst(stream.kind)
        for client in stream.clients:
            name, parts = read_client(client, stream)
            names.append(name)
            for part, rows in parts.items():
                x, y = checks.checked(name, rows)
                writer.append(part, x, y)
                sizes[part].append(len(y))
        if not names:
            raise CoterieError("a federation needs at least one client, and none was given.")
        parts = {
            part: Ragged(writer.rows(f"{part}.x"), writer.rows(f"{part}.y"), torch.tensor(counts))
            for part, counts in sizes.items()
        }
        fed = Federation(
            tuple(names),
            parts["train"],
            parts["test"],
            checks.kind_of_all,
            checks.count_classes(stream.labels),
            unseen=stream.unseen,
            labels=None if stream.labels is None else tuple(stream.labels),
            byte_scale=stream.byte_scale,
            source="memory",
        )
        warn_of_thin_clients(fed.train, fed.names, fed.kind)
        writer.finish(fed)


def read_client(client: Any, stream: Stream) -> tuple[str, dict[str, Ragged]]:
    """(a client's name, its rows by part)"""
    if not isinstance(client, tuple | list) or len(client) not in (2, 3):
        raise CoterieError(
            "clients one by one must be (name, (x, y)) or (name, (x, y), (x of tests, y of tests))",
            "give such tuples",
        )
    name = str(client[0])
    rows = [as_ragged(name, pair) for pair in client[1:]]
    if not len(rows[0].y):
        raise CoterieError(f"client {name!r} is empty", "leave it out, or give it data")
    if len(rows) == 1:
        rows = [*split(rows[0], [name], stream.test_share, stream.seed, "test")]
    return name, {"train": rows[0], "test": rows[1]}


def as_ragged(name: str, pair: Any) -> Ragged:
    """The rows of one client."""
    x, y = client_rows(name, pair, keep_bytes=True)
    return Ragged(x, y, torch.tensor([len(y)]))


class LikeTheFirst:
    """Refuses clients whose rows are not like those of the first."""

    def __init__(self, kind: Kind | None) -> None:
        self.kind = kind
        self.first: tuple[str, Ragged] | None = None
        self.highest = 0

    @property
    def kind_of_all(self) -> Kind:
        """Whether the labels are classes or targets."""
        if self.kind is not None:
            return self.kind
        assert self.first is not None
        return "regression" if self.first[1].y.is_floating_point() else "classification"

    def checked(self, name: str, rows: Ragged) -> tuple[Tensor, Tensor]:
        """A client's x and y, if they can be trained on and are like the first client's."""
        if self.first is None:
            self.first = (name, rows)
        first, like = self.first
        if rows.x.shape[1:] != like.x.shape[1:] or rows.x.dtype != like.x.dtype:
            raise CoterieError(
                f"rows of client {first!r} are {describe(like.x)}, those of {name!r} "
                f"{describe(rows.x)}",
                "all clients need the same features",
            )
        if rows.y.is_floating_point() != like.y.is_floating_point():
            raise CoterieError(
                f"labels of client {first!r} are {like.y.dtype}, those of {name!r} {rows.y.dtype}",
                "give all clients classes, or all targets",
            )
        rows = check_values(rows, [name], self.kind_of_all)
        if self.kind_of_all == "classification" and len(rows.y):
            self.highest = max(self.highest, int(rows.y.max()))
        return rows.x, rows.y.to(torch.promote_types(rows.y.dtype, like.y.dtype))

    def count_classes(self, labels: Sequence[str] | None) -> int | None:
        """The number of classes: one per name, or the highest label plus one."""
        if self.kind_of_all == "regression":
            return None
        if labels is not None and self.highest >= len(labels):
            raise CoterieError(
                f"there is a label {self.highest}, but names for only {len(labels)} classes",
                "name them all",
            )
        if labels is None:
            return self.highest + 1
        return len(labels)


def describe(x: Tensor) -> str:
    """The shape and type of rows."""
    return f"{tuple(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"
