"""Write federations to a store on disk, and open them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, unknown_name
from coterie.data.federation import Federation, Kind, Ragged, split
from coterie.data.folder import client_files
from coterie.data.memory import (
    check_values,
    classes_up_to,
    client_rows,
    warn_of_thin_clients,
)
from coterie.data.spec import MAKERS, maker, read_spec
from coterie.data.store_files import StoreWriter, check_rows, read_store, refuse_existing
from coterie.data.table_files import read_npz


class ClientStream(NamedTuple):
    """An iterator over clients, and the options of `write_store` for it."""

    clients: Iterator[tuple[Any, ...]]
    seed: int
    test_share: float = 0.25
    unseen: int = 0
    kind: Kind | None = None
    labels: Sequence[str] | None = None
    byte_scale: float = 1.0


def npz_files(name: str, arguments: dict[str, Any]) -> dict[str, Path]:
    """Return the files of a folder of npz files; none for other data."""
    if name != "folder":
        return {}
    files = client_files(Path(arguments["path"]))
    if next(iter(files.values())).suffix.lower() != ".npz":
        return {}
    return files


def clients_in(files: dict[str, Path]) -> Iterator[tuple[Any, ...]]:
    """Yield the clients of npz files."""
    for name, file in files.items():
        arrays = read_npz(file)
        rows = (arrays["x"], arrays["y"])
        if "x_test" in arrays:
            yield name, rows, (arrays["x_test"], arrays["y_test"])
        else:
            yield name, rows


def write_stream(stream: ClientStream, path: Path) -> None:
    """Write clients one at a time, without loading all of them."""
    with StoreWriter(path) as writer:
        sizes: dict[str, list[int]] = {"train": [], "test": []}
        names: list[str] = []
        checks = ClientChecker(stream.kind)
        for client in stream.clients:
            name, parts = read_client(client, stream)
            names.append(name)
            for part, rows in parts.items():
                x, y = checks.check(name, rows)
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


def read_client(client: Any, stream: ClientStream) -> tuple[str, dict[str, Ragged]]:
    """Return a client's name, and its rows by split."""
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
    """Convert one client to tensors; bytes stay bytes."""
    x, y = client_rows(name, pair, keep_bytes=True)
    if y.ndim > 1:
        raise CoterieError(
            f"client {name!r} has y of shape {tuple(y.shape)}, and stores hold one label per row",
            "train on the arrays themselves",
        )
    return Ragged(x, y, torch.tensor([len(y)]))


