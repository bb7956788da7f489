"""card.json: what exported models are, and how they are used."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from coterie.core.errors import CoterieError
from coterie.core.version import __version__
from coterie.data.roster import Kind, Roster
from coterie.runs.config import (
    MethodConfig,
    RosterConfig,
    decode,
    encode,
    encode_readable,
    restore_roster,
)

CARD = "card.json"
FORMAT = 2  # the first with a checksum of the card itself
FILE_NAME = r"[\w-]+"  # of a model, without its ending
Per = Literal["cluster", "client"]
EXPORT_AGAIN = "export the run again"


class FileEntry(msgspec.Struct):
    """One exported model."""

    of: str  # whose it is: "group 2", or a client's name
    sha256: str


class Card(msgspec.Struct, kw_only=True):
    """The content of card.json; version 0.1 wrote the same without `format` and `sha256`."""

    format: int = 1
    coterie: str = __version__
    method: MethodConfig
    data: str
    rounds: int
    model: str
    input: list[int]  # the shape of a row
    tokens: bool
    kind: Kind
    classes: int | None
    labels: list[str] | None
    schema: dict[str, Any] | None
    dtype: str
    scores: dict[str, float | None]
    groups: dict[str, list[str]]
    per: Per
    newcomers: str  # how a new client gets its model
    files: dict[str, FileEntry]
    sha256: str | None = None  # of all the rest; see `checksum`


# ------------------------------------------------------------------------------ writing
def write_card(card: Card) -> str:
    """The text of card.json, with a checksum."""
    card.format = FORMAT
    card.sha256 = checksum(encode(card))
    return encode_readable(card)


def checksum(raw: bytes) -> str:
    """The SHA-256 of all values of a card but the checksum itself; spaces do not count."""
    content = json.loads(raw)
    content.pop("sha256", None)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


# ------------------------------------------------------------------------------ reading
def read_card(folder: Path) -> Card:
    """The card of a folder of exported models; one sentence if it is damaged."""
    file = folder / CARD
    try:
        raw = file.read_bytes()
    except OSError as e:
        raise CoterieError(
            f"{file} cannot be read ({e.strerror})", "give a folder that export wrote"
        ) from e
    card = decode(raw, Card, str(file), EXPORT_AGAIN)
    if card.dtype not in ("float32", "float64"):
        raise CoterieError(f"{file} is damaged (dtype is {card.dtype!r})", EXPORT_AGAIN)
    if not card.files:
        raise CoterieError(f"{file} is damaged (it names no files)", EXPORT_AGAIN)
    for name in card.files:
        if not re.fullmatch(FILE_NAME, name):
            raise CoterieError(f"{file} names a file {name!r}, which no export has", EXPORT_AGAIN)
    check_checksum(card, raw, file)
    return card


def check_checksum(card: Card, raw: bytes, file: Path) -> None:
    """Refuse a card that was changed after it was written; the oldest cards have no checksum."""
    if card.format < FORMAT and card.sha256 is None:
        return
    try:
        expected = checksum(raw)
    except (ValueError, RecursionError) as e:  # what msgspec passes over, json may refuse
        raise CoterieError(f"{file} is damaged ({e})", EXPORT_AGAIN) from e
    if card.sha256 != expected:
        raise CoterieError(f"{file} is not the card that was exported", EXPORT_AGAIN)


def roster_of(card: Card, file: Path) -> Roster:
    """What the card knows of the data."""
    nobody = {part: [0] for part in ("train", "test", "valid")}
    config = RosterConfig(
        names=["any"],
        unseen=0,
        rows=nobody,
        row_shape=card.input,
        tokens=card.tokens,
        kind=card.kind,
        classes=card.classes,
        labels=card.labels,
        schema=card.schema,
        source=card.data,
        truth=None,
        planted=None,
    )
    return restore_roster(config, str(file))
