"""Packets between peers: each answers its own request, and all receive every reply."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

import msgspec

from coterie.core.call import Call
from coterie.core.errors import CoterieError
from coterie.engines.codec import BadBytes
from coterie.network.engine import NetworkEngine
from coterie.network.packets import CallClient, Packet, Reply, Request, read_head
from coterie.network.peers.group import AllGather
from coterie.network.site import NetworkSite
from coterie.network.transport import InProcessTransport
from coterie.network.waiting import ExchangeResult, failure_reason

RESTART_ALL = "fix this, then start all peers again: each continues from its own files"


class PeerTransport:
    """A transport to all peers. Each makes the same requests itself, so none is sent.

    Args:
        site: This peer.
        names: Names of all peers, by rank.
        group: Gathers bytes from all peers.
    """

    def __init__(self, site: NetworkSite, names: list[str], group: AllGather) -> None:
        self.site = site
        self.names = names
        self.group = group
        self.arrived: list[tuple[str, Packet]] = []

    def connections(self) -> Mapping[str, Hashable]:
        """Return all peers: an exchange fails if one is missing."""
        return dict.fromkeys(self.names, 0)

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Answer the packet for this peer, and gather the replies of all peers.

        Raises:
            CoterieError: A peer replied to another request, or could not answer a call.
        """
        own = b""
        if self.site.client in packets:
            reply = self.site.handle(packets[self.site.client])
            own = msgspec.msgpack.encode((reply.head, reply.pieces))
        request = read_head(next(iter(packets.values())).head, Request)
        for name, raw in zip(self.names, self.group.all_gather(own), strict=True):
            if name in packets:
                self.arrived.append((name, read_reply(name, raw, request)))

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Return the replies to the last request."""
        arrived, self.arrived = self.arrived, []
        return arrived


def read_reply(name: str, raw: bytes, request: Request) -> Packet:
    """Decode the reply of a peer; raise CoterieError if the run cannot continue with it."""
    try:
        packet = Packet(*msgspec.msgpack.decode(raw, type=tuple[bytes, dict[str, bytes]]))
        reply = read_head(packet.head, Reply)
    except (msgspec.DecodeError, BadBytes) as e:
        raise CoterieError(
            f"the reply of {name} cannot be read", "install the same version of coterie everywhere"
        ) from e
    if reply.number != request.number:
        raise CoterieError(f"{name} is at another point of the run than this peer", RESTART_ALL)
    reason = failure_reason(reply)
    if isinstance(request.body, CallClient) and reason is not None:
        raise CoterieError(f"{name} cannot continue: {reason}", RESTART_ALL)
    return packet


class PeerNetwork(NetworkEngine):
    """The engine of a peer. It evaluates only its own client: scores do not leave a peer."""

    def exchange(self, call: Call, pieces: dict[str, dict[str, bytes]]) -> ExchangeResult:
        """Exchange messages with all peers in training, and only with itself in evaluations."""
        if call.version.phase == "train":
            return super().exchange(call, pieces)
        transport = self.messenger.transport
        assert isinstance(transport, PeerTransport)
        alone = InProcessTransport({transport.site.client: transport.site})
        # a copy, so that the sequence number stays: another peer may have no rows to evaluate on
        messenger = replace(self.messenger, transport=alone, clock=alone.clock)
        return messenger.exchange(CallClient(), pieces)
