"""The folder of a search: the files that mark it, and whether it was begun with the same search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from coterie.core.errors import CoterieError
from coterie.runs.config import encode
from coterie.runs.folder import RunFolder, was_being_made
from coterie.runs.start import Job

MARK = "search.json"  # the file that marks a folder as a search's
WINNER = "winner.toml"  # the file with the best settings


def refuse_no_search(folder: Path) -> None:
    """Refuse a folder that holds something else than a search."""
    if (folder / MARK).exists() or not folder.exists() or was_being_made(folder):
        return
    raise CoterieError(f"{folder} exists and holds no search", "choose another folder")


def refuse_other(folder: Path, job: Job) -> None:
    """Refuse a folder that was begun with other data, settings or options."""
    _, config = RunFolder.open(folder)
    asked = job.config()
    same = {
        "data": config.fingerprint.fits_data(job.fed.fingerprint()),
        "model": config.fingerprint.model == asked.fingerprint.model,
    }
    for what, is_same in same.items():
        if not is_same:
            raise CoterieError(f"{folder} was begun with other {what}", "choose another folder")
    old = {**_plain(config.options), **_plain(config.method.settings)}
    new = {**_plain(asked.options), **_plain(asked.method.settings)}
    for name, value in new.items():
        if old.get(name) != value:
            raise CoterieError(
                f"{folder} was begun with {name} {as_flag(old.get(name))}, not {as_flag(value)}",
                "choose another folder",
            )


def _plain(value: Any) -> dict[str, Any]:
    """A structure as a JSON file would keep it."""
    plain: dict[str, Any] = msgspec.json.decode(encode(value))
    return plain


def as_flag(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(as_flag, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
