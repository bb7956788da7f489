"""What client-level differential privacy costs: accuracy at ε = 2, 4, 8 and without it.

    python benchmarks/private.py           continues where it was stopped

trains IFCA and FedAvg on rotated MNIST with 1,000 and 4,800 clients, appends a line per run to
results/private.jsonl, and writes results/private.md. MNIST is read from the folder COTERIE_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import coterie as ct
from machine import RESULTS, write_page

RECORDS = RESULTS / "private.jsonl"
CLIENTS, SAMPLES = (1000, 4800), 60
BUDGETS = (2.0, 4.0, 8.0, None)
DELTA, ROUNDS, PARTICIPATION = 1e-4, 20, 0.5
METHODS = {
    "ifca": ct.IFCA(clusters=4, init="random", lr=0.5),
    "fedavg": ct.FedAvg(lr=0.5),
}
ABOUT = f"""# What client-level differential privacy costs

Softmax regression on MNIST in four rotations, {SAMPLES} rows per client, {ROUNDS} rounds of 10
local steps, each client in a round with probability {PARTICIPATION}, δ = {DELTA:g}, clipping at the
median norm (`dp_clip="auto"`). IFCA starts from four random models. "worst 10 %": mean accuracy of
the clients with the lowest; without privacy it is over the clients' own scores, with privacy from a
histogram. Scores are those of a simulation: ε covers the models. One run per cell,
and noise differs between runs; rows that are missing have not been run yet."""


def measure(clients: int, method: str, epsilon: float | None) -> dict[str, Any]:
    """Train once; return the scores of the last round."""
    private: dict[str, Any] = {}
    if epsilon is not None:
        private = {"dp": "clients", "epsilon": epsilon, "delta": DELTA}
    fed = ct.data.load("rotated:mnist", clients=clients, samples=SAMPLES, seed=0)
    began = time.process_time()
    result = ct.run(
        METHODS[method],
        fed,
        "softmax",
        rounds=ROUNDS,
        participation=PARTICIPATION,
        eval_every=ROUNDS,
        **private,
    )
    last = result.history[-1]
    return {
        "clients": clients,
        "method": method,
        "epsilon": epsilon,
        "spent": last.get("epsilon"),
        "accuracy": last["accuracy"],
        "worst": last["accuracy_worst"],
        "seconds": (time.process_time() - began) / ROUNDS,
    }


def read_records() -> list[dict[str, Any]]:
    """The runs so far; a line that was cut off is dropped."""
    if not RECORDS.exists():
        return []
    lines = RECORDS.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def write_results(load: float) -> None:
    """Write the page from the runs so far."""
    rows = []
    for r in sorted(read_records(), key=lambda r: (r["clients"], r["method"], r["epsilon"] or 99)):
        budget = "none" if r["epsilon"] is None else f"{r['epsilon']:g}"
        scores = [f"{r['accuracy']:.3f}", f"{r['worst']:.3f}", f"{r['seconds']:.2f}"]
        rows.append([f"{r['method']}, {r['clients']:,} clients", budget, *scores])
    heads = ["method", "ε", "accuracy", "worst 10 %", "processor seconds per round"]
    print(write_page("private", ABOUT, heads, rows, load), "written")


def main() -> None:
    """Run what is missing, and write the page after each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    for clients in given.clients:
        for epsilon in BUDGETS:
            for method in METHODS:
                cell = (clients, method, epsilon)
                if cell in {(r["clients"], r["method"], r["epsilon"]) for r in read_records()}:
                    continue
                record = measure(*cell)
                with RECORDS.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(record, flush=True)
                write_results(load)


if __name__ == "__main__":
    main()
