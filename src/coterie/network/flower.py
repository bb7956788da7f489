"""Packets over stock Flower: as records of its messages, and a transport over its public `Grid`.

A packet is a `RecordDict` with a `ConfigRecord` of bytes for the head and for each piece. The
server's half of the app sends packets with `FlowerTransport`; at a site, the ClientApp reads them
with `read_packet`. Only public modules of Flower are used: `flwr.app` and `flwr.serverapp`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from coterie.engines.codec import BadBytes
from coterie.network.packets import (
    Failed,
    Packet,
    Reply,
    Request,
    pack_reply,
    read_head,
    sanitize_text,
)

log = logging.getLogger("coterie")
HEAD = "head"  # record of a packet's head
PIECE = "piece-"  # prefix of the records of its pieces
VALUE = "bytes"  # key of the bytes in a record
NAME = "name"  # message type, record and key of a site's name
MAX_NAME = 200  # characters
POLL = 0.2  # seconds between checks for replies
NAME_TIMEOUT = 3600.0  # seconds in which a node must send its name
EXTRA_LIFETIME = 60.0  # seconds that a message lives after its deadline, because clocks differ
APP_FAILED = "its app failed; see its log"
MALFORMED = "its reply is malformed"


# ------------------------------------------------------------------------------ records
def encode_packets(packets: Iterable[Packet]) -> list[RecordDict]:
    """Return packets as the contents of messages.

    A piece that several packets share becomes one record: Flower identifies records by their
    content, so it is stored and sent once.
    """
    records: dict[int, ConfigRecord] = {}  # by the id of the bytes, which the packets keep alive

    def as_record(raw: bytes) -> ConfigRecord:
        return records.setdefault(id(raw), ConfigRecord({VALUE: raw}))

    contents = []
    for packet in packets:
        content = RecordDict({HEAD: as_record(packet.head)})
        for name, raw in packet.pieces.items():
            content[PIECE + name] = as_record(raw)
        contents.append(content)
    return contents


def read_packet(message: Message) -> Packet:
    """Return the packet in a message.

    Raises:
        BadBytes: The message contains anything else.
    """
    if not message.has_content():
        raise BadBytes("it has no content")
    pieces = {}
    for name, record in message.content.items():
        raw = record.get(VALUE) if isinstance(record, ConfigRecord) else None
        if not isinstance(raw, bytes):
            raise BadBytes("it has a record that does not contain bytes")
        pieces[name] = raw
    head = pieces.pop(HEAD, None)
    if head is None or not all(name.startswith(PIECE) for name in pieces):
        raise BadBytes("its records are not those of a packet")
    return Packet(head, {name.removeprefix(PIECE): raw for name, raw in pieces.items()})


def encode_name(name: str) -> RecordDict:
    """Return a site's name as the content of a message."""
    return RecordDict({NAME: ConfigRecord({NAME: name})})


def read_name(message: Message) -> str:
    """Return the site's name in a message.

    Raises:
        BadBytes: The message contains anything else.
    """
    record = message.content.get(NAME) if message.has_content() else None
    name = record.get(NAME) if isinstance(record, ConfigRecord) else None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise BadBytes("its reply is not a name")
    return name


def error_text(reply: Message) -> str:
    """Return the error that Flower reports instead of a reply, safe to print."""
    return sanitize_text(reply.error.reason or "Flower gives no reason")


# ------------------------------------------------------------------------------ transport
class SentPacket(NamedTuple):
    """A packet whose reply is pending."""

    name: str
    connection: Hashable
    request: Request


