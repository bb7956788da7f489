"""The process group of peers: bytes from every peer to every other, with torch.distributed (gloo).

No peer waits forever. If a peer ends, or takes longer than the deadline, all others end with the
same message, which names it.
"""

from __future__ import annotations

import datetime
import json
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

BEAT = 0.5  # seconds between heartbeats
OBSERVATION = 3.0  # seconds in which a live peer sends another heartbeat
DIAGNOSIS_TIMEOUT = OBSERVATION + 5.0  # seconds in which the store must answer
DIAGNOSIS = "diagnosis"
MAX_BYTES = 2**30  # from one peer in one exchange
BROKEN = (
    "the connection between the peers broke",
    "start all of them again: each continues from its own files",
)
UNREACHABLE = (
    "the peers are connected to rank 0, but not to each other",
    f"check the firewalls between them, or set {VARIABLE} to the network interface to use",
)


# ------------------------------------------------------------------------------ diagnosis
class Diagnosis(NamedTuple):
    """Ranks that caused an exchange to fail."""

    gone: list[int]
    slow: list[int]


RANK_0_IS_GONE = Diagnosis([0], [])  # the store was in its process


class Heartbeat(threading.Thread):
    """Stores a growing number and the current exchange of this peer until it is stopped."""

    def __init__(self, place: Rendezvous, exchange: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.exchange = exchange
        self.stopped = threading.Event()

    def run(self) -> None:
        """Store a heartbeat every BEAT seconds."""
        beat = 0
        with suppress(RuntimeError):  # rank 0 has ended; the next exchange fails
            store = connect(self.place)
            while not self.stopped.wait(BEAT):
                beat += 1
                store.set(f"heartbeat/{self.place.rank}", json.dumps([beat, self.exchange()]))


def agree_on_diagnosis(store: Store, place: Rendezvous, exchange: int) -> Diagnosis:
    """Return the diagnosis of the first peer that noticed the failure.

    A request to a store whose process is suspended never returns, so it is made in a thread.
    """
    diagnoses: list[Diagnosis] = []

    def agree() -> None:
        with suppress(RuntimeError):  # rank 0 has ended
            if not store.check([DIAGNOSIS]):
                own = diagnose(store, place, exchange)
                store.compare_set(DIAGNOSIS, "", json.dumps(own))
            agreed = Diagnosis(*json.loads(store.get(DIAGNOSIS)))
            store.set(f"left/{place.rank}", "yes")
            diagnoses.append(agreed)

    thread = threading.Thread(target=agree, daemon=True)
    thread.start()
    thread.join(DIAGNOSIS_TIMEOUT)
    if not diagnoses:
        return RANK_0_IS_GONE
    return diagnoses[0]


def diagnose(store: Store, place: Rendezvous, exchange: int) -> Diagnosis:
    """Return the peers that send no heartbeats, and those that have not reached this exchange."""

    def read_heartbeats() -> list[tuple[int, int]]:
        keys = [f"heartbeat/{rank}" for rank in range(place.world)]
        return [json.loads(store.get(key)) if store.check([key]) else (0, 0) for key in keys]

    before = read_heartbeats()
    time.sleep(OBSERVATION)
    now = read_heartbeats()
    others = [rank for rank in range(place.world) if rank != place.rank]
    gone = [rank for rank in others if now[rank][0] <= before[rank][0]]
    slow = [rank for rank in others if rank not in gone and now[rank][1] < exchange]
    return Diagnosis(gone, slow)


# ------------------------------------------------------------------------------ group
class AllGather(Protocol):
    """Gathers bytes from all peers."""

    rank: int

    def set_names(self, names: list[str]) -> None:
        """Set the names of the peers, by rank, for error messages."""
        ...

    def all_gather(self, own: bytes) -> list[bytes]:
        """Return the bytes of every peer, by rank; raise CoterieError if one is missing."""
        ...


class PeerGroup:
    """All peers, connected to each other.

    Args:
        place: The rank of this peer and the address of rank 0.

    Raises:
        CoterieError: A peer does not connect.
    """

    def __init__(self, place: Rendezvous) -> None:
        self.place = place
        self.rank = place.rank
        self.names = [f"peer {rank}" for rank in range(place.world)]
        self.error: CoterieError | None = None
        self.exchange = 0  # number of the current exchange
        use_interface(place.host, place.port)
        self.store = join_rendezvous(place)
        self.heartbeat = Heartbeat(place, lambda: self.exchange)
        self.heartbeat.start()
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

    def set_names(self, names: list[str]) -> None:
        """Set the names of the peers, by rank."""
        self.names = names

    def all_gather(self, own: bytes) -> list[bytes]:
        """Return the bytes of every peer, by rank.

        Raises:
            CoterieError: A peer is gone or slow, or sends too many bytes.
        """
        if self.error is not None:
            raise self.error
        self.exchange += 1
        try:
            sizes = [int(size) for size in self._gather_tensors(torch.tensor([len(own)]))]
            for name, size in zip(self.names, sizes):
                if size > MAX_BYTES:
                    raise CoterieError(
                        f"{name} sends {size} bytes at once, more than the limit of {MAX_BYTES}",
                        "use a smaller model",
                    )
            padded = torch.zeros(max(sizes), dtype=torch.uint8)
            padded[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
            gathered = self._gather_tensors(padded)
        except RuntimeError as e:
            raise self._fail(BROKEN) from e
        return [v.numpy().tobytes()[:size] for v, size in zip(gathered, sizes)]

    def _gather_tensors(self, own: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(own) for _ in self.names]
        if own.numel():
            dist.all_gather(gathered, own)
        return gathered

    def _fail(self, otherwise: tuple[str, str]) -> CoterieError:
        """Return why an exchange failed, the same at all peers.

        Args:
            otherwise: Message and remedy if no peer is gone or slow.
        """
        if dist.is_initialized():
            dist.destroy_process_group()  # wakes peers that still wait for this one
        found = agree_on_diagnosis(self.store, self.place, self.exchange)
        if self.rank == 0 and found != RANK_0_IS_GONE:  # the others read the diagnosis from here
            end = time.monotonic() + self.place.deadline
            others = [rank for rank in range(1, self.place.world) if rank not in found.gone]
            while time.monotonic() < end:
                if all(self.store.check([f"left/{rank}"]) for rank in others):
                    break
                time.sleep(BEAT)
        self.heartbeat.stopped.set()
        names = " and ".join(self.names[rank] for rank in found.gone or found.slow)
        self.error = CoterieError(*otherwise)
        if found.gone:
            self.error = CoterieError(
                f"{names} no longer answers",
                "start it and all other peers again: each continues from its own files",
            )
        elif found.slow:
            self.error = CoterieError(
                f"{names} took longer than {self.place.deadline:g} seconds",
                "give all peers a longer --deadline, and start them again",
            )
        return self.error

    def close(self) -> None:
        """Leave the group."""
        self.heartbeat.stopped.set()
        if dist.is_initialized():
            dist.destroy_process_group()
