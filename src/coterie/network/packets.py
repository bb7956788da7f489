"""What travels between a server and a site: a typed head in JSON, and pieces of bytes.

Each request of a server has a number, which its reply repeats. A site never goes back: it refuses
a request whose number is below the last one that it answered.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from coterie.engines.codec import BadBytes
from coterie.network.participation import OwnerStatus

PROTOCOL = 1
MOST_HEAD = 8 * 1024 * 1024  # bytes; a description of many columns and texts is the longest
LONGEST_REASON = 300  # characters of what the other side says that are shown

Word = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Experiment = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]  # also the name of a folder at sites


class Packet(NamedTuple):
    """A head, and pieces by name; those that all sites are sent are the same object for all."""

    head: bytes
    pieces: dict[str, bytes]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.head) + sum(map(len, self.pieces.values()))


class RequestNumber(NamedTuple):
    """Which request it is: later ones are greater, also after the server was restarted."""

    epoch: int  # how often the server was started
    sequence: int


class StrictStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A structure that is refused if anything in it is unknown."""


class PacketHead(StrictStruct, frozen=True, kw_only=True):
    """What the heads of both directions have."""

    protocol: int = PROTOCOL
    experiment: Experiment
    epoch: Count
    sequence: Count

    @property
    def number(self) -> RequestNumber:
        """Which request it is, or which one it answers."""
        return RequestNumber(self.epoch, self.sequence)


# ------------------------------------------------------------------------------ requests
class DataTerms(StrictStruct, frozen=True, kw_only=True):
    """How a site's table is read, as in `TableOptions`."""

    label: Word
    test_share: float
    seed: int
    kind: Word | None
    fill: Word | None
    drop: tuple[Word, ...]
    categories: tuple[Word, ...]
    split_column: Word | None
    time_column: Word | None
    min_category_count: Count
    min_rows_to_report: Count
    min_rows: Count
    drop_incomplete: bool


class RunTerms(StrictStruct, frozen=True, kw_only=True):
    """What of the run's options a site needs, as in `Options`."""

    rounds: Count
    seed: int
    valid: float
    min_rows_to_report: Count
    label_scale: Word
    paper: bool
    choose_on: Word
    dtype: Word


class Hello(StrictStruct, frozen=True, kw_only=True, tag="hello", tag_field="do"):
    """Asks what a site would bring."""

    coterie: Word
    data: DataTerms
    run: RunTerms


class CheckModel(StrictStruct, frozen=True, kw_only=True, tag="fit", tag_field="do"):
    """Sends the schema of all sites; asks what model a site makes of it, and how steep its loss is.

    batch: rows per step.  curvature: whether the method's steps depend on it.
    """

    data: DataTerms
    run: RunTerms
    schema: dict[str, Any]
    model: Word
    batch: Count | None
    curvature: bool


class Terms(StrictStruct, frozen=True, kw_only=True, tag="agree", tag_field="do"):
    """All that is agreed on before the first round; a site keeps it as long as the run lasts."""

    coterie: Word
    data: DataTerms
    run: RunTerms
    schema: dict[str, Any]
    model: Word
    fingerprint: Word  # of the model
    method: Word
    settings: dict[str, Any]
    clients: Annotated[int, Meta(ge=1, le=1_000_000)]


class CallClient(StrictStruct, frozen=True, tag="ask", tag_field="do"):
    """Asks for one client function; the pieces are those of `engine.message.Message`."""


class WriteModel(StrictStruct, frozen=True, tag="finish", tag_field="do"):
    """Lets a site write its own model; the pieces are as in `Ask`, and nothing comes back."""


class Cancel(StrictStruct, frozen=True, tag="dismiss", tag_field="do"):
    """Tells a site why the run does not begin."""

    reason: str


RequestBody = Hello | CheckModel | Terms | CallClient | WriteModel | Cancel


class Request(PacketHead, frozen=True, kw_only=True):
    """The head of what a server sends."""

    order: RequestBody


# ------------------------------------------------------------------------------ replies
class SiteDescription(StrictStruct, frozen=True, tag="described", tag_field="is"):
    """What a site tells of itself."""

    description: dict[str, Any]
    rows: dict[Word, Count]  # by part


class ModelReport(StrictStruct, frozen=True, tag="fitted", tag_field="is"):
    """What came of the schema."""

    fingerprint: Word
    curvature: float | None


class Done(StrictStruct, frozen=True, tag="done", tag_field="is"):
    """It did as it was asked; the answer to `Ask` has the piece `upload`."""


class Refused(StrictStruct, frozen=True, tag="refused", tag_field="is"):
    """It refused the request, and is as before."""

    reason: str


class Failed(StrictStruct, frozen=True, tag="unable", tag_field="is"):
    """It could not do it, through no fault of the request, and is as before."""

    reason: str


class NotParticipating(StrictStruct, frozen=True, tag="away", tag_field="is"):
    """Its owner does not want it to take part now, or any more."""

    wish: OwnerStatus


ReplyBody = SiteDescription | ModelReport | Done | Refused | Failed | NotParticipating


class Reply(PacketHead, frozen=True, kw_only=True):
    """The head of what a site sends; its number is that of the request which it answers."""

    answer: ReplyBody


# ------------------------------------------------------------------------------ reading
H = TypeVar("H", Request, Reply)


class ProtocolHead(msgspec.Struct):
    """What a head of every protocol has."""

    protocol: int


def read_head(raw: bytes, kind: type[H]) -> H:
    """A head; BadBytes if it is not one."""
    if len(raw) > MOST_HEAD:
        raise BadBytes(f"its head has {len(raw)} bytes where at most {MOST_HEAD} are read")
    try:
        protocol = msgspec.json.decode(raw, type=ProtocolHead).protocol
        if protocol != PROTOCOL:
            raise BadBytes(f"it speaks protocol {protocol}, and this side {PROTOCOL}")
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise BadBytes("its head is not one of this protocol") from e


def write_head(head: Request | Reply) -> bytes:
    """A head as bytes."""
    return msgspec.json.encode(head)


def sanitize_text(reason: str) -> str:
    """What the other side says, fit for a terminal: one line without control characters."""
    plain = "".join(" " if unicodedata.category(sign)[0] == "C" else sign for sign in reason)
    line = " ".join(plain.split())
    if len(line) > LONGEST_REASON:
        return line[: LONGEST_REASON - 1] + "…"
    return line
