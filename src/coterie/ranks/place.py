"""Which rank this process is, and where all ranks meet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.core.errors import CoterieError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # as torchrun sets them
LOOPBACK = "127.0.0.1"


class RankLost(CoterieError):
    """A rank has ended before the run did."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One rank among several."""

    rank: int
    size: int  # how many ranks
    host: str  # where all meet
    port: int  # 0: any that is free
    local_rank: int = 0  # among those of this machine
    local_size: int = 1  # how many ranks this machine has
    attempt: str = "0"  # how often torchrun has started them again
    has_store: bool = False  # whether the launcher has made the place where all meet

    @property
    def is_server(self) -> bool:
        """Whether this process runs the server."""
        return self.rank == 0

    @property
    def cores(self) -> int:
        """The processors of this machine that are for one rank."""
        return max(1, len(os.sched_getaffinity(0)) // self.local_size)


def on_this_machine(ranks: int) -> Place:
    """The place of rank 0 where all ranks are processes of this machine."""
    return Place(rank=0, size=ranks, host=LOOPBACK, port=0, local_size=ranks)


def place_in(environment: Mapping[str, str]) -> Place | None:
    """The place that torchrun gives a process; None if nothing has started several ranks."""
    if not all(name in environment for name in NEEDED):
        return None
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if size < 2:
        return None
    return Place(
        rank=rank,
        size=size,
        host=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT"),
        local_rank=_number(environment, "LOCAL_RANK", rank),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", 1),
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise CoterieError(
            f"the environment variable {name} is {text!r}, and must be a number", "use torchrun"
        )
    return int(text)