class ClientChecker:
    """Checks that all clients have rows of the same shape and dtype as the first client."""

    def __init__(self, kind: Kind | None) -> None:
        self.kind = kind
        self.first: tuple[str, Ragged] | None = None
        self.highest = 0

    @property
    def kind_of_all(self) -> Kind:
        """The kind of the labels: as given, or from the dtype of the first client's labels."""
        if self.kind is not None:
            return self.kind
        assert self.first is not None
        return "regression" if self.first[1].y.is_floating_point() else "classification"

    def check(self, name: str, rows: Ragged) -> tuple[Tensor, Tensor]:
        """Return a client's x and y; raise if they do not match the first client."""
        if self.first is None:
            self.first = (name, rows)
        first, like = self.first
        if rows.x.shape[1:] != like.x.shape[1:] or rows.x.dtype != like.x.dtype:
            raise CoterieError(
                f"rows of client {first!r} are {describe_rows(like.x)}, those of {name!r} "
                f"{describe_rows(rows.x)}",
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
        """Count the classes: one per name, or the highest label plus one."""
        if self.kind_of_all == "regression":
            return None
        return classes_up_to(self.highest, labels)


def describe_rows(x: Tensor) -> str:
    """Describe the shape and dtype of rows, for errors."""
    return f"{tuple(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"


BLOCK = 2**22  # numbers per write
Source = Federation | str | Iterable[tuple[Any, ...]]


@maker
def store(path: str, check: bool = True) -> Federation:
    """A store on disk, written by `coterie store`. Rows are read when they are used.

    Files are mapped into memory. Bytes, such as images, stay bytes and are converted when they are
    used.

    Args:
        path: The folder of the store.
        check: Compare all rows with their checksum first, which reads them once; without it a store
            of any size opens at once.

    Example:
        >>> import tempfile
        >>> import coterie as ct
        >>> path = tempfile.mkdtemp() + "/digits"
        >>> _ = ct.data.store("rotated:digits?clients=4&samples=10", path)
        >>> ct.data.open_store(path).train.sizes.tolist()
        [10, 10, 10, 10]
    """
    fed = read_store(Path(path))
    if check:
        check_rows(fed, Path(path))
    return fed


open_store = store


def write_store(
    source: Source,
    path: str | Path,
    *,
    seed: int = 0,
    valid: float = 0.0,
    **options: Any,
) -> Federation:
    """Write a federation to a store, and open it.

    Rows that are integers from 0 to 255, or such integers divided by 255, are stored as bytes.

    Args:
        source: A federation; a spec such as "rotated:mnist"; or an iterable of clients, each
            (name, (x, y)) or (name, (x, y), (test x, test y)). Of an iterable, and of a folder of
            npz files, one client is in memory at a time.
        path: The folder to create; it must not exist.
        seed: Seed of random draws.
        valid: Share of training rows to hold out as validation split; not for an iterable.
        **options: For a spec, as in `load`. For an iterable, `test_share`, `unseen`, `kind` and
            `labels` as in `from_memory`, and `byte_scale`, by which x of bytes is divided when it
            is used: 255 scales images to [0, 1].

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/digits"
        >>> write_store("rotated:digits?clients=4", path).total
        4
        >>> open_store(path).names[0]
        'client-000'
    """
    path = Path(path)
    refuse_existing(path)
    data = as_data(source, seed, valid, options)
    if isinstance(data, ClientStream):
        write_stream(data, path)
        return open_store(str(path))
    if valid and data.valid is None:
        data = data.with_valid(valid, seed)
    write_federation(data, path)
    return open_store(str(path))


def as_data(
    source: Source, seed: int, valid: float, options: dict[str, Any]
) -> Federation | ClientStream:
    """Convert a source to a federation, or to a stream of clients."""
    if isinstance(source, str):
        return data_of_spec(source, seed, valid, options)
    if isinstance(source, Federation):
        refuse_options(options, "a federation", {})
        return source
    refuse_options(options, "clients one by one", ClientStream._field_defaults)
    if valid:
        raise CoterieError("valid is for a federation, and these are clients one by one.")
    return ClientStream(iter(source), seed, **options)


def data_of_spec(
    spec: str, seed: int, valid: float, options: dict[str, Any]
) -> Federation | ClientStream:
    """Load a spec; a folder of npz files becomes a stream of clients if the options allow it."""
    name, arguments = read_spec(spec, seed, **options)
    files = npz_files(name, arguments)
    plain = {"path", "seed", "test_share", "kind"}
    if not files or valid or not arguments.keys() <= plain:
        return MAKERS[name](**arguments)
    arguments.pop("path")
    return ClientStream(clients_in(files), **arguments)


def refuse_options(options: dict[str, Any], what: str, known: dict[str, Any]) -> None:
    """Raise for options that this source does not have."""
    for name in options:
        if name not in known:
            raise unknown_name(f"option of a store of {what}", name, [*known, "seed", "valid"])


# ------------------------------------------------------------------------------ a federation
def write_federation(fed: Federation, path: Path) -> None:
    """Write a federation in blocks of rows."""
    if fed.train.y.ndim > 1 or fed.fields:
        raise CoterieError(
            "stores hold rows with one input and one label, and these data have others",
            "train on the data themselves",
        )
    scale = fed.byte_scale
    in_bytes = fed.train.x.dtype == torch.uint8
    if not in_bytes:
        found = scale_to_bytes(fed)
        in_bytes = found is not None
        scale = found or 1.0
    with StoreWriter(path) as writer:
        parts: dict[str, Any] = {}
        for name, part in fed.parts().items():
            for x, y in blocks(part):
                if in_bytes and x.dtype != torch.uint8:
                    x = (x * scale).round().to(torch.uint8)
                writer.append(name, x, y)
            parts[name] = Ragged(writer.rows(f"{name}.x"), writer.rows(f"{name}.y"), part.sizes)
        writer.finish(replace(fed, **parts, byte_scale=scale))


def blocks(part: Ragged) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows of a split in blocks; at least one block, which defines the dtypes."""
    rows = max(1, BLOCK // max(1, part.x[:1].numel()))
    for first in range(0, max(len(part.x), 1), rows):
        yield part.x[first : first + rows], part.y[first : first + rows]


def scale_to_bytes(fed: Federation) -> float | None:
    """Return the factor that converts all rows to bytes without loss; None if there is none.

    Columns of tables are not converted, because the schema describes them.
    """
    if fed.schema is not None or fed.train.x.dtype != torch.float32:
        return None
    for scale in (255.0, 1.0):
        every = (x for part in fed.parts().values() for x, _ in blocks(part))
        if all(is_bytes(x, scale) for x in every):
            return scale
    return None


def is_bytes(x: Tensor, scale: float) -> bool:
    """Whether the numbers are exactly bytes divided by the scale."""
    whole = (x * scale).round()
    return bool(((whole / scale == x) & (whole >= 0) & (whole <= 255)).all())
