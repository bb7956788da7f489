"""What a round of twelve tiny clients costs: nearly all of it is not mathematics.

    python benchmarks/tiny_rounds.py [--repeats 3]

IFCA with two softmax models, five steps a round. Two runs that differ in nothing but their number
of rounds are compared, so that starting a run does not count. Only public names are used: with
`PYTHONPATH=OTHER/src` it measures another version of Coterie.
"""

from __future__ import annotations

import argparse
import time

import torch

import coterie as ct

FEW, MANY = 2, 202


def processor_time(fed: ct.data.Federation, rounds: int) -> float:
    """Seconds of processor time that a run takes."""
    method = ct.IFCA(clusters=2, init="random", lr=0.1, local_steps=5)
    began = time.process_time()
    ct.run(method, fed, model="softmax", rounds=rounds, eval_every=MANY, seed=0)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="the least of so many counts")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    fed = ct.data.rotated("digits", clients=12, samples=20, test_samples=10)
    processor_time(fed, FEW)  # warms up
    few = min(processor_time(fed, FEW) for _ in range(repeats))
    many = min(processor_time(fed, MANY) for _ in range(repeats))
    print(f"{1000 * (many - few) / (MANY - FEW):.2f} ms of processor time a round")


if __name__ == "__main__":
    main()
