"""Where peers meet: a small store of words in the process of rank 0.

A peer that is started again may still find what is left of the meeting before. So each start has a
token, rank 0 writes down with whom it began, and whoever is not among these comes again.
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

VARIABLE = "GLOO_SOCKET_IFNAME"
GET_ADDRESS = 0x8915  # the request SIOCGIFADDR of Linux


def use_interface(host: str, port: int) -> None:
    """Let gloo use the interface on the way to a host, unless the user has named one."""
    if VARIABLE in os.environ:
        return
    name = interface_towards(host, port)
    if name is not None:
        os.environ[VARIABLE] = name


def interface_towards(host: str, port: int) -> str | None:
    """The name of the interface on the way to a host; None where that cannot be told."""
    if sys.platform != "linux":
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # which sends nothing
            address = probe.getsockname()[0]
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        if address_of(name) == address:
            return name
    return None


def address_of(interface: str) -> str | None:
    """The IPv4 address of an interface; None if it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), GET_ADDRESS, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


log = logging.getLogger("coterie")
PAUSE = 0.2  # seconds between looks
LEFTOVER = 30.0  # seconds after which what is left of an earlier start is gone
TIMEOUT = datetime.timedelta(seconds=5)  # of one question to the store
BEGUN = "begun"


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Which peer this is, and where all meet."""

    rank: int
    world: int  # how many peers
    host: str  # of rank 0
    port: int
    wait: float = 3600.0  # seconds until all must be there
    deadline: float = 120.0  # seconds for one exchange

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise CoterieError(
                f"the rank is {self.rank}: with {self.world} peers it must lie between 0 and "
                f"{self.world - 1}."
            )

    @property
    def address(self) -> str:
        """As it is typed."""
        return f"{self.host}:{self.port}"


class StaleRendezvous(Exception):
    """This meeting has begun with another process of the same rank."""


def join_rendezvous(place: Rendezvous) -> Store:
    """Wait until all peers are there; the store by which they met."""
    end = time.monotonic() + place.wait
    first_refusal: float | None = None
    while True:
        try:
            return attend(place, open_store(place, end), end)
        except StaleRendezvous:
            first_refusal = first_refusal or time.monotonic()
            if time.monotonic() > first_refusal + LEFTOVER:
                raise CoterieError(
                    f"another peer has the rank {place.rank} at {place.address}",
                    "give each peer a --rank of its own",
                ) from None
        except RuntimeError as e:  # of the store: rank 0 has ended, and may come again
            if place.rank == 0 or time.monotonic() > end:
                raise CoterieError(
                    f"the meeting at {place.address} broke off", "start all peers again"
                ) from e
        time.sleep(PAUSE)


# ------------------------------------------------------------------------------ the store
def open_store(place: Rendezvous, end: float) -> TCPStore:
    """The store: made by rank 0, and reached by the others as soon as it is there."""
    if place.rank == 0:
        return make_store(place, end)
    told = False
    while not is_open(place):
        if time.monotonic() > end:
            raise CoterieError(
                f"nobody listens at {place.address}", "start the peer of rank 0, or see to --master"
            )
        if not told:
            log.info("waiting for the peer of rank 0 at %s", place.address)
            told = True
        time.sleep(PAUSE)
    return connect(place)


def connect(place: Rendezvous) -> TCPStore:
    """A connection of its own to a store that is there."""
    return TCPStore(place.host, place.port, None, False, TIMEOUT, wait_for_workers=False)


def make_store(place: Rendezvous, end: float) -> TCPStore:
    """A new store, as soon as the port is free of an earlier start."""
    end = min(end, time.monotonic() + LEFTOVER)
    while True:
        try:
            return TCPStore(place.host, place.port, None, True, TIMEOUT, wait_for_workers=False)
        except RuntimeError as e:
            if time.monotonic() > end:
                raise CoterieError(
                    f"rank 0 cannot listen on {place.address}",
                    "give an address of this machine and a port that is free as --master",
                ) from e
        time.sleep(PAUSE)


def is_open(place: Rendezvous) -> bool:
    """Whether somebody listens at the place."""
    try:
        with socket.create_connection((place.host, place.port), timeout=5):
            return True
    except OSError:
        return False


# ------------------------------------------------------------------------------ who is there
def attend(place: Rendezvous, store: TCPStore, end: float) -> Store:
    """Say that this peer is there, and wait for the others."""
    check_world(place, store)
    token = secrets.token_hex(8)
    store.set(f"here/{place.rank}", token)
    told: list[int] = []
    while not store.check([BEGUN]):
        missing = [r for r in range(place.world) if not store.check([f"here/{r}"])]
        if not missing and place.rank == 0:
            tokens = [store.get(f"here/{r}").decode() for r in range(place.world)]
            store.set(BEGUN, json.dumps(tokens))
        if time.monotonic() > end:
            raise CoterieError(
                f"{ranks(missing)} did not come within {place.wait:g} seconds", "start all peers"
            )
        if missing != told and missing:
            log.info("waiting for %s", ranks(missing))
            told = missing
        time.sleep(PAUSE)
    if json.loads(store.get(BEGUN))[place.rank] != token:
        raise StaleRendezvous
    return store


def check_world(place: Rendezvous, store: TCPStore) -> None:
    """Refuse another number of peers than rank 0 was told."""
    if place.rank == 0:
        store.set("world", str(place.world))
        return
    world = int(store.get("world"))
    if world != place.world:
        raise CoterieError(
            f"this peer was told of {place.world} peers, and the one of rank 0 of {world}",
            "give all the same --world",
        )


def ranks(missing: list[int]) -> str:
    """Peers by rank, in words."""
    if len(missing) == 1:
        return f"the peer of rank {missing[0]}"
    return "the peers of rank " + ", ".join(map(str, missing))
