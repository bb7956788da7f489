"""Peak memory with few and with many clients, excluding the data.

    python benchmarks/memory.py

Each case runs in a process of its own. The result is its peak resident memory minus the size of the
data: the memory of rounds and libraries. The last case is a million-client setting at a smaller
scale: personal models are kept only for clients that have participated, and a sample of the clients
is evaluated.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch

import coterie as ct
from coterie.core.contract import Algorithm
from coterie.runs.start import prepare_run

ROWS = 20
CASES: list[tuple[str, float, int, int, float]] = [  # method, participation, few, many, target
    ("ifca", 1.0, 1_000, 10_000, 1.2),
    ("ifca", 0.1, 1_000, 10_000, 1.2),
    ("ditto", 0.001, 2_000, 200_000, 1.3),
]


def peak() -> float:
    """Return the peak memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def images(clients: int) -> ct.data.Federation:
    """Create random 28×28 images of ten classes."""
    g = torch.Generator().manual_seed(0)
    x = torch.rand(clients * ROWS, 784, generator=g)
    y = torch.randint(10, (clients * ROWS,), generator=g)
    return federation(clients, x, y, "classification", 10)


def lines(clients: int) -> ct.data.Federation:
    """Create linear regressions in ten dimensions."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(clients * ROWS, 10, generator=g)
    y = x @ torch.randn(10, generator=g)
    return federation(clients, x, y, "regression", None)


def federation(
    clients: int, x: torch.Tensor, y: torch.Tensor, kind: Any, classes: int | None
) -> ct.data.Federation:
    """Create clients of equal size, whose test rows are their training rows."""
    sizes = torch.full((clients,), ROWS)
    train = ct.data.Ragged(x, y, sizes)
    names = tuple(f"c{i:06d}" for i in range(clients))
    return ct.data.Federation(names, train, train, kind, classes)


def measure(name: str, clients: int, participation: float) -> dict[str, float]:
    """Measure the peak memory of three rounds, after a small run that loads the libraries."""
    if name == "ifca":
        method: Algorithm = ct.IFCA(clusters=4, local_steps=2)
        fed, model = images(clients), "mlp"
    else:
        method = ct.Ditto(lr=0.01, local_steps=2)
        fed, model = lines(clients), "linear"
    options: dict[str, Any] = {"rounds": 3, "participation": participation, "eval_every": 1}
    if name == "ditto":
        options["eval_clients"] = 1_000
    for _ in prepare_run(method, fed.subset(range(40)), model, rounds=1).rounds():
        pass
    before = peak()
    began = time.process_time()
    run = prepare_run(method, fed, model, **options)
    prepared = time.process_time() - began
    for _ in run.rounds():
        pass
    data = sum(v.nbytes for v in (fed.train.x, fed.train.y)) / 2**20
    return {"data": data, "before": before, "peak": peak(), "prepare": prepared}


def main() -> None:
    """Measure every case, each in a process of its own."""
    for name, participation, few, many, target in CASES:
        apart: dict[int, float] = {}
        for clients in (few, many):
            words = [sys.executable, __file__, name, str(clients), str(participation)]
            m = json.loads(subprocess.check_output(words, text=True).splitlines()[-1])
            apart[clients] = m["peak"] - m["data"]
            print(
                f"{name:6s} {clients:8,d} clients, participation {participation}: "
                f"peak {m['peak']:.0f} MB, data {m['data']:.0f} MB, apart from the data "
                f"{apart[clients]:.0f} MB, prepare {m['prepare']:.2f} s of CPU"
            )
        ratio = apart[many] / apart[few]
        print(f"   {many:,} over {few:,} apart from the data: {ratio:.2f}x   target {target}x")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
    else:
        main()
