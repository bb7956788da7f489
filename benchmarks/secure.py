"""What secure sums cost: IFCA with all settings at their defaults, with and without `--secure`.

    python benchmarks/secure.py            10 seeds of each data set; continues where it was stopped

trains plainly and with secure sums in turns, appends a line per run to results/secure.jsonl, and
writes results/secure.md: whether the planted groups were found, the accuracy, and the processor
time. The groups of a secure run are read from the private states of the simulated clients: nothing
that leaves them tells which client is in which group. MNIST is read from the folder COTERIE_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

import coterie as ct
from coterie.runs.run import Run
from coterie.runs.start import prepare_run
from machine import RESULTS, write_page

CASES = {  # the arguments of `ct.data.rotated`
    "digits": {"base": "digits", "clients": 40},
    "mnist-50": {"base": "mnist", "clients": 240, "samples": 50},
    "mnist": {"base": "mnist", "clients": 240},  # 1,000 rows each: hours of processor time
}
RECORDS = RESULTS / "secure.jsonl"
ABOUT = """# What secure sums cost

`coterie run ifca` with all settings at their defaults (the number of groups is found, too) on
images in four rotations, with and without `--secure`, in turns. "groups found": seeds in which the
clients' groups are exactly the planted ones. Accuracy and points lost are means over the seeds.
This is a simulation: integers are added without masks. What masks cost on real nodes is in
network_secure.md.

Targets: groups found in 9 of 10 seeds, at most 0.5 points lost, at most 1.3 times the time."""


def remembered_groups(run: Run) -> Any:
    """The cluster that each simulated client remembers, int64 [N]."""
    private = run.engine.private  # type: ignore[attr-defined]
    return private.tables.group[private.slots].numpy()


def measure(data: str, seed: int, secure: bool) -> dict[str, Any]:
    """Train once; return the adjusted Rand index, the accuracy and the processor time."""
    fed = ct.data.rotated(**CASES[data], seed=seed)  # type: ignore[arg-type]
    began = time.process_time()
    run = prepare_run(ct.IFCA(), fed, seed=seed, secure=secure).train()
    seconds = time.process_time() - began
    groups = remembered_groups(run) if secure else run.groups()
    assert groups is not None and fed.truth is not None
    return {
        "data": data,
        "seed": seed,
        "secure": secure,
        "ari": ct.metrics.agreement(groups, fed.truth.numpy())["ari"],
        "accuracy": run.history[-1]["accuracy"],
        "seconds": seconds,
    }


def read_records() -> list[dict[str, Any]]:
    """The runs so far; a line that was cut off is dropped."""
    if not RECORDS.exists():
        return []
    lines = RECORDS.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def summarise(records: list[dict[str, Any]], data: str) -> list[str]:
    """A row of the page, from the seeds that have both runs."""
    case = CASES[data]
    found = {(r["seed"], r["secure"]): r for r in records if r["data"] == data}
    seeds = [seed for seed, secure in found if secure and (seed, False) in found]
    plain = [found[seed, False] for seed in seeds]
    secure = [found[seed, True] for seed in seeds]
    lost = [100 * (p["accuracy"] - s["accuracy"]) for p, s in zip(plain, secure)]
    ratios = [s["seconds"] / p["seconds"] for p, s in zip(plain, secure)]
    total = sum(s["seconds"] for s in secure) / sum(p["seconds"] for p in plain)
    return [
        f"rotated {case['base']}, {case['clients']} clients"
        + (f" with {case['samples']} rows" if "samples" in case else ""),
        str(len(seeds)),
        f"{sum(r['ari'] == 1 for r in plain)}, {sum(r['ari'] == 1 for r in secure)}",
        f"{statistics.mean(r['accuracy'] for r in plain):.4f}, "
        f"{statistics.mean(r['accuracy'] for r in secure):.4f}",
        f"{statistics.mean(lost):.2f} ({min(lost):.2f} to {max(lost):.2f})",
        f"{total:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
    ]


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    done = {(r["data"], r["seed"], r["secure"]) for r in read_records()}
    for data in given.data:
        for seed in range(given.seeds):
            for secure in (False, True):
                if (data, seed, secure) in done:
                    continue
                record = measure(data, seed, secure)
                with RECORDS.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(record, flush=True)
    records = read_records()
    measured = [data for data in CASES if any(r["data"] == data and r["secure"] for r in records)]
    heads = [
        "data", "seeds", "groups found: plain, secure", "accuracy: plain, secure",
        "points lost: mean (least to most)", "processor time: ratio (least to most)",
    ]  # fmt: skip
    page = write_page("secure", ABOUT, heads, [summarise(records, d) for d in measured], load)
    print(f"{page} written")


if __name__ == "__main__":
    main()
