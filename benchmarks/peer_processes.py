"""Contenders as processes that wait for a line before each round, so that rounds interleave."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

from contenders.answering import load_models
from contenders.problems import Arrays, Problem
from peer_environments import BENCHMARKS, ROOT, Peer

PATIENCE = 300.0  # seconds for the start, or for a round
FAREWELL = 10.0  # seconds to end by itself


class Failed(Exception):
    """A contender exited or timed out; the message is one line."""


class Process:
    """One contender with one problem; it has warmed up once `ready` returns."""

    def __init__(
        self, peer: Peer, problem: Problem, threads: int, small: bool, scratch: Path
    ) -> None:
        self.peer = peer
        self.result = scratch / f"{peer.name}-{threads}.npz"
        self.errors = scratch / f"{peer.name}-{threads}.txt"
        words = [str(peer.python), "-W", "ignore", "-m", f"contenders.{peer.name}", problem.name]
        words += [str(self.result), "--threads", str(threads)]
        if small:
            words.append("--small")
        with self.errors.open("w") as errors:
            self.child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(peer, threads),
                start_new_session=True,
            )

    def ready(self) -> dict[str, Any]:
        """Wait for warm-up, and return what the contender reports."""
        return self._answer()

    def round(self, threads: int) -> dict[str, float]:
        """Run one round; return wall and processor seconds."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(f"{threads}\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None
        return self._answer()

    def models(self) -> list[Arrays]:
        """Return the models after the last round."""
        return load_models(self.result)

    def end(self) -> None:
        """Close stdin, and kill the processes if they do not exit."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.close()
            self.child.wait(FAREWELL)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        if not select.select([self.child.stdout], [], [], PATIENCE)[0]:
            raise Failed(f"no answer within {PATIENCE:.0f} s")
        line = self.child.stdout.readline()
        if not line:
            raise Failed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = self.errors.read_text().strip().splitlines()
        return (lines or ["ended without a word"])[-1]


def environment(peer: Peer, threads: int) -> dict[str, str]:
    """Return the environment variables; peers see only their own packages."""
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    paths = [str(BENCHMARKS)]
    if peer.is_ours:
        paths.append(str(ROOT / "src"))
    variables["PYTHONPATH"] = os.pathsep.join(paths)
    return variables
