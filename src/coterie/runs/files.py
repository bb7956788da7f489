"""Files that are whole or not there, and locks that end with the process that holds them.

A file is written beside its place and then renamed, so that a kill at any point leaves the old file
or the new one. What a kill leaves beside it has a name that no user would choose, and is written
over the next time.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import CoterieError

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("coterie")
LOCK = ".lock"  # the file in a folder whose lock the process that trains there holds
ENDING = ".coterie-new"  # of a file or folder that is being written
BUSY = (errno.EWOULDBLOCK, errno.EACCES)


class FolderBusy(CoterieError):
    """Another process is at work on the same folder or file."""


# ------------------------------------------------------------------------------ writing
def temporary_path(path: Path) -> Path:
    """Where a file or folder is written before it is renamed."""
    return path.with_name(f".{path.name}{ENDING}")


def is_temporary(path: Path) -> bool:
    """Whether this is what a kill left of a file or folder that was being written."""
    return path.name.startswith(".") and path.name.endswith(ENDING)


def write_text(path: Path, text: str) -> None:
    """Replace a file by a new one as a whole, or leave it as it was."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """The same for a file that is not text."""
    unfinished = temporary_path(path)
    try:
        with hold_lock(unfinished, f"another process is writing {path}") as fd:
            try:
                os.truncate(fd, 0)
                with open(fd, "wb", closefd=False) as file:
                    file.write(content)
                os.fsync(fd)
                os.replace(unfinished, path)
            except OSError:
                unfinished.unlink(missing_ok=True)
                raise
    except OSError as e:
        raise write_error(e, path) from e


def write_error(e: OSError, path: Path) -> CoterieError:
    """Why a file was not written, in one sentence."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        what = f"the disk is full, {path} was not written"
        return CoterieError(what, "free some space, then resume or try again")
    what = f"{path} cannot be written ({e.strerror or e})"
    return CoterieError(what, "check the folder and its permissions")


# ------------------------------------------------------------------------------ locks
@contextmanager
def hold_lock(path: Path, busy: str) -> Iterator[int]:
    """Hold the lock of a folder, or of a file that is made if it is not there.

    Gives the open file. The system frees the lock when this process ends, also by kill -9.
    busy: what `Busy` says if another process holds it.
    """
    fd = _open_locked(path, busy)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_locked(path: Path, busy: str) -> int:
    while True:
        flags = os.O_RDWR | os.O_CREAT
        if path.is_dir():
            flags = os.O_RDONLY
        fd = os.open(path, flags, 0o666)
        try:
            _take_lock(fd, path, busy)
            if _is_open_file(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # it was renamed or removed while it was opened here


def _take_lock(fd: int, path: Path, busy: str) -> None:
    if sys.platform == "win32":
        log.info("this system has no locks: do not train in one folder with two processes.")
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        if e.errno in BUSY:
            raise FolderBusy(busy, "wait until it has ended, or stop it") from e
        log.info("%s cannot be locked (%s): do not train there twice at once.", path, e.strerror)


def _is_open_file(path: Path, fd: int) -> bool:
    """Whether the file that was opened is the one that has this name now."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
