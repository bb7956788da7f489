"""How long a server waits for its sites, and how far one exchange with them is."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from coterie.core.errors import CoterieError
from coterie.network.audit import AuditRecord, AuditResult
from coterie.network.packets import (
    Failed,
    NotParticipating,
    Packet,
    Refused,
    Reply,
    RequestBody,
    RequestNumber,
    WriteModel,
    sanitize_text,
)
from coterie.network.participation import OWNER_REASONS

MOST_NAMED = 8  # sites that one line names


class Arrival(NamedTuple):
    """A reply that came in time."""

    reply: Reply
    pieces: dict[str, bytes]
    seconds: float  # after the exchange began
    bytes: int


class ExchangeResult(NamedTuple):
    """What came of one exchange."""

    number: RequestNumber
    arrived: dict[str, Arrival]
    absent: dict[str, str]  # why there is no reply
    seconds: float
    bytes_out: Mapping[str, int] = MappingProxyType({})  # by site, with what was sent again


def audit_records(
    order: RequestBody, outcome: ExchangeResult, time_began: str, function: str | None = None
) -> list[AuditRecord]:
    """What the audit keeps of an exchange that no round is made of.

    function: that was asked for; None: the order has a name of its own.
    """
    lines = []
    for name, size in outcome.bytes_out.items():
        arrival = outcome.arrived.get(name)
        reason = outcome.absent.get(name)
        if arrival is not None:
            reason = reason_of(arrival.reply)
        lines.append(
            AuditRecord(
                time=time_began,
                epoch=outcome.number.epoch,
                sequence=outcome.number.sequence,
                round=None,
                phase="end" if isinstance(order, WriteModel) else "start",
                function=function or str(order.__struct_config__.tag),
                site=name,
                bytes_out=size,
                bytes_in=arrival.bytes if arrival else 0,
                seconds=round(arrival.seconds, 3) if arrival else None,
                result=result_of(arrival, reason),
                reason=reason or "",
            )
        )
    return lines


def result_of(arrival: Arrival | None, reason: str | None) -> AuditResult:
    """What came of a request for the audit."""
    if reason is None:
        return "accepted"
    if arrival is not None and isinstance(arrival.reply.answer, Refused):
        return "refused"
    return "absent"


def first_names(names: list[str]) -> str:
    """Names in one line, shortened."""
    listed = ", ".join(names[:MOST_NAMED])
    if len(names) > MOST_NAMED:
        return f"{listed} and {len(names) - MOST_NAMED} more"
    return listed


def reason_of(reply: Reply) -> str | None:
    """Why a site did not do as it was asked; None if it did."""
    answer = reply.answer
    if isinstance(answer, Refused | Failed):
        return sanitize_text(answer.reason)
    if isinstance(answer, NotParticipating):
        return OWNER_REASONS[answer.wish]
    return None


@dataclass(frozen=True, kw_only=True)
class WaitPolicy:
    """How long a server waits for its sites."""

    deadline: float = 120.0  # seconds for one exchange
    quorum: float = 0.5  # share of the asked sites without whose replies nothing goes on
    grace: float = 10.0  # seconds; then nobody waits for a site that is not connected
    pause: float = 0.5  # seconds between looks at who is connected
    turns: int | None = None  # deadlines below the quorum before it gives up; None: never

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise CoterieError(f"the deadline is {self.deadline}: it must be above 0 seconds.")
        if not self.grace >= 0:
            raise CoterieError(f"the grace is {self.grace}: it must be 0 seconds or more.")
        if not 0 < self.quorum <= 1:
            raise CoterieError(f"the quorum is {self.quorum}: it must be above 0 and at most 1.")


class ConnectionHistory:
    """Since when sites have not been connected."""

    def __init__(self) -> None:
        self.away_since: dict[str, float] = {}  # by site: the first look that missed it

    def look(self, names: Iterable[str], connected: Mapping[str, Hashable], now: float) -> None:
        """Note which of these sites are connected now."""
        for name in names:
            if name in connected:
                self.away_since.pop(name, None)
            else:
                self.away_since.setdefault(name, now)

    def are_gone(self, names: Iterable[str], grace: float, now: float) -> bool:
        """Whether none of these sites has been connected for this many seconds."""
        return all(
            name in self.away_since and now - self.away_since[name] >= grace for name in names
        )


class ExchangeProgress:
    """How far one exchange is."""

    def __init__(self, packets: Mapping[str, Packet], share: float, left: set[str]) -> None:
        """share: of the sites that have not left, without whose replies nothing goes on."""
        self.packets = packets
        self.share = share
        self.left = left
        self.arrived: dict[str, Arrival] = {}
        self.away = dict.fromkeys(
            left, OWNER_REASONS["left"]
        )  # whose owners do not take part, and why
        self.sent: dict[str, Hashable] = {}  # over which connection
        self.bytes_out = dict.fromkeys(packets, 0)

    @property
    def needed(self) -> int:
        """How many must reply; one at least, where any must."""
        if not self.packets or not self.share:
            return 0
        return max(1, math.ceil(self.share * (len(self.packets) - len(self.left))))

    @property
    def is_enough(self) -> bool:
        """Whether the quorum has replied."""
        return len(self.arrived) >= self.needed

    @property
    def missing(self) -> list[str]:
        """Who has not said anything."""
        return [n for n in self.packets if n not in self.arrived and n not in self.away]

    @property
    def unanswered(self) -> list[str]:
        """Who is waited for, those whose owners have paused them among them."""
        return [n for n in self.packets if n not in self.arrived and n not in self.left]

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.is_enough and not self.missing

    def ask_again(self) -> None:
        """Let all be asked again who have not replied."""
        self.sent.clear()
        self.away = dict.fromkeys(self.left, OWNER_REASONS["left"])
