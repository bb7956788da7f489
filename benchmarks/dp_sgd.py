"""What record-level differential privacy costs: rounds of FedAvg with and without `--dp rows`.

    python benchmarks/dp_sgd.py [--repeats 7] [CASE …]

runs plain and private rounds in turns, on the MLP and table problems of `workloads.py`, and writes
results/dp_sgd.md: the processor time of a round, as the median over repeats, and the ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import replace

from torch import nn

import coterie as ct
from coterie.runs.run import Run
from coterie.runs.start import prepare_run
from machine import write_page
from workloads import linear_rows, random_images

ABOUT = """# What record-level differential privacy costs

Processor time of a round of FedAvg, plain and with `dp="rows"` (ε = 4, δ = 1e-4; DP-SGD with ghost
clipping, Poisson batches, noise from the operating system), in turns, with one worker. Plain
training uses the dual form where it pays, which private training cannot: every step adds noise to
all weights. "clipped" is plain training with a limit on the norm of a batch's gradient, which needs
the whole gradient as well. On the MLP most of the private time draws noise, a number per weight and
step: 60 x 159,010 of them took 0.09 s of processor time.

Target: at most 1.5 times the time of plain training."""
PRIVATE = {"dp": "rows", "epsilon": 4.0, "delta": 1e-4}


def problems() -> dict[str, tuple[str, ct.FedAvg, ct.data.Federation, object]]:
    """(description, method, data, model) by name."""
    mlp = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    table = lambda: nn.Sequential(nn.Linear(10, 1))
    passes = lambda batch: ct.FedAvg(lr=0.05, batch=batch, local_epochs=1, weighted=False)
    return {
        "mlp-full": (
            "MLP 784-200-10, all rows, 10 steps, n=200, 60 clients",
            ct.FedAvg(lr=0.1, local_steps=10, weighted=False),
            random_images(60, 200, (28, 28)),
            mlp,
        ),
        "mlp-50": (
            "MLP 784-200-10, batch 50, 1 pass, n=200, 60 clients",
            passes(50),
            random_images(60, 200, (28, 28)),
            mlp,
        ),
        "mlp-20": (
            "MLP 784-200-10, batch 20, 1 pass, n=200, 60 clients",
            passes(20),
            random_images(60, 200, (28, 28)),
            mlp,
        ),
        "table": (
            "linear d=10, all rows, 10 steps, n=100, 1000 clients",
            ct.FedAvg(lr=0.05, local_steps=10, weighted=False),
            linear_rows(1000, 100, 10),
            table,
        ),
        "table-20": (
            "linear d=10, batch 20, 1 pass, n=100, 1000 clients",
            passes(20),
            linear_rows(1000, 100, 10),
            table,
        ),
    }


def processor_time(run: Run) -> float:
    """Seconds of processor time of the next round."""
    began = time.process_time()
    run.step()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for name, (description, method, fed, model) in problems().items():
        if arguments.cases and name not in arguments.cases:
            continue
        rounds = arguments.repeats + 2
        options = {"rounds": rounds, "eval_every": rounds, "cores": 1}
        plain = prepare_run(method, fed, model, **options)
        clipped = prepare_run(replace(method, clip=1e6), fed, model, **options)
        private = prepare_run(method, fed, model, **options, **PRIVATE)
        runs = {"plain": plain, "clipped": clipped, "private": private}
        times: dict[str, list[float]] = {label: [] for label in runs}
        for repeat in range(rounds):
            for label, run in runs.items():
                seconds = processor_time(run)
                if repeat > 1:  # after round 0 and a first round
                    times[label].append(seconds)
        medians = [statistics.median(times[label]) for label in runs]
        shown = [f"{1000 * each:.0f} ms" for each in medians]
        ratios = [f"{medians[2] / each:.2f}" for each in medians[:2]]
        rows.append((description, *shown, *ratios))
        print(*rows[-1], sep="  ", flush=True)
    if not arguments.cases:
        heads = ("problem", "plain", "clipped", "private", "to plain", "to clipped")
        print(f"wrote {write_page('dp_sgd', ABOUT, heads, rows, load)}")


if __name__ == "__main__":
    main()
