"""The time of several methods for the same amount of work, as a multiple of FedAvg's.

    python benchmarks/methods.py [NAME...] [--repeats 4]

All train an MLP 784-200-10 on mini-batches of 20, one pass or five, interleaved round by round. The
work of a round is counted in products of a client's rows with the first layer: one for a loss, two
for a training step on a row. So Ditto, which trains two models, has twice the work of FedAvg, and a
method that first computes the losses of K cluster models has K more products. A ratio of 1 means
that the rest of a method (proximal term, momentum, sample weights) costs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

import coterie as ct
from coterie.runs.run import Run
from coterie.runs.start import prepare_run
from timing import Took, cores, timed_round
from workloads import random_images

CLIENTS, ROWS, BATCH = 60, 200, 20
TARGET = 1.5


class Entry(NamedTuple):
    """A method, and its work per client in products with the first layer."""

    method: ct.Algorithm
    products: int


def entries(passes: int) -> dict[str, Entry]:
    how = {"lr": 0.05, "local_epochs": passes, "batch": BATCH}
    training = 2 * passes
    return {
        "fedavg": Entry(ct.FedAvg(**how), training),
        "fedprox": Entry(ct.FedProx(**how), training),
        "ditto": Entry(ct.Ditto(**how), 2 * training),
        "cfl-mgd": Entry(ct.CFLMGD(clusters=4, init="random", **how), 4 + training),
        "fedem": Entry(ct.FedEM(clusters=3, **how), 3 + 3 * training),
    }


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def rounds_of(method: ct.Algorithm) -> Callable[[], list]:
    """Return a function that runs the next round of a warmed-up run."""
    fed = random_images(CLIENTS, ROWS, (28, 28))
    run: Run = prepare_run(method, fed, mlp, rounds=10**6, eval_every=10**6)
    steps = run.rounds()
    for _ in range(3):
        next(steps)

    def one_round() -> list:
        run.step()
        return []

    return one_round


def compare(passes: int, names: list[str], repeats: int) -> None:
    """Print a line for each method."""
    chosen = {name: e for name, e in entries(passes).items() if name in ("fedavg", *names)}
    works = {name: rounds_of(entry.method) for name, entry in chosen.items()}
    took: dict[str, list[Took]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            took[name].append(timed_round(work)[0])
    base = least(took["fedavg"])
    for name, entry in chosen.items():
        own = least(took[name])
        share = entry.products / chosen["fedavg"].products
        wall = own.wall / base.wall / share
        processor = own.processor / base.processor / share
        print(
            f"{name:8s} {passes} pass{'es' * (passes > 1):2s}  {own.wall:6.3f} s   "
            f"{share:4.1f} times the work of fedavg   per unit of work {wall:5.2f} "
            f"(processor time {processor:5.2f})   target {TARGET}",
            flush=True,
        )


def least(took: list[Took]) -> Took:
    """Return the minimum wall time and the minimum processor time."""
    return Took(min(t.wall for t in took), min(t.processor for t in took))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(entries(1))}")
    parser.add_argument(
        "--repeats", type=int, default=4, help="number of rounds; the fastest counts"
    )
    args = parser.parse_args()
    torch.set_num_threads(cores())
    for passes in (1, 5):
        compare(passes, args.names or list(entries(1)), args.repeats)
