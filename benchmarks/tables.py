"""Default settings on real tables, beside scikit-learn: `python benchmarks/tables.py`.

Each table is split by three seeds; the methods of `coterie compare` without names run with their
defaults, and closed-form models are fitted to the same rows. Each finished cell is saved in
docs/results/tables.jsonl, so that an interrupted run can be continued; `python docs/pages.py`
generates docs/results/tables.md from it.

The references are optimistic: they have all rows in one place, or select hyper-parameters (number
of groups, ridge penalty) on the test rows.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import coterie as ct
from coterie.cli.table import describe_conclusions, summary_row
from coterie.methods.fedavg import FineTuned
from coterie.reporting.comparison import compare_rows
from reproduction.references import Reference
from site_tables import TABLES, load, metric_of

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "tables.jsonl"
METHODS: dict[str, Callable[[], Any]] = {
    "fedavg": ct.FedAvg,
    "fedavg-ft": FineTuned,
    "ditto": ct.Ditto,
    "local": ct.LocalOnly,
    "ifca": lambda: ct.IFCA(clusters="auto"),
}


# ------------------------------------------------------------------------------ cells
def measure(name: str, seeds: int) -> dict[str, Any]:
    """Measure one table: errors by method and reference, one per seed; time; the verdict."""
    runs, errors, seconds = [], {}, 0.0
    for seed in range(seeds):
        fed = load(name, seed)
        for label, value in Reference(fed).all().items():
            errors.setdefault(label, []).append(value)
        for label, make in METHODS.items():
            began = time.perf_counter()
            result = ct.run(make(), fed, seed=seed)
            seconds += time.perf_counter() - began
            runs.append(summary_row(result))
            errors.setdefault(label, []).append(float(result.final[metric_of(fed)]))
    chosen = [len([size for size in run["sizes"] if size]) for run in runs if run.get("sizes")]
    return {
        "table": name,
        "sites": len(fed),
        "rows": len(fed.train.y) + len(fed.test.y),
        "metric": metric_of(fed),
        "errors": errors,
        "groups": chosen[-seeds:],
        "verdict": describe_conclusions(compare_rows(runs)),
        "seconds": seconds / seeds,
    }


def main() -> None:
    """Run the missing tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    done = set()
    if args.out.exists():
        done = {json.loads(line)["table"] for line in args.out.read_text().splitlines()}
    for name in args.tables:
        if name in done:
            continue
        row = measure(name, args.seeds)
        with args.out.open("a") as f:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(name, {k: round(mean(v), 4) for k, v in row["errors"].items()}, flush=True)


if __name__ == "__main__":
    main()
