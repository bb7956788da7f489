"""The list of sites that may connect to a server."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.runs.files import write_error


def write_private(file: Path, raw: bytes) -> None:
    """Write a new file that only its owner can read."""
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(raw)
    except OSError as e:
        raise write_error(e, file) from e


log = logging.getLogger("coterie")
REGISTRY = "sites.json"  # by name, the public key of each site's node


def read_registry(folder: Path) -> dict[str, bytes]:
    """By name, the public key of each site's node."""
    file = folder / REGISTRY
    try:
        known = json.loads(file.read_bytes())
        return {str(name): key.encode() for name, key in known.items()}
    except OSError as e:
        raise CoterieError(
            f"{file} cannot be read ({e.strerror})", "register sites with `coterie network certs`"
        ) from e
    except (ValueError, AttributeError) as e:
        raise CoterieError(f"{file} is damaged ({e})", "put it back") from e


class RegistryWatcher:
    """Lets in sites that are registered while the server runs."""

    def __init__(self, certs: Path, register: Callable[[Mapping[str, bytes]], None]) -> None:
        self.certs = certs
        self.register = register
        self.lock = threading.Lock()
        self.read_at = self._changed_at()

    def __call__(self) -> None:
        """Read the list of sites again where it was changed."""
        with self.lock:  # several nodes may come at once
            changed = self._changed_at()
            if changed in (None, self.read_at):
                return
            self.read_at = changed
            try:
                self.register(read_registry(self.certs))
            except CoterieError as e:
                log.warning("new sites are not let in: %s", e)

    def _changed_at(self) -> int | None:
        try:
            return (self.certs / REGISTRY).stat().st_mtime_ns
        except OSError:
            return None
