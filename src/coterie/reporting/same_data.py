"""Whether runs had the same rows, where each folder keeps a hash with a salt of its own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from coterie.data import Federation
from coterie.runs.config import Fingerprints, hash_with_salt
from coterie.runs.run import Run

if TYPE_CHECKING:
    from coterie.reporting.source import Source


def same_rows(one: Source, other: Source) -> bool:
    """Whether two runs had the same rows.

    That is certain where one of them has its rows in memory. For two folders it is judged by what
    these know of the data: names, row counts, schema, how the data were made and drawn.
    """
    if one.config["roster"] != other.config["roster"]:
        return False
    for run, counterpart in ((one, other), (other, one)):
        rows = rows_in_memory(run)
        if rows is not None:
            return has_rows(counterpart, rows)
    return draw(one) == draw(other)


def rows_in_memory(source: Source) -> Federation | None:
    """The rows of a run in memory; None where it has none, or is a folder."""
    if not isinstance(source.at, Run):
        return None
    rows: Federation | None = getattr(source.at.engine, "fed", None)
    return rows


def has_rows(source: Source, rows: Federation) -> bool:
    """Whether a run had these rows."""
    own = rows_in_memory(source)
    if own is not None:
        return own.fingerprint() == rows.fingerprint()
    saved = source.config["fingerprint"]
    return bool(hash_with_salt(rows.fingerprint(), saved["salt"]) == saved["data"])


def draw(source: Source) -> tuple[int, float]:
    """What decides which training rows are held out."""
    return source.seed, source.config["options"]["valid"]


def fingerprint_of(run: Run, saved: Fingerprints | None) -> dict[str, str]:
    """What a run in memory is known by: as its folder has it, else the hash of its rows."""
    if saved is not None:
        return {"data": saved.data, "salt": saved.salt}
    rows = getattr(run.engine, "fed", None)
    if rows is None:
        return {"data": "", "salt": ""}
    return {"data": rows.fingerprint(), "salt": ""}


def share_fingerprints(runs: list[Source]) -> list[Source]:
    """Give runs on the same rows the fingerprint of the first of them."""
    shared: list[Source] = []
    for run in runs:
        first = next((earlier for earlier in shared if same_rows(earlier, run)), run)
        config = {**run.config, "fingerprint": first.config["fingerprint"]}
        shared.append(dataclasses.replace(run, config=config))
    return shared
