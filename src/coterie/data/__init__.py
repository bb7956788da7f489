"""Federations: from memory, from files and tables, or made from known sets with planted groups."""

from coterie.data.base_sets import base, bases
from coterie.data.description import describe
from coterie.data.federation import Federation, Ragged
from coterie.data.folder import folder, table
from coterie.data.frames import from_frames
from coterie.data.hub import from_partitioner, hub
from coterie.data.label_skew import dirichlet, label_permuted, pathological
from coterie.data.letters import letter_holdouts, letters
from coterie.data.memory import from_memory
from coterie.data.merging import merge
from coterie.data.natural import by_key, from_keys
from coterie.data.regression import linear
from coterie.data.rotation import holdouts, mixture, rotated
from coterie.data.schema import Schema
from coterie.data.shakespeare import shakespeare
from coterie.data.spec import load, maker, makers
from coterie.data.sql import sql
from coterie.data.store import open_store
from coterie.data.store import write_store as store

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
    "letter_holdouts",
    "letters",
    "linear",
    "load",
    "maker",
    "makers",
    "merge",
    "mixture",
    "open_store",
    "pathological",
    "rotated",
    "shakespeare",
    "sql",
    "store",
    "table",
]
