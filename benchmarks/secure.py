"""What secure sums cost: IFCA with all settings at their defaults, with and without `--secure`.

    python benchmarks/secure.py --seeds 10

prints for each seed the agreement of the found with the planted groups, the accuracy, and the
processor time of both runs, which alternate. The groups of the secure run are read from the private
states of the simulated clients: nothing that leaves them tells which client is in which group.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import coterie as ct
from coterie.runs.run import Run
from coterie.runs.start import prepare_run


def remembered_groups(run: Run) -> np.ndarray:
    """The cluster that each simulated client remembers, int64 [N]."""
    private = run.engine.private  # type: ignore[attr-defined]
    groups: np.ndarray = private.tables.group[private.slots].numpy()
    return groups


def measure(data: str, clients: int, samples: int, seed: int, secure: bool) -> dict[str, float]:
    """Train once; return the adjusted Rand index, the accuracy and the processor time."""
    fed = ct.data.rotated(
        data, clients=clients, samples=samples, angles=(0, 90, 180, 270), seed=seed
    )
    began = time.process_time()
    run = prepare_run(ct.IFCA(), fed, seed=seed, secure=secure).train()
    seconds = time.process_time() - began
    groups = remembered_groups(run) if secure else run.groups()
    assert groups is not None and fed.truth is not None
    agreement = ct.metrics.agreement(groups, fed.truth.numpy())
    return {
        "ari": agreement["ari"],
        "accuracy": run.history[-1]["accuracy"],
        "seconds": seconds,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    print("seed   ARI plain, secure   accuracy plain, secure   processor s plain, secure   ratio")
    results = []
    for seed in range(given.seeds):
        both = [
            measure(given.data, given.clients, given.samples, seed, secure)
            for secure in (False, True)
        ]
        results.append(both)
        plain, secure = both
        print(
            f"{seed:4}   {plain['ari']:9.2f}, {secure['ari']:6.2f}   "
            f"{plain['accuracy']:14.3f}, {secure['accuracy']:6.3f}   "
            f"{plain['seconds']:17.1f}, {secure['seconds']:6.1f}   "
            f"{secure['seconds'] / plain['seconds']:5.2f}",
            flush=True,
        )
    found = sum(secure["ari"] == 1 for _, secure in results)
    found_plain = sum(plain["ari"] == 1 for plain, _ in results)
    gap = np.mean([plain["accuracy"] - secure["accuracy"] for plain, secure in results])
    ratio = sum(s["seconds"] for _, s in results) / sum(p["seconds"] for p, _ in results)
    print(f"groups found: {found_plain} of {len(results)} plain, {found} secure")
    print(f"accuracy lost: {100 * gap:.2f} points; processor time: {ratio:.2f} times")


if __name__ == "__main__":
    main()
