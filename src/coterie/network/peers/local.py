"""All peers on this machine, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from coterie.data.client_files import client_files
from coterie.data.tables import READERS
from coterie.errors import CoterieError
from coterie.network.ports import HOST, free_port
from coterie.runs.files import write_error

PAUSE = 0.1  # seconds between looks at who has ended
TO_END = 30.0  # seconds in which the others end after the first one that failed


class LocalPeers:
    """Processes of peers, which end with this one."""

    def __init__(self, config: str, path: Path, number: int, base: Path, deadline: float) -> None:
        files = client_files(path)
        if next(iter(files.values())).suffix.lower() not in READERS:
            raise CoterieError(f"{path} has arrays, and peers have tables", "use CSV")
        if number > len(files):
            raise CoterieError(f"{path} has {len(files)} files for {number} peers", "ask for fewer")
        self.config = config
        self.files = dict(list(files.items())[:number])
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
        command = [
            sys.executable, "-m", "coterie.cli", "network", "peers", self.config, "--child",
            "--data", str(file),
            "--rank", str(rank),
            "--world", str(len(self.files)),
            "--master", self.master,
            "--state", str(self.base / name),
            "--deadline", str(self.deadline),
        ]  # fmt: skip
        if quiet:
            command.append("--quiet")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        log = self.log_of(name)
        try:
            self.base.mkdir(parents=True, exist_ok=True)
            with open(log, "ab") as output:
                shown = None if rank == 0 else output
                return subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=shown,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for this process, which then ends all
                )
        except OSError as e:
            raise write_error(e, log) from e

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
