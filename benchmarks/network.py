"""What an exchange with real sites costs beyond the local work, and how much memory a node takes.

    python benchmarks/network.py

Ten sites on this machine, IFCA with four MLPs of 159,010 numbers each, and one local step on few
rows. First with `coterie network`'s own server and persistent nodes, then with the app of
`coterie network new` on a stock SuperLink and stock SuperNodes, which start a process for each
message. Both with TLS and keys. It writes results/network.md beside this file.

The local work is what the loop engine needs for the same exchange in one thread, divided among the
processors. An exchange is one of training: four models down, one up.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import coterie as ct
from coterie.cli.network import read_asked
from coterie.engine import diary
from coterie.network.flower_version import check_flower
from coterie.network.new_app import write_app
from coterie.network.transport import Waiting

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "network"))

ROWS, COLUMNS, CLASSES, HIDDEN, GROUPS = 24, 784, 10, 200, 4
NUMBERS = (COLUMNS + 1) * HIDDEN + (HIDDEN + 1) * CLASSES
MOST_SECONDS, MOST_MEMORY = 1.0, 420  # the targets: of an exchange, and MB of a node
CONFIG = f"""
method = "ifca"
clusters = {GROUPS}
local_steps = 1
seed = 1
eval_every = 1000
label = "outcome"
data = "folder:sites"
model = "mlp:{HIDDEN}"
init = "random"
"""


class Measured(NamedTuple):
    """One way of running the same thing."""

    way: str
    exchanges: list[float]  # seconds of each exchange of training but the first
    first: float  # seconds of the first, in which libraries are loaded
    memory: dict[str, float]  # by site, MB of its processes, the most that was seen


# ------------------------------------------------------------------------------ the sites
def write_sites(folder: Path, nodes: int) -> list[str]:
    """A table of random numbers for each site, in which every class occurs."""
    folder.mkdir()
    names = [f"site{i:02d}" for i in range(nodes)]
    header = ",".join([f"x{j}" for j in range(COLUMNS)] + ["outcome"])
    for i, name in enumerate(names):
        values = np.random.default_rng(i).normal(size=(ROWS, COLUMNS)).round(3)
        labels = [f"class{(row + i) % CLASSES}" for row in range(ROWS)]
        lines = [",".join(map(str, row)) + f",{label}" for row, label in zip(values, labels)]
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    return names


def write_config(place: Path, rounds: int) -> Path:
    """The config file of both ways."""
    file = place / f"{rounds}-rounds.toml"
    file.write_text(CONFIG.replace("method", f"rounds = {rounds}\nmethod", 1))
    return file


# ------------------------------------------------------------------------------ memory
class MemoryWatch:
    """The memory of process groups, looked at every few seconds or more often."""

    def __init__(self, groups: dict[str, int], period: float) -> None:
        self.period = period
        self.groups = {group: name for name, group in groups.items()}
        self.most = dict.fromkeys(groups, 0.0)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.ended.wait(self.period):
            now = dict.fromkeys(self.most, 0.0)
            for entry in Path("/proc").iterdir():
                if not entry.name.isdigit():
                    continue
                try:
                    name = self.groups.get(os.getpgid(int(entry.name)))
                    if name is not None:
                        now[name] += resident(entry)
                except OSError:  # it has ended
                    continue
            for name, memory in now.items():
                self.most[name] = max(self.most[name], memory)


def resident(process: Path) -> float:
    """Resident memory of a process in MB, libraries that it shares with others included."""
    pages = int((process / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# ------------------------------------------------------------------------------ both ways
def training(run: Path) -> tuple[list[float], float]:
    """(seconds of each exchange of training but the first, seconds of the first)"""
    entries = [e for e in diary.read(run / "diary.jsonl") if e.version[1] == "train"]
    for entry in entries:
        assert not entry.absent and not entry.refused, entry
    first, *others = [entry.seconds for entry in entries]
    return others, first


def own_nodes(place: Path, rounds: int) -> Measured:
    """A server in this process, and persistent nodes."""
    from coterie.network.simulation import Simulation

    _, asked, _ = read_asked(str(write_config(place, rounds)), None)
    simulation = Simulation(asked, place / "sites", None)
    with simulation.running(place / "own") as transport:
        groups = {name: process.pid for name, process in simulation.processes.items()}
        with MemoryWatch(groups, period=2.0) as memory:  # rarely: the server is in this process
            simulation.run(transport, place / "own", Waiting(), lambda run: show)
    exchanges, first = training(place / "own/run")
    return Measured("`coterie network node` (persistent)", exchanges, first, memory.most)


def stock_nodes(place: Path, names: list[str], rounds: int) -> Measured:
    """The app on a stock SuperLink and stock SuperNodes."""
    from stock_flower import StockFlower

    write_app(place / "app")
    flower = StockFlower(place, {name: place / "sites" / f"{name}.csv" for name in names})
    try:
        groups = {name: flower.processes[name].pid for name in names}
        with MemoryWatch(groups, period=0.3) as memory:
            printed = flower.run(
                place / "app",
                seconds=7200,
                config=str(write_config(place, rounds)),
                sites=",".join(names),
                out=str(place / "stock"),
            )
        assert "run kept in" in printed, printed
    finally:
        flower.stop()
    exchanges, first = training(place / "stock")
    return Measured("`flower-supernode` (stock)", exchanges, first, memory.most)


def show(row: dict[str, object]) -> None:
    """A sign of life."""
    print(f"round {row['round']}", file=sys.stderr)


def local_work(place: Path, rounds: int) -> float:
    """Seconds of the local work of one exchange, divided among the processors."""
    torch.set_num_threads(1)
    _, asked, _ = read_asked(str(write_config(place, rounds)), None)
    fed = ct.data.folder(str(place / "sites"), label="outcome", seed=1)
    result = ct.run(
        asked.method, fed, asked.model,
        rounds=rounds, seed=1, eval_every=1000, engine="loop",
    )  # fmt: skip
    seconds = [row["seconds"] for row in result.history[1:]]
    return statistics.median(seconds) / (os.cpu_count() or 1)


# ------------------------------------------------------------------------------ the table
def table(measured: list[Measured], local: float) -> list[str]:
    """A row per way."""
    lines = [
        "| sites | seconds per exchange beyond local work: median | least | most | first exchange "
        "| MB per node: most | mean |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for m in measured:
        beyond = [seconds - local for seconds in m.exchanges]
        memory = list(m.memory.values())
        lines.append(
            f"| {m.way} | {statistics.median(beyond):.2f} | {min(beyond):.2f} | {max(beyond):.2f} "
            f"| {m.first - local:.2f} | {max(memory):.0f} | {statistics.mean(memory):.0f} |"
        )
    return lines


def page(measured: list[Measured], local: float, nodes: int, load: float) -> str:
    """The results as Markdown."""
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown processor",
    )
    counts = ", ".join(f"{len(m.exchanges) + 1} with {m.way}" for m in measured)
    return "\n".join(
        [
            "# What an exchange with real sites costs",
            "",
            f"`{' '.join(['python', 'benchmarks/network.py', *sys.argv[1:]])}`, "
            f"{datetime.date.today()}, on {os.cpu_count()} processors ({processor}); "
            f"{load:.1f} other processes were running when it began.",
            "",
            f"{nodes} sites on one machine, IFCA with {GROUPS} MLPs of {NUMBERS:,} numbers each "
            f"({4 * GROUPS * NUMBERS / 1e6:.1f} MB down, {4 * NUMBERS / 1e6:.1f} MB up, per site), "
            f"one local step, TLS and keys. Exchanges of training: {counts}. The local work of "
            f"an exchange, {local:.2f} s, is taken off. Memory is resident memory of all processes "
            "of a node, with libraries that processes share counted for each.",
            "",
            *table(measured, local),
            "",
            f"Targets for persistent nodes, on two quiet processors: at most {MOST_SECONDS:g} s "
            f"per exchange, at most {MOST_MEMORY} MB per node.",
            "",
        ]
    )


def main() -> None:
    """Measure both ways, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20, help="of the persistent nodes")
    parser.add_argument("--stock-rounds", type=int, default=3, help="of the stock nodes; 0: none")
    parser.add_argument("--out", default=str(HERE / "results" / "network.md"))
    asked = parser.parse_args()
    check_flower()
    load = os.getloadavg()[0]
    place = Path(tempfile.mkdtemp(prefix="coterie-bench-"))
    try:
        names = write_sites(place / "sites", asked.nodes)
        local = local_work(place, asked.rounds)
        measured = [own_nodes(place, asked.rounds)]
        print("\n".join(table(measured, local)), flush=True)
        if asked.stock_rounds:
            measured.append(stock_nodes(place, names, asked.stock_rounds))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    text = page(measured, local, asked.nodes, load)
    print(text)
    out = Path(asked.out)
    out.parent.mkdir(exist_ok=True)
    out.write_text(text)


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} seconds", file=sys.stderr)
