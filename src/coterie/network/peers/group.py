"""Bytes from every peer to every other, by torch.distributed (gloo).

Nobody waits for ever: where a peer is gone, or takes longer than the deadline, all others end with
the same sentence, which names it.
"""

from __future__ import annotations

import datetime
import logging
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from coterie.core.errors import CoterieError
from coterie.network.peers.interface import VARIABLE, use_interface
from coterie.network.peers.meeting import Place, meet
from coterie.network.peers.signs import Signs, Verdict, agree_on_verdict, wait_for_others

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


class Gather(Protocol):
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

    def __init__(self, place: Place) -> None:
        """Wait for all peers, and connect to them."""
        self.place = place
        self.rank = place.rank
        self.names = [f"peer {rank}" for rank in range(place.world)]
        self.fault: CoterieError | None = None
        self.exchange = 0
        use_interface(place.host, place.port)
        self.store = meet(place)
        self.signs = Signs(place, lambda: self.exchange)
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

    def _sentence(self, verdict: Verdict, otherwise: tuple[str, str]) -> CoterieError:
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
