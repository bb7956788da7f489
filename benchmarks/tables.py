"""Default settings on real tables, beside scikit-learn: `python benchmarks/tables.py`.

Each table is split by three seeds; the methods of `coterie compare` without names run with their
defaults, and closed-form models are fitted to the same rows. Every cell is kept in
docs/results/tables.jsonl as it is done, so that a stopped table goes on; `python docs/pages.py`
makes docs/results/tables.md from it.

The references are given what no federation has, all rows in one place, or choose on the test rows
(the number of groups, the strength of the ridge): they are meant to be hard to reach.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge

import coterie as ct
from coterie.baselines.fedavg import FineTuned
from coterie.cli.table import describe_conclusions, summary_row
from coterie.reporting.comparison import compare_rows
from site_tables import TABLES, load, metric_of

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "tables.jsonl"
METHODS: dict[str, Callable[[], Any]] = {
    "fedavg": ct.FedAvg,
    "fedavg-ft": FineTuned,
    "ditto": ct.Ditto,
    "local": ct.LocalOnly,
    "ifca": lambda: ct.IFCA(clusters="auto"),
}
GROUPS = (2, 3, 5)  # of grouped least squares
ALPHAS = (1.0, 3.0, 10.0)  # ridges of each site; the best is taken
Rows = list[tuple[np.ndarray, np.ndarray]]


# ------------------------------------------------------------------------------ references
class Reference:
    """Linear models and boosting by scikit-learn, and the error of their predictions."""

    def __init__(self, fed: ct.data.Federation) -> None:
        self.is_regression = fed.kind == "regression"
        self.train = [rows(fed.train, i) for i in range(len(fed))]
        self.test = [rows(fed.test, i) for i in range(len(fed))]

    def linear(self, x: np.ndarray, y: np.ndarray, alpha: float = 1.0) -> Any:
        if self.is_regression:
            return Ridge(alpha).fit(x, y)
        if len(set(y)) < 2:
            return Constant(y)
        return LogisticRegression(C=1 / alpha, max_iter=2000).fit(x, y)

    def losses(self, model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The squared error or the log loss of each row."""
        if not len(x):
            return np.zeros(0)
        if self.is_regression:
            return (model.predict(x) - y) ** 2
        p = np.clip(model.predict_proba(x)[:, 1], 1e-6, 1 - 1e-6)
        return -np.where(y == 1, np.log(p), np.log(1 - p))

    def error(self, model_of: Callable[[int], Any]) -> float:
        pairs = enumerate(self.test)
        return float(np.concatenate([self.losses(model_of(i), *xy) for i, xy in pairs]).mean())

    def pooled(self) -> float:
        model = self.linear(*joined(self.train))
        return self.error(lambda i: model)

    def per_site(self, alpha: float) -> float:
        models = [self.linear(*xy, alpha) for xy in self.train]
        return self.error(models.__getitem__)

    def site_intercepts(self) -> float:
        """One ridge with a column for each site."""
        n = len(self.train)

        def marked(parts: Rows) -> Rows:
            return [
                (np.hstack([x, np.tile(np.eye(n)[i], (len(x), 1))]), y)
                for i, (x, y) in enumerate(parts)
            ]

        model = self.linear(*joined(marked(self.train)))
        losses = [self.losses(model, *xy) for xy in marked(self.test)]
        return float(np.concatenate(losses).mean())

    def grouped(self, k: int, starts: int = 5, turns: int = 15) -> float:
        """Sites join the group whose model fits their training rows best, in turns with fitting."""
        best, least = 0.0, np.inf
        for start in range(starts):
            labels = np.random.default_rng(start).integers(k, size=len(self.train))
            for _ in range(turns):
                models = [self.of_group(labels, j) for j in range(k)]
                fit = [[self.losses(m, *xy).sum() for m in models] for xy in self.train]
                moved = np.argmin(fit, axis=1)
                if (moved == labels).all():
                    break
                labels = moved
            cost = np.min(fit, axis=1).sum()
            if cost < least:
                least = cost
                best = self.error([models[j] for j in labels].__getitem__)
        return best

    def of_group(self, labels: np.ndarray, j: int) -> Any:
        members = [xy for xy, label in zip(self.train, labels) if label == j]
        return self.linear(*joined(members or self.train))

    def boosted(self) -> float:
        kind = HistGradientBoostingClassifier
        if self.is_regression:
            kind = HistGradientBoostingRegressor
        model = kind(random_state=0).fit(*joined(self.train))
        return self.error(lambda i: model)

    def all(self) -> dict[str, float]:
        return {
            "pooled": self.pooled(),
            "per site, α=1": self.per_site(1.0),
            "per site, best α": min(map(self.per_site, ALPHAS)),
            "site intercepts": self.site_intercepts(),
            "grouped, best K": min(map(self.grouped, GROUPS)),
            "boosted": self.boosted(),
        }


class Constant:
    """The share of a class, for sites that have one class only."""

    def __init__(self, y: np.ndarray) -> None:
        self.share = (y.sum() + 1) / (len(y) + 2)

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.tile([1 - self.share, self.share], (len(x), 1))


def rows(part: Any, i: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of one client."""
    x, y = part.client(i)
    return x.double().numpy(), y.double().numpy()


def joined(parts: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The rows of several clients together."""
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


# ------------------------------------------------------------------------------ cells
def measure(name: str, seeds: int) -> dict[str, Any]:
    """One table: errors by method and reference, a number per seed; time; the verdict."""
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
    """Run the tables that are not done yet."""
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
        print(name, {k: round(float(np.mean(v)), 4) for k, v in row["errors"].items()}, flush=True)


if __name__ == "__main__":
    main()
