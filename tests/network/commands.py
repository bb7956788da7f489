"""Commands of `coterie network` as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coterie as ct


def environment() -> dict[str, str]:
    """That of this process, with this source and one thread."""
    source = str(Path(ct.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


def start(place: Path, *words: str, log: str) -> subprocess.Popen:
    """A command in a folder, whose words go into a log."""
    with open(place / log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "coterie.cli", "network", *words],
            cwd=place, env=environment(), stdout=output, stderr=output, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} seconds"
        time.sleep(0.1)
