"""Processor time of a round in which clients sample a few of their many rows.

    python benchmarks/drawn_rows.py [--repeats 3]

Forty clients with 200 to 2,300 rows of 784 numbers each; pFedMe and CGPFL with softmax models draw
ten batches of twenty rows per round. The result is the difference between two runs with different
numbers of rounds, so that start-up time cancels. Only public names are used: with
`PYTHONPATH=OTHER/src` it measures another version of Coterie.
"""

from __future__ import annotations

import argparse
import time

import torch

import coterie as ct

FEW, MANY = 1, 21
METHODS = (ct.PFedMe(outer=10, batch=20), ct.CGPFL(clusters=4, outer=10, batch=20))


def made_up_clients() -> ct.data.Federation:
    """Create rows of noise; their values do not affect the time."""
    draw = torch.Generator().manual_seed(0)
    sizes = torch.randint(200, 2300, (40,), generator=draw).tolist()
    clients = {}
    for number, size in enumerate(sizes):
        x = torch.rand(size, 784, generator=draw)
        y = torch.randint(10, (size,), generator=draw)
        clients[f"client-{number:02}"] = (x, y)
    return ct.data.from_memory(clients, test_share=0.05)


def processor_time(method: ct.Algorithm, fed: ct.data.Federation, rounds: int) -> float:
    """Return the processor time of a run, in seconds."""
    began = time.process_time()
    ct.run(method, fed, model="softmax", rounds=rounds, eval_every=MANY, seed=0)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="number of runs; the fastest counts")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    fed = made_up_clients()
    for method in METHODS:
        processor_time(method, fed, FEW)  # warms up
        few = min(processor_time(method, fed, FEW) for _ in range(repeats))
        many = min(processor_time(method, fed, MANY) for _ in range(repeats))
        a_round = 1000 * (many - few) / (MANY - FEW)
        print(f"{method.name}: {a_round:.0f} ms of processor time per round")


if __name__ == "__main__":
    main()
