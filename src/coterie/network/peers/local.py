"""All peers on this machine, each in its own process."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.network.children import start_child, table_files
from coterie.network.ports import LOOPBACK, free_port

POLL = 0.1  # seconds between checks which peers have ended
EXIT_TIMEOUT = 30.0  # seconds in which the others end after the first one that failed


class LocalPeers:
    """Processes of peers, which end with this one.

    Args:
        config: TOML file of the run.
        path: Folder with a table per peer.
        number: Number of peers.
        base: Folder for the files of all peers.
        deadline: Seconds for one exchange.
    """

    def __init__(self, config: str, path: Path, number: int, base: Path, deadline: float) -> None:
        self.config = config
        self.files = table_files(path, number, "peers")
        self.base = base
        self.deadline = deadline
        self.master = f"{LOOPBACK}:{free_port()}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, quiet: bool = False) -> None:
        """Start all peers and wait until they end; the progress of the first one is shown.

        Raises:
            CoterieError: A peer failed; the others then end by themselves.
        """
        try:
            for rank, (name, file) in enumerate(self.files.items()):
                self.processes[name] = self._start(rank, name, file, quiet)
            end = None
            while any(process.poll() is None for process in self.processes.values()):
                if self._failed() and end is None:
                    end = time.monotonic() + EXIT_TIMEOUT
                if end is not None and time.monotonic() > end:
                    break
                time.sleep(POLL)
            failed = self._failed()
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        if failed:
            logs = " and ".join(str(self.base / f"{name}.log") for name in failed)
            raise CoterieError(
                f"{' and '.join(failed)} ended before the run did",
                f"see {logs}, then repeat the command: each peer continues from its files",
            )

    def _start(self, rank: int, name: str, file: Path, quiet: bool) -> subprocess.Popen[bytes]:
        arguments = [
            "network", "peers", self.config,
            "--data", str(file),
            "--rank", str(rank),
            "--world", str(len(self.files)),
            "--master", self.master,
            "--state", str(self.base / name),
            "--deadline", str(self.deadline),
        ]  # fmt: skip
        if quiet:
            arguments.append("--quiet")
        return start_child(arguments, self.base / f"{name}.log", shows_errors=rank == 0)

    def _failed(self) -> list[str]:
        return [name for name, p in self.processes.items() if p.poll() not in (None, 0)]
