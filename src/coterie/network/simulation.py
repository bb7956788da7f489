"""A network on one machine: a server in this process, and a process for each site."""

from __future__ import annotations

import logging
import subprocess
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.metrics import Row
from coterie.network.certificates import make_authority, register_site
from coterie.network.children import start_child, table_files
from coterie.network.handshake import NOT_ALL, RunSpec, SitesFailed
from coterie.network.https_server import HttpsServer
from coterie.network.local_table import ENDS_NODE
from coterie.network.packets import NO_EXPERIMENT, Packet
from coterie.network.ports import LOOPBACK, free_port
from coterie.network.server import begin, serve
from coterie.network.transport import Messenger, Transport
from coterie.network.waiting import WaitPolicy, list_names
from coterie.runs.run import Run

log = logging.getLogger("coterie")
CONNECT_TIMEOUT = 180.0  # seconds in which nodes must connect
EXIT_TIMEOUT = 10.0  # seconds in which a node ends, after a signal or a failure
LOG_DELAY = 3.0  # seconds after the end of a node in which its last message reaches its log
PREFIX = "coterie: "  # of the error message with which a command ends


# ------------------------------------------------------------------------------ processes
class NodeProcesses:
    """A process for each site.

    Args:
        folder: Folder for the states and logs of the sites.
        seed: Seed of the sites' splits, as `coterie run` splits.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ended_at: dict[str, float] = {}  # site → first check that found its process ended

    def start(self, name: str, file: Path, keys: Path, port: int) -> None:
        """Start the node of a site."""
        arguments = [
            "network", "node",
            "--data", str(file),
            "--server", f"{LOOPBACK}:{port}",
            "--key", str(keys / f"{name}.pem"),
            "--state", str(self.folder / name),
            "--exact", str(self.seed),  # the rows are those of this machine's user
        ]  # fmt: skip
        self.processes[name] = start_child(arguments, self.log_of(name))

    def log_of(self, name: str) -> Path:
        """Return the file with a node's output."""
        return self.folder / f"{name}.log"

    def stop(self) -> None:
        """End all nodes."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def ended(self, seconds: float = 0.0) -> set[str]:
        """Return the sites whose nodes ended at least this long ago."""
        now = time.monotonic()
        for name, process in self.processes.items():
            if process.poll() is not None:
                self.ended_at.setdefault(name, now)
        return {name for name, when in self.ended_at.items() if now - when >= seconds}

    def wait_for_end(self, names: Iterable[str], seconds: float) -> None:
        """Wait until the nodes of these sites have ended, at most this long."""
        end = time.monotonic() + seconds
        while not set(names) <= self.ended() and time.monotonic() < end:
            time.sleep(0.1)

    def errors(self) -> dict[str, str]:
        """Return the errors with which nodes ended, without the names of their sites."""
        errors = {name: read_error(self.log_of(name)) for name in sorted(self.ended())}
        return {
            name: error.replace(f" of client {name!r}", "")
            for name, error in errors.items()
            if error
        }


def read_error(log: Path) -> str:
    """Return the error message at the end of a node's log, or an empty text."""
    lines = log.read_text(errors="replace").splitlines()
    if not lines or not lines[-1].startswith(PREFIX):
        return ""
    return lines[-1].removeprefix(PREFIX)


class WatchedTransport:
    """A transport to nodes of this machine that does not wait for processes that have ended.

    Args:
        transport: Reaches the nodes.
        nodes: Their processes.
        policy: Deadline, quorum and grace.
    """

    def __init__(self, transport: Transport, nodes: NodeProcesses, policy: WaitPolicy) -> None:
        self.transport = transport
        self.nodes = nodes
        self.policy = policy
        self.messenger: Messenger | None = None

    def open_messenger(self, experiment: str, epoch: int) -> Messenger:
        """Return the messenger of an experiment over this transport."""
        self.messenger = Messenger(self, experiment, epoch, self.policy)
        return self.messenger

    def connections(self) -> Mapping[str, Hashable]:
        """Return the connected sites whose processes are alive."""
        ended = self.nodes.ended()
        connected = self.transport.connections()
        return {name: line for name, line in connected.items() if name not in ended}

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Send a packet to each of these sites."""
        self.transport.send(packets)

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Return the replies that have arrived.

        Raises:
            NodesEnded: No reply can arrive because the processes of all awaited sites have ended.
        """
        packets = self.transport.receive(seconds)
        if packets:
            return packets
        awaited = frozenset() if self.messenger is None else self.messenger.awaited
        if not awaited:  # the server waits for all nodes to connect
            gone = self.nodes.ended(LOG_DELAY)
        else:  # an exchange that has its quorum ends after `grace`
            ended = self.nodes.ended(self.policy.grace + LOG_DELAY)
            gone = set(awaited) if awaited <= ended else set()
        if gone:
            raise NodesEnded(gone)
        return []


