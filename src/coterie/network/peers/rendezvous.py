"""The rendezvous of peers: a small key-value store in the process of rank 0.

A restarted peer may still find the store of the previous start. So each process has a token, rank 0
stores the tokens of the processes with which it starts, and a process that is not among them tries
again.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import secrets
import socket
import struct
import sys
import time
from dataclasses import dataclass

from torch.distributed import Store as Store  # type: ignore[attr-defined]
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from coterie.core.errors import CoterieError

if sys.platform == "linux":
    import fcntl

log = logging.getLogger("coterie")
VARIABLE = "GLOO_SOCKET_IFNAME"
GET_ADDRESS = 0x8915  # the request SIOCGIFADDR of Linux
PAUSE = 0.2  # seconds between checks
LEFTOVER = 30.0  # seconds after which the store of a previous start is gone
TIMEOUT = datetime.timedelta(seconds=5)  # of one request to the store
STARTED = "started"


# ------------------------------------------------------------------------------ interface
def use_interface(host: str, port: int) -> None:
    """Make gloo use the interface that routes to a host, unless the user has set one."""
    if VARIABLE in os.environ:
        return
    name = interface_towards(host, port)
    if name is not None:
        os.environ[VARIABLE] = name


def interface_towards(host: str, port: int) -> str | None:
    """Return the name of the interface that routes to a host; None if it is unknown."""
    if sys.platform != "linux":
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # sends nothing
            address = probe.getsockname()[0]
    except OSError:
        return None
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if address_of(name) == address), None)


def address_of(interface: str) -> str | None:
    """Return the IPv4 address of an interface; None if it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), GET_ADDRESS, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


# ------------------------------------------------------------------------------ rendezvous
@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """The rank of this peer, and the address at which all peers connect."""

    rank: int
    world: int  # number of peers
    host: str  # of rank 0
    port: int
    wait: float = 3600.0  # seconds in which all peers must connect
    deadline: float = 120.0  # seconds for one exchange

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise CoterieError(
                f"the rank is {self.rank}: with {self.world} peers it must lie between 0 and "
                f"{self.world - 1}."
            )

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.host}:{self.port}"


class StaleRendezvous(Exception):
    """The peers of this store started with another process of the same rank."""


def join_rendezvous(place: Rendezvous) -> Store:
    """Wait until all peers have connected; return the store through which they did.

    Raises:
        CoterieError: A peer is missing, or two peers have the same rank.
    """
    end = time.monotonic() + place.wait
    first_refusal: float | None = None
    while True:
        try:
            store = open_store(place, end)
            wait_for_peers(place, store, end)
            return store
        except StaleRendezvous:
            first_refusal = first_refusal or time.monotonic()
            if time.monotonic() > first_refusal + LEFTOVER:
                raise CoterieError(
                    f"another peer has the rank {place.rank} at {place.address}",
                    "give each peer its own --rank",
                ) from None
        except RuntimeError as e:  # of the store: rank 0 has ended, and may be restarted
            if place.rank == 0 or time.monotonic() > end:
                raise CoterieError(
                    f"the connection to rank 0 at {place.address} broke", "start all peers again"
                ) from e
        time.sleep(PAUSE)


def open_store(place: Rendezvous, end: float) -> TCPStore:
    """Serve the store at rank 0; connect to it at other ranks as soon as it exists."""
    if place.rank == 0:
        end = min(end, time.monotonic() + LEFTOVER)  # a previous start may still use the port
        while True:
            try:
                return connect(place, serves=True)
            except RuntimeError as e:
                if time.monotonic() > end:
                    raise CoterieError(
                        f"rank 0 cannot listen on {place.address}",
                        "give an address of this machine and a port that is free as --master",
                    ) from e
            time.sleep(PAUSE)
    is_logged = False
    while True:
        try:
            socket.create_connection((place.host, place.port), timeout=5).close()
            return connect(place)
        except OSError as e:
            if time.monotonic() > end:
                raise CoterieError(
                    f"nobody listens at {place.address}",
                    "start the peer of rank 0, or fix --master",
                ) from e
        if not is_logged:
            log.info("waiting for the peer of rank 0 at %s", place.address)
            is_logged = True
        time.sleep(PAUSE)


def connect(place: Rendezvous, serves: bool = False) -> TCPStore:
    """Return a new connection to the store; serves: start it in this process."""
    return TCPStore(place.host, place.port, None, serves, TIMEOUT, wait_for_workers=False)


def wait_for_peers(place: Rendezvous, store: TCPStore, end: float) -> None:
    """Announce this peer and wait for the others; rank 0 then starts.

    Raises:
        StaleRendezvous: Rank 0 started with another process of this rank.
        CoterieError: A peer did not connect, or peers have different numbers of peers.
    """
    if place.rank == 0:
        store.set("world", str(place.world))
    world = int(store.get("world"))
    if world != place.world:
        raise CoterieError(
            f"--world is {place.world} at this peer and {world} at the peer of rank 0",
            "give all the same --world",
        )
    token = secrets.token_hex(8)
    store.set(f"here/{place.rank}", token)
    logged: list[int] = []
    while not store.check([STARTED]):
        missing = [r for r in range(place.world) if not store.check([f"here/{r}"])]
        if not missing and place.rank == 0:
            tokens = [store.get(f"here/{r}").decode() for r in range(place.world)]
            store.set(STARTED, json.dumps(tokens))
        if time.monotonic() > end:
            raise CoterieError(
                f"{describe_ranks(missing)} did not connect within {place.wait:g} seconds",
                "start all peers",
            )
        if missing not in ([], logged):
            log.info("waiting for %s", describe_ranks(missing))
            logged = missing
        time.sleep(PAUSE)
    if json.loads(store.get(STARTED))[place.rank] != token:
        raise StaleRendezvous


def describe_ranks(ranks: list[int]) -> str:
    """Return ranks as text."""
    if len(ranks) == 1:
        return f"the peer of rank {ranks[0]}"
    return "the peers of rank " + ", ".join(map(str, ranks))
