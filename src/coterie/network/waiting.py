"""How long a server waits for its sites, and how far one exchange with them is."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from coterie.core.errors import CoterieError
from coterie.network.outcomes import Arrival
from coterie.network.packets import Packet
from coterie.network.presence import WORDS


@dataclass(frozen=True, kw_only=True)
class Waiting:
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


class Attendance:
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


class Progress:
    """How far one exchange is."""

    def __init__(self, packets: Mapping[str, Packet], share: float, left: set[str]) -> None:
        """share: of the sites that have not left, without whose replies nothing goes on."""
        self.packets = packets
        self.share = share
        self.left = left
        self.arrived: dict[str, Arrival] = {}
        self.away = dict.fromkeys(left, WORDS["left"])  # whose owners do not take part, and why
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
        self.away = dict.fromkeys(self.left, WORDS["left"])
