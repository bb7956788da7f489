"""Bytes from every peer to every other, by torch.distributed (gloo).

Nobody waits for ever: where a peer is gone, or takes longer than the deadline, all others end with
the same sentence, which names it.
"""

from __future__ import annotations

import datetime
import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from coterie.core.errors import CoterieError
from coterie.network.peers.rendezvous import (
    VARIABLE,
    Rendezvous,
    Store,
    connect,
    join_rendezvous,
    use_interface,
)

BEAT = 0.5  # seconds between signs of life
LOOK = 3.0  # seconds in which a living peer gives another one
LONGEST_ANSWER = LOOK + 5.0  # seconds until the store must have answered
VERDICT = "verdict"


class HeartbeatSample(NamedTuple):
    """What a peer writes: a number that grows, and which exchange it has come to."""

    beat: int
    exchange: int


class Diagnosis(NamedTuple):
    """Why an exchange failed, by ranks."""

    gone: list[int]
    slow: list[int]


RANK_0_IS_GONE = Diagnosis([0], [])  # the store was in its process


class Heartbeat(threading.Thread):
    """Writes this peer's signs of life until it is stopped."""

    def __init__(self, place: Rendezvous, exchange: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.exchange = exchange
        self.stopped = threading.Event()

    def run(self) -> None:
        """Write a sign now and then."""
        beat = 0
        try:
            store = connect(self.place)
            while not self.stopped.wait(BEAT):
                beat += 1
                store.set(f"sign/{self.place.rank}", json.dumps([beat, self.exchange()]))
        except RuntimeError:  # rank 0 has ended: whoever asks the store next notices
            return

    def stop(self) -> None:
        """Write no more."""
        self.stopped.set()


def read_signs(store: Store, place: Rendezvous) -> list[HeartbeatSample]:
    """The newest sign of every peer."""
    signs = []
    for rank in range(place.world):
        key = f"sign/{rank}"
        sign = HeartbeatSample(0, 0)
        if store.check([key]):
            sign = HeartbeatSample(*json.loads(store.get(key)))
        signs.append(sign)
    return signs


def agree_on_verdict(store: Store, place: Rendezvous, exchange: int) -> Diagnosis:
    """Who is gone or slow, as the first peer saw it that noticed; then this peer has left.

    A question to a store whose process stands still never ends, so it is asked in a thread.
    """
    verdicts: list[Diagnosis] = []

    def ask() -> None:
        with suppress(RuntimeError):  # rank 0 has ended
            verdicts.append(ask_for_verdict(store, place, exchange))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(LONGEST_ANSWER)
    if not verdicts:
        return RANK_0_IS_GONE
    return verdicts[0]


def ask_for_verdict(store: Store, place: Rendezvous, exchange: int) -> Diagnosis:
    """The verdict that is written down, or this peer's own."""
    if not store.check([VERDICT]):
        verdict = look_around(store, place, exchange)
        store.compare_set(VERDICT, "", json.dumps(verdict))
    agreed = Diagnosis(*json.loads(store.get(VERDICT)))
    store.set(f"left/{place.rank}", "yes")
    return agreed


def look_around(store: Store, place: Rendezvous, exchange: int) -> Diagnosis:
    """Who gives no more signs of life, and who has not come to this exchange."""
    before = read_signs(store, place)
    time.sleep(LOOK)
    now = read_signs(store, place)
    gone = [
        rank
        for rank, (old, new) in enumerate(zip(before, now))
        if new.beat <= old.beat and rank != place.rank
    ]
    slow = [rank for rank, sign in enumerate(now) if sign.exchange < exchange]
    return Diagnosis(gone, [rank for rank in slow if rank not in gone and rank != place.rank])


def wait_for_others(store: Store, place: Rendezvous, verdict: Diagnosis) -> None:
    """Let rank 0, whose store the others read the verdict from, be the last that leaves."""
    if place.rank != 0 or verdict == RANK_0_IS_GONE:
        return
    end = time.monotonic() + place.deadline
    awaited = [rank for rank in range(1, place.world) if rank not in verdict.gone]
    while time.monotonic() < end:
        if all(store.check([f"left/{rank}"]) for rank in awaited):
            return
        time.sleep(BEAT)


log = logging.getLogger("coterie")
MOST_BYTES = 2**30  # of what one peer sends in one exchange
AGAIN = "start it and all other peers again: each goes on from its own files"
BROKEN = (
    "the connection between the peers broke",
    "start all of them again: each goes on from its own files",
)
UNREACHABLE = (
    "the peers have met, but cannot reach each other",
    f"see to firewalls between them, or name the network interface to use as {VARIABLE}",
)


class AllGather(Protocol):
    """What peers need of a network."""

    rank: int

    def know(self, names: list[str]) -> None:
        """Who the peers are, by rank, for sentences about them."""
        ...

    def all(self, mine: bytes) -> list[bytes]:
        """What every peer gives, by rank; CoterieError if not everyone does."""
        ...


class PeerGroup:
    """All peers, connected to each other."""

    def __init__(self, place: Rendezvous) -> None:
        """Wait for all peers, and connect to them."""
        self.place = place
        self.rank = place.rank
        self.names = [f"peer {rank}" for rank in range(place.world)]
        self.fault: CoterieError | None = None
        self.exchange = 0
        use_interface(place.host, place.port)
        self.store = join_rendezvous(place)
        self.signs = Heartbeat(place, lambda: self.exchange)
        self.signs.start()
        try:
            dist.init_process_group(
                "gloo",
                store=PrefixStore("group", self.store),
                rank=place.rank,
                world_size=place.world,
                timeout=datetime.timedelta(seconds=place.deadline),
            )
        except RuntimeError as e:
            raise self._fail(UNREACHABLE) from e

    def know(self, names: list[str]) -> None:
        """Who the peers are, by rank."""
        self.names = names

    def all(self, mine: bytes) -> list[bytes]:
        """What every peer gives, by rank."""
        if self.fault is not None:
            raise self.fault
        self.exchange += 1
        try:
            return self._gather(mine)
        except RuntimeError as e:
            raise self._fail() from e

    def _gather(self, mine: bytes) -> list[bytes]:
        sizes = self._all_gather(torch.tensor([len(mine)]))
        most = max(int(size) for size in sizes)
        for name, size in zip(self.names, sizes):
            if int(size) > MOST_BYTES:
                raise CoterieError(
                    f"{name} sends {int(size)} bytes at once, above the {MOST_BYTES} that are read",
                    "use a smaller model",
                )
        padded = torch.zeros(most, dtype=torch.uint8)
        padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        everything = self._all_gather(padded)
        return [v.numpy().tobytes()[: int(size)] for v, size in zip(everything, sizes)]

    def _all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        everything = [torch.empty_like(mine) for _ in self.names]
        if mine.numel():
            dist.all_gather(everything, mine)
        return everything

    # -- the end
    def _fail(self, otherwise: tuple[str, str] = BROKEN) -> CoterieError:
        """Why an exchange failed, as all peers tell it; otherwise: if nobody is gone or slow."""
        if dist.is_initialized():
            dist.destroy_process_group()  # which wakes those who still wait for this peer
        verdict = agree_on_verdict(self.store, self.place, self.exchange)
        wait_for_others(self.store, self.place, verdict)
        self.signs.stop()
        self.fault = self._sentence(verdict, otherwise)
        return self.fault

    def _sentence(self, verdict: Diagnosis, otherwise: tuple[str, str]) -> CoterieError:
        if verdict.gone:
            return CoterieError(f"{self._listed(verdict.gone)} no longer answers", AGAIN)
        if verdict.slow:
            return CoterieError(
                f"{self._listed(verdict.slow)} took longer than {self.place.deadline:g} seconds",
                "give all peers a longer --deadline, and start them again",
            )
        return CoterieError(*otherwise)

    def _listed(self, ranks: list[int]) -> str:
        return " and ".join(self.names[rank] for rank in ranks)

    def close(self) -> None:
        """Leave the group."""
        self.signs.stop()
        if dist.is_initialized():
            dist.destroy_process_group()
