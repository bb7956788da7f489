"""Whether a site's owner has paused it or left: marker files in the site's state folder.

`coterie network pause`, `unpause` and `leave` write them. A running node reads them at every
request, so no signal has to reach it.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Literal

from coterie.core.errors import CoterieError
from coterie.runs.files import write_error

OwnerStatus = Literal["paused", "left"]
OWNER_REASONS: dict[OwnerStatus, str] = {
    "paused": "its owner paused it",
    "left": "its owner left the run",
}


class Participation:
    """The marker files of one site.

    Args:
        folder: The state folder of the site.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def status(self) -> OwnerStatus | None:
        """Why the site does not participate; None if it does."""
        if (self.folder / "left").exists():
            return "left"
        if (self.folder / "paused").exists():
            return "paused"
        return None

    def pause(self) -> None:
        """Skip all rounds until `unpause`; the site stays connected and keeps its group."""
        self._write("paused")

    def leave(self) -> None:
        """Leave the run until `unpause` and a new start of the node, which ends now."""
        self._write("left")

    def unpause(self) -> None:
        """Participate again, also after `leave`."""
        try:
            for name in OWNER_REASONS:
                (self.folder / name).unlink(missing_ok=True)
        except OSError as e:
            raise write_error(e, self.folder) from e

    def _write(self, name: OwnerStatus) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        try:
            (self.folder / name).touch(mode=0o600)
            (self.folder / name).write_text(f"{now}\n", encoding="ascii")
        except OSError as e:
            raise write_error(e, self.folder) from e


def find_participation(folder: Path) -> Participation:
    """Return the participation of a site whose node was started with this state folder."""
    if not folder.is_dir():
        raise CoterieError(
            f"{folder} is not the state folder of a site", "give --state of its node"
        )
    return Participation(folder)
