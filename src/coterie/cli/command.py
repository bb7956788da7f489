"""What a command is."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command: how it is written, what it does, and where it is."""

    usage: str
    help: str
    place: str  # module and function
