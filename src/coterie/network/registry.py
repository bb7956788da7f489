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

log = logging.getLogger("coterie")
REGISTRY = "sites.json"  # name of a site → public key of its node


def write_private(file: Path, raw: bytes) -> None:
    """Write a new file that only its owner can read."""
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(raw)
    except OSError as e:
        raise write_error(e, file) from e


def read_registry(folder: Path) -> dict[str, bytes]:
    """Return the public key of each site by name.

    Raises:
        CoterieError: The file cannot be read or is damaged.
    """
    file = folder / REGISTRY
    try:
        known = json.loads(file.read_bytes())
        return {str(name): key.encode() for name, key in known.items()}
    except OSError as e:
        raise CoterieError(
            f"{file} cannot be read ({e.strerror})", "register sites with `coterie network certs`"
        ) from e
    except (ValueError, AttributeError) as e:
        raise CoterieError(f"{file} is damaged ({e})", "restore it") from e


class RegistryWatcher:
    """Registers sites that get a key while the server runs.

    Args:
        certs: Folder with the registry.
        register: Called with the public keys of all sites.
    """

    def __init__(self, certs: Path, register: Callable[[Mapping[str, bytes]], None]) -> None:
        self.certs = certs
        self.register = register
        self.lock = threading.Lock()
        self.read_at = self._changed_at()

    def __call__(self) -> None:
        """Read the registry again if it has changed; called when an unknown node connects."""
        with self.lock:  # several nodes may connect at once
            changed = self._changed_at()
            if changed in (None, self.read_at):
                return
            self.read_at = changed
            try:
                self.register(read_registry(self.certs))
            except CoterieError as e:
                log.warning("new sites cannot connect: %s", e)

    def _changed_at(self) -> int | None:
        try:
            return (self.certs / REGISTRY).stat().st_mtime_ns
        except OSError:
            return None
