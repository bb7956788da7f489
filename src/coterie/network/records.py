"""Packets as records of Flower, and back."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, RecordDict

from coterie.engines.codec import BadBytes
from coterie.network.packets import Packet

NAME = "name"  # the action of the question, and the record of the answer
LONGEST_NAME = 200  # characters


def name_record(name: str) -> RecordDict:
    """A site's name as the content of a message."""
    return RecordDict({NAME: ConfigRecord({NAME: name})})


def read_name(content: RecordDict) -> str:
    """The name in a message; BadBytes if there is none."""
    record = content.get(NAME)
    name = record.get(NAME) if isinstance(record, ConfigRecord) else None
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise BadBytes("its answer is not a name")
    return name


HEAD = "head"
PIECE = "piece-"
VALUE = "bytes"


class RecordEncoder:
    """Makes records of packets; a piece that several packets share becomes one record.

    Flower knows objects by their content: what is shared is hashed, stored and sent once.
    """

    def __init__(self) -> None:
        self.records: dict[int, ConfigRecord] = {}

    def wrap(self, packet: Packet) -> RecordDict:
        """A packet as the content of a message."""
        records: Any = {HEAD: self._record(packet.head)}
        for name, raw in packet.pieces.items():
            records[PIECE + name] = self._record(raw)
        return RecordDict(records)

    def _record(self, raw: bytes) -> ConfigRecord:
        if id(raw) not in self.records:
            self.records[id(raw)] = ConfigRecord({VALUE: raw})
        return self.records[id(raw)]


def unwrap(content: RecordDict) -> Packet:
    """The packet in a message; BadBytes if it holds anything else."""
    pieces = {}
    for name, record in content.items():
        raw = record.get(VALUE) if isinstance(record, ConfigRecord) else None
        if not isinstance(raw, bytes):
            raise BadBytes("it holds something else than bytes")
        pieces[name] = raw
    head = pieces.pop(HEAD, b"")
    if not all(name.startswith(PIECE) for name in pieces):
        raise BadBytes("it holds pieces of other names")
    return Packet(head, {name.removeprefix(PIECE): raw for name, raw in pieces.items()})


def read_packet(message: Any) -> Packet:
    """The packet of a message; an empty one, which is no reply, if it has none."""
    try:
        return unwrap(message.content)
    except BadBytes:
        return Packet(b"", {})
