"""A network on one machine: a server in this process, and a process for each site."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.metrics import Row
from coterie.network.certificates import make_authority, register_site
from coterie.network.children import table_files
from coterie.network.flower_server import FlowerServer
from coterie.network.handshake import NOT_ALL, Asked, SitesUnable
from coterie.network.listening import Address
from coterie.network.node_processes import NodeProcesses, NodesEnded, WatchedTransport
from coterie.network.outcomes import first_names
from coterie.network.ports import HOST, free_port
from coterie.network.registry import read_registry
from coterie.network.replies import FOR_ITS_OWNER
from coterie.network.server import begin, serve
from coterie.network.transport import Waiting
from coterie.runs.run import Run

log = logging.getLogger("coterie")
TO_CONNECT = 180.0  # seconds that nodes have to start
TO_END = 10.0  # seconds in which a node that cannot take part has ended


class Simulation:
    """What a simulation needs: tables, keys that are thrown away, and processes that end."""

    def __init__(self, asked: Asked, path: Path, nodes: int | None, port: int = 0) -> None:
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
        waiting: Waiting,
        follow: Callable[[Run], Callable[[Row], Any]],
    ) -> Run:
        """Wait until all nodes are there, and train."""
        names = sorted(self.files)
        open_post = WatchedTransport(transport, self.nodes, waiting).open_post
        try:
            missing = open_post("0" * 16, 0).wait_for(names, TO_CONNECT)
            if missing:
                raise CoterieError(
                    f"the nodes of {first_names(missing)} did not connect",
                    f"see {self.nodes.folder}/*.log",
                )
            run = begin(self.asked, names, open_post, base / "run")
            return serve(run, follow(run))
        except (SitesUnable, NodesEnded) as e:
            raise self._with_words_of_sites(e) from e

    def _with_words_of_sites(self, error: SitesUnable | NodesEnded) -> CoterieError:
        """The same error with what the sites' own logs say, which are on this machine, too.

        Several sites get a line each, or those that say the same one line together.
        """
        if isinstance(error, SitesUnable):
            ending = [name for name, why in error.faults.items() if why in FOR_ITS_OWNER]
            self.nodes.wait_for_end(ending, TO_END)
        by_words: dict[str, list[str]] = {}
        for name, words in self.nodes.last_words().items():
            by_words.setdefault(words, []).append(name)
        if len(by_words) == 1:
            ((words, names),) = by_words.items()
            says = "says" if len(names) == 1 else "say"
            told = f"{first_names(names)} {says}: {words}"
            if isinstance(error, SitesUnable) and set(names) == set(error.faults):
                return CoterieError(f"{NOT_ALL}: {told}")  # their words say more than the server's
            return CoterieError(f"{error.what}; {told}")
        logs = f"{self.nodes.folder}/*.log"
        if not by_words:
            return CoterieError(error.what, f"see {logs}")
        for words, names in by_words.items():
            log.warning("%s: %s", first_names(names), words)
        return CoterieError(error.what, f"see above what each says, or {logs}")
