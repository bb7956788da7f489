"""What keeps a node's process small: many run on one machine, and each lives for days."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

NEED_PYARROW = ".parquet"


def leave_out_pyarrow(table: Path) -> None:
    """Keep pandas from loading pyarrow, which takes 40 MB, where the table needs none.

    With None in `sys.modules` an import fails as if the module were not installed.
    """
    if table.suffix.lower() == NEED_PYARROW or "pandas" in sys.modules:
        return
    modules: dict[str, Any] = sys.modules
    modules.setdefault("pyarrow", None)


def give_back_memory() -> None:
    """Return memory that is free to the system; glibc keeps that of large messages otherwise."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # another C library
