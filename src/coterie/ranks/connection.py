"""How ranks meet, connect by torch.distributed, and notice that one of them is gone."""

from __future__ import annotations

import datetime
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from coterie.core.errors import CoterieError
from coterie.network.peers.interface import VARIABLE, address_of, use_interface
from coterie.ranks.lifeline import Lifeline, Lifelines
from coterie.ranks.place import LOOPBACK, Place, RankLost

T = TypeVar("T")
log = logging.getLogger("coterie")
FOR_EVER = datetime.timedelta(days=365)  # lifelines tell who is gone, however long work takes
PATIENCE = datetime.timedelta(hours=1)  # until all ranks must have come
SOON = 20.0  # seconds after which it is said who is missing
PAUSE = 0.02  # seconds between looks for those who come
REACH = f"see to firewalls between them, or name the network interface to use as {VARIABLE}"
TO_BE_NOTICED = 10.0  # seconds until a lifeline tells who has broken a connection


class Connection:
    """This rank's connection to the others."""

    def __init__(self, place: Place) -> None:
        """Rank 0 opens the place where all meet; the others come there, and wait for it."""
        self.place = place
        self.is_connected = False
        self.fault: CoterieError | None = None
        self.lifelines: Lifelines | None = None
        self.lifeline: Lifeline | None = None
        self.names_interface = VARIABLE not in os.environ
        use_interface(place.host, place.port or 1)
        self.tcp_store = meet(place)
        self.store = PrefixStore(f"coterie/{place.attempt}", self.tcp_store)
        if place.is_server:
            address = own_address(place)
            self.lifelines = Lifelines(address)
            self.store.set("lifeline", f"{address} {self.lifelines.port}")
        else:
            self.lifeline = self._connect_lifeline()

    def _connect_lifeline(self) -> Lifeline:
        """The lifeline of this rank, which ends with rank 0; rank 0 is told if there is none."""
        rank = self.place.rank
        address, port = self.store.get("lifeline").decode().split()
        try:
            return Lifeline(address, int(port), rank, at_end=lambda: os._exit(2))
        except OSError as e:
            what = f"rank {rank} cannot reach rank 0 at {address}:{port}"
            self.store.set(f"failed/{rank}", what)
            raise CoterieError(what, REACH) from e

    @property
    def is_well(self) -> bool:
        """Whether all ranks are connected."""
        return self.is_connected and self.fault is None

    @property
    def port(self) -> int:
        """Where the others find the place."""
        port: int = self.tcp_store.port
        return port

    def connect(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait for all ranks, and connect to them; check: raises if one will never come."""
        if self.is_connected:
            return
        if self.lifelines is not None:
            self._wait_for_all(self.lifelines, check)
            self.store.set("all are here", "yes")
        while not self.store.check(["all are here"]):
            time.sleep(PAUSE)
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "cpu:gloo,cuda:nccl"
        self.do(
            lambda: dist.init_process_group(
                backend,
                store=PrefixStore("group", self.store),
                rank=self.place.rank,
                world_size=self.place.size,
                timeout=FOR_EVER,
            )
        )
        self.is_connected = True

    def _wait_for_all(self, lifelines: Lifelines, check: Callable[[], None]) -> None:
        began = time.monotonic()
        is_told = False
        others = range(1, self.place.size)
        while missing := [rank for rank in others if rank not in lifelines.here]:
            check()
            for rank in missing:
                if self.store.check([f"failed/{rank}"]):
                    raise CoterieError(self.store.get(f"failed/{rank}").decode(), REACH)
            waited = time.monotonic() - began
            if waited > PATIENCE.total_seconds():
                raise CoterieError(f"rank {missing[0]} did not come in an hour", "start all ranks")
            if waited > SOON and not is_told:
                log.info("waiting for rank %s", ", ".join(map(str, missing)))
                is_told = True
            time.sleep(PAUSE)

    # -- faults and the end
    def do(self, work: Callable[[], T]) -> T:
        """Speak with the other ranks; RankLost if one of them is gone.

        At rank 0 it is done in a thread, so that Ctrl-C, and the loss of a machine that never
        closed its connections, are noticed at once.
        """
        if self.fault is not None:
            raise self.fault
        if self.lifelines is None:
            return self._do_or_leave(work)
        results: list[T] = []
        errors: list[Exception] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(work())
            except Exception as e:
                errors.append(e)
            done.set()

        threading.Thread(target=run, daemon=True).start()
        while not done.wait(1.0):
            if self.lifelines.lost and not done.wait(1.0):
                break
        if results:
            return results[0]
        if errors and not isinstance(errors[0], RuntimeError):
            raise errors[0]
        self.fault = self._why(self.lifelines)
        raise self.fault

    def _do_or_leave(self, work: Callable[[], T]) -> T:
        """What a rank other than 0 does; where the connection breaks, rank 0 tells why."""
        assert self.lifeline is not None
        try:
            return work()
        except RuntimeError:
            self.lifeline.say_farewell()
            os._exit(2)

    def _why(self, lifelines: Lifelines) -> CoterieError:
        """Who is gone, as the lifelines tell it."""
        end = time.monotonic() + TO_BE_NOTICED
        while not lifelines.lost and time.monotonic() < end:
            time.sleep(PAUSE)
        if not lifelines.lost:
            return RankLost("the connection between the ranks broke", REACH)
        return RankLost(f"{self.name(lifelines.lost[0])} has ended before the run did")

    def name(self, rank: int) -> str:
        """A rank with its machine and process, for sentences about it."""
        name = f"rank {rank}"
        if self.lifelines is not None and rank in self.lifelines.here:
            name += f" ({self.lifelines.here[rank]})"
        return name

    def expect_end(self) -> None:
        """Let rank 0 hang up without that ending this process."""
        assert self.lifeline is not None
        self.lifeline.say_farewell()

    def close(self) -> None:
        """Hang up; at rank 0 this ends all other ranks."""
        if self.names_interface:
            os.environ.pop(VARIABLE, None)  # another group may need another one
        for line in (self.lifelines, self.lifeline):
            if line is not None:
                line.close()


def meet(place: Place) -> TCPStore:
    """The store by which all ranks meet: made by rank 0, unless torchrun has made it."""
    makes_it = place.is_server and not place.has_store
    try:
        return TCPStore(place.host, place.port, None, makes_it, PATIENCE, wait_for_workers=False)
    except RuntimeError as e:
        raise CoterieError(
            f"rank {place.rank} cannot meet the others at {place.host}:{place.port}",
            "give an address of the machine of rank 0, and a port that is free",
        ) from e


def own_address(place: Place) -> str:
    """The address of rank 0 that the others can reach."""
    interface = os.environ.get(VARIABLE, "").split(",")[0]
    if interface:
        return address_of(interface) or LOOPBACK
    return place.host
