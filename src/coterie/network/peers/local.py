"""All peers on this machine, each in a process of its own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.network.simulation import HOST, free_port, start_child, table_files

PAUSE = 0.1  # seconds between looks at who has ended
TO_END = 30.0  # seconds in which the others end after the first one that failed


class LocalPeers:
    """Processes of peers, which end with this one."""

    def __init__(self, config: str, path: Path, number: int, base: Path, deadline: float) -> None:
        self.config = config
        self.files = table_files(path, number, "peers")
        self.base = base
        self.deadline = deadline
        self.master = f"{HOST}:{free_port()}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, quiet: bool = False) -> None:
        """Start all peers, and wait until they have ended; the first one's progress is shown."""
        try:
            for rank, (name, file) in enumerate(self.files.items()):
                self.processes[name] = self._start(rank, name, file, quiet)
            self._wait()
        finally:
            self._stop()

    def _start(self, rank: int, name: str, file: Path, quiet: bool) -> subprocess.Popen[bytes]:
        words = [
            "network", "peers", self.config,
            "--data", str(file),
            "--rank", str(rank),
            "--world", str(len(self.files)),
            "--master", self.master,
            "--state", str(self.base / name),
            "--deadline", str(self.deadline),
        ]  # fmt: skip
        if quiet:
            words.append("--quiet")
        return start_child(words, self.log_of(name), shows_errors=rank == 0)

    def log_of(self, name: str) -> Path:
        """Where a peer's output goes."""
        return self.base / f"{name}.log"

    def _wait(self) -> None:
        """Wait for all; where one fails, the others end by themselves a moment later."""
        end = None
        while any(process.poll() is None for process in self.processes.values()):
            if self._failed() and end is None:
                end = time.monotonic() + TO_END
            if end is not None and time.monotonic() > end:
                break
            time.sleep(PAUSE)
        failed = self._failed()
        if failed:
            logs = " and ".join(str(self.log_of(name)) for name in failed)
            raise CoterieError(
                f"{' and '.join(failed)} ended before the run did",
                f"see {logs}, then give the same command again: each peer goes on from its files",
            )

    def _failed(self) -> list[str]:
        return [name for name, p in self.processes.items() if p.poll() not in (None, 0)]

    def _stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
