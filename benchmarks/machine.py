"""The machine that runs a benchmark, and the page of its results."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def processor_name() -> str:
    """Return the processor's name, as the system reports it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "an unknown processor"


def command() -> str:
    """Return the current command, relative to the project's folder."""
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def write_page(
    name: str,
    about: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    load: float,
) -> Path:
    """Write benchmarks/results/NAME.md: a table, the command that made it, and when and where.

    about: the heading, and sentences on what is measured.
    load: processes that ran beside it, as it began.
    """
    cores = len(os.sched_getaffinity(0))
    lines = [
        about,
        "",
        f"`{command()}`, {time.strftime('%Y-%m-%d')}, on {cores} cores ({processor_name()}). "
        f"Load when it began: {load:.1f}.",
        "",
        f"| {' | '.join(heads)} |",
        f"| --- |{' ---: |' * (len(heads) - 1)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    path = RESULTS / f"{name}.md"
    path.write_text("\n".join(lines) + "\n")
    return path
