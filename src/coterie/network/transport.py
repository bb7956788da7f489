"""How packets travel, and how a server waits for their replies."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from coterie.engine.codec import BadBytes
from coterie.errors import CoterieError
from coterie.network.packets import (
    Number,
    Order,
    Packet,
    Refused,
    Reply,
    Request,
    Unable,
    read_head,
    shown,
    write_head,
)

log = logging.getLogger("coterie")
MOST_NAMED = 8  # sites that one line names


class Transport(Protocol):
    """A way to the sites. Sites are known by the names that their keys were registered under."""

    def connections(self) -> Mapping[str, Hashable]:
        """Who is connected now; the value is another one when a site has connected again."""
        ...

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Send a packet to each of these sites, all of which were connected a moment ago."""
        ...

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Replies with the names of those who sent them; waits for at most this long."""
        ...


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """How long a server waits for its sites."""

    deadline: float = 120.0  # seconds for one exchange
    quorum: float = 0.5  # share of the asked sites without whose replies nothing goes on
    pause: float = 0.5  # seconds between looks at who is connected
    turns: int | None = None  # deadlines below the quorum before it gives up; None: never

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise CoterieError(f"the deadline is {self.deadline}: it must be above 0 seconds.")
        if not 0 < self.quorum <= 1:
            raise CoterieError(f"the quorum is {self.quorum}: it must be above 0 and at most 1.")


class Arrival(NamedTuple):
    """A reply that came in time."""

    reply: Reply
    pieces: dict[str, bytes]
    seconds: float  # after the exchange began
    bytes: int


class Outcome(NamedTuple):
    """What came of one exchange."""

    number: Number
    arrived: dict[str, Arrival]
    absent: dict[str, str]  # why there is no reply
    seconds: float


@dataclass
class Post:
    """Numbers requests, sends them, and waits for the replies."""

    transport: Transport
    experiment: str
    epoch: int
    waiting: Waiting = field(default_factory=Waiting)
    clock: Callable[[], float] = time.monotonic
    sequence: int = 0
    # a site's unreadable reply is no reply; what it said stands here, by name
    unreadable: dict[str, str] = field(default_factory=dict)
    told_absent: set[str] = field(default_factory=set)  # whose absence the log has named

    def exchange(
        self,
        order: Order,
        pieces: Mapping[str, dict[str, bytes]],
        quorum: float | None = None,
        deadline: float | None = None,
    ) -> Outcome:
        """Send an order to sites, each with its pieces, and wait until all have replied.

        At the deadline it goes on with those who have, if they are the quorum; else it says for
        whom it waits, and asks them again.
        """
        began = self.clock()
        self.sequence += 1
        number = Number(self.epoch, self.sequence)
        head = self._head(number, order)
        packets = {name: Packet(head, own) for name, own in pieces.items()}
        share = self.waiting.quorum if quorum is None else quorum
        deadline = deadline or self.waiting.deadline
        needed = math.ceil(share * len(packets))
        arrived: dict[str, Arrival] = {}
        sent: dict[str, Hashable] = {}
        end = began + deadline
        turn = 1
        while len(arrived) < len(packets):
            missing = {n: packet for n, packet in packets.items() if n not in arrived}
            self._send(missing, sent)
            patience = min(self.waiting.pause, max(0.0, end - self.clock()))
            for name, packet in self.transport.receive(patience):
                reply = self._read(name, packet, number)
                if reply is not None and name in missing:
                    seconds = self.clock() - began
                    arrived[name] = Arrival(reply, packet.pieces, seconds, packet.size)
            if self.clock() < end or len(arrived) == len(packets):
                continue
            if len(arrived) >= needed:
                break
            self._tell(missing, arrived, needed)
            self._give_up(turn, missing, arrived)
            sent.clear()
            turn += 1
            end = self.clock() + deadline
        absent = {
            name: self.unreadable.pop(name, "no answer" if name in sent else "not connected")
            for name in packets
            if name not in arrived
        }
        self._tell_absent(absent, arrived)
        return Outcome(number, arrived, absent, self.clock() - began)

    def wait_for(self, names: list[str], seconds: float) -> list[str]:
        """Wait until all of these are connected; those who are not in the end."""
        end = self.clock() + seconds
        told: list[str] = []
        while True:
            connected = self.transport.connections()
            missing = [name for name in names if name not in connected]
            if not missing or self.clock() >= end:
                return missing
            if missing != told:
                log.info("waiting for %s to connect", first_names(missing))
                told = missing
            self.transport.receive(min(self.waiting.pause, max(0.0, end - self.clock())))

    def _head(self, number: Number, order: Order) -> bytes:
        request = Request(
            experiment=self.experiment,
            epoch=number.epoch,
            sequence=number.sequence,
            order=order,
        )
        return write_head(request)

    def _send(self, missing: dict[str, Packet], sent: dict[str, Hashable]) -> None:
        """Send to those who are connected by a way that their packet has not been sent by."""
        connected = self.transport.connections()
        new = {}
        for name, packet in missing.items():
            if name in connected and sent.get(name) != connected[name]:
                if name in sent:
                    log.info("%s has connected again, and is asked again", name)
                sent[name] = connected[name]
                new[name] = packet
        if new:
            self.transport.send(new)

    def _read(self, name: str, packet: Packet, number: Number) -> Reply | None:
        """A reply to this request; None for one that cannot be read, or is to another request."""
        try:
            reply = read_head(packet.head, Reply)
        except BadBytes as e:
            self.unreadable[name] = f"its reply was not read: {e}"
            log.warning("%s: its reply was not read: %s.", name, e)
            return None
        if reply.experiment != self.experiment or reply.number != number:
            log.info("%s: a late answer was passed over", name)
            return None
        return reply

    def _tell(
        self, missing: Mapping[str, Packet], arrived: Mapping[str, Arrival], needed: int
    ) -> None:
        without = [name for name in missing if name not in arrived]
        log.warning(
            "%d sites have answered and %d are needed: still waiting for %s.",
            len(arrived), needed, first_names(without),
        )  # fmt: skip

    def _tell_absent(self, absent: Mapping[str, str], arrived: Mapping[str, Arrival]) -> None:
        """Say once of each site that it does not answer, and that it does so again."""
        for name, reason in absent.items():
            if name not in self.told_absent:
                log.warning("%s does not answer (%s): going on without it.", name, reason)
        back = [name for name in arrived if name in self.told_absent]
        for name in back:
            log.warning("%s answers again.", name)
        self.told_absent.update(absent)
        self.told_absent.difference_update(back)

    def _give_up(
        self, turn: int, missing: Mapping[str, Packet], arrived: Mapping[str, Arrival]
    ) -> None:
        if self.waiting.turns is not None and turn >= self.waiting.turns:
            without = [name for name in missing if name not in arrived]
            raise CoterieError(
                f"no answer of {first_names(without)} came within "
                f"{turn * self.waiting.deadline:g} seconds",
                "see to these sites, then resume",
            )


def first_names(names: list[str]) -> str:
    """Names in one line, shortened."""
    listed = ", ".join(names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        return f"{listed} and {len(names) - MOST_NAMED} more"
    return listed


def reason_of(reply: Reply) -> str | None:
    """Why a site did not do as it was asked; None if it did."""
    answer = reply.answer
    if isinstance(answer, Refused | Unable):
        return shown(answer.reason)
    return None