class NodesEnded(CoterieError):
    """Nodes that a run needs have ended."""

    def __init__(self, names: set[str]) -> None:
        self.names = sorted(names)
        super().__init__(f"the nodes of {list_names(self.names)} ended before the run did")


# ------------------------------------------------------------------------------ simulation
class Simulation:
    """A server with temporary certificates, and a process for each site.

    Args:
        spec: The run.
        path: Folder with a table per site.
        nodes: Number of sites; None: all tables.
        port: Port of the server; 0: any free port.
    """

    def __init__(self, spec: RunSpec, path: Path, nodes: int | None, port: int = 0) -> None:
        self.files = table_files(path, nodes, "sites of a network")
        self.spec = spec
        self.port = port or free_port()

    @contextmanager
    def running(self, base: Path) -> Iterator[HttpsServer]:
        """Run a server and its nodes within this context; end all processes after it.

        Args:
            base: Folder for all files.
        """
        self.nodes = NodeProcesses(base / "sites", self.spec.data.seed)
        with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
            keys = Path(folder)
            make_authority(keys, LOOPBACK)
            for name in self.files:
                register_site(keys, name)
            transport = HttpsServer(LOOPBACK, self.port, keys)
            try:
                for name, file in self.files.items():
                    self.nodes.start(name, file, keys, self.port)
                yield transport
            finally:
                self.nodes.stop()
                transport.close()

    def run(
        self,
        transport: HttpsServer,
        base: Path,
        policy: WaitPolicy,
        follow: Callable[[Run], Callable[[Row], Any]],
    ) -> Run:
        """Wait until all nodes are connected, then train.

        Args:
            transport: Reaches the nodes.
            base: Folder for all files.
            policy: Deadline, quorum and grace.
            follow: Returns a function to call with the metrics of each round.

        Raises:
            CoterieError: A node cannot join or has ended; the message quotes its error.
        """
        names = sorted(self.files)
        open_messenger = WatchedTransport(transport, self.nodes, policy).open_messenger
        try:
            missing = open_messenger(NO_EXPERIMENT, 0).wait_for(names, CONNECT_TIMEOUT)
            if missing:
                raise CoterieError(
                    f"the nodes of {list_names(missing)} did not connect",
                    f"see {self.nodes.folder}/*.log",
                )
            run = begin(self.spec, names, open_messenger, base / "run")
            return serve(run, follow(run))
        except (SitesFailed, NodesEnded) as e:
            raise self._add_errors_of_nodes(e) from e

    def _add_errors_of_nodes(self, error: SitesFailed | NodesEnded) -> CoterieError:
        """Add the errors in the nodes' logs: one is quoted, several are logged."""
        if isinstance(error, SitesFailed):
            ending = [name for name, why in error.faults.items() if why in ENDS_NODE]
            self.nodes.wait_for_end(ending, EXIT_TIMEOUT)
        by_error: dict[str, list[str]] = {}
        for name, text in self.nodes.errors().items():
            by_error.setdefault(text, []).append(name)
        if len(by_error) == 1:
            ((text, names),) = by_error.items()
            says = "says" if len(names) == 1 else "say"
            quoted = f"{list_names(names)} {says}: {text}"
            if isinstance(error, SitesFailed) and set(names) == set(error.faults):
                return CoterieError(f"{NOT_ALL}: {quoted}")  # more precise than the server's reason
            return CoterieError(f"{error.what}; {quoted}")
        logs = f"{self.nodes.folder}/*.log"
        if not by_error:
            return CoterieError(error.what, f"see {logs}")
        for text, names in by_error.items():
            log.warning("%s: %s", list_names(names), text)
        return CoterieError(error.what, f"see the messages above, or {logs}")
