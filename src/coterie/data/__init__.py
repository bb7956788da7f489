"""Federations: from memory, from a folder of files, or cut from known sets with planted groups."""

from coterie.data.base import base, bases
from coterie.data.federation import Federation, Ragged
from coterie.data.folder import folder
from coterie.data.memory import from_memory
from coterie.data.regression import linear
from coterie.data.rotation import rotated
from coterie.data.spec import load, maker, makers

__all__ = [
    "Federation",
    "Ragged",
    "base",
    "bases",
    "folder",
    "from_memory",
    "linear",
    "load",
    "maker",
    "makers",
    "rotated",
]
