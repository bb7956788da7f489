"""On a client: describe the columns of its table in a few numbers each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.core.errors import CoterieError, Option, run_column_jobs, unknown_name
from coterie.data.cells import EXACT, MOST_CATEGORIES, Cells, Form
from coterie.data.client_table import Table
from coterie.data.dates import years
from coterie.data.federation import Kind

if TYPE_CHECKING:
    import pandas as pd

Description = dict[str, Any]
MOST_CLASSES = 20  # more whole numbers than this are a regression target
MOST_QUANTILES = 21
# how many there may be: odd, as the middle one is the median; each divides the first
QUANTILES = (MOST_QUANTILES, 7, 3, 1)


def describe(
    frame: pd.DataFrame,
    label: str,
    kind: Kind | None = None,
    categories: Collection[str] = (),
    train: Any = None,
    where: str = "the table",
    min_rows_to_report: int = 1,
) -> Description:
    """A table's columns in a few numbers each, fit for JSON; `where` names the table in errors.

    Columns are described by the rows numbered in `train` (default: all), the label by all rows.
    `categories` are the columns to read as text whatever they hold. `kind` overrules what the
    label looks like. Of a column with fewer than `min_rows_to_report` cells only its form and the
    number of empty cells are told, and each quantile stands for at least `min_rows_to_report` rows.
    """
    return describe_table(
        Table.of(frame, where), label, kind, categories, train, min_rows_to_report
    )


def describe_table(
    table: Table,
    label: str,
    kind: Kind | None = None,
    categories: Collection[str] = (),
    train: Any = None,
    min_rows_to_report: int = 1,
) -> Description:
    """`describe` for a table whose columns are already parsed, or will be used again."""
    jobs = description_jobs(table, label, kind, categories, train, min_rows_to_report)
    return join_columns(run_column_jobs(jobs.columns), label, jobs.rows)


class DescriptionJobs(NamedTuple):
    """What is to be done to describe a table, column by column."""

    columns: Mapping[str, Callable[[], Description]]  # by name, the label last
    rows: int  # that are described


def description_jobs(
    table: Table,
    label: str,
    kind: Kind | None,
    categories: Collection[str],
    train: Any,
    min_rows_to_report: int,
) -> DescriptionJobs:
    """How to describe each column of a table; nothing is read yet."""
    if label not in table.columns:
        raise unknown_name(f"label column of {table.where}:", label, table.columns)
    as_text = set(categories)
    for name in sorted(as_text - table.columns.keys()):
        raise unknown_name(f"column of {table.where} in categories:", name, table.columns)
    rows = np.arange(table.rows)
    if train is not None:
        rows = np.asarray(train, dtype=int)
    if len(rows) < min_rows_to_report:
        rows = rows[:0]
    jobs = {
        name: partial(describe_column, cells, rows, name in as_text, min_rows_to_report)
        for name, cells in table.columns.items()
        if name != label
    }
    about_label = partial(describe_label, table.columns[label], kind, rows)
    return DescriptionJobs(jobs | {label: about_label}, len(rows))


def join_columns(columns: dict[str, Description], label: str, rows: int) -> Description:
    """The description of a table, of those of its columns and its label."""
    features = {name: about for name, about in columns.items() if name != label}
    return {"rows": rows, "label": {"name": label} | columns[label], "columns": features}


def describe_column(
    cells: Cells, rows: np.ndarray, as_text: bool, min_rows_to_report: int
) -> Description:
    """The form of a column, and its moments or its categories in these rows."""
    form: Form = "category" if as_text else cells.form
    missing = cells.missing[rows]
    description: Description = {"kind": form, "missing": int(np.count_nonzero(missing))}
    present = rows[~missing]
    if len(present) < min_rows_to_report:
        present = present[:0]
    if form == "number":
        return description | moments(cells.numbers()[present], min_rows_to_report)
    if form == "date":
        return description | moments(years(cells.days[present]), min_rows_to_report)
    if form == "category":
        cells.refuse_rounded()
        numbers, texts = cells.coded
        different, counts = np.unique(numbers[present], return_counts=True)
        refuse_many(f"the column {cells.name} of {cells.where}", cells.name, len(different))
        names = [texts[number] for number in different]
        description["categories"] = dict(zip(names, counts.tolist()))
    return description


def moments(values: np.ndarray, min_rows_to_report: int) -> Description:
    """Count, mean, squared deviations and quantiles of numbers, and whether they look like ids."""
    count = len(values)
    if not count:
        return {
            "count": 0, "mean": 0.0, "squares": 0.0, "quantiles": [], "ids": True, "rounded": False,
        }  # fmt: skip
    ordered = np.sort(values)
    mean = float(values.sum()) / count
    whole = not (values % 1).any()
    largest = max(abs(float(ordered[0])), abs(float(ordered[-1])))
    return {
        "count": count,
        "mean": mean,
        "squares": float(((values - mean) ** 2).sum()),
        "quantiles": quantiles(ordered, quantile_count(count, min_rows_to_report)).tolist(),
        "ids": whole and bool(np.diff(ordered).all()),
        "rounded": whole and EXACT < largest <= 2**64,  # ids have at most 64 bits
    }


def quantile_count(count: int, min_rows_to_report: int) -> int:
    """Return the number of quantiles, each of which stands for `min_rows_to_report` rows."""
    if min_rows_to_report == 1:  # nothing is held back
        return MOST_QUANTILES
    return next(number for number in QUANTILES if number * min_rows_to_report <= count)


def quantiles(ordered: np.ndarray, number: int) -> np.ndarray:
    """Evenly spaced quantiles of ascending numbers, interpolated between neighbours."""
    below, above, fraction = neighbours(len(ordered), number)
    low, high = ordered[below], ordered[above]
    return low + (high - low) * fraction


@lru_cache(maxsize=64)
def neighbours(count: int, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two neighbours of each quantile among `count` sorted numbers, and its place between."""
    levels = (np.arange(number) + 0.5) / number
    position = levels * (count - 1)
    below = position.astype(int)
    return below, np.minimum(below + 1, count - 1), position - below


