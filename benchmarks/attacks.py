"""Accuracy of honest clients under attacks, by method and rule: `python benchmarks/attacks.py`.

40 clients with rotated digits in four groups of ten; eight of them attack, two in each group. Each
finished cell is saved in docs/results/attacks.jsonl, so that an interrupted run can be continued.
`python docs/pages.py` generates the table of docs/security.md from it.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import coterie as ct
from coterie.aggregation.attacks import ATTACKS
from coterie.aggregation.robust import RULES

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "attacks.jsonl"
ROUNDS = 30
# the others concern clusters that clients choose: see benchmarks/claims.py
POISONING = [kind for kind in ATTACKS if kind not in ("free-ride", "claim", "collude")]
METHODS = {
    "ifca": ct.IFCA(clusters=4),
    "cfl-mgd": ct.CFLMGD(clusters=4),
    "fedavg": ct.FedAvg(),
    "fedsoft": ct.FedSoft(clusters=4),
    "cgpfl": ct.CGPFL(clusters=4),
    "one-shot": ct.OneShot(clusters=4),
}


def accuracy(method: str, attack: str | None, rule: str, seed: int) -> dict[str, Any]:
    """Return the accuracy of honest clients, and which clients were clipped or rejected."""
    fed = ct.data.rotated("digits", clients=40, seed=seed)
    under_attack = {} if attack is None else {"attack": attack, "attackers": 8}
    try:
        result = ct.run(
            METHODS[method],
            fed,
            rounds=ROUNDS,
            seed=seed,
            eval_every=ROUNDS,
            robust=rule,
            **under_attack,
        )
    except ct.CoterieError as e:
        return {"accuracy": 0.0, "error": str(e)}
    rows = result.history
    return {
        "accuracy": float(rows[-1]["accuracy"]),
        "ari": rows[-1].get("ari"),
        "rejected": sorted({name for row in rows for name in row["rejected"]}),
        "clipped": sorted({name for row in rows for name in row["clipped"]}),
    }


def cells(args: argparse.Namespace) -> list[tuple[str, str | None, str, int]]:
    """Return (method, attack, rule, seed) of every cell; those without an attack first."""
    attacks = [None, *args.attacks]
    return list(itertools.product(args.methods, attacks, args.rules, range(args.seeds)))


def main() -> None:
    """Run the missing cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--attacks", nargs="+", default=POISONING)
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    done = set()
    if args.out.exists():
        done = {tuple(json.loads(line)["cell"]) for line in args.out.read_text().splitlines()}
    for cell in cells(args):
        if cell in done:
            continue
        row = {"cell": cell, **accuracy(*cell)}
        with args.out.open("a") as f:
            f.write(json.dumps(row) + "\n")
        print(*cell, f"{row['accuracy']:.3f}", flush=True)


if __name__ == "__main__":
    main()
