"""The transport interface, and the messenger that numbers requests and waits for replies.

A `Transport` carries packets to sites by name: `FlowerServer`, `FlowerTransport` (stock Flower),
`PeerTransport`, or `InProcessTransport` in this process. A `Messenger` performs one exchange at a
time over a transport: it sends a request to sites, repeats it when a site reconnects, and applies
deadline and quorum.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
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
    WriteModel,
    read_head,
    write_head,
)
from coterie.network.participation import OWNER_REASONS
from coterie.network.site import NetworkSite
from coterie.network.waiting import (
    Arrival,
    ExchangeProgress,
    ExchangeResult,
    WaitPolicy,
    list_names,
)

log = logging.getLogger("coterie")
NOT_CONNECTED = "not connected"
DISCONNECTED = "no longer connected"


class Transport(Protocol):
    """Carries packets to sites. A site's name is the one under which its key is registered."""

    def connections(self) -> Mapping[str, Hashable]:
        """Return the connected sites; the value changes when a site reconnects."""
        ...

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Send a packet to each of these sites, which were connected a moment ago."""
        ...

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Return replies with the names of their senders; wait at most this long."""
        ...


@dataclass
class Messenger:
    """Sends numbered requests to sites and collects their replies.

    Attributes:
        transport: Carries the packets.
        experiment: Id of the run.
        epoch: Number of starts of the server.
        policy: Deadline, quorum and grace.
        clock: Current time in seconds.
        sequence: Number of the last request.
        audit: Log of all requests.
        awaited: Sites whose reply is due, for the live page and simulations.
        left: Site → its connection when its owner left; None: it left before this start of the
            server. A new connection means that the site is back.
        disconnected_since: Site → time of the first check that missed it.
        logged_absent: Sites whose absence is in the log.
    """

    transport: Transport
    experiment: str
    epoch: int
    policy: WaitPolicy = field(default_factory=WaitPolicy)
    clock: Callable[[], float] = time.monotonic
    sequence: int = 0
    audit: Audit = field(default_factory=Audit)
    awaited: frozenset[str] = frozenset()
    left: dict[str, Hashable] = field(default_factory=dict)
    disconnected_since: dict[str, float] = field(default_factory=dict)
    logged_absent: set[str] = field(default_factory=set)

    def exchange(
        self,
        body: RequestBody,
        pieces: Mapping[str, dict[str, bytes]],
        *,
        quorum: float | None = None,
        deadline: float | None = None,
        grace: float | None = None,
    ) -> ExchangeResult:
        """Send a request to sites and wait until all have replied.

        At the deadline the exchange ends if the quorum has replied; otherwise it logs the missing
        sites and sends the request again. Once the quorum has replied, it does not wait for sites
        that have been disconnected for `grace` seconds. Sites whose owners left get no request.

        Args:
            body: The request.
            pieces: Site → pieces of its packet.
            quorum: Overrides the policy.
            deadline: Overrides the policy.
            grace: Overrides the policy.

        Returns:
            The replies, and for each site without one the reason.

        Raises:
            CoterieError: The quorum did not reply within `policy.max_deadlines` deadlines, or all
                sites have left. By default there is no such limit, and the server waits.
        """
        started = self.clock()
        started_text = now_as_text()
        self.sequence += 1
        number = RequestNumber(self.epoch, self.sequence)
        request = Request(
            experiment=self.experiment, epoch=number.epoch, sequence=number.sequence, body=body
        )
        head = write_head(request)
        packets = {name: Packet(head, own) for name, own in pieces.items()}
        quorum = self.policy.quorum if quorum is None else quorum
        deadline = deadline or self.policy.deadline
        grace = self.policy.grace if grace is None else grace
        progress = ExchangeProgress(packets, quorum, self._forget_returned(packets))
        end = started + deadline
        deadlines = 0  # that passed without a quorum
        while not progress.is_complete:
            self.awaited = frozenset(progress.missing)
            self._send(progress)
            timeout = min(self.policy.pause, max(0.0, end - self.clock()))
            for name, packet in self.transport.receive(timeout):
                reply = self._read(name, packet, number, progress)
                if reply is not None and name in progress.missing:
                    seconds = round(self.clock() - started, 3)
                    self._add(progress, name, Arrival(reply, packet.pieces, seconds, packet.size))
            now = self.clock()
            if progress.has_quorum:
                since = [self.disconnected_since.get(name, math.inf) for name in progress.missing]
                all_gone = all(now - disconnected >= grace for disconnected in since)
                if now >= end or all_gone:
                    break
            if now < end:
                continue
            log.warning(
                "%d sites have replied and %d are needed: still waiting for %s.",
                len(progress.arrived), progress.needed,
                list_names(progress.unanswered) or "a site that returns: all have left",
            )  # fmt: skip
            deadlines += 1
            if deadlines == self.policy.max_deadlines:
                if not progress.unanswered:
                    raise CoterieError(
                        "all sites have left the run",
                        "use `coterie network unpause` there, then resume",
                    )
                raise CoterieError(
                    f"{list_names(progress.unanswered)} did not reply within "
                    f"{deadlines * deadline:g} seconds",
                    "check these sites, then resume",
                )
            progress.repeat()
            end = self.clock() + deadline
        self.awaited = frozenset()
        absent = {
            name: progress.not_participating.get(name) or self._why_absent(name, progress)
            for name in packets
            if name not in progress.arrived
        }
        seconds = self.clock() - started
        arrived = {name: progress.arrived[name] for name in packets if name in progress.arrived}
        result = ExchangeResult(number, arrived, absent, seconds, progress.bytes_out)
        if not isinstance(body, CallClient):  # the engine records calls, after it checks uploads
            phase = "end" if isinstance(body, WriteModel) else "start"
            function = str(body.__struct_config__.tag)
            self.audit.record(result.audit_records(started_text, phase, function))
        return result

    def wait_for(self, names: list[str], seconds: float) -> list[str]:
        """Wait until these sites are connected; return those that are not."""
        end = self.clock() + seconds
        logged: list[str] = []
        while True:
            connected = self.transport.connections()
            missing = [name for name in names if name not in connected]
            if not missing or self.clock() >= end:
                return missing
            if missing != logged:
                log.info("waiting for %s to connect", list_names(missing))
                logged = missing
            self.transport.receive(min(self.policy.pause, max(0.0, end - self.clock())))

    def log_absent(self, result: ExchangeResult) -> None:
        """Log once why the run continues without a site, and when the site replies again."""
        for name, reason in result.absent.items():
            if name in self.logged_absent:
                continue
            if reason in (NOT_CONNECTED, DISCONNECTED):
                log.warning("%s is %s: continuing without it until it is back.", name, reason)
            else:
                log.warning("%s does not reply (%s): continuing without it.", name, reason)
        back = [name for name in result.arrived if name in self.logged_absent]
        for name in back:
            log.warning("%s replies again.", name)
        self.logged_absent.update(result.absent)
        self.logged_absent.difference_update(back)

    def _send(self, progress: ExchangeProgress) -> None:
        """Send the packet to sites over each connection once."""
        connected = self.transport.connections()
        for name in progress.packets:
            if name in connected:
                self.disconnected_since.pop(name, None)
            else:
                self.disconnected_since.setdefault(name, self.clock())
        new = {}
        for name in progress.missing:
            if name in connected and progress.sent.get(name) != connected[name]:
                if name in progress.sent:
                    log.info("%s has reconnected; its request is sent again", name)
                progress.sent[name] = connected[name]
                new[name] = progress.packets[name]
                progress.bytes_out[name] += new[name].size
        if new:
            self.transport.send(new)

    def _read(
        self, name: str, packet: Packet, number: RequestNumber, progress: ExchangeProgress
    ) -> Reply | None:
        """Return a reply to this request; None if it is unreadable or answers another request."""
        try:
            reply = read_head(packet.head, Reply)
        except BadBytes as e:
            progress.unreadable[name] = f"its reply is unreadable: {e}"
            log.warning("%s: its reply is unreadable: %s.", name, e)
            return None
        if reply.experiment != self.experiment or reply.number != number:
            log.info("%s: ignored a reply to another request", name)
            return None
        return reply

    def _add(self, progress: ExchangeProgress, name: str, arrival: Arrival) -> None:
        """Add a reply, or note that the site's owner declined."""
        body = arrival.reply.body
        if not isinstance(body, NotParticipating):
            progress.arrived[name] = arrival
            return
        progress.not_participating[name] = OWNER_REASONS[body.status]
        if body.status == "left":
            log.warning("%s: %s.", name, OWNER_REASONS["left"])
            self.left[name] = progress.sent.get(name)
            progress.left.add(name)

    def _forget_returned(self, names: Iterable[str]) -> set[str]:
        """Remove reconnected sites from `left`; return which of these sites remain there."""
        connected = self.transport.connections()
        for name, connection in list(self.left.items()):
            if name in connected and connected[name] != connection:
                del self.left[name]
        return {name for name in names if name in self.left}

    def _why_absent(self, name: str, progress: ExchangeProgress) -> str:
        if name in progress.unreadable:
            return progress.unreadable[name]
        if name not in progress.sent:
            return NOT_CONNECTED
        if name in self.disconnected_since:
            return DISCONNECTED
        return "no answer"