def describe_label(cells: Cells, kind: Kind | None, rows: np.ndarray) -> Description:
    """The names of the classes; none where the label can only be a regression target.

    Of numbers also the moments in these rows.
    """
    cells.refuse_missing(
        "give the rows a label, or leave them out with {}",
        [Option("drop_incomplete")],
        role="label column",
    )
    form = label_form(cells, kind)
    if form != "number":
        return {"kind": form, "classes": different_texts(cells)}
    classes: list[str] = []
    values = cells.numbers()
    if kind is None and not (values % 1).any():
        classes = different_texts(cells)
    if len(classes) > MOST_CLASSES:
        classes = []
    of_rows = moments(values[rows], min_rows_to_report=1)
    told = {name: of_rows[name] for name in ("count", "mean", "squares")}
    return {"kind": "number", "classes": classes, **told}


def different_texts(cells: Cells) -> list[str]:
    """The texts that occur in a column without empty cells, sorted."""
    numbers, texts = cells.coded
    return sorted(texts[number] for number in np.unique(numbers))


def label_form(cells: Cells, kind: Kind | None) -> Form:
    """Whether the label is numbers or categories, unless `kind` says so."""
    if not len(cells):
        return "empty"
    if kind == "regression":
        return "number"
    if kind == "classification" or cells.boolean:
        return "category"
    if cells.form == "date":
        raise CoterieError(
            f"the label column {cells.name} of {cells.where} holds dates",
            "turn them into numbers, such as days since the first one",
            where=cells.name,
        )
    return cells.form


def refuse_many(what: str, name: str, count: int) -> None:
    """Refuse a column of more categories than one-hot columns are fit for."""
    if count > MOST_CATEGORIES:
        raise CoterieError(
            f"{what} has {count} different texts, above the {MOST_CATEGORIES} allowed",
            "drop it with {}, or put its texts into groups",
            options=[drop_option(name)],
            where=name,
        )


def drop_option(name: str) -> Option:
    """The option that leaves a column out."""
    return Option("drop", name, of_data=True)
