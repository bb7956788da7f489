"""The transport interface, and the messenger that numbers requests and waits for replies.

A `Transport` carries packets to sites by name: `HttpsServer`, `FlowerTransport` (stock Flower) or
`PeerTransport`. A `Messenger` performs one exchange at a time over a transport: it sends a request
to sites, repeats it when a site reconnects, and applies deadline and quorum (`WaitPolicy`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from coterie.core.errors import CoterieError
from coterie.engines.codec import BadBytes
from coterie.network.audit import Audit, AuditRecord, AuditResult, now_as_text
from coterie.network.owner import OWNER_REASONS
from coterie.network.packets import (
    NO_EXPERIMENT,
    CallClient,
    Done,
    Failed,
    NotParticipating,
    Packet,
    Refused,
    Reply,
    ReplyBody,
    Request,
    RequestBody,
    RequestNumber,
    WriteModel,
    read_head,
    sanitize_text,
    write_head,
)

MAX_NAMES = 8  # number of sites that one line names
log = logging.getLogger("coterie")
NOT_CONNECTED = "not connected"
DISCONNECTED = "no longer connected"


# ------------------------------------------------------------------------------ one exchange
@dataclass(frozen=True, kw_only=True)
class WaitPolicy:
    """How long a server waits for its sites."""

    deadline: float = 120.0  # seconds for one exchange
    quorum: float = 0.5  # fraction of the sites that must reply
    grace: float = 10.0  # seconds; after the quorum, how long to wait for a disconnected site
    pause: float = 0.5  # polling interval: seconds between checks of the connections
    max_deadlines: int | None = None  # error after so many without a quorum; None: wait forever

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise CoterieError(f"the deadline is {self.deadline}: it must be above 0 seconds.")
        if not self.grace >= 0:
            raise CoterieError(f"the grace is {self.grace}: it must be 0 seconds or more.")
        if not 0 < self.quorum <= 1:
            raise CoterieError(f"the quorum is {self.quorum}: it must be above 0 and at most 1.")


class Arrival(NamedTuple):
    """A reply that arrived in time."""

    reply: Reply
    pieces: dict[str, bytes]
    seconds: float  # since the exchange began, rounded to milliseconds
    bytes: int


class ExchangeResult(NamedTuple):
    """The replies of one exchange."""

    number: RequestNumber
    arrived: dict[str, Arrival]
    absent: dict[str, str]  # site → why there is no reply; a site that replied `Failed` is not here
    seconds: float
    bytes_out: Mapping[str, int]  # per site: heads and pieces of all packets, with repetitions

    def failures(self, expected: type[ReplyBody] = Done) -> dict[str, str]:
        """Return the sites without a reply of the expected kind, with the reasons."""
        failures = dict(self.absent)
        for name, arrival in self.arrived.items():
            reason = failure_reason(arrival.reply)
            if reason is None and not isinstance(arrival.reply.body, expected):
                reason = "its reply is of another kind"
            if reason is not None:
                failures[name] = reason
        return failures

    def audit_records(
        self,
        time: str,
        phase: str,
        function: str,
        round: int | None = None,
        rejected: Mapping[str, str] = MappingProxyType({}),
    ) -> list[AuditRecord]:
        """Return the audit record of each site.

        Args:
            time: When the exchange began.
            phase: Phase of the run; "start" and "end" are outside the rounds.
            function: Client function that was called, or kind of the request.
            round: Round; None: outside the rounds.
            rejected: Site → why the server rejected its upload.
        """
        records = []
        for name, size in self.bytes_out.items():
            arrival = self.arrived.get(name)
            reason = rejected.get(name) or self.absent.get(name)
            if arrival is not None and reason is None:
                reason = failure_reason(arrival.reply)
            # a site that replied `Failed` took no part in the exchange either: "absent"
            outcome: AuditResult = "accepted" if reason is None else "absent"
            is_refusal = arrival is not None and isinstance(arrival.reply.body, Refused)
            if name in rejected or is_refusal:
                outcome = "refused"
            records.append(
                AuditRecord(
                    time=time,
                    epoch=self.number.epoch,
                    sequence=self.number.sequence,
                    round=round,
                    phase=phase,
                    function=function,
                    site=name,
                    bytes_out=size,
                    bytes_in=arrival.bytes if arrival else 0,
                    seconds=None if arrival is None else arrival.seconds,
                    result=outcome,
                    reason=reason or "",
                )
            )
        return records


def failure_reason(reply: Reply) -> str | None:
    """Return why a site did not do what was requested; None if it did."""
    body = reply.body
    if isinstance(body, Refused | Failed):
        return sanitize_text(body.reason)
    if isinstance(body, NotParticipating):
        return OWNER_REASONS[body.status]
    return None


def list_names(names: list[str]) -> str:
    """Return the first names in one line, with the number of further ones."""
    listed = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        return f"{listed} and {len(names) - MAX_NAMES} more"
    return listed


class ExchangeProgress:
    """Which sites have replied to the request of one exchange.

    Args:
        packets: The packet of each site.
        quorum: Fraction of the sites, without those that left, that must reply.
        left: Sites whose owners left the run.
    """

    def __init__(self, packets: Mapping[str, Packet], quorum: float, left: set[str]) -> None:
        self.packets = packets
        self.quorum = quorum
        self.left = left
        self.arrived: dict[str, Arrival] = {}
        self.unreadable: dict[str, str] = {}  # site → why its reply could not be read
        self.not_participating = dict.fromkeys(left, OWNER_REASONS["left"])
        self.sent: dict[str, Hashable] = {}  # site → connection over which the packet was sent
        self.bytes_out = dict.fromkeys(packets, 0)

    @property
    def needed(self) -> int:
        """Number of sites that must reply; at least one if the quorum is above 0."""
        if not self.packets or not self.quorum:
            return 0
        return max(1, math.ceil(self.quorum * (len(self.packets) - len(self.left))))

    @property
    def has_quorum(self) -> bool:
        """Whether enough sites have replied."""
        return len(self.arrived) >= self.needed

    @property
    def missing(self) -> list[str]:
        """Sites from which a reply may still arrive: they have neither replied nor declined."""
        settled = self.arrived.keys() | self.not_participating.keys() | self.unreadable.keys()
        return [name for name in self.packets if name not in settled]

    @property
    def unanswered(self) -> list[str]:
        """Sites that a log line names: the missing ones and the paused ones."""
        return [n for n in self.packets if n not in self.arrived and n not in self.left]

    @property
    def is_complete(self) -> bool:
        """Whether the quorum has replied and no reply is missing."""
        return self.has_quorum and not self.missing

    def repeat(self) -> None:
        """Forget what was sent and who paused, so that the next check sends the packet again."""
        self.sent.clear()
        self.unreadable.clear()
        self.not_participating = dict.fromkeys(self.left, OWNER_REASONS["left"])


# ------------------------------------------------------------------------------ many exchanges
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
        policy: Deadline, quorum and grace.
        experiment: Id of the run; set when the run begins.
        epoch: Number of starts of the server.
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
    policy: WaitPolicy = field(default_factory=WaitPolicy)
    experiment: str = NO_EXPERIMENT
    epoch: int = 0
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
