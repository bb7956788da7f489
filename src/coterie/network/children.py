"""Nodes or peers on this machine: a process of coterie for each table of a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.data.client_files import client_files
from coterie.data.tables import READERS
from coterie.runs.files import write_error


def table_files(path: Path, number: int | None, what: str) -> dict[str, Path]:
    """The first files of a folder of tables, by name; what: who needs a file each."""
    files = client_files(path)
    if next(iter(files.values())).suffix.lower() not in READERS:
        raise CoterieError(f"{path} has arrays, and {what} have tables", "use CSV")
    if number is not None and number > len(files):
        raise CoterieError(f"{path} has {len(files)} files for {number} {what}", "ask for fewer")
    return dict(list(files.items())[:number])


def start_child(words: list[str], log: Path, shows_errors: bool = False) -> subprocess.Popen[bytes]:
    """Start `coterie WORDS --child`, which ends when this process does; its output goes to a file.

    The end of this process closes the child's standard input, however it ends. shows_errors:
    whether the child's progress and errors are shown here.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "coterie.cli", *words, "--child"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=None if shows_errors else output,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which then ends its children
            )
    except OSError as e:
        raise write_error(e, log) from e
