"""A network on one machine: a server in this process, and a process for each site."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.data.folder import client_files
from coterie.data.table_files import READERS
from coterie.metrics import Row
from coterie.network.certificates import make_authority, register_site
from coterie.network.flower_server import FlowerServer
from coterie.network.handshake import NOT_ALL, RunSpec, SitesFailed
from coterie.network.listening import Address
from coterie.network.local_table import ENDS_NODE
from coterie.network.packets import Packet
from coterie.network.registry import read_registry
from coterie.network.server import begin, serve
from coterie.network.transport import Messenger, Transport
from coterie.network.waiting import WaitPolicy, list_names
from coterie.runs.files import write_error
from coterie.runs.run import Run

HOST = "127.0.0.1"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def table_files(path: Path, number: int | None, what: str) -> dict[str, Path]:
    """The first files of a folder of tables, by name; what: who needs a file each."""
    files = client_files(path)
    if next(iter(files.values())).suffix.lower() not in READERS:
        raise CoterieError(f"{path} has arrays, and {what} have tables", "use CSV")
    if number is not None and number > len(files):
        raise CoterieError(f"{path} has {len(files)} files for {number} {what}", "ask for fewer")
    return dict(list(files.items())[:number])


def start_child(words: list[str], log: Path, shows_errors: bool = False) -> subprocess.Popen[bytes]:
    """Start `coterie WORDS --child`, which ends when this process does; its output goes to a file.

    The end of this process closes the child's standard input, however it ends. shows_errors:
    whether the child's progress and errors are shown here.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "coterie", *words, "--child"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=None if shows_errors else output,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which then ends its children
            )
    except OSError as e:
        raise write_error(e, log) from e


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

    def __init__(self, transport: Transport, nodes: NodeProcesses, waiting: WaitPolicy) -> None:
        self.transport = transport
        self.nodes = nodes
        self.waiting = waiting
        self.messenger: Messenger | None = None

    def open_messenger(self, experiment: str, epoch: int) -> Messenger:
        """The post of an experiment over this transport."""
        self.messenger = Messenger(self, experiment, epoch, self.waiting)
        return self.messenger

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
        if self.messenger is not None:
            awaited = self.messenger.awaited
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
        super().__init__(f"the nodes of {list_names(self.names)} ended before the run did")


log = logging.getLogger("coterie")
TO_CONNECT = 180.0  # seconds that nodes have to start
TO_END = 10.0  # seconds in which a node that cannot take part has ended


class Simulation:
    """What a simulation needs: tables, keys that are thrown away, and processes that end."""

    def __init__(self, asked: RunSpec, path: Path, nodes: int | None, port: int = 0) -> None:
        self.files = table_files(path, nodes, "sites of a network")
        self.asked = asked
        self.port = port or free_port()

    @contextmanager
    def running(self, base: Path) -> Iterator[FlowerServer]:
        """A server and its nodes; in the end, whatever happens, no process is left.

        base: the folder of all that is written.
        """
        self.nodes = NodeProcesses(base / "sites")
        with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
            keys = Path(folder)
            make_authority(keys, HOST)
            for name in self.files:
                register_site(keys, name)
            address = Address(
                host=HOST,
                port=self.port,
                certificate=keys / "server.crt",
                key=keys / "server.key",
            )
            transport = FlowerServer(address, read_registry(keys))
            try:
                for name, file in self.files.items():
                    self.nodes.start(name, file, keys, self.port)
                yield transport
            finally:
                self.nodes.stop()
                transport.close()

    def run(
        self,
        transport: FlowerServer,
        base: Path,
        waiting: WaitPolicy,
        follow: Callable[[Run], Callable[[Row], Any]],
    ) -> Run:
        """Wait until all nodes are there, and train."""
        names = sorted(self.files)
        open_messenger = WatchedTransport(transport, self.nodes, waiting).open_messenger
        try:
            missing = open_messenger("0" * 16, 0).wait_for(names, TO_CONNECT)
            if missing:
                raise CoterieError(
                    f"the nodes of {list_names(missing)} did not connect",
                    f"see {self.nodes.folder}/*.log",
                )
            run = begin(self.asked, names, open_messenger, base / "run")
            return serve(run, follow(run))
        except (SitesFailed, NodesEnded) as e:
            raise self._with_words_of_sites(e) from e

    def _with_words_of_sites(self, error: SitesFailed | NodesEnded) -> CoterieError:
        """The same error with what the sites' own logs say, which are on this machine, too.

        Several sites get a line each, or those that say the same one line together.
        """
        if isinstance(error, SitesFailed):
            ending = [name for name, why in error.faults.items() if why in ENDS_NODE]
            self.nodes.wait_for_end(ending, TO_END)
        by_words: dict[str, list[str]] = {}
        for name, words in self.nodes.last_words().items():
            by_words.setdefault(words, []).append(name)
        if len(by_words) == 1:
            ((words, names),) = by_words.items()
            says = "says" if len(names) == 1 else "say"
            told = f"{list_names(names)} {says}: {words}"
            if isinstance(error, SitesFailed) and set(names) == set(error.faults):
                return CoterieError(f"{NOT_ALL}: {told}")  # their words say more than the server's
            return CoterieError(f"{error.what}; {told}")
        logs = f"{self.nodes.folder}/*.log"
        if not by_words:
            return CoterieError(error.what, f"see {logs}")
        for words, names in by_words.items():
            log.warning("%s: %s", list_names(names), words)
        return CoterieError(error.what, f"see above what each says, or {logs}")
