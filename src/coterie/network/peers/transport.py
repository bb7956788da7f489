"""Packets between peers: each answers its own, and all see every answer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import msgspec

from coterie.core.call import Call
from coterie.core.errors import CoterieError
from coterie.engines.codec import BadBytes
from coterie.network.engine import NetworkEngine
from coterie.network.packets import CallClient, Packet, Reply, Request, RequestNumber, read_head
from coterie.network.peers.group import AllGather
from coterie.network.site import NetworkSite
from coterie.network.transport import InProcessTransport
from coterie.network.waiting import ExchangeResult, failure_reason

AGAIN = "see to it, then start all peers again: each goes on from its own files"


class PeerTransport:
    """A way to all peers. Each has made the same requests, and is sent none."""

    def __init__(self, site: NetworkSite, names: list[str], gather: AllGather) -> None:
        """names: of all peers, by rank."""
        self.site = site
        self.names = names
        self.gather = gather
        self.arrived: list[tuple[str, Packet]] = []

    def connections(self) -> Mapping[str, Hashable]:
        """All peers: without one of them there is no group."""
        return dict.fromkeys(self.names, 0)

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Answer the packet for this peer; the replies of all then arrive together."""
        mine = b""
        if self.site.client in packets:
            mine = as_bytes(self.site.handle(packets[self.site.client]))
        request = read_head(next(iter(packets.values())).head, Request)
        is_question = isinstance(request.body, CallClient)
        for name, raw in zip(self.names, self.gather.all(mine), strict=True):
            if name in packets:
                packet = from_bytes(name, raw)
                check_reply(name, packet, request.number, is_question)
                self.arrived.append((name, packet))

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """The replies to what was sent last."""
        arrived, self.arrived = self.arrived, []
        return arrived


def as_bytes(packet: Packet) -> bytes:
    """A packet as bytes."""
    return msgspec.msgpack.encode((packet.head, packet.pieces))


def from_bytes(name: str, raw: bytes) -> Packet:
    """The packet in the bytes of a peer."""
    try:
        return Packet(*msgspec.msgpack.decode(raw, type=tuple[bytes, dict[str, bytes]]))
    except msgspec.DecodeError as e:
        raise unreadable(name) from e


def check_reply(name: str, packet: Packet, number: RequestNumber, is_question: bool) -> None:
    """Refuse to go on without the answer of a peer: nobody may be absent here."""
    try:
        reply = read_head(packet.head, Reply)
    except BadBytes as e:
        raise unreadable(name) from e
    if reply.number != number:
        raise CoterieError(f"{name} is at another point of the run than this peer", AGAIN)
    reason = failure_reason(reply)
    if is_question and reason is not None:
        raise CoterieError(f"{name} cannot go on: {reason}", AGAIN)


def unreadable(name: str) -> CoterieError:
    """What is said of a peer whose bytes are not those of a reply."""
    return CoterieError(f"what {name} sent is not a reply", "use one version of coterie everywhere")


class PeerNetwork(NetworkEngine):
    """The engine of a peer. In evaluations it asks itself alone: scores stay at home."""

    def exchange(self, call: Call, pieces: dict[str, dict[str, bytes]]) -> ExchangeResult:
        """Send the messages of a call, and wait for the replies."""
        if call.version.phase == "train":
            return super().exchange(call, pieces)
        transport = self.messenger.transport
        assert isinstance(transport, PeerTransport)
        alone = InProcessTransport({transport.site.client: transport.site})
        # not counted, as another peer may have no rows to be measured on
        messenger = replace(self.messenger, transport=alone, clock=alone.clock)
        return messenger.exchange(CallClient(), pieces)
