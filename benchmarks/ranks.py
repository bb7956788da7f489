"""Two ranks with one thread each against one process with two threads, interleaved round by round.

    python benchmarks/ranks.py [NAME...] [--rounds 5]

A run of all cases also writes benchmarks/results/ranks.md. A ratio above 1 means that two ranks are
faster. Wall time needs an idle machine; the processor time of both ranks together shows the
overhead. The last column is the largest relative difference between the two results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

import coterie as ct
from coterie.core.trees import tree_leaves
from coterie.ranks.engine import RanksEngine
from coterie.ranks.group import RankGroup
from coterie.ranks.launch import local_ranks, rank_from_environment
from coterie.ranks.shard import RankShard, serve_rank
from coterie.runs.run import Run
from coterie.runs.start import Job, create_job
from machine import write_page
from workloads import linear_rows, random_images

THREADS = 2
TICKS = os.sysconf("SC_CLK_TCK")


HEADS = ("threads", "ranks", "wall", "processor", "difference")
ABOUT = """# Two ranks against two threads

Two processes with one thread each (`--ranks 2`) against one process with two threads, interleaved
round by round: the median time of a round, how many times as fast ranks are by wall time and by the
processor time of all processes, and the largest relative difference between the two results."""


class Case(NamedTuple):
    method: ct.Algorithm
    fed: Callable[[], ct.data.Federation]
    model: Callable[[], nn.Module]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


CASES = {
    "fedavg mlp batch 20": Case(
        ct.FedAvg(lr=0.1, local_epochs=1, batch=20),
        lambda: random_images(120, 200, (28, 28)),
        mlp,
    ),
    "ifca mlp full batch": Case(
        ct.IFCA(clusters=4, lr=0.1, local_steps=10),
        lambda: random_images(240, 50, (28, 28)),
        mlp,
    ),
    "ditto mlp batch 20": Case(
        ct.Ditto(lr=0.1, local_epochs=1, batch=20),
        lambda: random_images(60, 200, (28, 28)),
        mlp,
    ),
    "fedavg tiny": Case(  # what the messages of a round cost
        ct.FedAvg(lr=0.1, local_steps=2),
        lambda: random_images(12, 20, (8, 8)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    ),
    "fedavg linear": Case(
        ct.FedAvg(lr=0.01, local_steps=10),
        lambda: linear_rows(20_000, 50, 10),
        lambda: nn.Linear(10, 1),
    ),
}


def job_of(name: str, ranks: int) -> Job:
    case = CASES[name]
    cores = THREADS // ranks
    options = {"rounds": 10_000, "eval_every": 10_000, "ranks": ranks}
    return create_job(case.method, case.fed(), case.model, cores=cores, **options)


def shard_of(config: str, rank: int) -> RankShard:
    job = job_of(json.loads(config), THREADS)
    return RankShard(rank, job.method, job.task, job.fed, job.options, job.plan)


class Measured(NamedTuple):
    wall: float
    processor: float


def measure(run: Run, processes: list[int]) -> Measured:
    """Run one round; also measure the processor time of these processes."""
    before = sum(map(processor_seconds, processes))
    began = time.perf_counter()
    run.step()
    wall = time.perf_counter() - began
    return Measured(wall, sum(map(processor_seconds, processes)) - before)


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def difference(a: Run, b: Run) -> float:
    gaps = []
    for u, v in zip(tree_leaves(a.state), tree_leaves(b.state), strict=True):
        gaps.append(float((u.double() - v.double()).norm() / (v.double().norm() + 1e-12)))
    return max(gaps)


def compare(name: str, rounds: int, group: RankGroup, other: subprocess.Popen) -> list[str]:
    """Print a line of the table and return its cells."""
    one = job_of(name, 1).start()
    job = job_of(name, THREADS)
    shard = shard_of(json.dumps(name), 0)
    two = job.start(make_engine=lambda *_: RanksEngine(group, shard, json.dumps(name)))
    here = [os.getpid()]
    everywhere = [*here, other.pid]
    of_one: list[Measured] = []
    of_two: list[Measured] = []
    for number in range(rounds + 2):
        pair = measure(one, here), measure(two, everywhere)
        if number >= 2:  # the start, and a round in which everything is used for the first time
            of_one.append(pair[0])
            of_two.append(pair[1])
    wall = statistics.median(a.wall / b.wall for a, b in zip(of_one, of_two))
    processor = sum(a.processor for a in of_one) / max(sum(b.processor for b in of_two), 1e-9)
    seconds = [statistics.median(m.wall for m in several) for several in (of_one, of_two)]
    cells = [
        f"{seconds[0]:.3f} s",
        f"{seconds[1]:.3f} s",
        f"{wall:.2f}",
        f"{processor:.2f}",
        f"{difference(two, one):.1e}",
    ]
    print(f"{name:<22} {' '.join(f'{cell:>11}' for cell in cells)}", flush=True)
    return [name, *cells]


def start_other_rank(port: int) -> subprocess.Popen:
    variables = {
        "RANK": "1",
        "WORLD_SIZE": str(THREADS),
        "LOCAL_WORLD_SIZE": str(THREADS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen([sys.executable, __file__], env={**os.environ, **variables})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}: there are {', '.join(CASES)}")
    group = RankGroup(local_ranks(THREADS))
    other = start_other_rank(group.port)
    torch.set_num_threads(1)
    print(f"{'':<22} {' '.join(f'{head:>11}' for head in HEADS)}")
    load = os.getloadavg()[0]
    try:
        group.connect()
        rows = [compare(name, asked.rounds, group, other) for name in asked.names or CASES]
        if not asked.names:
            write_page("ranks", ABOUT, ["case", *HEADS], rows, load)
    finally:
        group.close()
        other.wait(10)


if __name__ == "__main__":
    info = rank_from_environment(os.environ)
    if info is None:
        main()
    else:
        torch.set_num_threads(1)
        serve_rank(info, lambda config: shard_of(config, info.rank), lambda e: (repr(e), 1))
