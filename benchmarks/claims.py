"""IFCA under free riders and under attackers that claim one cluster: `python benchmarks/claims.py`.

40 clients with rotated digits in four groups of ten, of which 7 or 8 attack, spread evenly over
the groups; 10 rounds, so that damage is not yet repaired. Each finished run is saved in
docs/results/claims.jsonl, so that an interrupted command can be continued. `python docs/pages.py`
generates the table of docs/security.md from it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import coterie as ct
from coterie.aggregation.attacks import choose_attackers

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "claims.jsonl"
ROUNDS = 10
KRUM = {"robust": "krum", "robust_share": 0.45}
CASES: dict[str, dict[str, Any]] = {
    "no attack": {},
    "8 `free-ride`, `--clip-factor 0`": {"attack": "free-ride", "attackers": 8, "clip_factor": 0.0},
    "8 `free-ride`": {"attack": "free-ride", "attackers": 8},
    "no attack, `--init random`": {"init": "random"},
    "8 `free-ride`, `--init random --clip-factor 0`": {
        "init": "random",
        "attack": "free-ride",
        "attackers": 8,
        "clip_factor": 0.0,
    },
    "8 `free-ride`, `--init random`": {"init": "random", "attack": "free-ride", "attackers": 8},
    "the 32 others alone, `--init random`": {"init": "random", "without_attackers": True},
    "8 `claim`": {"attack": "claim", "attackers": 8},
    "8 `claim`, `--robust trimmed`": {"attack": "claim", "attackers": 8, "robust": "trimmed"},
    "8 `claim`, `--robust geometric`": {"attack": "claim", "attackers": 8, "robust": "geometric"},
    "no attack, `--robust krum --robust-share 0.45`": KRUM,
    "8 `claim`, `--robust krum --robust-share 0.45`": {
        "attack": "claim",
        "attackers": 8,
        **KRUM,
    },
    "7 `collude`, `--robust krum --robust-share 0.45`": {
        "attack": "collude",
        "attackers": 7,
        **KRUM,
    },
    "8 `collude`, `--robust krum --robust-share 0.45`": {
        "attack": "collude",
        "attackers": 8,
        **KRUM,
    },
}


def train(case: str, seed: int) -> dict[str, Any]:
    """Return the accuracy of honest clients, of the worst group, and who was a free rider."""
    options = dict(CASES[case])
    fed = ct.data.rotated("digits", clients=40, seed=seed)
    if options.pop("without_attackers", False):
        attackers = set(choose_attackers(fed.roster, 8, seed).tolist())
        fed = fed.subset([i for i in range(40) if i not in attackers])
    method = ct.IFCA(clusters=4, init=options.pop("init", "updates"))
    result = ct.run(method, fed, rounds=ROUNDS, seed=seed, eval_every=ROUNDS, **options)
    scores = result.trained.client_scores["accuracy"]  # NaN for attackers
    truth = np.asarray(fed.truth)[: len(scores)]
    return {
        "accuracy": float(result.final["accuracy"]),
        "worst_group": min(float(np.nanmean(scores[truth == g])) for g in range(4)),
        "free_riders": sorted({name for row in result.history for name in row["free_riders"]}),
    }


def main() -> None:
    """Run the missing cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    done = set()
    if args.out.exists():
        done = {tuple(json.loads(line)["cell"]) for line in args.out.read_text().splitlines()}
    for seed in range(args.seeds):
        for case in CASES:
            if (case, seed) in done:
                continue
            row = {"cell": (case, seed), **train(case, seed)}
            with args.out.open("a") as f:
                f.write(json.dumps(row) + "\n")
            print(case, seed, f"{row['accuracy']:.3f} {row['worst_group']:.3f}", flush=True)


if __name__ == "__main__":
    main()
