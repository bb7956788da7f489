"""Packets over a `Grid` of Flower, by its public interface: for stock SuperLinks and SuperNodes."""

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
PERIOD = 0.1  # seconds between looks for replies
FOR_NAMES = 3600.0  # seconds that a node has to say its name
MORE = 60.0  # seconds that a message lives on after its deadline, as clocks differ
FAILED = "its app failed; its own log says why"


class SentPacket(NamedTuple):
    """A packet on its way."""

    name: str
    connection: Hashable
    packet: Packet


class GridTransport:
    """A transport to the SuperNodes of a Flower run.

    A site's name is the one that its key was registered under (`flwr supernode register --name`).
    A node without such a name is asked for one, and says what stands in its node config.
    """

    def __init__(
        self,
        grid: Grid,
        sites: Collection[str],
        deadline: float,
        period: float = PERIOD,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """sites: names of those who take part; deadline: seconds of one exchange."""
        self.grid = grid
        self.sites = frozenset(sites)
        self.lifetime = deadline + MORE
        self.period = period
        self.sleep = sleep
        self.clock = clock
        self.said: dict[int, str] = {}  # by node: the name that it says it has
        self.questions: dict[str, int] = {}  # by message: the node that was asked for its name
        self.holders: dict[str, int] = {}  # by site: its node
        self.online: dict[str, Hashable] = {}  # by site: its connection, when last looked
        self.pending: dict[str, SentPacket] = {}  # by message
        self.told: set[str] = set()  # what the log says once

    # -- a transport
    def connections(self) -> Mapping[str, Hashable]:
        """Who is connected now: by site, its node and when that has connected."""
        nodes = {info.node_id: info for info in self.grid.get_nodes()}
        self._hear_names()
        self._ask_names([info.node_id for info in nodes.values() if not info.name])
        said = {node: name for node, name in self.said.items() if node in nodes}
        registered = {info.node_id: info.name for info in nodes.values() if info.name}
        holders: dict[str, int] = {}
        for node, name in self._in_order(said | registered, registered):
            self._take_in(node, name, holders)
        self.holders = holders
        self.online = {
            name: (node, nodes[node].last_activated_at) for name, node in self.holders.items()
        }
        return self.online

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Send a packet to each of these sites."""
        wrapper = RecordEncoder()
        messages = []
        for name, packet in packets.items():
            self._forget(name)
            messages.append(self._message(self.holders[name], wrapper.wrap(packet)))
        identifiers = self.grid.push_messages(messages)
        for identifier, (name, packet) in zip(identifiers, packets.items()):
            self.pending[identifier] = SentPacket(name, self.online[name], packet)

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Replies that have come; waits for at most this long."""
        end = self.clock() + seconds
        while True:
            replies = self._replies()
            if replies or self.clock() >= end:
                return replies
            self.sleep(min(self.period, max(0.0, end - self.clock())))

    # -- names
    def _ask_names(self, strangers: Iterable[int]) -> None:
        """Ask nodes that were registered without a name, each once."""
        asked = {*self.said, *self.questions.values()}
        nodes = [node for node in strangers if node not in asked]
        if not nodes:
            return
        messages = [
            self._message(node, RecordDict(), kind=f"query.{NAME}", lifetime=FOR_NAMES)
            for node in nodes
        ]
        self.questions.update(zip(self.grid.push_messages(messages), nodes))

    def _hear_names(self) -> None:
        if not self.questions:
            return
        for reply in self.grid.pull_messages(list(self.questions)):
            node = self.questions.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                self._tell_once(f"a node did not say its name: {reason_in(reply)}")
                continue
            try:
                self.said[node] = read_name(reply.content)
            except BadBytes as e:
                self._tell_once(f"a node did not say its name: {e}")

    def _in_order(
        self, names: Mapping[int, str], registered: Collection[int]
    ) -> list[tuple[int, str]]:
        """Nodes with their names: registered ones first, and of these those that came first."""

        def rank(claim: tuple[int, str]) -> tuple[bool, bool, int]:
            node, name = claim
            return node not in registered, self.holders.get(name) != node, node

        return sorted(names.items(), key=rank)

    def _take_in(self, node: int, name: str, holders: dict[str, int]) -> None:
        """Let a node be the site of this name, unless another one is."""
        if name not in self.sites:
            self._tell_once(
                f"{sanitize_text(name)} is connected, and is not one of the run's sites"
            )
            return
        if holders.setdefault(name, node) != node:
            self._tell_once(
                f"two nodes are called {name}: the one is asked that was registered under this "
                "name, else the one that came first"
            )

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self.told:
            self.told.add(sentence)
            log.warning("%s.", sentence)

    # -- messages
    def _message(
        self, node: int, content: RecordDict, kind: str = "query", lifetime: float | None = None
    ) -> Message:
        ttl = self.lifetime if lifetime is None else lifetime
        return Message(content, dst_node_id=node, message_type=kind, ttl=ttl)

    def _forget(self, name: str) -> None:
        """Do not wait for answers of a site to what it was asked before."""
        self.pending = {key: sent for key, sent in self.pending.items() if sent.name != name}

    def _replies(self) -> list[tuple[str, Packet]]:
        if not self.pending:
            return []
        replies = []
        failed = []
        for reply in self.grid.pull_messages(list(self.pending)):
            sent = self.pending.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                log.info("%s: Flower says: %s", sent.name, reason_in(reply))
                failed.append(sent)
                continue
            replies.append((sent.name, read_packet(reply)))
        return replies + self._unable(failed)

    def _unable(self, failed: list[SentPacket]) -> list[tuple[str, Packet]]:
        """Answers for sites that are there, and whose app failed.

        A site that is gone gets none: it is asked again when it has connected again.
        """
        if not failed:
            return []
        online = self.connections()
        return [
            (sent.name, failure_of(sent.packet))
            for sent in failed
            if online.get(sent.name) == sent.connection
        ]


def failure_of(packet: Packet) -> Packet:
    """What a site would reply to a packet if it could say that its app failed."""
    request = read_head(packet.head, Request)
    reply = Reply(
        experiment=request.experiment,
        epoch=request.epoch,
        sequence=request.sequence,
        body=Failed(FAILED),
    )
    return Packet(write_head(reply), {})


def reason_in(reply: Message) -> str:
    """Why Flower has no answer, fit for a terminal."""
    return sanitize_text(reply.error.reason or "it does not say why")
