"""The work of a cell: train a method, then measure what the table shows.

Also repeats the hyper-parameter searches that the catalogue records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import Federation
from coterie.data.spec import load
from coterie.metrics import main_metric
from coterie.result import Result, resume, run
from coterie.runs.search import Search, SearchCell, search
from reproduction.page import describe_searches
from reproduction.spec import Experiment, Measured, RecordedSearch, TableCell, Work

Measure = Callable[[Result, Federation], Measured]
METRICS_WITH_CURVES = (
    "accuracy",
    "mse",
    "loss",
    "ari",
    "matched",
    "planted_error",
    "weights_error",
)
NOTES_WITH_CURVES = ("k_means_iterations", "distance_between_models")
FIRST_SEARCH_SEED = 101  # higher than any seed of a table
SEARCH_SEEDS = 2


# ------------------------------------------------------------------------------ training
def train_and_measure(measure: Measure) -> Work:
    """Return work that trains the cell's method and then calls `measure(result, federation)`."""

    def work(cell: TableCell, folder: Path) -> Measured:
        fed = load_federation(cell)
        return measure(train(cell, fed, folder), fed)

    return work


def load_federation(cell: TableCell) -> Federation:
    """Load the data of a cell."""
    return load(cell.column.data, cell.seed, **cell.data_options)


def train(cell: TableCell, fed: Federation, folder: Path) -> Result:
    """Train the cell's method, or resume its run.

    Args:
        cell: The cell. If its line has `tune`, the hyper-parameters are searched first.
        fed: The data.
        folder: Folder of the run; the search uses a folder beside it.
    """
    options = {"paper": True, **cell.options, "seed": cell.seed}
    method = cell.method
    if cell.line.tune:
        method = search(
            method,
            fed,
            cell.model,
            over=cell.line.tune,
            out=folder.with_name(f"{folder.name}-search"),
            metric=cell.experiment.tune_by,
            **options,
        ).winner
    if (folder / "config.json").exists():
        return resume(folder, fed, cell.model, method)
    return run(method, fed, cell.model, out=folder, **options)


# ------------------------------------------------------------------------------ measures
def measure_scores(result: Result, fed: Federation) -> Measured:
    """Measure the row-weighted mean, the mean over clients, the worst tenth and the groups."""
    metric = main_metric(fed.kind)
    found = result.scores(metric)
    values = {metric: found.weighted, "by_client": found.mean, "worst": found.worst_decile}
    for name in ("ari", "planted_error", "loss"):
        value = result.final.get(name)
        if value is not None:
            values[name] = float(value)
    return Measured(values, read_curves(result))


def read_curves(result: Result) -> dict[str, list[tuple[int, float]]]:
    """Return, by metric, the (round, value) pairs of the run's history."""
    curves = {}
    for name in METRICS_WITH_CURVES:
        curves[name] = [(row["round"], float(row[name])) for row in result.history if name in row]
    for name in NOTES_WITH_CURVES:
        rows = [row for row in result.history if name in row.get("notes", {})]
        curves[name] = [(row["round"], float(row["notes"][name])) for row in rows]
    return {name: points for name, points in curves.items() if points}


def tuned_settings(cell: TableCell, result: Result) -> dict[str, Any]:
    """Return the values that a run chose for the tuned hyper-parameters, for `extra["tuned"]`."""
    return {name: getattr(result.method, name) for name in cell.line.tune}


def group_history(result: Result) -> list[list[int]] | None:
    """Return the groups of all clients after each round, [rounds + 1][N]; None: no groups."""
    clusters = result.clusters
    return None if clusters is None else np.asarray(clusters).tolist()


# ------------------------------------------------------------------------------ searches
def repeat_searches(experiment: Experiment, scale: str) -> Iterator[str]:
    """Repeat the recorded searches of an experiment; yield a text about each."""
    for recorded, sentence in zip(experiment.tuned, describe_searches(experiment)):
        found = repeat_search(experiment, recorded, scale)
        lines = [_describe_trial(trial, found.metric) for trial in found.table]
        yield "\n".join([f"recorded: {sentence}", *lines])


def repeat_search(experiment: Experiment, recorded: RecordedSearch, scale: str) -> Search:
    """Try all combinations of the values, with seeds of their own and without test rows."""

    def cell_with(seed: int) -> TableCell:
        line, column = experiment.line(recorded.line), experiment.column(recorded.column)
        return TableCell(experiment, scale, line, column, seed)

    cell = cell_with(FIRST_SEARCH_SEED)
    options = {"paper": True, **cell.options}
    options.pop("choose_on", None)  # there are no test rows to choose on
    return Search(
        cell.method,
        lambda seed: load_federation(cell_with(seed)),
        cell.model,
        over=recorded.over,
        seeds=SEARCH_SEEDS,
        seed=FIRST_SEARCH_SEED,
        **options,
    ).run()


def _describe_trial(trial: SearchCell, metric: str) -> str:
    values = ", ".join(f"{name} {value}" for name, value in trial.values.items())
    if trial.mean is None:
        return f"  {values}: diverged"
    return f"  {values}: {metric} {trial.mean:.4f}"
