"""Searches for what a paper does not print, on seeds of their own and held-out training rows."""

from __future__ import annotations

from collections.abc import Iterator

from coterie.data import Federation
from coterie.runs.search import Search, SearchCell
from reproduction.page import searches
from reproduction.spec import Experiment, RecordedSearch, TableCell
from reproduction.work import federation

FIRST_SEED = 101  # no table has seeds as high
SEEDS = 2


def search_all(experiment: Experiment, scale: str) -> Iterator[str]:
    """Repeat every search of an experiment; what each came to."""
    for tuned, sentence in zip(experiment.tuned, searches(experiment)):
        found = search(experiment, tuned, scale)
        lines = [describe(tried, found.metric) for tried in found.table]
        yield "\n".join([f"recorded: {sentence}", *lines])


def search(experiment: Experiment, tuned: RecordedSearch, scale: str) -> Search:
    """Try all combinations of the values; the runs are given no test rows."""
    cell = cell_of(experiment, tuned, scale, FIRST_SEED)
    options = {"paper": True, **cell.options}
    options.pop("choose_on", None)  # there are no test rows to choose on

    def clients(seed: int) -> Federation:
        return federation(cell_of(experiment, tuned, scale, seed))

    return Search(
        cell.method,
        clients,
        cell.model,
        over=tuned.over,
        seeds=SEEDS,
        seed=FIRST_SEED,
        **options,
    ).run()


def cell_of(experiment: Experiment, tuned: RecordedSearch, scale: str, seed: int) -> TableCell:
    """The cell of a search; its seed is none of the table's."""
    return TableCell(
        experiment, scale, experiment.line(tuned.line), experiment.column(tuned.column), seed
    )


def describe(tried: SearchCell, metric: str) -> str:
    """A combination of values and its score on the held-out rows."""
    values = ", ".join(f"{name} {value}" for name, value in tried.values.items())
    if tried.mean is None:
        return f"  {values}: diverged"
    return f"  {values}: {metric} {tried.mean:.4f}"
