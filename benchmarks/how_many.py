"""Is the number of groups that `clusters="auto"` chooses a good one on real tables?

    python benchmarks/how_many.py [--seeds 2]

Trains IFCA with several K and with auto. A row per table shows which K has the lowest test error,
averaged over splits, and how much higher the error of auto is.
"""

from __future__ import annotations

import argparse
import logging
import warnings

import numpy as np
import torch

import coterie as ct
from site_tables import TABLES, load, metric_of

NUMBERS = (1, 2, 3, 4, 5, 6, 8, 10, 12)


def measure(name: str, seeds: int) -> str:
    """Return the row of one table."""
    errors: dict[int, list[float]] = {}
    by_auto: list[float] = []
    chosen: list[str] = []
    for seed in range(seeds):
        fed = load(name, seed)
        for k in NUMBERS:
            if k <= len(fed):
                result = ct.run(ct.IFCA(clusters=k), fed, seed=seed, eval_every=50)
                errors.setdefault(k, []).append(float(result.final[metric_of(fed)]))
        result = ct.run(ct.IFCA(clusters="auto"), fed, seed=seed, eval_every=50)
        by_auto.append(float(result.final[metric_of(fed)]))
        sizes = sorted(filter(None, result.final["sizes"]), reverse=True)
        chosen.append(f"{len(sizes)} ({', '.join(map(str, sizes))})")
    means = {k: float(np.mean(values)) for k, values in errors.items()}
    best = min(means, key=means.__getitem__)
    above = np.mean(by_auto) / means[best] - 1
    cells = [
        name,
        f"{means[1]:.4g}",
        f"{means[best]:.4g} (K = {best})",
        f"{np.mean(by_auto):.4g}",
        f"{100 * above:+.1f} %",
        "; ".join(chosen),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print("| table | one model | best K | auto | above the best | groups that auto chose |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for name in TABLES:
        print(measure(name, args.seeds), flush=True)


if __name__ == "__main__":
    main()
