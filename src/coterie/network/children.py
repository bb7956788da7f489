"""Child processes of a simulation on this machine: a table each, and a process for each table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.data.folder import client_files
from coterie.data.table_files import READERS
from coterie.runs.files import write_error


def table_files(path: Path, number: int | None, users: str) -> dict[str, Path]:
    """Return the first tables of a folder by name.

    Args:
        path: Folder with one file per client.
        number: Number of tables; None: all.
        users: Who needs a table each, for error messages.
    """
    files = client_files(path)
    if next(iter(files.values())).suffix.lower() not in READERS:
        raise CoterieError(f"{path} has arrays, and {users} have tables", "use CSV")
    if number is not None and number > len(files):
        raise CoterieError(f"{path} has {len(files)} files for {number} {users}", "ask for fewer")
    return dict(list(files.items())[:number])


def start_child(
    arguments: list[str], log: Path, shows_errors: bool = False
) -> subprocess.Popen[bytes]:
    """Start `coterie ARGUMENTS --child`, which ends when this process does.

    The end of this process closes the child's standard input, whatever ends it.

    Args:
        arguments: Command and flags.
        log: File for the child's output.
        shows_errors: Show the child's progress and errors on this terminal instead.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "coterie", *arguments, "--child"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=None if shows_errors else output,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which then ends its children
            )
    except OSError as e:
        raise write_error(e, log) from e
