"""Federations: from memory, from files and tables, or cut from known sets with planted groups."""

from coterie.data.base import base, bases
from coterie.data.federation import Federation, Ragged
from coterie.data.folder import folder, from_frames, table
from coterie.data.hub import from_partitioner, hub
from coterie.data.labels import dirichlet, label_permuted, pathological
from coterie.data.memory import from_memory
from coterie.data.natural import by_key, from_keys
from coterie.data.regression import linear
from coterie.data.rotation import holdouts, mixture, rotated
from coterie.data.schema import Schema, describe, merge
from coterie.data.spec import load, maker, makers

__all__ = [
    "Federation",
    "Ragged",
    "Schema",
    "base",
    "bases",
    "by_key",
    "describe",
    "dirichlet",
    "folder",
    "from_frames",
    "from_keys",
    "from_memory",
    "from_partitioner",
    "holdouts",
    "hub",
    "label_permuted",
    "linear",
    "load",
    "maker",
    "makers",
    "merge",
    "mixture",
    "pathological",
    "rotated",
    "table",
]
