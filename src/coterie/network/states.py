"""The files of a site: the terms of a run, and the private states of its client by version.

Each file is replaced atomically, so a kill at any point leaves the old or the new one.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from coterie.core.call import Version
from coterie.core.errors import CoterieError
from coterie.engines.codec import BadBytes, Types, decode, encode
from coterie.network.packets import RequestNumber, Terms
from coterie.runs.files import make_private_folder, write_bytes, write_text

DIGEST = 32  # bytes of the SHA-256 checksum at the start of a states file
UNSAFE = re.compile(r"[^\w .-]")  # characters that are replaced in file names
MAX_NAME = 60  # characters of a client's name in the name of its folder
RESTART = "restore it from a backup, or start a new run"


class StoredTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """terms.json: the terms of a run, and a hash of the rows with which it began."""

    experiment: str
    client: str
    terms: Terms
    salt: str
    data: str  # `hash_with_salt` of the rows


class StoredStates(NamedTuple):
    """The private states of a site, and the number of the last request that changed them."""

    versions: dict[Version, Any]
    last: RequestNumber


NO_STATES = StoredStates({}, RequestNumber(0, 0))


def file_name(client: str) -> str:
    """Return a client's name as part of a file name, with a hash if it is changed."""
    name = UNSAFE.sub("_", client)[:MAX_NAME]
    if name == client:
        return name
    return f"{name}-{hashlib.sha256(client.encode()).hexdigest()[:8]}"


class SiteFolder:
    """The files of one client in one experiment, in a folder like north-run-1f2e3d4c5b6a7988.

    Args:
        base: State folder of the site.
        experiment: Id of the run.
        client: Name of the site.
    """

    def __init__(self, base: Path, experiment: str, client: str) -> None:
        self.base = base
        self.path = base / f"{file_name(client)}-run-{experiment}"
        self.experiment = experiment
        self.client = client

    @property
    def model(self) -> Path:
        """The folder of the client's own model, written at the end of the run."""
        return self.path / "model"

    # -- terms
    def read_terms(self) -> StoredTerms | None:
        """Read terms.json; return None if there is none.

        Raises:
            CoterieError: The file is damaged or belongs to another client or experiment.
        """
        file = self.path / "terms.json"
        try:
            raw = file.read_bytes()
        except FileNotFoundError:
            return None
        try:
            stored = msgspec.json.decode(raw, type=StoredTerms)
        except (msgspec.DecodeError, UnicodeError) as e:
            raise CoterieError(f"{file} is damaged ({e})", RESTART) from e
        self._check_belongs(file, stored.experiment, stored.client)
        return stored

    def write_terms(self, stored: StoredTerms) -> None:
        """Write terms.json."""
        self._make_folder()
        text = msgspec.json.format(msgspec.json.encode(stored), indent=1).decode()
        write_text(self.path / "terms.json", text + "\n")

    # -- private states
    def read_states(self, types: Types) -> StoredStates:
        """Read the private states; return `NO_STATES` before the first answer.

        Args:
            types: NamedTuple classes that states may contain.

        Raises:
            CoterieError: The file is damaged or belongs to another client or experiment.
        """
        file = self.path / "states"
        try:
            raw = file.read_bytes()
        except FileNotFoundError:
            return NO_STATES
        try:
            if hashlib.sha256(raw[DIGEST:]).digest() != raw[:DIGEST]:
                raise BadBytes("its checksum is wrong")
            states, head = decode(raw[DIGEST:], types)
            versions = [Version(*version) for version in head["versions"]]
            stored = StoredStates(
                dict(zip(versions, states, strict=True)), RequestNumber(*head["last"])
            )
            belongs_to = head["experiment"], head["client"]
        except (BadBytes, KeyError, TypeError, ValueError) as e:
            raise CoterieError(f"{file} is damaged ({e})", RESTART) from e
        self._check_belongs(file, *belongs_to)
        return stored

    def write_states(self, stored: StoredStates, types: Types) -> None:
        """Replace the private states."""
        self._make_folder()
        raw = encode(
            tuple(stored.versions.values()),
            types,
            versions=list(stored.versions),
            last=stored.last,
            experiment=self.experiment,
            client=self.client,
        )
        write_bytes(self.path / "states", hashlib.sha256(raw).digest() + raw)

    def _make_folder(self) -> None:
        make_private_folder(self.base)
        make_private_folder(self.path)
        self.path.chmod(0o700)  # version 0.2 left it open to others

    def _check_belongs(self, file: Path, experiment: str, client: str) -> None:
        if (experiment, client) != (self.experiment, self.client):
            raise CoterieError(
                f"{file} belongs to the client {client!r} in the experiment {experiment}, not to "
                f"{self.client!r} in {self.experiment}",
                "give each site its own state folder",
            )
