"""A store on disk: a folder that holds a federation, read by mapping its files into memory.

    store.json       version, kind, and the type, shape and length of every array
    clients.json     names, class names, schema, and what is odd at single sites
    train.x.bin …    raw arrays, little-endian, one client after another

Files are compared with their checksums and lengths when a store is opened. The checksum of the
large ones, x and y, is the federation's fingerprint.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO, Literal, cast, get_args

import msgspec
import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.federation import Federation, Ragged, StoredSplits
from coterie.data.roster import Kind
from coterie.data.schema import Schema
from coterie.data.site_columns import ConstantColumn, SiteColumns

VERSION = 1
HEADER = "store.json"
CLIENTS = "clients.json"
WRITE_ANEW = "write it anew with `coterie store`"
PARTS = ("train", "test", "valid")
TypeName = Literal["uint8", "float16", "float32", "float64", "int64"]
TYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(TypeName)}
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class ArrayFile(msgspec.Struct, forbid_unknown_fields=True):
    """A file that holds an array; its name is that of the array, with the ending .bin."""

    dtype: TypeName
    shape: list[Count]
    checksum: str | None = None  # sha256; None for x and y, which the fingerprint covers

    @property
    def bytes(self) -> int:
        """The length of the file."""
        return math.prod(self.shape) * TYPES[self.dtype].itemsize


class StoreHeader(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of store.json."""

    format: Literal["coterie store"] = "coterie store"
    version: Literal[1] = 1
    kind: Kind
    classes: Count | None
    unseen: Count
    byte_scale: float  # what x is divided by, where it holds bytes
    arrays: dict[str, ArrayFile]  # train.x, …, train.sizes, …, truth, planted, caution (loss scale)
    clients: str  # sha256 of clients.json
    fingerprint: str  # of the federation, with all its rows


