"""Overhead of an exchange with real sites beyond local training, and memory of a node.

    python benchmarks/network.py

Ten sites on this machine, IFCA with four MLPs of 159,010 numbers each, and one local step on few
rows. First with `coterie network`'s own server and persistent nodes, without and with secure sums,
then with the app of `coterie network new` on a stock SuperLink and stock SuperNodes, which start a
process for each message. All with TLS. It writes results/network.md beside this file.

Local work is the time of the loop engine for the same exchange in one thread. It is subtracted from
processor seconds and, divided by the number of processors, from wall seconds. An exchange is one of
training: four models down, one up. Wall seconds depend on other load; processor seconds do much
less.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import coterie as ct
from coterie.cli.network_config import read_network_run
from coterie.engines.replay import read_log
from coterie.network.flower_setup import check_flower, write_app
from coterie.network.transport import WaitPolicy
from machine import processor_name
from process_watch import ProcessWatch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "network"))

ROWS, COLUMNS, CLASSES, HIDDEN, GROUPS = 24, 784, 10, 200, 4
PROCESSORS = os.cpu_count() or 1
NUMBERS = (COLUMNS + 1) * HIDDEN + (HIDDEN + 1) * CLASSES
MOST_SECONDS, MOST_MEMORY = 0.5, 330  # the targets: of an exchange, and MB of a node
MORE_SECONDS = 1.5  # of an exchange with secure sums
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
    """One of the two setups."""

    way: str
    first: float  # seconds of the first exchange of training, in which libraries are loaded
    seconds: list[float]  # of each other exchange of training
    cpu: float  # seconds of processor time per exchange, of server and nodes
    memory: list[float]  # MB of each node's processes, the most that was seen


# ------------------------------------------------------------------------------ the sites
def write_sites(folder: Path, nodes: int) -> list[str]:
    """Write a table of random numbers for each site, in which every class occurs."""
    folder.mkdir()
    names = [f"site{i:02d}" for i in range(nodes)]
    header = ",".join([f"x{j}" for j in range(COLUMNS)] + ["outcome"])
    for i, name in enumerate(names):
        values = np.random.default_rng(i).normal(size=(ROWS, COLUMNS)).round(3)
        labels = [f"class{(row + i) % CLASSES}" for row in range(ROWS)]
        lines = [",".join(map(str, row)) + f",{label}" for row, label in zip(values, labels)]
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    return names


def write_config(place: Path, rounds: int, secure: bool = False) -> Path:
    """Return the config file of all setups."""
    file = place / f"{rounds}-rounds{'-secure' * secure}.toml"
    file.write_text(f"rounds = {rounds}\nsecure = {str(secure).lower()}\n{CONFIG}")
    return file


# ------------------------------------------------------------------------------ both ways
def measure(way: str, run: Path, watch: ProcessWatch) -> Measured:
    """Summarise training from the run's diary and the measurements of its processes."""
    entries = [e for e in read_log(run / "diary.jsonl") if e.version[1] == "train"]
    for entry in entries:
        assert not entry.absent and not entry.refused, entry
    first, *others = entries
    begin = datetime.datetime.fromisoformat(others[0].time).timestamp()
    end = datetime.datetime.fromisoformat(others[-1].time).timestamp() + others[-1].seconds
    return Measured(
        way=way,
        first=first.seconds,
        seconds=[entry.seconds for entry in others],
        cpu=watch.cpu_between(begin, end) / len(others),
        memory=watch.memory(begin, end),
    )


def own_nodes(place: Path, rounds: int, secure: bool = False) -> Measured:
    """Measure a server in this process with persistent nodes."""
    from coterie.network.simulation import Simulation

    _, asked, _ = read_network_run(str(write_config(place, rounds, secure)), None)
    simulation = Simulation(asked, place / "sites", None)
    out = place / ("secure" if secure else "own")
    with simulation.running(out) as transport:
        groups = {name: process.pid for name, process in transport.nodes.processes.items()}
        with ProcessWatch(groups, period=1.0, this_process=True) as watch:
            simulation.run(transport, out, WaitPolicy(), lambda run: show)
    way = "`coterie network node` (persistent)"
    return measure(way + (", secure sums" if secure else ""), out / "run", watch)


