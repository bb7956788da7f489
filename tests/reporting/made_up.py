"""Made-up runs and client statistics, so that statistics can be checked by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.data.roster import RowCounts
from coterie.reporting.client_statistics import ClientStatistics
from coterie.reporting.comparison import Comparison, Methods, compare
from coterie.reporting.intervals import BySeed, ScoresBySite
from coterie.reporting.run_records import RunRecord
from coterie.runs.config import Fingerprints, MethodConfig, RosterConfig
from coterie.runs.options import Options

NAMES = ["a", "b", "c", "d"]
GROUPS = np.array([1, 0, 1, 0])


def scored(
    scores: list[float | None], seed: int = 0, label: str = "m", metric: str = "accuracy"
) -> RunRecord:
    """A run with these scores that sends 10 bytes in every round; None: not evaluated."""
    rows = []
    for round, score in enumerate(scores):
        row = {"round": round, "bytes_down": 6, "bytes_up": 4, "seconds": 0.0}
        if score is not None:
            row[metric] = score
        rows.append(row)
    return record(label, rows, seed=seed, names=["a", "b"], data="d", model="linear")


def grouped(
    label: str = "ifca",
    seed: int = 0,
    history: list[list[int] | None] | None = None,
    data: str = "memory",
    metric: str = "accuracy",
) -> RunRecord:
    """A run of the clients NAMES with these groups after each round."""
    rows = []
    for round, groups in enumerate(history or [None]):
        row: dict[str, Any] = {"round": round, metric: 0.5, "seconds": 0.0}
        row |= {"bytes_down": 0, "bytes_up": 0}
        if groups is not None:
            row["groups"] = groups
        rows.append(row)
    return record(label, rows, seed=seed, names=NAMES, data=data, model="softmax")


def record(
    label: str, rows: list[Any], *, seed: int, names: list[str], data: str, model: str
) -> RunRecord:
    """A run that has ended with these rows of metrics."""
    roster = RosterConfig(
        names=list(names),
        unseen=0,
        rows={split: [1] * len(names) for split in RowCounts._fields},
        row_shape=[1],
        tokens=False,
        kind="classification",
        classes=2,
        labels=None,
        schema=None,
        source=data,
        truth=None,
        planted=None,
    )
    return RunRecord(
        method=MethodConfig(label, {}),
        model_name=model,
        options=Options(seed=seed, rounds=len(rows) - 1),
        roster=roster,
        fingerprint=Fingerprints(data="x", salt="", model=""),
        history=rows,
        origin=None,
        label=label,
    )


def statistics(
    scores: Any,
    groups: np.ndarray | None = None,
    test_rows: Any = (40, 40, 40, 3),
    metric: str = "accuracy",
    **more: Any,
) -> ClientStatistics:
    """What is known of clients with these scores; more: other fields."""
    rows = np.array(test_rows)
    fields = {
        "per_client": {metric: np.array(scores, dtype=float), "rows": rows},
        "train_rows": 3 * rows,
        "test_rows": rows,
        "groups": groups,
        "truth": None,
        "shown": np.arange(len(rows)),
        "losses": None,
        "weights": None,
        "projection": None,
        "differences": None,
        "warnings": [],
        "fingerprint": "x",
        "has_data": True,
    }
    return ClientStatistics(**{**fields, **more})


def compared(methods: Methods, by_site: Mapping[str, BySeed] | None = None) -> Comparison:
    """The final scores of made-up runs; by_site: the scores of their sites."""
    return replace(compare(methods), by_site=by_site or {})


def sites_of(*seeds: list[float], rows: list[int] | None = None) -> BySeed:
    """The scores of sites with each seed; all sites have 10 test rows, or those that are given."""
    by_seed = {}
    for seed, values in enumerate(seeds):
        names = tuple(f"site {i}" for i in range(len(values)))
        counts = np.array(rows or [10] * len(values), dtype=float)
        by_seed[seed] = ScoresBySite(names, np.array(values), counts)
    return by_seed
