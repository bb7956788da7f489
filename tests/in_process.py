"""A transport to sites in this process, also for lost or late packets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from coterie.network.packets import Packet
from coterie.network.site import NetworkSite

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
