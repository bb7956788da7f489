"""Packets over the public `Grid` of Flower, for stock SuperLinks and SuperNodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from coterie.engines.codec import BadBytes
from coterie.network.packets import (
    Failed,
    Packet,
    Reply,
    Request,
    read_head,
    sanitize_text,
    write_head,
)
from coterie.network.records import NAME, RecordEncoder, read_name, read_packet

log = logging.getLogger("coterie")
POLL = 0.1  # seconds between checks for replies
NAME_TIMEOUT = 3600.0  # seconds in which a node must send its name
EXTRA_LIFETIME = 60.0  # seconds that a message lives after its deadline, because clocks differ
FAILED = "its app failed; see its log"


class SentPacket(NamedTuple):
    """A packet whose reply is pending."""

    name: str
    connection: Hashable
    packet: Packet


class GridTransport:
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
        encoder = RecordEncoder()
        messages = []
        for name, packet in packets.items():
            content = encoder.wrap(packet)
            node = self.nodes[name]
            messages.append(
                Message(content, dst_node_id=node, message_type="query", ttl=self.lifetime)
            )
        identifiers = self.grid.push_messages(messages)
        for identifier, (name, packet) in zip(identifiers, packets.items()):
            self.pending[identifier] = SentPacket(name, self.online[name], packet)

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Return the replies that have arrived; wait at most this long."""
        end = self.clock() + seconds
        while True:
            replies = self._replies()
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
                Message(
                    RecordDict(), dst_node_id=node, message_type=f"query.{NAME}", ttl=NAME_TIMEOUT
                )
                for node in new
            ]
            self.name_requests.update(zip(self.grid.push_messages(messages), new))

    def _receive_names(self) -> None:
        if not self.name_requests:
            return
        for reply in self.grid.pull_messages(list(self.name_requests)):
            node = self.name_requests.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                self._warn_once(f"a node did not send its name: {error_of(reply)}")
                continue
            try:
                self.claimed[node] = read_name(reply.content)
            except BadBytes as e:
                self._warn_once(f"a node did not send its name: {e}")

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self.logged:
            self.logged.add(sentence)
            log.warning("%s.", sentence)

    # -- replies
    def _replies(self) -> list[tuple[str, Packet]]:
        """Return the replies that have arrived.

        If an app failed at a site that is still connected, its reply is `Failed`. A site that has
        disconnected gets none: its request is sent again when it reconnects.
        """
        if not self.pending:
            return []
        replies = []
        failed = []
        for reply in self.grid.pull_messages(list(self.pending)):
            sent = self.pending.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                log.info("%s: error of Flower: %s", sent.name, error_of(reply))
                failed.append(sent)
            else:
                replies.append((sent.name, read_packet(reply)))
        online = self.connections() if failed else {}
        for sent in failed:
            if online.get(sent.name) == sent.connection:
                request = read_head(sent.packet.head, Request)
                head = Reply(
                    experiment=request.experiment,
                    epoch=request.epoch,
                    sequence=request.sequence,
                    body=Failed(FAILED),
                )
                replies.append((sent.name, Packet(write_head(head), {})))
        return replies


def error_of(reply: Message) -> str:
    """Return Flower's error, safe to print."""
    return sanitize_text(reply.error.reason or "it gives no reason")