# ------------------------------------------------------------------------------ in process
# Maps a site's name, its request and its reply to what arrives, each with a delay in seconds.
Fate = Callable[[str, Packet, Packet], list[tuple[float, Packet]]]


def deliver(name: str, request: Packet, reply: Packet) -> list[tuple[float, Packet]]:
    """Deliver every reply at once."""
    return [(0.0, reply)]


class InProcessTransport:
    """A transport to sites in this process with a simulated clock, also for lost or late packets.

    Args:
        sites: Sites by name.
        fate: What becomes of each reply.
    """

    def __init__(self, sites: Mapping[str, NetworkSite], fate: Fate = deliver) -> None:
        self.sites = dict(sites)
        self.fate = fate
        self.away: set[str] = set()  # sites that are not connected
        self.now = 0.0
        self.coming: list[tuple[float, str, Packet]] = []
        self.starts = dict.fromkeys(sites, 0)  # site → number of connections
        self.traffic: list[tuple[str, Packet, Packet]] = []  # all requests and replies

    def clock(self) -> float:
        """Return the simulated time in seconds."""
        return self.now

    def connections(self) -> Mapping[str, Hashable]:
        """Return the connected sites."""
        return {name: self.starts[name] for name in self.sites if name not in self.away}

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Let each site reply at once; `fate` decides what arrives and when."""
        for name, packet in packets.items():
            reply = self.sites[name].handle(packet)
            self.traffic.append((name, packet, reply))
            for delay, arriving in self.fate(name, packet, reply):
                self.coming.append((self.now + delay, name, arriving))

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Return the replies that have arrived; advance the clock if there are none."""
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
        """Replace a site whose process was killed, and which has reconnected."""
        self.sites[name] = site
        self.starts[name] += 1
