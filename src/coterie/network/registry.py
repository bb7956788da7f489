"""The sites that may connect to a server: names and fingerprints of certificates in sites.json."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from coterie.core.errors import CoterieError
from coterie.runs.files import temporary_path, write_error, write_text

log = logging.getLogger("coterie")
REGISTRY = "sites.json"


class AcceptedCertificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A certificate with which a site may connect."""

    fingerprint: str  # SHA-256 of the certificate, as hexadecimal digits
    expires: str  # date


# site → its certificates, from the oldest to the newest; none: the site is revoked
Registry = dict[str, list[AcceptedCertificate]]


def read_registry(folder: Path) -> Registry:
    """Read sites.json of a folder of certificates.

    Raises:
        CoterieError: The file cannot be read, is damaged, or is of version 0.2.
    """
    file = folder / REGISTRY
    try:
        raw = file.read_bytes()
    except OSError as e:
        raise CoterieError(
            f"{file} cannot be read ({e.strerror})", "register sites with `coterie network certs`"
        ) from e
    try:
        return msgspec.json.decode(raw, type=Registry)
    except (msgspec.DecodeError, UnicodeError) as e:
        what = f"{file} is damaged"
        if b"BEGIN PUBLIC KEY" in raw:
            what = f"{file} has keys of version 0.2, and sites now have certificates"
        raise CoterieError(what, "make a new folder with `coterie network certs`") from e


def write_registry(folder: Path, registry: Registry) -> None:
    """Replace sites.json."""
    raw = msgspec.json.format(msgspec.json.encode(dict(sorted(registry.items()))), indent=1)
    write_text(folder / REGISTRY, raw.decode() + "\n")


def write_private(file: Path, raw: bytes) -> None:
    """Replace a file that only its owner can read."""
    temporary = temporary_path(file)
    try:
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(raw)
        os.replace(temporary, file)
    except OSError as e:
        raise write_error(e, file) from e


class SiteDirectory:
    """Finds the site of a certificate; reads sites.json again whenever the file changes.

    Args:
        certs: Folder of `coterie network certs`.
    """

    def __init__(self, certs: Path) -> None:
        self.certs = certs
        self.registry = read_registry(certs)
        self._changed = self._modified_at()
        self._replaced: set[str] = set()  # fingerprints earlier than one that its site has used

    @property
    def names(self) -> list[str]:
        """All registered sites that are not revoked."""
        return sorted(name for name, accepted in self.registry.items() if accepted)

    def reload(self) -> bool:
        """Read the file again if it has changed; return whether it has."""
        changed = self._modified_at()
        if changed in (None, self._changed):
            return False
        self._changed = changed
        try:
            self.registry = read_registry(self.certs)
        except CoterieError as e:
            log.warning("changes of the registered sites are ignored: %s", e)
            return False
        return True

    def find(self, fingerprint: str) -> str | None:
        """Return the site that may connect with a certificate; None if there is none.

        Once a site has connected with a renewed certificate, its earlier one is refused.
        """
        if fingerprint in self._replaced:
            return None
        for name, accepted in self.registry.items():
            known = [certificate.fingerprint for certificate in accepted]
            if fingerprint in known:
                self._replaced.update(known[: known.index(fingerprint)])
                return name
        return None

    def _modified_at(self) -> int | None:
        try:
            return (self.certs / REGISTRY).stat().st_mtime_ns
        except OSError:
            return None
