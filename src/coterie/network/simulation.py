"""Everything on one machine: a process for each site of a network, or for each peer."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.data.folder import client_files
from coterie.data.table_files import READERS
from coterie.network.certificates import make_authority, register_site
from coterie.network.connections import LOOPBACK, free_port
from coterie.network.handshake import NOT_ALL, RunSpec, SitesFailed
from coterie.network.https_server import HttpsServer
from coterie.network.local_table import ENDS_NODE
from coterie.network.packets import Packet
from coterie.network.server import begin, serve
from coterie.network.transport import Messenger, WaitPolicy, list_names
from coterie.runs.files import write_error
from coterie.runs.run import OnRound, Run

log = logging.getLogger("coterie")
CONNECT_TIMEOUT = 180.0  # seconds in which nodes must connect
EXIT_TIMEOUT = 10.0  # seconds in which a process ends, after a signal or a failure
PREFIX = "coterie: "  # of the error message with which a command ends


# ------------------------------------------------------------------------------ processes
class NodesEnded(CoterieError):
    """Nodes that a run needs have ended."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(f"the nodes of {list_names(sorted(names))} ended before the run did")


class ChildProcesses:
    """A process for each table, which ends when this process does.

    Args:
        folder: Folder for the logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, arguments: list[str], shows_errors: bool = False) -> None:
        """Start `coterie network ARGUMENTS --child`.

        The end of this process closes the child's standard input, whatever ends it.

        Args:
            name: Name of the site.
            arguments: Command and flags.
            shows_errors: Show its progress and errors on this terminal, not in its log.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.log_of(name), "ab") as output:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "coterie", "network", *arguments, "--child"],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=None if shows_errors else output,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    start_new_session=True,  # Ctrl-C is for this process, which then ends them
                )
        except OSError as e:
            raise write_error(e, self.log_of(name)) from e

    def log_of(self, name: str) -> Path:
        """Return the file with a child's output."""
        return self.folder / f"{name}.log"

    def ended(self) -> set[str]:
        """Return the names of those that have ended."""
        return {name for name, process in self.processes.items() if process.poll() is not None}

    def wait_for_end(self, names: Iterable[str], seconds: float) -> None:
        """Wait until these have ended, at most this long."""
        end = time.monotonic() + seconds
        while not set(names) <= self.ended() and time.monotonic() < end:
            time.sleep(0.1)

    def errors(self) -> dict[str, list[str]]:
        """Return the errors at the ends of the logs, each with the names of its sites."""
        by_error: dict[str, list[str]] = {}
        for name in sorted(self.ended()):
            lines = self.log_of(name).read_text(errors="replace").splitlines()
            if lines and lines[-1].startswith(PREFIX):
                text = lines[-1].removeprefix(PREFIX).replace(f" of client {name!r}", "")
                by_error.setdefault(text, []).append(name)
        return by_error

    def stop(self) -> None:
        """End all of them."""
        for process in self.processes.values():
            process.terminate()
        self.wait_for_end(self.processes, EXIT_TIMEOUT)
        for process in self.processes.values():
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def find_tables(path: Path, number: int | None, users: str) -> dict[str, Path]:
    """Return the first tables of a folder by name.

    Args:
        path: Folder with one file per client.
        number: Number of tables; None: all.
        users: Who needs a table each, for error messages.
    """
    files = client_files(path)
    if next(iter(files.values())).suffix.lower() not in READERS:
        raise CoterieError(f"{path} has arrays, and {users} have tables", "use CSV")
    if number is not None and number > len(files):
        raise CoterieError(f"{path} has {len(files)} files for {number} {users}", "ask for fewer")
    return dict(list(files.items())[:number])


@contextmanager
def temporary_certificates(names: Iterable[str]) -> Iterator[Path]:
    """Make a folder with the certificates of a network on this machine."""
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        make_authority(Path(folder), LOOPBACK)
        for name in names:
            register_site(Path(folder), name)
        yield Path(folder)


