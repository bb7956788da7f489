"""A store on disk: a folder that holds a federation, read by mapping its files into memory.

    store.json       version, kind, and the type, shape and length of every array
    clients.json     names, class names, schema, and what is odd at single sites
    train.x.bin …    raw arrays, little-endian, one client after another

The small files are compared with their checksums when a store is opened. Of the large ones, x and
y, only the lengths are: to read them all would take as long as to make them.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.federation import Federation, Ragged, Stored
from coterie.data.roster import Kind
from coterie.data.schema import Schema
from coterie.data.site_columns import Constant, SiteColumns

VERSION = 1
HEADER = "store.json"
CLIENTS = "clients.json"
WRITE_ANEW = "write it anew with `coterie store`"
PARTS = ("train", "test", "valid")
TypeName = Literal["uint8", "float16", "float32", "float64", "int64"]
TYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(TypeName)}
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Array(msgspec.Struct, forbid_unknown_fields=True):
    """A file that holds an array; its name is that of the array, with the ending .bin."""

    dtype: TypeName
    shape: list[Count]
    checksum: str | None = None  # sha256; None for the large ones

    @property
    def bytes(self) -> int:
        """The length of the file."""
        return math.prod(self.shape) * TYPES[self.dtype].itemsize


class Header(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of store.json."""

    format: Literal["coterie store"] = "coterie store"
    version: Literal[1] = 1
    kind: Kind
    classes: Count | None
    unseen: Count
    byte_scale: float  # what x is divided by, where it holds bytes
    arrays: dict[str, Array]  # train.x, train.y, train.sizes, …, truth, planted, loss_scale
    clients: str  # sha256 of clients.json
    fingerprint: str  # of the federation


class Clients(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of clients.json."""

    names: list[str]
    labels: list[str] | None
    source: str  # of the data that were stored
    schema: dict[str, Any] | None
    site_columns: dict[str, Any] | None


# ------------------------------------------------------------------------------ reading
def read_store(path: Path) -> Federation:
    """The federation in a store; its rows are read from disk when they are used."""
    header = read_header(path)
    clients = read_clients(path, header)
    arrays = {name: read_array(path, name, about) for name, about in header.arrays.items()}
    try:
        return federation_of(header, clients, arrays)
    except KeyError as missing:
        raise damaged(path, f"it has no array {missing}") from None
    except (TypeError, ValueError, CoterieError) as why:
        raise damaged(path, str(why).rstrip(".")) from None


def read_header(path: Path) -> Header:
    """What store.json says; another version is refused before anything else is looked at."""
    if not path.exists():
        raise CoterieError(f"there is no store {path}", "write it with `coterie store`")
    if not (path / HEADER).is_file():
        raise CoterieError(f"{path} is no store: it has no {HEADER}", "give a store's folder")
    raw = (path / HEADER).read_bytes()
    try:
        version = msgspec.json.decode(raw, type=dict[str, Any]).get("version")
        if isinstance(version, int) and version != VERSION:
            raise CoterieError(
                f"the store {path} is of version {version}, and this coterie reads {VERSION}",
                f"{WRITE_ANEW}, or use another version of coterie",
            )
        return msgspec.json.decode(raw, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise damaged(path, f"{HEADER}: {why}") from None


def read_clients(path: Path, header: Header) -> Clients:
    """What clients.json says."""
    try:
        raw = (path / CLIENTS).read_bytes()
    except OSError:
        raise CoterieError(
            f"the store {path} is cut short: it has no {CLIENTS}", WRITE_ANEW
        ) from None
    if checksum(raw) != header.clients:
        raise damaged(path, f"the checksum of {CLIENTS} does not fit")
    return msgspec.json.decode(raw, type=Clients)


def read_array(path: Path, name: str, about: Array) -> Tensor:
    """An array of a store: mapped if it is large, else read and compared with its checksum."""
    if not name.replace(".", "").isalpha():
        raise damaged(path, f"it has an array {name!r}")
    file = path / f"{name}.bin"
    size = file.stat().st_size if file.is_file() else 0
    if size < about.bytes:
        what = f"{file.name} has {size:,} of {about.bytes:,} bytes"
        raise CoterieError(f"the store {path} is cut short: {what}", WRITE_ANEW)
    if size > about.bytes:
        raise damaged(path, f"{file.name} has {size:,} bytes instead of {about.bytes:,}")
    if about.checksum is None:
        return mapped(file, about)
    raw = file.read_bytes()
    if checksum(raw) != about.checksum:
        raise damaged(path, f"the checksum of {file.name} does not fit")
    return as_tensor(bytearray(raw), about)


def mapped(file: Path, about: Array) -> Tensor:
    """The array in a file, which is read as it is used; writing to it changes no file."""
    if not about.bytes:
        return as_tensor(bytearray(), about)
    with open(file, "rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    return as_tensor(memory, about)


def as_tensor(memory: bytearray | mmap.mmap, about: Array) -> Tensor:
    """Bytes as a tensor, without a copy."""
    dtype = TYPES[about.dtype]
    if not about.bytes:
        return torch.empty(about.shape, dtype=dtype)
    little_endian = np.dtype(about.dtype).newbyteorder("<")
    return torch.from_numpy(np.frombuffer(memory, little_endian).reshape(about.shape))


def damaged(path: Path, why: str) -> CoterieError:
    """An error for a store that contradicts itself."""
    return CoterieError(f"the store {path} is damaged ({why})", WRITE_ANEW)


def checksum(raw: bytes) -> str:
    """Sha256 in hex."""
    return hashlib.sha256(raw).hexdigest()


# ------------------------------------------------------------------------------ federations
def federation_of(header: Header, clients: Clients, arrays: dict[str, Tensor]) -> Federation:
    """The federation that was stored."""
    parts = {}
    for part in PARTS:
        if f"{part}.x" in arrays:
            parts[part] = Ragged(*(arrays[f"{part}.{field}"] for field in Ragged._fields))
    names = tuple(clients.names)
    stored = Stored(header.fingerprint, names, parts["train"], parts["test"], parts.get("valid"))
    return Federation(
        names,
        parts["train"],
        parts["test"],
        header.kind,
        header.classes,
        valid=parts.get("valid"),
        truth=arrays.get("truth"),
        unseen=header.unseen,
        labels=None if clients.labels is None else tuple(clients.labels),
        planted=arrays.get("planted"),
        schema=None if clients.schema is None else Schema.from_json(json.dumps(clients.schema)),
        loss_scale=arrays.get("loss_scale"),
        site_columns=site_columns_from(clients.site_columns),
        byte_scale=header.byte_scale,
        stored=stored,
    )


def about_clients(fed: Federation) -> Clients:
    """What clients.json says of a federation."""
    columns = None
    if fed.site_columns is not None:
        columns = {
            "rows": dict(fed.site_columns.rows),
            "empty": {name: dict(gaps) for name, gaps in fed.site_columns.empty.items()},
            "constants": [list(constant) for constant in fed.site_columns.constants],
        }
    return Clients(
        names=list(fed.names),
        labels=None if fed.labels is None else list(fed.labels),
        source=fed.roster.source,
        schema=None if fed.schema is None else json.loads(fed.schema.to_json()),
        site_columns=columns,
    )


def site_columns_from(columns: dict[str, Any] | None) -> SiteColumns | None:
    """What `about_clients` wrote of the columns at single sites."""
    if columns is None:
        return None
    constants = [Constant(*constant) for constant in columns["constants"]]
    return SiteColumns(columns["rows"], columns["empty"], constants)
