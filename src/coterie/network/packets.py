"""The wire format between a server and a site: a typed head in JSON, and pieces of bytes.

A server sends a `Request`, a site answers with a `Reply` of the same number. Numbers increase, also
after a restart of the server, so a site can refuse a request that is older than its last one.

    handshake   Hello → SiteDescription,  CheckModel → ModelReport,  Terms → Done
    rounds      CallClient → Done, with the piece `upload`
    end         WriteModel → Done
    any time    Cancel → Done;  every request → Refused, Failed or NotParticipating
"""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from coterie.engines.codec import BadBytes
from coterie.network.owner import OwnerStatus

PROTOCOL = 3  # version 0.2 of coterie has protocol 1
MAX_HEAD = 8 * 1024 * 1024  # bytes; a description of many columns and categories is the longest
MAX_TEXT = 300  # characters of a text of the other side that are shown

# limits of packet heads; engines.message has its own, for the headers of messages
Word = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Experiment = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]  # also part of a folder's name at sites
NO_EXPERIMENT = "0" * 16  # before a run has an id

# bytes on the wire: an index of the parts, then the parts
SESSION = "Coterie-Session"  # HTTP header: number of a site's session
REQUEST = "Coterie-Request"  # HTTP header: number of the request in this body, or answered by it
HEAD = "head"  # name of the head among the parts
LENGTH = 4  # bytes at the beginning: the length of the index
MAX_INDEX = 64 * 1024  # bytes
Index = list[tuple[Word, Count]]  # name and size of each part


class Packet(NamedTuple):
    """A head (JSON) and pieces (bytes) by name.

    A piece for all sites, such as `shared`, is one bytes object, not a copy per site. The piece
    `own` contains a second header: `engines.message.Head`.
    """

    head: bytes
    pieces: dict[str, bytes]

    @property
    def size(self) -> int:
        """Total number of bytes."""
        return len(self.head) + sum(map(len, self.pieces.values()))

    def digest(self) -> bytes:
        """Return a hash of the packet."""
        hashed = hashlib.sha256()
        for chunk in to_chunks(self):
            hashed.update(chunk)
        return hashed.digest()


class RequestNumber(NamedTuple):
    """Number of a request; later requests compare greater, also after a restart of the server."""

    epoch: int  # number of starts of the server
    sequence: int


class StrictStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A structure that cannot be decoded if it has unknown fields."""


class PacketHead(StrictStruct, frozen=True, kw_only=True):
    """The fields of requests and replies."""

    protocol: int = PROTOCOL
    experiment: Experiment
    epoch: Count
    sequence: Count

    @property
    def number(self) -> RequestNumber:
        """Number of the request, or of the request that a reply answers."""
        return RequestNumber(self.epoch, self.sequence)


# ------------------------------------------------------------------------------ requests
class DataTerms(StrictStruct, frozen=True, kw_only=True):
    """Options for reading a site's table, as in `TableOptions`.

    There is no seed: each site draws its test and validation rows with a seed of its own.
    """

    label: Word
    test_share: float
    kind: Word | None
    fill: Word | None
    drop: tuple[Word, ...]
    categories: tuple[Word, ...]
    split_column: Word | None
    time_column: Word | None
    min_category_count: Count
    min_rows_to_report: Count  # for column statistics; the one of `RunTerms` is for scores
    min_rows: Count
    drop_incomplete: bool


class RunTerms(StrictStruct, frozen=True, kw_only=True):
    """The options of a run that a site needs, as in `Options`."""

    rounds: Count
    seed: int
    valid: float
    min_rows_to_report: Count
    label_scale: Word
    paper: bool
    choose_on: Word
    dtype: Word
    secure: bool = False
    secure_min: Count = 3


class Hello(StrictStruct, frozen=True, kw_only=True, tag="hello", tag_field="do"):
    """Requests a description of the site's table, or only its numbers of rows.

    Attributes:
        has_schema: Whether the server has a schema already, so that sites describe nothing.
    """

    coterie: Word
    data: DataTerms
    run: RunTerms
    method: Word
    has_schema: bool = False


class CheckModel(StrictStruct, frozen=True, kw_only=True, tag="check_model", tag_field="do"):
    """Sends the common schema; requests the fingerprint of the model that the site builds from it.

    Attributes:
        batch: Samples per step, for the curvature.
        curvature: Whether the method's step sizes need the curvature of the site's loss.
    """

    data: DataTerms
    run: RunTerms
    schema: dict[str, Any]
    model: Word
    batch: Count | None
    curvature: bool


class Terms(StrictStruct, frozen=True, kw_only=True, tag="agree", tag_field="do"):
    """Everything that server and site agree on before the first round; a site keeps it on disk."""

    coterie: Word
    data: DataTerms
    run: RunTerms
    schema: dict[str, Any]
    model: Word
    fingerprint: Word  # of the model
    method: Word
    settings: dict[str, Any]
    clients: Annotated[int, Meta(ge=1, le=1_000_000)]  # each site has a limit of its own


class CallClient(StrictStruct, frozen=True, tag="call", tag_field="do"):
    """Runs a client function; the pieces are those of `engines.message.Message`."""


class SecureStage(StrictStruct, frozen=True, tag="secure_stage", tag_field="do"):
    """A later stage of the secure sum that a call began; its piece is `payload`."""

    stage: Word


class WriteModel(StrictStruct, frozen=True, tag="write_model", tag_field="do"):
    """Makes a site write its own model to disk; pieces as in `CallClient`, nothing comes back."""


class Cancel(StrictStruct, frozen=True, tag="cancel", tag_field="do"):
    """Informs a site that the run does not start, and why; the site only logs it."""

    reason: str


RequestBody = Hello | CheckModel | Terms | CallClient | SecureStage | WriteModel | Cancel


class Request(PacketHead, frozen=True, kw_only=True):
    """The head of a packet from a server."""

    body: RequestBody


# ------------------------------------------------------------------------------ replies
class SiteDescription(StrictStruct, frozen=True, tag="description", tag_field="is"):
    """Column statistics of a site's table, {} if there is a schema; its number of rows per part."""

    description: dict[str, Any]
    rows: dict[Word, Count]


