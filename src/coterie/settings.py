"""Fields that are settings: a default, one line on the meaning, limits. The command line is made from them.

Nothing here needs torch, so that `coterie run --help` is quick.
"""

from __future__ import annotations

from dataclasses import MISSING, field
from typing import Any


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A field of a method: its default, one line on its meaning, and what values it takes.

    limits: above, least, below, most (numbers), choices (a tuple), words (a tuple: taken in place of a number).
    `default=...` means that it must be given.
    """
    return field(default=MISSING if default is ... else default, metadata={"help": help, **limits})
