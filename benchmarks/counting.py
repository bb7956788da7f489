"""How often each rule of clustering/choose.py finds the right number of planted groups.

    python benchmarks/counting.py [--seeds 20 25] [RULE...]

The points are those by which IFCA (with its default start) and one-shot clustering choose K. The
rules were tuned on seeds 0 to 3 and 10 to 14: use other seeds to judge them.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections import Counter
from collections.abc import Callable

import torch

import coterie as ct
from coterie.clustering import RULES
from coterie.data import Federation


def some(fed: Federation, sizes: tuple[int, ...]) -> Federation:
    """Keep the first `sizes[g]` clients of each planted group g."""
    assert fed.truth is not None
    keep = [i for g, n in enumerate(sizes) for i in (fed.truth == g).nonzero()[:n, 0].tolist()]
    return fed.subset(sorted(keep))


def turned(groups: int, samples: int, base: str = "digits") -> Callable[[int], Federation]:
    angles = tuple(360 * g / groups for g in range(groups))
    return lambda seed: ct.data.rotated(
        base, clients=48, samples=samples, angles=angles, seed=seed, test_samples=0
    )


def lines(groups: int) -> Callable[[int], Federation]:
    return lambda seed: ct.data.linear(
        clients=48, samples=50, dim=10, clusters=groups, seed=seed, test_samples=1
    )


CASES: dict[str, tuple[int, Callable[[int], Federation], str, float]] = {
    "digits, 1 group, 25 rows": (1, turned(1, 25), "mlp:64", 0.3),
    "digits, 2 groups, 25 rows": (2, turned(2, 25), "mlp:64", 0.3),
    "digits, 4 groups, 25 rows": (4, turned(4, 25), "mlp:64", 0.3),
    "digits, 6 groups, 25 rows": (6, turned(6, 25), "mlp:64", 0.3),
    "digits, 4 groups, 12 rows": (4, turned(4, 12), "mlp:64", 0.3),
    "digits, 3 of 4 groups: 12, 9, 5 clients": (
        3,
        lambda s: some(turned(4, 25)(s), (12, 9, 5)),
        "mlp:64",
        0.3,
    ),
    "digits, labels differ, 3 groups": (
        3,
        lambda s: ct.data.label_permuted("digits", clients=48, samples=25, clusters=3, seed=s),
        "mlp:64",
        0.3,
    ),
    "lines, 1 group": (1, lines(1), "linear", 0.05),
    "lines, 8 groups": (8, lines(8), "linear", 0.05),
}
if os.environ.get("COTERIE_DATA"):
    CASES["Fashion-MNIST, 4 groups, 50 rows"] = (4, turned(4, 50, "fashion_mnist"), "mlp:64", 0.1)


def found(method: ct.Algorithm, fed: Federation, model: str, seed: int) -> int:
    first = ct.run(method, fed, model, rounds=1, seed=seed, eval_every=2).history[0]
    return int(first["notes"]["clusters"])


def describe_counts(counts: list[int], right: int) -> str:
    others = ", ".join(
        f"{k} ({n}×)" if n > 1 else str(k) for k, n in sorted(Counter(counts).items()) if k != right
    )
    return f"{counts.count(right)} of {len(counts)}" + (f"; else {others}" if others else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("rules", nargs="*", default=RULES, help=f"of {', '.join(RULES)}")
    parser.add_argument(
        "--seeds", type=int, nargs=2, default=(20, 25), help="first seed, and end (exclusive)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"| groups | method | {' | '.join(args.rules)} |\n|{' --- |' * (len(args.rules) + 2)}")
    for name, (right, make, model, lr) in CASES.items():
        for cls in (ct.IFCA, ct.OneShot):
            cells = [
                describe_counts(
                    [
                        found(cls(clusters="auto", auto_by=rule, lr=lr), make(s), model, s)
                        for s in range(*args.seeds)
                    ],
                    right,
                )
                for rule in args.rules
            ]
            print(f"| {name} | {cls.name} | {' | '.join(cells)} |", flush=True)
