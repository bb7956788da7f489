"""The nodes of a simulation: processes of this machine, which are watched and ended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.network.children import start_child
from coterie.network.outcomes import first_names
from coterie.network.packets import Packet
from coterie.network.ports import HOST
from coterie.network.transport import Post, Transport, Waiting

TO_END = 10.0  # seconds that nodes have to leave
TO_SAY_WHY = 3.0  # seconds between the end of a node and that of a simulation which needs it
PREFIX = "coterie: "  # of the sentence with which a command ends


class NodeProcesses:
    """A process for each site."""

    def __init__(self, folder: Path) -> None:
        """folder: of the sites' states and logs."""
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ended_at: dict[str, float] = {}  # by site: when its process was first seen to be gone

    def start(self, name: str, file: Path, keys: Path, port: int) -> None:
        """Start the node of a site."""
        words = [
            "network", "node",
            "--data", str(file),
            "--server", f"{HOST}:{port}",
            "--key", str(keys / f"{name}.key"),
            "--ca", str(keys / "ca.crt"),
            "--state", str(self.folder / name),
        ]  # fmt: skip
        self.processes[name] = start_child(words, self.log_of(name))

    def log_of(self, name: str) -> Path:
        """Where a node's output goes."""
        return self.folder / f"{name}.log"

    def stop(self) -> None:
        """End all of them."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def ended(self, seconds: float = 0.0) -> set[str]:
        """The sites whose nodes ended at least this long ago."""
        now = time.monotonic()
        for name, process in self.processes.items():
            if process.poll() is not None:
                self.ended_at.setdefault(name, now)
        return {name for name, when in self.ended_at.items() if now - when >= seconds}

    def wait_for_end(self, names: Iterable[str], seconds: float) -> None:
        """Wait until the nodes of these sites have ended, for at most this long."""
        end = time.monotonic() + seconds
        while not set(names) <= self.ended() and time.monotonic() < end:
            time.sleep(0.1)

    def last_words(self) -> dict[str, str]:
        """By site, the sentence with which its node ended, without the site's own name."""
        words = {}
        for name in sorted(self.ended()):
            sentence = last_words(self.log_of(name))
            if sentence:
                words[name] = sentence.replace(f" of client {name!r}", "")
        return words


def last_words(log: Path) -> str:
    """The sentence with which a node ended; empty if there is none."""
    lines = log.read_text(errors="replace").splitlines()
    if not lines or not lines[-1].startswith(PREFIX):
        return ""
    return lines[-1].removeprefix(PREFIX)


class WatchedTransport:
    """A transport to nodes of this machine, on which nobody waits for processes that have ended."""

    def __init__(self, transport: Transport, nodes: NodeProcesses, waiting: Waiting) -> None:
        self.transport = transport
        self.nodes = nodes
        self.waiting = waiting
        self.post: Post | None = None

    def open_post(self, experiment: str, epoch: int) -> Post:
        """The post of an experiment over this transport."""
        self.post = Post(self, experiment, epoch, self.waiting)
        return self.post

    def connections(self) -> Mapping[str, Hashable]:
        """Who is connected now; a node that was killed need not be missed by its server first."""
        ended = self.nodes.ended()
        connected = self.transport.connections()
        return {name: line for name, line in connected.items() if name not in ended}

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Send a packet to each of these sites."""
        self.transport.send(packets)

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Replies that have come; fails if none can come any more."""
        packets = self.transport.receive(seconds)
        if not packets:
            self._check()
        return packets

    def _check(self) -> None:
        """Fail if all are waited for in vain: their processes are gone, and nobody starts them.

        Where an exchange can do without them, it has gone on by then.
        """
        awaited: frozenset[str] = frozenset()
        if self.post is not None:
            awaited = self.post.awaited
        if not awaited:  # all are waited for to connect
            gone = self.nodes.ended(TO_SAY_WHY)
        elif awaited <= self.nodes.ended(self.waiting.grace + TO_SAY_WHY):
            gone = set(awaited)
        else:
            return
        if gone:
            raise NodesEnded(gone)


class NodesEnded(CoterieError):
    """Nodes without which there is no run have ended."""

    def __init__(self, names: set[str]) -> None:
        self.names = sorted(names)
        super().__init__(f"the nodes of {first_names(self.names)} ended before the run did")
