"""A network on one machine: a server in this process, and a process for each site."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.metrics import Row
from coterie.network.certificates import make_authority, register_site
from coterie.network.children import start_child, table_files
from coterie.network.flower_server import FlowerServer
from coterie.network.handshake import Asked
from coterie.network.listening import Address
from coterie.network.ports import HOST, free_port
from coterie.network.registry import read_registry
from coterie.network.server import begin, post_for, serve
from coterie.network.transport import Waiting
from coterie.runs.run import Run

TO_CONNECT = 180.0  # seconds that nodes have to start
TO_END = 10.0  # seconds that nodes have to leave
TO_SAY_WHY = 3.0  # seconds that a node which cannot take part has to end
PREFIX = "coterie: "  # of the sentence with which a command ends


class Simulation:
    """What a simulation needs: tables, keys that are thrown away, and processes that end."""

    def __init__(self, asked: Asked, path: Path, nodes: int | None, port: int = 0) -> None:
        self.files = table_files(path, nodes, "sites of a network")
        self.asked = asked
        self.port = port or free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @contextmanager
    def running(self, base: Path) -> Iterator[FlowerServer]:
        """A server and its nodes; in the end, whatever happens, no process is left."""
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
                    self.processes[name] = self._start(name, file, keys, base / "sites")
                yield transport
            finally:
                self._stop()
                transport.close()

    def _start(self, name: str, file: Path, keys: Path, sites: Path) -> subprocess.Popen[bytes]:
        words = [
            "network", "node",
            "--data", str(file),
            "--server", f"{HOST}:{self.port}",
            "--key", str(keys / f"{name}.key"),
            "--ca", str(keys / "ca.crt"),
            "--state", str(sites / name),
        ]  # fmt: skip
        return start_child(words, sites / f"{name}.log")

    def _stop(self) -> None:
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

    def run(
        self,
        transport: FlowerServer,
        base: Path,
        waiting: Waiting,
        follow: Callable[[Run], Callable[[Row], Any]],
    ) -> Run:
        """Wait until all nodes are there, and train."""
        open_post = post_for(transport, waiting)
        missing = open_post("0" * 16, 0).wait_for(sorted(self.files), TO_CONNECT)
        if missing:
            raise CoterieError(
                f"the nodes of {', '.join(missing)} did not connect", f"see {base / 'sites'}/*.log"
            )
        try:
            run = begin(self.asked, sorted(self.files), open_post, base / "run")
        except CoterieError as e:
            raise self._with_words_of_a_site(e, base / "sites") from e
        return serve(run, follow(run))

    def _with_words_of_a_site(self, error: CoterieError, sites: Path) -> CoterieError:
        """The same error with what a site's own log says, which is on this machine, too."""
        end = time.monotonic() + TO_SAY_WHY
        while time.monotonic() < end:
            for name, process in self.processes.items():
                words = last_words(sites / f"{name}.log")
                if process.poll() is not None and words:
                    return CoterieError(f"{error.what}; {name} says: {words}")
            time.sleep(0.1)
        return error


def last_words(log: Path) -> str:
    """The sentence with which a node ended; empty if there is none."""
    lines = log.read_text(errors="replace").splitlines()
    if not lines or not lines[-1].startswith(PREFIX):
        return ""
    return lines[-1].removeprefix(PREFIX)
