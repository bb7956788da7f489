"""How long a server waits for its sites, the progress of one exchange, and its result."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from coterie.core.errors import CoterieError
from coterie.network.audit import AuditRecord, AuditResult
from coterie.network.packets import (
    Done,
    Failed,
    NotParticipating,
    Packet,
    Refused,
    Reply,
    ReplyBody,
    RequestNumber,
    sanitize_text,
)
from coterie.network.participation import OWNER_REASONS

MAX_NAMES = 8  # number of sites that one line names


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


# ------------------------------------------------------------------------------ results
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
