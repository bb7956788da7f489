"""How packets travel, and how a server waits for their replies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coterie.core.errors import CoterieError
from coterie.engines.codec import BadBytes
from coterie.network.audit import Audit, now_as_text
from coterie.network.packets import (
    CallClient,
    NotParticipating,
    Packet,
    Reply,
    Request,
    RequestBody,
    RequestNumber,
    read_head,
    write_head,
)
from coterie.network.participation import OWNER_REASONS
from coterie.network.site import NetworkSite
from coterie.network.waiting import (
    Arrival,
    ConnectionHistory,
    ExchangeProgress,
    ExchangeResult,
    audit_records,
    first_names,
)
from coterie.network.waiting import WaitPolicy as WaitPolicy

log = logging.getLogger("coterie")
NOT_CONNECTED = "not connected"
DISCONNECTED = "no longer connected"


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


@dataclass
class Messenger:
    """Numbers requests, sends them, and waits for the replies."""

    transport: Transport
    experiment: str
    epoch: int
    waiting: WaitPolicy = field(default_factory=WaitPolicy)
    clock: Callable[[], float] = time.monotonic
    sequence: int = 0
    # a site's unreadable reply is no reply; what it said stands here, by name
    unreadable: dict[str, str] = field(default_factory=dict)
    audit: Audit = field(default_factory=Audit)
    awaited: frozenset[str] = frozenset()  # who is being asked now, and has not replied
    # whose owners have left, by the connection over which they said so; None: before a restart
    left: dict[str, Hashable] = field(default_factory=dict)
    attendance: ConnectionHistory = field(default_factory=ConnectionHistory)
    logged_absent: set[str] = field(default_factory=set)  # whose absence the log has named

    def exchange(
        self,
        order: RequestBody,
        pieces: Mapping[str, dict[str, bytes]],
        *,
        quorum: float | None = None,
        deadline: float | None = None,
        grace: float | None = None,
    ) -> ExchangeResult:
        """Send an order to sites, each with its pieces, and wait until all have replied.

        At the deadline it goes on with those who have, if they are the quorum; else it says for
        whom it waits, and asks them again. Once the quorum has replied, it does not wait for sites
        that have not been connected for `grace` seconds. Sites whose owners have left are not
        asked.
        """
        began = self.clock()
        time_began = now_as_text()
        self.sequence += 1
        number = RequestNumber(self.epoch, self.sequence)
        head = self._head(number, order)
        packets = {name: Packet(head, own) for name, own in pieces.items()}
        share = self.waiting.quorum if quorum is None else quorum
        deadline = deadline or self.waiting.deadline
        grace = self.waiting.grace if grace is None else grace
        progress = ExchangeProgress(packets, share, self._who_left(packets))
        end = began + deadline
        turn = 1
        while not progress.is_complete:
            self.awaited = frozenset(progress.missing)
            self._send(progress)
            patience = min(self.waiting.pause, max(0.0, end - self.clock()))
            for name, packet in self.transport.receive(patience):
                reply = self._read(name, packet, number)
                if reply is not None and name in progress.missing:
                    seconds = self.clock() - began
                    self._take(progress, name, Arrival(reply, packet.pieces, seconds, packet.size))
            now = self.clock()
            if progress.is_enough and self.attendance.are_gone(progress.missing, grace, now):
                break
            if now < end:
                continue
            if progress.is_enough:
                break
            self._tell(progress)
            self._give_up(turn, progress)
            progress.ask_again()
            turn += 1
            end = self.clock() + deadline
        self.awaited = frozenset()
        absent = {
            name: progress.away.get(name) or self._why_absent(name, progress)
            for name in packets
            if name not in progress.arrived
        }
        seconds = self.clock() - began
        outcome = ExchangeResult(number, progress.arrived, absent, seconds, progress.bytes_out)
        if not isinstance(
            order, CallClient
        ):  # whether answers to questions are accepted is not known yet
            self.audit.record(audit_records(order, outcome, time_began))
        return outcome

    def _take(self, progress: ExchangeProgress, name: str, arrival: Arrival) -> None:
        """Take a reply; one that says that a site's owner does not take part is none."""
        answer = arrival.reply.answer
        if not isinstance(answer, NotParticipating):
            progress.arrived[name] = arrival
            return
        progress.away[name] = OWNER_REASONS[answer.wish]
        if answer.wish == "left":
            log.warning("%s: %s.", name, OWNER_REASONS["left"])
            self.left[name] = progress.sent.get(name)
            progress.left.add(name)

    def _who_left(self, names: Mapping[str, Packet]) -> set[str]:
        """Those whose owners have left, and who have not connected again since."""
        connected = self.transport.connections()
        for name, when_left in list(self.left.items()):
            if name in connected and connected[name] != when_left:
                del self.left[name]
        return {name for name in names if name in self.left}

    def _why_absent(self, name: str, progress: ExchangeProgress) -> str:
        if name in self.unreadable:
            return self.unreadable.pop(name)
        if name not in progress.sent:
            return NOT_CONNECTED
        if name in self.attendance.away_since:
            return DISCONNECTED
        return "no answer"

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

    def _head(self, number: RequestNumber, order: RequestBody) -> bytes:
        request = Request(
            experiment=self.experiment,
            epoch=number.epoch,
            sequence=number.sequence,
            order=order,
        )
        return write_head(request)

    def _send(self, progress: ExchangeProgress) -> None:
        """Send to those who are connected by a way that their packet has not been sent by."""
        connected = self.transport.connections()
        self.attendance.look(progress.packets, connected, self.clock())
        new = {}
        for name in progress.missing:
            if name in connected and progress.sent.get(name) != connected[name]:
                if name in progress.sent:
                    log.info("%s has connected again, and is asked again", name)
                progress.sent[name] = connected[name]
                new[name] = progress.packets[name]
                progress.bytes_out[name] += new[name].size
        if new:
            self.transport.send(new)

    def _read(self, name: str, packet: Packet, number: RequestNumber) -> Reply | None:
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

    def _tell(self, progress: ExchangeProgress) -> None:
        log.warning(
            "%d sites have answered and %d are needed: still waiting for %s.",
            len(progress.arrived), progress.needed, first_names(progress.unanswered),
        )  # fmt: skip

    def log_absent(self, outcome: ExchangeResult) -> None:
        """Say once of each site without which a run goes on why, and when it answers again."""
        for name, reason in outcome.absent.items():
            if name in self.logged_absent:
                continue
            if reason in (NOT_CONNECTED, DISCONNECTED):
                log.warning("%s is %s: going on without it until it is back.", name, reason)
            else:
                log.warning("%s does not answer (%s): going on without it.", name, reason)
        back = [name for name in outcome.arrived if name in self.logged_absent]
        for name in back:
            log.warning("%s answers again.", name)
        self.logged_absent.update(outcome.absent)
        self.logged_absent.difference_update(back)

    def _give_up(self, turn: int, progress: ExchangeProgress) -> None:
        if self.waiting.turns is not None and turn >= self.waiting.turns:
            raise CoterieError(
                f"no answer of {first_names(progress.unanswered)} came within "
                f"{turn * self.waiting.deadline:g} seconds",
                "see to these sites, then resume",
            )