def stock_nodes(place: Path, names: list[str], rounds: int) -> Measured:
    """Measure the app on a stock SuperLink and stock SuperNodes."""
    from stock_flower import StockFlower

    write_app(place / "app")
    flower = StockFlower(place, {name: place / "sites" / f"{name}.csv" for name in names})
    try:
        groups = {name: process.pid for name, process in flower.processes.items()}
        with ProcessWatch(groups, period=0.3, this_process=False) as watch:
            printed = flower.run(
                place / "app",
                seconds=7200,
                config=str(write_config(place, rounds)),
                sites=",".join(names),
                out=str(place / "stock"),
            )
        assert "run saved in" in printed, printed
    finally:
        flower.stop()
    return measure("`flower-supernode` (stock)", place / "stock", watch)


def show(row: dict[str, object]) -> None:
    """Print progress."""
    print(f"round {row['round']}", file=sys.stderr)


def local_work(place: Path, rounds: int) -> float:
    """Processor seconds of the local work of one exchange, of all sites.

    The last round has an evaluation, and is left out.
    """
    torch.set_num_threads(1)
    _, asked, _ = read_network_run(str(write_config(place, rounds)), None)
    fed = ct.data.folder(str(place / "sites"), label="outcome", seed=1)
    ends: list[float] = []
    ct.run(
        asked.method, fed, asked.model,
        rounds=rounds, seed=1, eval_every=1000, engine="loop",
        on_round=lambda row: ends.append(time.process_time()),
    )  # fmt: skip
    return statistics.median(after - before for before, after in pairwise(ends[:-1]))


# ------------------------------------------------------------------------------ the table
def table(measured: list[Measured], local: float) -> list[str]:
    """Return a row per setup."""
    lines = [
        "| nodes | seconds per exchange: median | least | most | first "
        "| processor seconds per exchange | MB per node: most | mean |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for m in measured:
        beyond = [seconds - local / PROCESSORS for seconds in m.seconds]
        lines.append(
            f"| {m.way} | {statistics.median(beyond):.2f} | {min(beyond):.2f} | {max(beyond):.2f} "
            f"| {m.first - local / PROCESSORS:.2f} | {m.cpu - local:.2f} "
            f"| {max(m.memory):.0f} | {statistics.mean(m.memory):.0f} |"
        )
    return lines


def page(measured: list[Measured], local: float, nodes: int, load: float) -> str:
    """Return the results as Markdown."""
    counts = ", ".join(f"{len(m.seconds) + 1} with {m.way}" for m in measured)
    down, up = 4 * GROUPS * NUMBERS / 1e6, 4 * NUMBERS / 1e6
    lines = [
        "# What an exchange with real sites costs",
        "",
        f"`{' '.join(['python', 'benchmarks/network.py', *sys.argv[1:]])}`, "
        f"{datetime.date.today()}, on {PROCESSORS} processors ({processor_name()}). When it began, "
        f"{load:.1f} other processes were running or waiting for a processor.",
        "",
        f"{nodes} sites on one machine, IFCA with {GROUPS} MLPs of {NUMBERS:,} numbers each "
        f"({down:.1f} MB down and {up:.1f} MB up per site), one local step, TLS. "
        f"Exchanges of training: {counts}; the first stands apart. The local work of an exchange, "
        f"{local:.2f} processor seconds, is taken off. Memory is resident memory of all processes "
        "of a node in MB of 1,000,000 bytes, with libraries that processes share counted for each.",
        "",
        *table(measured, local),
        "",
        f"Targets for persistent nodes, on two quiet processors: at most {MOST_SECONDS:g} s "
        f"per exchange, {MORE_SECONDS:g} s more with secure sums (masks of {GROUPS} models per "
        f"site, and the members of the groups counted first), at most {MOST_MEMORY} MB per node.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure both setups and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20, help="of the persistent nodes")
    parser.add_argument("--stock-rounds", type=int, default=3, help="of the stock nodes; 0: none")
    parser.add_argument("--out", default=str(HERE / "results" / "network.md"))
    asked = parser.parse_args()
    if asked.nodes < GROUPS:
        parser.error(f"--nodes is {asked.nodes}: {GROUPS} groups need as many sites")
    if asked.stock_rounds:
        check_flower()
    load = os.getloadavg()[0]
    place = Path(tempfile.mkdtemp(prefix="coterie-bench-"))
    try:
        names = write_sites(place / "sites", asked.nodes)
        local = local_work(place, asked.rounds)
        measured = [own_nodes(place, asked.rounds), own_nodes(place, asked.rounds, secure=True)]
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
