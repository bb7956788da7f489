"""What a site keeps on its disk: what was agreed on, and its private states by version.

Each is one file that is written beside its place and renamed, so that a kill at any point leaves
the old one or the new one.
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
from coterie.runs.files import write_bytes, write_text

DIGEST = 32  # bytes of a SHA-256, with which a file of states begins
NOT_IN_FILES = re.compile(r"[^\w .-]")
LONGEST_NAME = 60  # characters of a client's name in the name of its folder
RESTART = "put it back from a copy, or begin another run"


class StoredTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """terms.json: what a site agreed to, and with which rows."""

    experiment: str
    client: str
    terms: Terms
    salt: str
    data: str  # `hash_with_salt` of the rows


class StoredStates(NamedTuple):
    """The private states of a site, and the last request that changed them."""

    versions: dict[Version, Any]
    last: RequestNumber


NOTHING_KEPT = StoredStates({}, RequestNumber(0, 0))


def file_name(client: str) -> str:
    """A client's name as part of a file's name; where they differ, with a mark of its own."""
    name = NOT_IN_FILES.sub("_", client)[:LONGEST_NAME]
    if name == client:
        return name
    return f"{name}-{hashlib.sha256(client.encode()).hexdigest()[:8]}"


class SiteFolder:
    """The files of one client in one experiment: a folder north-run-1f2e3d4c5b6a7988."""

    def __init__(self, base: Path, experiment: str, client: str) -> None:
        self.path = base / f"{file_name(client)}-run-{experiment}"
        self.experiment = experiment
        self.client = client

    @property
    def model(self) -> Path:
        """Where the client's own model is written in the end."""
        return self.path / "model"

    # -- terms
    def agreed(self) -> StoredTerms | None:
        """What was agreed on; None if nothing was."""
        file = self.path / "terms.json"
        try:
            raw = file.read_bytes()
        except FileNotFoundError:
            return None
        try:
            agreed = msgspec.json.decode(raw, type=StoredTerms)
        except (msgspec.DecodeError, UnicodeError) as e:
            raise CoterieError(f"{file} is damaged ({e})", RESTART) from e
        self._check_owner(file, agreed.experiment, agreed.client)
        return agreed

    def agree(self, agreed: StoredTerms) -> None:
        """Keep what was agreed on."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(agreed), indent=1).decode()
        write_text(self.path / "terms.json", text + "\n")

    # -- private states
    def states(self, types: Types) -> StoredStates:
        """The private states; none before the first answer."""
        file = self.path / "states"
        try:
            raw = file.read_bytes()
        except FileNotFoundError:
            return NOTHING_KEPT
        try:
            if hashlib.sha256(raw[DIGEST:]).digest() != raw[:DIGEST]:
                raise BadBytes("its checksum does not fit")
            states, head = decode(raw[DIGEST:], types)
            versions = [Version(*version) for version in head["versions"]]
            kept = StoredStates(
                dict(zip(versions, states, strict=True)), RequestNumber(*head["last"])
            )
            owner = head["experiment"], head["client"]
        except (BadBytes, KeyError, TypeError, ValueError) as e:
            raise CoterieError(f"{file} is damaged ({e})", RESTART) from e
        self._check_owner(file, *owner)
        return kept

    def keep(self, kept: StoredStates, types: Types) -> None:
        """Replace the private states."""
        raw = encode(
            tuple(kept.versions.values()),
            types,
            versions=list(kept.versions),
            last=kept.last,
            experiment=self.experiment,
            client=self.client,
        )
        write_bytes(self.path / "states", hashlib.sha256(raw).digest() + raw)

    def _check_owner(self, file: Path, experiment: str, client: str) -> None:
        if (experiment, client) != (self.experiment, self.client):
            raise CoterieError(
                f"{file} is of the client {client!r} in the experiment {experiment}, not of "
                f"{self.client!r} in {self.experiment}",
                "give each site a state folder of its own",
            )
