"""Atomic file writes, and locks that end with the process that holds them.

A file is written to a temporary path beside it and then renamed, so that a process killed at any
point leaves the old file or the new one, never a half. The next write replaces what it left.

Folders of runs and of sites are private: only their owner can use them. New files in a private
folder are private, too; in other folders, such as those of reports and exports, they follow the
umask.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from coterie.core.errors import CoterieError

log = logging.getLogger("coterie")
LOCK = ".lock"  # in a folder: held by the process that trains there
ENDING = ".coterie-new"  # of a file or folder that is being written


class FolderBusy(CoterieError):
    """Another process is using the same folder or file."""


# ------------------------------------------------------------------------------ private folders
def make_private_folder(path: Path) -> None:
    """Create a folder that only its owner can use, if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def create_file(path: Path) -> None:
    """Create an empty file, private if its folder is; leave an existing one as it is."""
    mode = 0o600 if is_private(path.parent) else 0o666
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, mode))


def is_private(folder: Path) -> bool:
    """Return whether only the owner of a folder can use it."""
    return not folder.stat().st_mode & 0o077


# ------------------------------------------------------------------------------ writing
def temporary_path(path: Path) -> Path:
    """Return where a file or folder is written before it is renamed."""
    return path.with_name(f".{path.name}{ENDING}")


def is_temporary(path: Path) -> bool:
    """Return whether this is a file or folder that a killed process was writing, or its lock."""
    return path.name.startswith(".") and path.name.endswith((ENDING, f"{ENDING}{LOCK}"))


def write_text(path: Path, text: str) -> None:
    """Replace a text file atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file atomically.

    Raises:
        FolderBusy: If another process is writing the same file.
        CoterieError: If the file cannot be written, for example because the disk is full.
    """
    try:
        with lock_for_writing(path) as temporary:
            try:
                create_file(temporary)
                with open(temporary, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as e:
        raise write_error(e, path) from e


def write_error(e: OSError, path: Path) -> CoterieError:
    """Return the error that reports why a file could not be written."""
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        what = f"the disk is full, {path} was not written"
        return CoterieError(what, "free some space, then resume or try again")
    what = f"{path} cannot be written ({e.strerror or e})"
    return CoterieError(what, "check the folder and its permissions")


# ------------------------------------------------------------------------------ locks
@contextmanager
def hold_lock(path: Path, busy: str) -> Iterator[None]:
    """Hold an exclusive lock. The system releases it when the process ends, even by `kill -9`.

    Args:
        path: The lock file; created if it does not exist.
        busy: The message of `FolderBusy` if another process holds the lock.
    """
    lock = FileLock(path, blocking=False, fallback_to_soft=False)  # a soft lock outlives a kill
    try:
        create_file(path)
        lock.acquire()
    except Timeout as e:
        raise FolderBusy(busy, "wait until it has ended, or stop it") from e
    except OSError as e:
        if e.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        log.info("%s cannot be locked (%s): do not train there twice at once.", path, e.strerror)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def lock_for_writing(path: Path) -> Iterator[Path]:
    """Hold the lock of a file or folder while it is written; yield its temporary path."""
    temporary = temporary_path(path)
    lock = temporary.with_name(f"{temporary.name}{LOCK}")
    with hold_lock(lock, f"another process is writing {path}"):
        try:
            yield temporary
        finally:
            if os.name == "posix":  # elsewhere filelock removes the file on release
                lock.unlink(missing_ok=True)
