"""Federations in a store on disk: written once, from any data, and opened in a moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, unknown_name
from coterie.data.federation import Federation, Ragged
from coterie.data.spec import MAKERS, maker, read_spec
from coterie.data.store_format import read_store
from coterie.data.store_stream import Stream, clients_in, npz_files, write_stream
from coterie.data.store_writer import StoreWriter, refuse_existing

BLOCK = 2**22  # numbers that are written at once
Source = Federation | str | Iterable[tuple[Any, ...]]


@maker
def store(path: str) -> Federation:
    """A store on disk, which `coterie store` wrote: it opens in a moment, rows are read as needed.

    Bytes, as of images, stay bytes on disk and in memory, and become numbers where they are used.
    """
    return read_store(Path(path))


open_store = store


def write_store(
    source: Source,
    path: str | Path,
    *,
    seed: int = 0,
    valid: float = 0.0,
    **options: Any,
) -> Federation:
    """Write a federation to a store, and open it; the path must be free.

    source: one of

    * a federation;
    * a spec such as "rotated:mnist", with `seed` and options as in `load`;
    * clients one by one, as a generator gives them: (name, (x, y)), or (name, (x, y), (x of test
      rows, y of test rows)). Options are `test_share`, `unseen`, `kind` and `labels`, as in
      `from_memory`, and `byte_scale`: x that are bytes stay so, and are divided by it where they
      are used. 255 makes images of 0 to 1.

    Of clients one by one, and of a folder of npz files, one is in memory at a time.

    valid: the share of training rows to hold out as the validation part; not of clients one by one.

    Rows that are whole numbers from 0 to 255, or these divided by 255, are stored as bytes.
    """
    path = Path(path)
    refuse_existing(path)
    data = as_data(source, seed, valid, options)
    if isinstance(data, Stream):
        write_stream(data, path)
        return open_store(str(path))
    if valid and data.valid is None:
        data = data.with_valid(valid, seed)
    write_federation(data, path)
    return open_store(str(path))


def as_data(
    source: Source, seed: int, valid: float, options: dict[str, Any]
) -> Federation | Stream:
    """What to store: a federation, or clients one by one."""
    if isinstance(source, str):
        return data_of_spec(source, seed, valid, options)
    if isinstance(source, Federation):
        refuse_options(options, "a federation", {})
        return source
    refuse_options(options, "clients one by one", Stream._field_defaults)
    if valid:
        raise CoterieError("valid is for a federation, and these are clients one by one.")
    return Stream(iter(source), seed, **options)


def data_of_spec(
    spec: str, seed: int, valid: float, options: dict[str, Any]
) -> Federation | Stream:
    """The federation of a spec, or its clients one by one where that can be."""
    name, arguments = read_spec(spec, seed, **options)
    files = npz_files(name, arguments)
    plain = {"path", "seed", "test_share", "kind"}
    if not files or valid or not arguments.keys() <= plain:
        return MAKERS[name](**arguments)
    arguments.pop("path")
    return Stream(clients_in(files), **arguments)


def refuse_options(options: dict[str, Any], what: str, known: dict[str, Any]) -> None:
    """Refuse options that this source does not have."""
    for name in options:
        if name not in known:
            raise unknown_name(f"option of a store of {what}", name, [*known, "seed", "valid"])


# ------------------------------------------------------------------------------ a federation
def write_federation(fed: Federation, path: Path) -> None:
    """Write a federation, some rows at a time."""
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
    """All rows of a part, some at a time; at least once, so that the types are known."""
    rows = max(1, BLOCK // max(1, part.x[:1].numel()))
    for first in range(0, max(len(part.x), 1), rows):
        yield part.x[first : first + rows], part.y[first : first + rows]


def scale_to_bytes(fed: Federation) -> float | None:
    """By what rows can be multiplied to be bytes, without any loss; None if they cannot.

    Columns of tables stay as they are: their meaning is in the schema.
    """
    if fed.schema is not None or fed.train.x.dtype != torch.float32:
        return None
    for scale in (255.0, 1.0):
        every = (x for part in fed.parts().values() for x, _ in blocks(part))
        if all(is_bytes(x, scale) for x in every):
            return scale
    return None


def is_bytes(x: Tensor, scale: float) -> bool:
    """Whether these numbers are bytes over the scale, to the bit."""
    whole = (x * scale).round()
    return bool(((whole / scale == x) & (whole >= 0) & (whole <= 255)).all())