class StoredClients(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of clients.json."""

    names: list[str]
    labels: list[str] | None
    source: str  # of the data that were stored
    schema: dict[str, Any] | None
    site_columns: dict[str, Any] | None


# ------------------------------------------------------------------------------ reading
def read_store(path: Path) -> Federation:
    """Open a store; its rows are read from disk when they are used."""
    header = read_header(path)
    clients = read_clients(path, header)
    arrays = {name: read_array(path, name, about) for name, about in header.arrays.items()}
    try:
        return build_federation(header, clients, arrays)
    except KeyError as missing:
        raise damaged(path, f"it has no array {missing}") from None
    except (TypeError, ValueError, CoterieError) as why:
        raise damaged(path, str(why).rstrip(".")) from None


def check_rows(fed: Federation, path: Path) -> None:
    """Raise if the rows of a store are not those that were written; reads all of them."""
    assert fed.stored is not None
    if replace(fed, stored=None).fingerprint() != fed.stored.fingerprint:
        raise damaged(path, "its rows do not match their checksum")


def read_header(path: Path) -> StoreHeader:
    """Read store.json; another version is rejected first."""
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
        return msgspec.json.decode(raw, type=StoreHeader)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise damaged(path, f"{HEADER}: {why}") from None


def read_clients(path: Path, header: StoreHeader) -> StoredClients:
    """Read clients.json."""
    try:
        raw = (path / CLIENTS).read_bytes()
    except OSError:
        raise CoterieError(
            f"the store {path} is cut short: it has no {CLIENTS}", WRITE_ANEW
        ) from None
    if checksum(raw) != header.clients:
        raise damaged(path, f"the checksum of {CLIENTS} does not fit")
    return msgspec.json.decode(raw, type=StoredClients)


def read_array(path: Path, name: str, about: ArrayFile) -> Tensor:
    """Read an array: map a large one, compare a small one with its checksum."""
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
        return map_array(file, about)
    raw = file.read_bytes()
    if checksum(raw) != about.checksum:
        raise damaged(path, f"the checksum of {file.name} does not fit")
    return tensor_of_bytes(bytearray(raw), about)


def map_array(file: Path, about: ArrayFile) -> Tensor:
    """Map the array in a file into memory; writing to it does not change the file."""
    if not about.bytes:
        return tensor_of_bytes(bytearray(), about)
    dtype = np.dtype(about.dtype).newbyteorder("<")
    return torch.from_numpy(np.memmap(file, dtype, mode="c", shape=tuple(about.shape)))


def tensor_of_bytes(memory: bytearray, about: ArrayFile) -> Tensor:
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
def build_federation(
    header: StoreHeader, clients: StoredClients, arrays: dict[str, Tensor]
) -> Federation:
    """Assemble the federation from the files of a store."""
    parts = {}
    for part in PARTS:
        if f"{part}.x" in arrays:
            parts[part] = Ragged(*(arrays[f"{part}.{field}"] for field in Ragged._fields))
    names = tuple(clients.names)
    stored = StoredSplits(
        header.fingerprint, names, parts["train"], parts["test"], parts.get("valid")
    )
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
        loss_scale=arrays.get("caution"),
        site_columns=site_columns_from(clients.site_columns),
        byte_scale=header.byte_scale,
        stored=stored,
    )


def about_clients(fed: Federation) -> StoredClients:
    """Return the content of clients.json for a federation."""
    columns = None
    if fed.site_columns is not None:
        columns = {
            "rows": dict(fed.site_columns.rows),
            "empty": {name: dict(gaps) for name, gaps in fed.site_columns.empty.items()},
            "constants": [list(constant) for constant in fed.site_columns.constants],
            "lacking": {name: list(sites) for name, sites in fed.site_columns.lacking.items()},
        }
    return StoredClients(
        names=list(fed.names),
        labels=None if fed.labels is None else list(fed.labels),
        source=fed.roster.source,
        schema=None if fed.schema is None else json.loads(fed.schema.to_json()),
        site_columns=columns,
    )


def site_columns_from(columns: dict[str, Any] | None) -> SiteColumns | None:
    """Read the site statistics that `about_clients` wrote."""
    if columns is None:
        return None
    constants = [ConstantColumn(*constant) for constant in columns["constants"]]
    return SiteColumns(columns["rows"], columns["empty"], constants, columns.get("lacking", {}))


if sys.platform != "win32":
    import fcntl


class StoreWriter:
    """A store that is being written; used in a `with`, after which it is there or it is not.

    Rows are appended to the arrays of a part; `finish` writes all else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unfinished = path.with_name(f".{path.name}.coterie-new")
        self.files: dict[str, BinaryIO] = {}
        self.arrays: dict[str, ArrayFile] = {}
        self.lock = -1

    def __enter__(self) -> StoreWriter:
        refuse_existing(self.path)
        with explain_write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.unfinished.mkdir(exist_ok=True)
            self.lock = os.open(self.unfinished, os.O_RDONLY)
            self._take_lock()
            for file in self.unfinished.iterdir():  # what a kill left
                file.unlink()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for file in self.files.values():
            if not file.closed:
                with explain_write_errors(self.path):
                    file.close()
        os.close(self.lock)
        if self.unfinished.exists():
            shutil.rmtree(self.unfinished)
        if isinstance(error, OSError):
            raise write_error(error, self.path) from error

    def _take_lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.lock)
            raise CoterieError(
                f"another process is writing {self.path}", "wait until it has ended"
            ) from None

    # -- arrays
    def append(self, part: str, x: Tensor, y: Tensor) -> None:
        """Append rows to a split."""
        for name, rows in ((f"{part}.x", x), (f"{part}.y", y)):
            if name not in self.files:
                self.arrays[name] = ArrayFile(type_name(rows), [0, *rows.shape[1:]])
                self.files[name] = (self.unfinished / f"{name}.bin").open("wb")
            self.arrays[name].shape[0] += len(rows)
            self.files[name].write(as_bytes(rows))

    def small(self, name: str, values: Tensor) -> None:
        """Write a small array with its checksum."""
        raw = as_bytes(values)
        self.arrays[name] = ArrayFile(type_name(values), list(values.shape), checksum(raw))
        (self.unfinished / f"{name}.bin").write_bytes(raw)

    def rows(self, name: str) -> Tensor:
        """Return the rows written so far, map_array from disk."""
        self.files[name].flush()
        return map_array(self.unfinished / f"{name}.bin", self.arrays[name])

    # -- the end
    def finish(self, fed: Federation) -> None:
        """Write everything except the rows, and rename the folder to its path.

        Args:
            fed: The federation as it will be read, with its rows map_array from disk.
        """
        for part in PARTS:
            if f"{part}.x" in self.arrays:
                self.small(f"{part}.sizes", fed.parts()[part].sizes)
        small = {"truth": fed.truth, "planted": fed.planted, "caution": fed.loss_scale}
        for name, values in small.items():
            if values is not None:
                self.small(name, values)
        clients = msgspec.json.encode(about_clients(fed))
        (self.unfinished / CLIENTS).write_bytes(clients)
        header = StoreHeader(
            kind=fed.kind,
            classes=fed.classes,
            unseen=fed.unseen,
            byte_scale=fed.byte_scale,
            arrays=self.arrays,
            clients=checksum(clients),
            fingerprint=fed.fingerprint(),
        )
        text = msgspec.json.format(msgspec.json.encode(header), indent=1)
        (self.unfinished / HEADER).write_bytes(text + b"\n")
        for file in self.files.values():
            file.close()
        for path in [*self.unfinished.iterdir(), self.unfinished]:
            sync(path)
        refuse_existing(self.path)
        os.rename(self.unfinished, self.path)
        sync(self.path.parent)


def type_name(values: Tensor) -> TypeName:
    """The name of a tensor's type, as in a header."""
    name = str(values.dtype).removeprefix("torch.")
    if name not in TYPES:
        raise CoterieError(f"a store holds no numbers of {name}", f"convert to {', '.join(TYPES)}")
    return cast(TypeName, name)


def as_bytes(values: Tensor) -> bytes:
    """A tensor's numbers, little-endian."""
    plain: np.ndarray = values.contiguous().numpy()
    return plain.astype(plain.dtype.newbyteorder("<"), copy=False).tobytes()


def sync(path: Path) -> None:
    """Make a file or folder durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def refuse_existing(path: Path) -> None:
    """Raise if the path exists."""
    if path.exists():
        raise CoterieError(f"{path} exists", "choose another path for the store, or remove it")


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into one sentence."""
    try:
        yield
    except OSError as e:
        raise write_error(e, path) from e


def write_error(e: OSError, path: Path) -> CoterieError:
    """Explain why a store was not written."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return CoterieError(
            f"the disk is full, the store {path} was not written",
            "free some space, or another disk",
        )
    return CoterieError(
        f"the store {path} cannot be written ({e.strerror or e})",
        "check the folder and its permissions",
    )
