"""Sites in this process, with a clock of its own: for tests, where packets are lost or late."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from coterie.network.packets import Packet
from coterie.network.site import NetworkSite

# From a site's name, its request and its reply: what arrives, each with its delay in seconds.
Fate = Callable[[str, Packet, Packet], list[tuple[float, Packet]]]


def arrives(name: str, request: Packet, reply: Packet) -> list[tuple[float, Packet]]:
    """A network without faults."""
    return [(0.0, reply)]


class InProcess:
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
