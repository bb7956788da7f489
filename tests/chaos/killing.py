"""Commands in forked children, each of which can be killed before its n-th change of a file.

Python raises an audit event before it opens, renames, makes or removes a file. What is written by
other code, as checkpoints are, or piece by piece, as metrics are, is written here in two halves
with a point between them at which the process can be killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save as as_bytes

from coterie.cli import main
from coterie.runs import checkpoint
from coterie.runs.config import encode
from coterie.runs.folder import RunFolder

CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ChildResult(NamedTuple):
    """How a child ended: its exit status or minus a signal, what it printed, what it changed."""

    status: int
    out: str
    err: str
    changes: int


class Counter:
    """Counts the changes of files below a folder, and kills the process before one of them."""

    def __init__(self, folder: Path, kill_at: int | None) -> None:
        self.folder = str(folder)
        self.kill_at = kill_at
        self.changes = 0

    def count(self) -> None:
        """One change is about to be made."""
        self.changes += 1
        if self.changes == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count an audit event that is a change of a file."""
        if event == "open":
            path, _, flags = arguments
            if not flags & WRITING:
                return
        elif event in CHANGES:
            path = arguments[0]
        else:
            return
        if isinstance(path, int):  # a file that is open already
            return
        if os.path.abspath(os.fsdecode(path)).startswith(self.folder):
            self.count()

    def save_file(self, leaves: Any, path: Path, metadata: dict[str, str]) -> None:
        """Write a checkpoint in two halves."""
        raw = as_bytes(leaves, metadata=metadata)
        self.write_halves(path, "wb", raw)

    def append(self, folder: RunFolder, row: dict[str, Any]) -> None:
        """Write a row of metrics in two halves."""
        self.write_halves(folder.path / "metrics.jsonl", "ab", encode(row) + b"\n")

    def write_halves(self, path: Path, mode: str, raw: bytes) -> None:
        """Write some bytes, with a point between at which the process can be killed."""
        with open(path, mode) as file:
            file.write(raw[: len(raw) // 2])
            file.flush()
            self.count()
            file.write(raw[len(raw) // 2 :])


def in_child(work: Callable[[], int], folder: Path, kill_at: int | None = None) -> ChildResult:
    """Do some work in a forked child whose current folder is `folder`."""
    child = start_child(work, folder, kill_at)
    return wait_for(child, folder)


def start_child(work: Callable[[], int], folder: Path, kill_at: int | None = None) -> int:
    """Start a child and give its process id; what it prints goes into files beside the folder."""
    child = os.fork()
    if child == 0:
        run_child(work, folder, kill_at)
    return child


def wait_for(child: int, folder: Path) -> ChildResult:
    """How a child ended."""
    _, wait_status = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(wait_status)
    printed = {}
    for name in ("out", "err", "count"):
        file = temporary_path(folder, child, name)
        printed[name] = file.read_text(encoding="utf-8") if file.exists() else ""
        file.unlink(missing_ok=True)
    return ChildResult(status, printed["out"], printed["err"], int(printed["count"] or 0))


def temporary_path(folder: Path, child: int, name: str) -> Path:
    """A file of a child that is not among those that it is watched for."""
    return folder.parent / f"child-{child}.{name}"


def run_child(work: Callable[[], int], folder: Path, kill_at: int | None) -> None:
    """Work, and leave without any of pytest's own exit."""
    status = 99
    try:
        signal.alarm(60)  # a child that hangs is ended
        os.chdir(folder)
        me = os.getpid()
        sys.stdout = open(temporary_path(folder, me, "out"), "w", encoding="utf-8")  # noqa: SIM115
        sys.stderr = open(temporary_path(folder, me, "err"), "w", encoding="utf-8")  # noqa: SIM115
        counter = Counter(folder, kill_at)
        checkpoint.save_file = counter.save_file
        RunFolder.append = lambda self, row: counter.append(self, row)  # type: ignore[method-assign]
        sys.addaudithook(counter.hear)
        status = work()
        sys.stdout.flush()
        sys.stderr.flush()
        temporary_path(folder, me, "count").write_text(str(counter.changes))
    finally:
        os._exit(status)


def command(words: str) -> Callable[[], int]:
    """The work of a `coterie` command."""
    return lambda: main(words.split())
