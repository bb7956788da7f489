"""Whether a site's owner wants it to take part now: files in the folder of its states.

A running node looks at them whenever it is asked something, so that no signal need reach it.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Literal

from coterie.core.errors import CoterieError
from coterie.runs.files import write_error

OwnerStatus = Literal["paused", "left"]
OWNER_REASONS: dict[OwnerStatus, str] = {
    "paused": "its owner has paused it",
    "left": "its owner has left the run",
}


class Participation:
    """The wishes of the owner of one site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def wish(self) -> OwnerStatus | None:
        """Why the site does not take part; None if it does."""
        if (self.folder / "left").exists():
            return "left"
        if (self.folder / "paused").exists():
            return "paused"
        return None

    def pause(self) -> None:
        """Take part in nothing until `unpause`; the site stays connected, and keeps its group."""
        self._write("paused")

    def leave(self) -> None:
        """Take part in nothing any more, and let the node end."""
        self._write("left")

    def unpause(self) -> None:
        """Take part again."""
        try:
            for name in OWNER_REASONS:
                (self.folder / name).unlink(missing_ok=True)
        except OSError as e:
            raise write_error(e, self.folder) from e

    def _write(self, name: OwnerStatus) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        try:
            (self.folder / name).write_text(f"{now}\n", encoding="ascii")
        except OSError as e:
            raise write_error(e, self.folder) from e


def find_participation(folder: Path) -> Participation:
    """The presence of a site that has been started in a folder."""
    if not folder.is_dir():
        raise CoterieError(f"no site keeps its states in {folder}", "give --state as its node has")
    return Participation(folder)
