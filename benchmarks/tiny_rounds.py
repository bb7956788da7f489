"""Processor time of a round of twelve tiny clients: nearly all of it is overhead.

    python benchmarks/tiny_rounds.py [--repeats 3]

IFCA with two softmax models, five steps per round. The result is the difference between two runs
with different numbers of rounds, so that start-up time cancels. Only public names are used: with
`PYTHONPATH=OTHER/src` it measures another version of Coterie.
"""

from __future__ import annotations

import argparse
import time

import torch

import coterie as ct

FEW, MANY = 2, 202


def processor_time(fed: ct.data.Federation, rounds: int) -> float:
    """Return the processor time of a run, in seconds."""
    method = ct.IFCA(clusters=2, init="random", lr=0.1, local_steps=5)
    began = time.process_time()
    ct.run(method, fed, model="softmax", rounds=rounds, eval_every=MANY, seed=0)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="number of runs; the fastest counts")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    fed = ct.data.rotated("digits", clients=12, samples=20, test_samples=10)
    processor_time(fed, FEW)  # warms up
    few = min(processor_time(fed, FEW) for _ in range(repeats))
    many = min(processor_time(fed, MANY) for _ in range(repeats))
    print(f"{1000 * (many - few) / (MANY - FEW):.2f} ms of processor time per round")


if __name__ == "__main__":
    main()
