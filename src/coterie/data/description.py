"""Describe the columns of a client's table by a few statistics each, on the client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.core.errors import CoterieError, Option, run_column_jobs, unknown_name
from coterie.data.columns import MAX_CATEGORIES, MAX_EXACT_INT, CellKind, TableColumn
from coterie.data.dates import to_years
from coterie.data.roster import TableKind
from coterie.data.tables import Table

if TYPE_CHECKING:
    import pandas as pd

Description = dict[str, Any]
MAX_CLASSES = 20  # a label with more distinct integers is a regression target
MAX_QUANTILES = 21
# possible numbers of quantiles: odd, so that the middle one is the median; each divides the first
QUANTILE_COUNTS = (MAX_QUANTILES, 7, 3, 1)


def describe(
    frame: pd.DataFrame,
    label: str,
    kind: TableKind | None = None,
    categories: Collection[str] = (),
    train: Any = None,
    where: str = "the table",
    min_rows_to_report: int = 1,
) -> Description:
    """Describe the columns of one client's table, as plain data that can be sent as JSON.

    Args:
        frame: The table.
        label: The column to predict.
        kind: "classification" or "regression", if the label is not what it looks like.
        categories: Columns that are read as text whatever they contain.
        train: Numbers of the rows that describe the columns; default: all. The label is described
            by all rows.
        where: What errors call the table.
        min_rows_to_report: A column with fewer cells reports only its kind and the number of
            missing cells. Each quantile stands for at least this many rows.

    Returns:
        The kind, moments, quantiles or categories of each column; `merge` reads it.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": [20, 30, 40], "outcome": ["yes", "no", "no"]})
        >>> describe(table, "outcome")["columns"]["age"]["mean"]
        30.0
    """
    return describe_table(
        Table.of(frame, where), label, kind, categories, train, min_rows_to_report
    )


def describe_table(
    table: Table,
    label: str,
    kind: TableKind | None = None,
    categories: Collection[str] = (),
    train: Any = None,
    min_rows_to_report: int = 1,
) -> Description:
    """`describe` for a table whose columns are already parsed, or will be used again."""
    jobs = prepare_descriptions(table, label, kind, categories, train, min_rows_to_report)
    return join_columns(run_column_jobs(jobs.columns), label, jobs.rows)


class DescriptionJobs(NamedTuple):
    """Functions that describe a table, one per column."""

    columns: Mapping[str, Callable[[], Description]]  # by name, the label last
    rows: int  # number of described rows


def prepare_descriptions(
    table: Table,
    label: str,
    kind: TableKind | None,
    categories: Collection[str],
    train: Any,
    min_rows_to_report: int,
) -> DescriptionJobs:
    """Prepare the description of each column; nothing is read yet."""
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
    """Combine the descriptions of the columns into that of the table."""
    features = {name: about for name, about in columns.items() if name != label}
    return {"rows": rows, "label": {"name": label} | columns[label], "columns": features}


def describe_column(
    cells: TableColumn, rows: np.ndarray, as_text: bool, min_rows_to_report: int
) -> Description:
    """Describe a column: its kind, and its moments or categories in these rows."""
    form: CellKind = "category" if as_text else cells.kind
    missing = cells.missing[rows]
    description: Description = {"kind": form, "missing": int(np.count_nonzero(missing))}
    present = rows[~missing]
    if len(present) < min_rows_to_report:
        present = present[:0]
    if form == "number":
        return description | compute_moments(cells.require_numbers()[present], min_rows_to_report)
    if form == "date":
        return description | compute_moments(to_years(cells.days[present]), min_rows_to_report)
    if form == "category":
        cells.require_exact()
        numbers, texts = cells.text_codes
        different, counts = np.unique(numbers[present], return_counts=True)
        check_category_count(
            f"the column {cells.name} of {cells.where}", cells.name, len(different)
        )
        names = [texts[number] for number in different]
        description["categories"] = dict(zip(names, counts.tolist()))
    return description


def compute_moments(values: np.ndarray, min_rows_to_report: int) -> Description:
    """Return count, mean, squared deviations and quantiles, and whether numbers look like ids."""
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
        "quantiles": quantiles(ordered, choose_quantile_count(count, min_rows_to_report)).tolist(),
        "ids": whole and bool(np.diff(ordered).all()),
        "rounded": whole and MAX_EXACT_INT < largest <= 2**64,  # ids have at most 64 bits
    }


def choose_quantile_count(count: int, min_rows_to_report: int) -> int:
    """Return the number of quantiles, each of which stands for `min_rows_to_report` rows."""
    if min_rows_to_report == 1:  # no minimum: report all quantiles
        return MAX_QUANTILES
    return next(number for number in QUANTILE_COUNTS if number * min_rows_to_report <= count)


def quantiles(ordered: np.ndarray, number: int) -> np.ndarray:
    """Return evenly spaced quantiles of sorted numbers, interpolated between neighbours."""
    below, above, fraction = find_neighbours(len(ordered), number)
    low, high = ordered[below], ordered[above]
    return low + (high - low) * fraction


@lru_cache(maxsize=64)
def find_neighbours(count: int, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of both neighbours of each quantile, and the weight of the upper one."""
    levels = (np.arange(number) + 0.5) / number
    position = levels * (count - 1)
    below = position.astype(int)
    return below, np.minimum(below + 1, count - 1), position - below


def describe_label(cells: TableColumn, kind: TableKind | None, rows: np.ndarray) -> Description:
    """Describe the label: its classes, if any, and the moments of numbers in these rows.

    A label that can only be a regression target has no classes.
    """
    cells.require_complete(
        "give the rows a label, or drop them with {}",
        [Option("drop_incomplete")],
        role="label column",
    )
    form = infer_label_kind(cells, kind)
    if form != "number":
        return {"kind": form, "classes": list_unique_texts(cells)}
    classes: list[str] = []
    values = cells.require_numbers()
    if kind is None and not (values % 1).any():
        classes = list_unique_texts(cells)
    if len(classes) > MAX_CLASSES:
        classes = []
    of_rows = compute_moments(values[rows], min_rows_to_report=1)
    reported = {name: of_rows[name] for name in ("count", "mean", "squares")}
    return {"kind": "number", "classes": classes, **reported}


def list_unique_texts(cells: TableColumn) -> list[str]:
    """Return the different texts of a column without missing cells, sorted."""
    numbers, texts = cells.text_codes
    return sorted(texts[number] for number in np.unique(numbers))


def infer_label_kind(cells: TableColumn, kind: TableKind | None) -> CellKind:
    """Return whether the label contains numbers or categories; `kind` overrides."""
    if not len(cells):
        return "empty"
    if kind == "regression":
        return "number"
    if kind == "classification" or cells.is_boolean:
        return "category"
    if cells.kind == "date":
        raise CoterieError(
            f"the label column {cells.name} of {cells.where} holds dates",
            "convert them to numbers, such as days since the first one",
            where=cells.name,
        )
    return cells.kind


def check_category_count(what: str, name: str, count: int) -> None:
    """Raise if a column has too many categories for one-hot encoding."""
    if count > MAX_CATEGORIES:
        raise CoterieError(
            f"{what} has {count} different texts, more than the {MAX_CATEGORIES} allowed",
            "drop it with {}, or group its texts",
            options=[drop_option(name)],
            where=name,
        )


def drop_option(name: str) -> Option:
    """Return the option that drops a column."""
    return Option("drop", name, of_data=True)
