"""One problem, run by all contenders in turn."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from contenders.problems import Problem, fingerprint
from peer_checks import Judge
from peer_environments import Peer
from peer_processes import Failed, Process
from timing import cores

ENOUGH = 8.0  # seconds of rounds for a contender on one number of threads


class Turn:
    """A contender with a number of threads, and the times of its rounds."""

    def __init__(self, process: Process, threads: int) -> None:
        self.process = process
        self.threads = threads
        self.wall: list[float] = []
        self.processor: list[float] = []

    def play(self) -> None:
        """Run one more round, unless that would take too long."""
        if self.wall and sum(self.wall) + self.wall[-1] > ENOUGH:
            return
        took = self.process.round(self.threads)
        self.wall.append(took["wall"])
        self.processor.append(took["processor"])

    def summary(self) -> dict[str, Any]:
        return {"threads": self.threads, "wall": self.wall, "processor": self.processor}


class Race:
    """All contenders of one problem; a context manager that ends their processes."""

    def __init__(self, problem: Problem, scratch: Path, *, small: bool, threads: set[int]) -> None:
        """threads: numbers of threads on which peers run."""
        self.problem = problem
        self.scratch = scratch
        self.small = small
        self.threads = threads
        self.processes: dict[str, list[Process]] = {}
        self.turns: dict[str, list[Turn]] = {}
        self.ready: dict[str, dict[str, Any]] = {}  # when they had warmed up
        self.reasons: dict[str, str] = {}  # why some failed

    def __enter__(self) -> Race:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in self.processes:
            self.end(name)

    def enter(self, peers: list[Peer]) -> None:
        """Start all contenders, then wait until each has warmed up."""
        for peer in peers:
            self.turns[peer.name] = self.turns_of(peer)
        expected = fingerprint(self.problem)
        for name, processes in self.processes.items():
            try:
                for process in processes:
                    self.ready[name] = process.ready()
            except Failed as failure:
                self.drop(name, str(failure))
                continue
            if self.ready[name]["fingerprint"] != expected:
                self.drop(name, "it has other data")

    def turns_of(self, peer: Peer) -> list[Turn]:
        """Start a contender, in one process or in one for each number of threads."""
        counts = peer.thread_counts(self.threads, cores())
        if peer.needs_process_per_thread_count:
            return [Turn(self.start(peer, threads), threads) for threads in counts]
        process = self.start(peer, max(counts))
        return [Turn(process, threads) for threads in counts]

    def start(self, peer: Peer, threads: int) -> Process:
        process = Process(peer, self.problem, threads, self.small, self.scratch)
        self.processes.setdefault(peer.name, []).append(process)
        return process

    def run(self, repeats: int) -> None:
        """Run the rounds, interleaved."""
        for _ in range(repeats):
            for name, turns in list(self.turns.items()):
                try:
                    for turn in turns:
                        turn.play()
                except Failed as failure:
                    self.drop(name, str(failure))

    def drop(self, name: str, reason: str) -> None:
        """Record that a contender failed, and continue without it."""
        self.reasons[name] = reason
        del self.turns[name]
        self.end(name)

    def end(self, name: str) -> None:
        for process in self.processes[name]:
            process.end()

    def record(self) -> dict[str, Any]:
        """Return the results to save."""
        judge = Judge(self.problem)
        contenders: dict[str, Any] = {}
        for name, turns in self.turns.items():
            best = min(turns, key=lambda turn: min(turn.wall))
            contenders[name] = {
                **self.ready[name],
                "turns": [turn.summary() for turn in turns],
                "loss": judge.loss(best.process.models()),
            }
        judge.compare(contenders)
        for name, reason in self.reasons.items():
            contenders[name] = {"reason": reason}
        return {
            "title": self.problem.title,
            "mini_batch": self.problem.batch is not None,
            "first_loss": judge.first_loss(),
            "contenders": contenders,
        }