class ModelReport(StrictStruct, frozen=True, tag="model", tag_field="is"):
    """The fingerprint of the model that a site built, and the curvature of its loss."""

    fingerprint: Word
    curvature: float | None


class Done(StrictStruct, frozen=True, tag="done", tag_field="is"):
    """The request succeeded; a reply to `CallClient` or `SecureStage` has the piece `upload`."""


class Refused(StrictStruct, frozen=True, tag="refused", tag_field="is"):
    """The site refused the request and changed nothing."""

    reason: str


class Failed(StrictStruct, frozen=True, tag="failed", tag_field="is"):
    """The site could not answer a valid request because of a problem on its machine."""

    reason: str


class NotParticipating(StrictStruct, frozen=True, tag="not_participating", tag_field="is"):
    """The site's owner paused it or left the run."""

    status: OwnerStatus


ReplyBody = SiteDescription | ModelReport | Done | Refused | Failed | NotParticipating


class Reply(PacketHead, frozen=True, kw_only=True):
    """The head of a packet from a site; its number is that of the request."""

    body: ReplyBody


# ------------------------------------------------------------------------------ encoding
H = TypeVar("H", Request, Reply)


class ProtocolHead(msgspec.Struct):
    """The field that heads of every protocol version have."""

    protocol: int


def read_head(raw: bytes, kind: type[H]) -> H:
    """Decode a head.

    Args:
        raw: Bytes from the network.
        kind: `Request` or `Reply`.

    Raises:
        BadBytes: It is too long, has another protocol version, or is malformed.
    """
    if len(raw) > MAX_HEAD:
        raise BadBytes(f"its head has {len(raw)} bytes, more than the limit of {MAX_HEAD}")
    try:
        protocol = msgspec.json.decode(raw, type=ProtocolHead).protocol
        if protocol != PROTOCOL:
            raise BadBytes(
                f"it uses protocol {protocol}, and this side protocol {PROTOCOL}: install the same "
                "version of coterie on both"
            )
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise BadBytes("its head is malformed") from e


def write_head(head: Request | Reply) -> bytes:
    """Encode a head."""
    return msgspec.json.encode(head)


def pack_reply(
    request: Request | None, body: ReplyBody, pieces: dict[str, bytes] | None = None
) -> Packet:
    """Return the reply to a request as a packet; None: the request cannot be read."""
    head = Reply(
        experiment=NO_EXPERIMENT if request is None else request.experiment,
        epoch=0 if request is None else request.epoch,
        sequence=0 if request is None else request.sequence,
        body=body,
    )
    return Packet(write_head(head), pieces or {})


def sanitize_text(text: str) -> str:
    """Make a text of the other side safe to print: one short line without control characters."""
    plain = "".join(" " if unicodedata.category(char)[0] == "C" else char for char in text)
    line = " ".join(plain.split())
    if len(line) > MAX_TEXT:
        return line[: MAX_TEXT - 1] + "…"
    return line


# ------------------------------------------------------------------------------ bytes
def to_chunks(packet: Packet) -> list[bytes]:
    """Return the body of a packet in chunks; parts that several packets share are not copied."""
    parts = {HEAD: packet.head, **packet.pieces}
    index = msgspec.json.encode([(name, len(raw)) for name, raw in parts.items()])
    return [len(index).to_bytes(LENGTH), index, *parts.values()]


def from_bytes(raw: bytes) -> Packet:
    """Read the body of a packet.

    Raises:
        BadBytes: It is malformed.
    """
    length = int.from_bytes(raw[:LENGTH])
    begin = LENGTH + length
    if length > MAX_INDEX or begin > len(raw):
        raise BadBytes("the index of its parts is too long")
    try:
        index = msgspec.json.decode(raw[LENGTH:begin], type=Index)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise BadBytes("the index of its parts is malformed") from e
    parts: dict[str, bytes] = {}
    for name, size in index:
        parts[name] = raw[begin : begin + size]
        begin += size
    if begin != len(raw) or len(parts) != len(index) or HEAD not in parts:
        raise BadBytes("its parts do not fit their index")
    return Packet(parts.pop(HEAD), parts)
