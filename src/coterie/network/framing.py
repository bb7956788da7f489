"""A packet as the body of an HTTP message: an index in JSON, then the bytes of all parts."""

from __future__ import annotations

import msgspec

from coterie.engines.codec import BadBytes
from coterie.network.packets import Count, Packet, Word

SESSION = "Coterie-Session"  # HTTP header: number of a site's session
REQUEST = "Coterie-Request"  # HTTP header: number of the request in this body, or answered by it
HEAD = "head"
LENGTH = 4  # bytes at the beginning: the length of the index
MAX_INDEX = 64 * 1024  # bytes
Index = list[tuple[Word, Count]]  # name and size of each part


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
