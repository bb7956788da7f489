"""What is done in a cell: train, then read off what the table shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import Federation
from coterie.data.spec import load
from coterie.metrics import main_metric
from coterie.result import Result, resume, run
from coterie.runs.search import search
from reproduction.spec import Measured, TableCell, Work

Measure = Callable[[Result, Federation], Measured]
DRAWN = (
    "accuracy",
    "mse",
    "loss",
    "ari",
    "matched",
    "planted_error",
    "weights_error",
)  # metrics whose curves are kept

NOTED = ("k_means_iterations", "distance_between_models")  # notes whose curves are kept


def trained(measure: Measure) -> Work:
    """Work that trains the cell's method, and reads off a measure."""

    def work(cell: TableCell, folder: Path) -> Measured:
        fed = federation(cell)
        return measure(train(cell, fed, folder), fed)

    return work


def federation(cell: TableCell) -> Federation:
    """The clients of a cell."""
    return load(cell.column.data, cell.seed, **cell.data_options)


def train(cell: TableCell, fed: Federation, folder: Path) -> Result:
    """Train in a folder, or go on where it was stopped."""
    options = {"paper": True, **cell.options, "seed": cell.seed}
    method = cell.method
    if cell.line.tune:
        place = folder.with_name(f"{folder.name}-search")
        by = cell.experiment.tune_by
        tried = search(
            method, fed, cell.model, over=cell.line.tune, out=place, metric=by, **options
        )
        method = tried.winner
    if (folder / "config.json").exists():
        return resume(folder, fed, cell.model, method)
    return run(method, fed, cell.model, out=folder, **options)


def chosen_settings(cell: TableCell, result: Result) -> dict[str, Any]:
    """What was found for each setting of the line that is tuned, for `extra["tuned"]`."""
    return {name: getattr(result.method, name) for name in cell.line.tune}


# ------------------------------------------------------------------------------ measures
def scores(result: Result, fed: Federation) -> Measured:
    """The mean over clients by rows, the worst tenth, and what is known of the groups."""
    metric = main_metric(fed.kind)
    found = result.scores(metric)
    values = {
        metric: found.weighted,
        "by_client": found.mean,
        "worst": found.worst_decile,
    }
    for name in ("ari", "planted_error", "loss"):
        value = result.final.get(name)
        if value is not None:
            values[name] = float(value)
    return Measured(values, curves(result))


def curves(result: Result) -> dict[str, list[tuple[int, float]]]:
    """Every metric that is drawn, at each round in which it was measured."""
    found = {}
    for name in DRAWN:
        points = [(row["round"], float(row[name])) for row in result.history if name in row]
        if points:
            found[name] = points
    for name in NOTED:
        noted = [row for row in result.history if name in row.get("notes", {})]
        if noted:
            found[name] = [(row["round"], float(row["notes"][name])) for row in noted]
    return found


def group_history(result: Result) -> list[list[int]] | None:
    """Who was in which group after each round, for a colour map."""
    clusters = result.clusters
    if clusters is None:
        return None
    return np.asarray(clusters).tolist()