class FlowerTransport:
    """A transport to the SuperNodes of a Flower run.

    A site's name is the one under which its key was registered (`flwr supernode register --name`).
    A node without such a name is asked for the name in its node config.

    Args:
        grid: Flower's connection to the nodes.
        sites: Names of the sites of the run.
        deadline: Seconds for one exchange.
        period: Seconds between checks for replies.
        sleep: Waits for some seconds.
        clock: Current time in seconds.
    """

    def __init__(
        self,
        grid: Grid,
        sites: Collection[str],
        deadline: float,
        period: float = POLL,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.grid = grid
        self.sites = frozenset(sites)
        self.lifetime = deadline + EXTRA_LIFETIME
        self.period = period
        self.sleep = sleep
        self.clock = clock
        self.claimed: dict[int, str] = {}  # node → name in its node config
        self.name_requests: dict[str, int] = {}  # message → node that was asked for its name
        self.nodes: dict[str, int] = {}  # site → node
        self.online: dict[str, Hashable] = {}  # site → connection at the last check
        self.pending: dict[str, SentPacket] = {}  # message → its packet
        self.logged: set[str] = set()  # warnings that are logged once

    # -- a transport
    def connections(self) -> Mapping[str, Hashable]:
        """Return the connected sites, each with its node and the time of its connection."""
        nodes = {info.node_id: info for info in self.grid.get_nodes()}
        self._receive_names()
        self._request_names([info.node_id for info in nodes.values() if not info.name])
        claimed = {node: name for node, name in self.claimed.items() if node in nodes}
        registered = {info.node_id: info.name for info in nodes.values() if info.name}

        def priority(claim: tuple[int, str]) -> tuple[bool, bool, int]:
            """Sort registered names first, then nodes that have had their name so far."""
            node, name = claim
            return node not in registered, self.nodes.get(name) != node, node

        accepted: dict[str, int] = {}
        for node, name in sorted((claimed | registered).items(), key=priority):
            if name not in self.sites:
                self._warn_once(
                    f"{sanitize_text(name)} is connected, and is not one of the run's sites"
                )
            elif accepted.setdefault(name, node) != node:
                self._warn_once(
                    f"two nodes are called {name}: only the one whose key is registered under this "
                    "name is used, else the one that connected first"
                )
        self.nodes = accepted
        self.online = {
            name: (node, nodes[node].last_activated_at) for name, node in accepted.items()
        }
        return self.online

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Send a packet to each of these sites."""
        # replies to earlier requests are no longer needed
        self.pending = {key: sent for key, sent in self.pending.items() if sent.name not in packets}
        messages = [
            Message(content, self.nodes[name], "query", ttl=self.lifetime)
            for name, content in zip(packets, encode_packets(packets.values()))
        ]
        identifiers = list(self.grid.push_messages(messages))
        identifiers += [""] * (len(messages) - len(identifiers))  # none if all are too large
        for identifier, (name, packet) in zip(identifiers, packets.items()):
            if not identifier:
                self._warn_once(f"{name}: Flower did not accept a message to it; see its log")
                continue
            request = read_head(packet.head, Request)
            self.pending[identifier] = SentPacket(name, self.online[name], request)

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Return the replies that have arrived; wait at most this long."""
        end = self.clock() + seconds
        while True:
            replies = self._receive_replies()
            if replies or self.clock() >= end:
                return replies
            self.sleep(min(self.period, max(0.0, end - self.clock())))

    # -- names
    def _request_names(self, nodes: Iterable[int]) -> None:
        """Ask nodes that are registered without a name, each once."""
        asked = {*self.claimed, *self.name_requests.values()}
        new = [node for node in nodes if node not in asked]
        if new:
            messages = [
                Message(RecordDict(), node, f"query.{NAME}", ttl=NAME_TIMEOUT) for node in new
            ]
            self.name_requests.update(zip(self.grid.push_messages(messages), new))

    def _receive_names(self) -> None:
        for identifier, node in list(self.name_requests.items()):
            try:
                reply = self._pull(identifier)
                if reply is None:
                    continue
                if reply.has_error():
                    raise BadBytes(error_text(reply))
                self.claimed[node] = read_name(reply)
            except BadBytes as e:
                self._warn_once(f"a node did not send its name: {e}")
            del self.name_requests[identifier]

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self.logged:
            self.logged.add(sentence)
            log.warning("%s.", sentence)

    # -- replies
    def _pull(self, identifier: str) -> Message | None:
        """Return the reply to one message if it has arrived.

        Messages are pulled one by one. Flower removes the replies of a call from the SuperLink
        before it decodes them, so a malformed one would take others of the same call with it.

        Raises:
            BadBytes: Flower cannot decode the reply.
        """
        try:
            replies = list(self.grid.pull_messages([identifier]))
        except Exception as e:  # whatever Flower's decoders raise
            self.grid.get_node_ids()  # raises if it is the SuperLink that fails
            raise BadBytes(f"Flower cannot decode it ({type(e).__name__})") from e
        for reply in replies:
            if reply.metadata.reply_to_message_id == identifier:
                return reply
        if replies:  # the SuperLink also delivers messages that are no replies
            self._warn_once("a node sent a message that does not answer this request")
        return None

    def _receive_replies(self) -> list[tuple[str, Packet]]:
        """Return the replies that have arrived.

        If an app failed at a site that is still connected, or if its reply is malformed, the
        reply is `Failed`. A site that has disconnected gets none: its request is sent again when it
        reconnects.
        """
        replies = []
        failed = []
        for identifier, sent in list(self.pending.items()):
            try:
                reply = self._pull(identifier)
                if reply is None:
                    continue
                if reply.has_error():
                    log.info("%s: error of Flower: %s", sent.name, error_text(reply))
                    failed.append(sent)
                else:
                    replies.append((sent.name, read_reply(reply, sent.request)))
            except BadBytes as e:
                self._warn_once(f"{sent.name}: {MALFORMED}: {e}")
                replies.append((sent.name, pack_reply(sent.request, Failed(f"{MALFORMED}: {e}"))))
            del self.pending[identifier]
        online = self.connections() if failed else {}
        for sent in failed:
            if online.get(sent.name) == sent.connection:
                replies.append((sent.name, pack_reply(sent.request, Failed(APP_FAILED))))
        return replies


def read_reply(message: Message, request: Request) -> Packet:
    """Return the packet in a message if it answers this request.

    Raises:
        BadBytes: It does not.
    """
    packet = read_packet(message)
    head = read_head(packet.head, Reply)
    if (head.experiment, head.number) != (request.experiment, request.number):
        raise BadBytes("it answers another request")
    return packet
