"""Writes a store: into a folder beside its place, which is renamed when all is there."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

import msgspec
import numpy as np
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.data.federation import Federation
from coterie.data.store_format import (
    CLIENTS,
    HEADER,
    PARTS,
    TYPES,
    Array,
    Header,
    TypeName,
    about_clients,
    checksum,
    mapped,
)

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
        self.arrays: dict[str, Array] = {}
        self.lock = -1

    def __enter__(self) -> StoreWriter:
        refuse_existing(self.path)
        with one_sentence(self.path):
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
                with one_sentence(self.path):
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
        """More rows of a part."""
        for name, rows in ((f"{part}.x", x), (f"{part}.y", y)):
            if name not in self.files:
                self.arrays[name] = Array(type_name(rows), [0, *rows.shape[1:]])
                self.files[name] = (self.unfinished / f"{name}.bin").open("wb")
            self.arrays[name].shape[0] += len(rows)
            self.files[name].write(as_bytes(rows))

    def small(self, name: str, values: Tensor) -> None:
        """A whole array, which is compared with its checksum when it is read."""
        raw = as_bytes(values)
        self.arrays[name] = Array(type_name(values), list(values.shape), checksum(raw))
        (self.unfinished / f"{name}.bin").write_bytes(raw)

    def rows(self, name: str) -> Tensor:
        """What was written of a large array, from disk."""
        self.files[name].flush()
        return mapped(self.unfinished / f"{name}.bin", self.arrays[name])

    # -- the end
    def finish(self, fed: Federation) -> None:
        """Write all but the rows, and put the store into its place; fed: as it will be read."""
        for part in PARTS:
            if f"{part}.x" in self.arrays:
                self.small(f"{part}.sizes", fed.parts()[part].sizes)
        for name in ("truth", "planted", "loss_scale"):
            values = getattr(fed, name)
            if values is not None:
                self.small(name, values)
        clients = msgspec.json.encode(about_clients(fed))
        (self.unfinished / CLIENTS).write_bytes(clients)
        header = Header(
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
    """Refuse a path where there is something."""
    if path.exists():
        raise CoterieError(f"{path} exists", "choose another path for the store, or remove it")


@contextmanager
def one_sentence(path: Path) -> Iterator[None]:
    """What the system says against writing a store, in one sentence."""
    try:
        yield
    except OSError as e:
        raise write_error(e, path) from e


def write_error(e: OSError, path: Path) -> CoterieError:
    """Why a store was not written, in one sentence."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return CoterieError(
            f"the disk is full, the store {path} was not written",
            "free some space, or another disk",
        )
    return CoterieError(
        f"the store {path} cannot be written ({e.strerror or e})",
        "check the folder and its permissions",
    )
