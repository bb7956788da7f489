"""How the process of a command ends."""

from __future__ import annotations

import os
import sys


class Ending:
    """What this process does when its command is done."""

    at_once = False  # whether it ends without tidying up


def end_at_once() -> None:
    """Let this process end without tidying up, once its command is done and all is written.

    For commands that leave threads behind which wait in C++: a thread that comes back while Python
    shuts down ends the process with SIGABRT instead of its own status.
    """
    Ending.at_once = True


def end(status: int) -> int:
    """Return a process's exit status, or end with it at once if a command asked for that."""
    if not Ending.at_once:
        return status
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads on
            continue
    os._exit(status)
