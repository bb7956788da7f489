"""What comes of an exchange with sites, in data and in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from coterie.network.audit import Line, Result
from coterie.network.packets import Away, Finish, Number, Order, Refused, Reply, Unable, shown
from coterie.network.presence import WORDS

MOST_NAMED = 8  # sites that one line names


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
    bytes_out: Mapping[str, int] = MappingProxyType({})  # by site, with what was sent again


def lines_of(
    order: Order, outcome: Outcome, time_began: str, function: str | None = None
) -> list[Line]:
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
            Line(
                time=time_began,
                epoch=outcome.number.epoch,
                sequence=outcome.number.sequence,
                round=None,
                phase="end" if isinstance(order, Finish) else "start",
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


def result_of(arrival: Arrival | None, reason: str | None) -> Result:
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
    if isinstance(answer, Refused | Unable):
        return shown(answer.reason)
    if isinstance(answer, Away):
        return WORDS[answer.wish]
    return None