# ------------------------------------------------------------------------------ sites
class SimulatedServer(HttpsServer):
    """A server that does not wait for nodes whose processes have ended.

    Attributes:
        nodes: The processes.
    """

    nodes: ChildProcesses

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Return the replies that have arrived.

        Raises:
            NodesEnded: There is none, and a node has ended.
        """
        replies = super().receive(seconds)
        ended = self.nodes.ended()
        if ended and not replies:
            raise NodesEnded(ended)
        return replies


class Simulation:
    """A server with temporary certificates, and a process for each site.

    Args:
        spec: The run.
        path: Folder with a table per site.
        nodes: Number of sites; None: all tables.
        port: Port of the server; 0: any free port.
    """

    def __init__(self, spec: RunSpec, path: Path, nodes: int | None, port: int = 0) -> None:
        self.files = find_tables(path, nodes, "sites of a network")
        self.spec = spec
        self.port = port or free_port()

    @contextmanager
    def running(self, base: Path) -> Iterator[SimulatedServer]:
        """Run a server and its nodes within this context; end all processes after it.

        Args:
            base: Folder for all files.
        """
        nodes = ChildProcesses(base / "sites")
        with temporary_certificates(self.files) as keys:
            server = SimulatedServer(LOOPBACK, self.port, keys)
            server.nodes = nodes
            try:
                for name, file in self.files.items():
                    arguments = [
                        "node",
                        "--data", str(file),
                        "--server", f"{LOOPBACK}:{self.port}",
                        "--key", str(keys / f"{name}.pem"),
                        "--state", str(nodes.folder / name),
                        "--exact", str(self.spec.data.seed),  # the rows are those of this user
                    ]  # fmt: skip
                    nodes.start(name, arguments)
                yield server
            finally:
                nodes.stop()
                server.close()

    def run(
        self,
        server: SimulatedServer,
        base: Path,
        policy: WaitPolicy,
        follow: Callable[[Run], OnRound],
    ) -> Run:
        """Wait until all nodes are connected, then train.

        Args:
            server: Reaches the nodes.
            base: Folder for all files.
            policy: Deadline, quorum and grace.
            follow: Returns a function to call with the metrics of each round.

        Raises:
            CoterieError: A node cannot join or has ended; the message quotes its error.
        """
        names = sorted(self.files)
        messenger = Messenger(server, policy)
        try:
            missing = messenger.wait_for(names, CONNECT_TIMEOUT)
            if missing:
                raise CoterieError(
                    f"the nodes of {list_names(missing)} did not connect",
                    f"see {server.nodes.folder}/*.log",
                )
            run = begin(self.spec, names, messenger, base / "run")
            return serve(run, follow(run))
        except (SitesFailed, NodesEnded) as e:
            # nodes may end while the server informs them that they cannot join
            first = e.__context__ if isinstance(e.__context__, SitesFailed) else e
            raise quote_nodes(first, server.nodes) from e


def quote_nodes(error: SitesFailed | NodesEnded, nodes: ChildProcesses) -> CoterieError:
    """Add the errors in the nodes' logs: one is quoted, several are logged."""
    faults = error.faults if isinstance(error, SitesFailed) else {}
    ending = [name for name, reason in faults.items() if reason in ENDS_NODE]
    nodes.wait_for_end(ending, EXIT_TIMEOUT)
    by_error = nodes.errors()
    if len(by_error) == 1:
        ((text, names),) = by_error.items()
        says = "says" if len(names) == 1 else "say"
        # if all sites with a fault say it, it is more precise than the server's reason
        what = NOT_ALL + ":" if set(names) == set(faults) else f"{error.what};"
        return CoterieError(f"{what} {list_names(names)} {says}: {text}")
    for text, names in by_error.items():
        log.warning("%s: %s", list_names(names), text)
    above = "the messages above, or " if by_error else ""
    return CoterieError(error.what, f"see {above}{nodes.folder}/*.log")


# ------------------------------------------------------------------------------ peers
def run_local_peers(
    config: str, path: Path, number: int, base: Path, *, deadline: float, quiet: bool
) -> None:
    """Start all peers and wait until they end; the progress of the first one is shown.

    Args:
        config: TOML file of the run.
        path: Folder with a table per peer.
        number: Number of peers.
        base: Folder for the files of all peers.
        deadline: Seconds for one exchange.
        quiet: Show no progress.

    Raises:
        CoterieError: A peer failed; the others then end by themselves.
    """
    files = find_tables(path, number, "peers")
    peers = ChildProcesses(base)
    address = f"{LOOPBACK}:{free_port()}"
    with temporary_certificates(files) as keys:
        try:
            for i, (name, file) in enumerate(files.items()):
                arguments = [
                    "peers", config,
                    "--data", str(file),
                    "--key", str(keys / f"{name}.pem"),
                    "--first", address,
                    "--state", str(base / name),
                    "--deadline", str(deadline),
                ]  # fmt: skip
                if i == 0:
                    arguments += ["--certs", str(keys)]
                if quiet:
                    arguments.append("--quiet")
                peers.start(name, arguments, shows_errors=i == 0)
            failed: list[str] = []
            while not failed and peers.ended() != files.keys():
                time.sleep(0.1)
                failed = [name for name in peers.ended() if peers.processes[name].returncode]
            if failed:
                peers.wait_for_end(files, deadline + EXIT_TIMEOUT)
        finally:
            peers.stop()
    if failed:
        logs = " and ".join(str(peers.log_of(name)) for name in sorted(failed))
        raise CoterieError(
            f"{' and '.join(sorted(failed))} ended before the run did",
            f"see {logs}, then repeat the command: each peer continues from its files",
        )
