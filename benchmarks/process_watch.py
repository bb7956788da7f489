"""Memory and processor time of processes while they run."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

SERVER = "superlink"  # the group that is no node


class Sample(NamedTuple):
    """Measurements of all process groups at one time."""

    time: float  # seconds since 1970
    cpu: float  # seconds of processor time so far, of all groups
    memory: dict[str, float]  # MB by group


class ProcessWatch:
    """Samples memory and processor time of process groups, every `period` seconds or more often."""

    def __init__(self, groups: dict[str, int], period: float, this_process: bool) -> None:
        """this_process: whether to include the time of this process."""
        self.groups = {group: name for name, group in groups.items()}
        self.period = period
        self.this_process = this_process
        self.samples: list[Sample] = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ProcessWatch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.ended.wait(self.period):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        memory = dict.fromkeys(self.groups.values(), 0.0)
        cpu = time.process_time() if self.this_process else 0.0
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                name = self.groups.get(os.getpgid(int(entry.name)))
                if name is not None:
                    memory[name] += resident(entry)
                    cpu += processor_time(entry)
            except OSError:  # it has ended
                continue
        return Sample(time.time(), cpu, memory)

    def cpu_between(self, begin: float, end: float) -> float:
        """Return the processor seconds between two times."""
        inside = [sample for sample in self.samples if begin <= sample.time <= end]
        share = (inside[-1].time - inside[0].time) / (end - begin)
        return (inside[-1].cpu - inside[0].cpu) / share

    def memory(self, begin: float, end: float) -> list[float]:
        """Return the peak memory of each node between two times, in MB."""
        inside = [sample for sample in self.samples if begin <= sample.time <= end]
        nodes = [name for name in self.groups.values() if name != SERVER]
        return [max(sample.memory[name] for sample in inside) for name in nodes]


def resident(process: Path) -> float:
    """Return the resident memory of a process in MB, including shared libraries."""
    pages = int((process / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def processor_time(process: Path) -> float:
    """Return the processor seconds of a process and of its finished children."""
    words = (process / "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
