"""Files that only their owner can read."""

from __future__ import annotations

import os
from pathlib import Path

from coterie.runs.files import write_error


def write_private(file: Path, raw: bytes) -> None:
    """Write a new file that only its owner can read."""
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(raw)
    except OSError as e:
        raise write_error(e, file) from e
