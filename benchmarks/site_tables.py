"""The real tables of hospitals, schools and states that the benchmarks on tables share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import coterie as ct

SITES = Path(os.environ.get("COTERIE_DATA", "../shared/data")) / "sites"
TABLES: dict[str, dict[str, Any]] = {
    "heart": {"spec": "folder:heart", "label": "disease", "fill": "median"},
    "exam": {"spec": "table:exam.csv", "label": "normexam", "client_column": "school"},
    "hsb82": {"spec": "table:hsb82.csv", "label": "mAch", "client_column": "school"},
    "star": {
        "spec": "table:star_k.csv",
        "label": "readk",
        "client_column": "schoolidk",
        "fill": "median",
    },
    "azpro": {"spec": "table:azpro.csv", "label": "los", "client_column": "hospital"},
    "lending": {"spec": "table:lending.csv", "label": "Class", "client_column": "addr_state"},
}


def load(name: str, seed: int) -> ct.data.Federation:
    """Load a table, split into training and test rows by the seed."""
    how = dict(TABLES[name])
    kind, _, file = how.pop("spec").partition(":")
    return ct.data.load(spec=f"{kind}:{SITES / file}", seed=seed, **how)


def metric_of(fed: ct.data.Federation) -> str:
    """Return the metric that models are compared by: mean squared error or log loss."""
    if fed.kind == "regression":
        return "mse"
    return "loss"


def command(name: str) -> str:
    """Return the command that compares the recommended methods on a table."""
    how = TABLES[name]
    kind, _, file = how["spec"].partition(":")
    words = ["coterie compare", f"--data {kind}:sites/{file}", f"--label {how['label']}"]
    if "client_column" in how:
        words.append(f"--client-column {how['client_column']}")
    if "fill" in how:
        words.append(f"--fill {how['fill']}")
    return " ".join(words)
