"""The ranks of this machine, other than rank 0, as processes that rank 0 has started."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from coterie.core.errors import CoterieError
from coterie.ranks.place import Place

CHILD = "COTERIE_RANK_OF"  # set for such a process: the process of rank 0
TO_END = 10.0  # seconds in which a rank ends when it is told to
PAUSE = 0.02  # seconds between looks


class Processes:
    """Processes with the same command as this one."""

    def __init__(self, place: Place, port: int, command: Sequence[str]) -> None:
        """Start them; command: what follows `python`, also of rank 0."""
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(1, place.size):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(place.size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(place.size),
                "MASTER_ADDR": place.host,
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": str(place.cores),
                "TORCH_CPP_LOG_LEVEL": "ERROR",  # a broken connection is told in a sentence
                CHILD: str(os.getpid()),
            }
            self.children[rank] = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,  # its end tells the child that this process is gone
                stdout=subprocess.DEVNULL,
                env={**os.environ, **variables},
                start_new_session=True,  # Ctrl-C is for rank 0, which finishes the round
            )

    def check(self) -> None:
        """Raise if one has ended already."""
        for rank, child in self.children.items():
            status = child.poll()
            if status is not None:
                raise CoterieError(
                    f"rank {rank} has ended at its start, with status {status}",
                    "see what it printed, if anything, and try again",
                )

    def end(self, at_once: bool = False) -> None:
        """Wait a moment until all have ended, unless at once, and end those that have not."""
        until = time.monotonic()
        if not at_once:
            until += TO_END
        for child in self.children.values():
            while child.poll() is None and time.monotonic() < until:
                time.sleep(PAUSE)
            child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()


def end_with_parent() -> None:
    """Let a process that `Processes` has started end when its parent is gone, however it ended."""
    if CHILD not in os.environ:
        return

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(2)

    threading.Thread(target=wait, daemon=True).start()