# From a site's name, its request and its reply: what arrives, each with its delay in seconds.
Fate = Callable[[str, Packet, Packet], list[tuple[float, Packet]]]


def arrives(name: str, request: Packet, reply: Packet) -> list[tuple[float, Packet]]:
    """A network without faults."""
    return [(0.0, reply)]


class InProcessTransport:
    """A transport that calls its sites; nobody sleeps, as time is only a number."""

    def __init__(self, sites: Mapping[str, NetworkSite], fate: Fate = arrives) -> None:
        self.sites = dict(sites)
        self.fate = fate
        self.away: set[str] = set()  # sites that are not connected
        self.now = 0.0
        self.coming: list[tuple[float, str, Packet]] = []
        self.starts = dict.fromkeys(sites, 0)  # how often each has connected
        self.traffic: list[tuple[str, Packet, Packet]] = []  # all that was sent and replied

    def clock(self) -> float:
        """Seconds."""
        return self.now

    def connections(self) -> Mapping[str, Hashable]:
        """Who is connected now."""
        return {name: self.starts[name] for name in self.sites if name not in self.away}

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Let each site reply at once; what becomes of the reply is fate."""
        for name, packet in packets.items():
            reply = self.sites[name].handle(packet)
            self.traffic.append((name, packet, reply))
            for delay, arriving in self.fate(name, packet, reply):
                self.coming.append((self.now + delay, name, arriving))

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Replies that have arrived; else time passes until one does, or until the end."""
        end = self.now + seconds
        if self.coming:
            first = min(when for when, _, _ in self.coming)
            self.now = max(self.now, min(first, end))
        else:
            self.now = end
        due = [(name, packet) for when, name, packet in self.coming if when <= self.now]
        self.coming = [item for item in self.coming if item[0] > self.now]
        return due

    def restart(self, name: str, site: NetworkSite) -> None:
        """A site whose process was killed, and that has connected again."""
        self.sites[name] = site
        self.starts[name] += 1
