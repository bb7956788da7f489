"""Check the description of an untrusted site for consistency, on the server.

A description is plain data from another machine. What passes here has the types, lengths and
ranges of a description of `describe`; how far a consistent lie can shift the common schema is
limited by `merging.limit_outliers`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from coterie.data.columns import MAX_CATEGORIES
from coterie.data.description import MAX_QUANTILES, Description

MAX_SITE_ROWS = 100_000_000
MAX_SITE_CLASSES = 1000
MAX_MOMENT = 1e100  # larger means and standard deviations are refused
ROUNDING = 2.0  # counts and deviations may be rounded to one digit
LABEL_KEYS = {"mean", "squares"}  # what a description has beside the count of numbers
COLUMN_KEYS = {"mean", "squares", "quantiles", "ids", "rounded"}

Text = Annotated[str, Meta(max_length=1000)]
Count = Annotated[int, Meta(ge=0, le=MAX_SITE_ROWS)]
Square = Annotated[float, Meta(ge=0)]


class LabelDescription(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The label of a described table."""

    name: Text
    kind: Literal["number", "category", "empty"]
    classes: Annotated[list[Text], Meta(max_length=MAX_SITE_CLASSES)]
    count: Count = 0
    mean: float = 0.0
    squares: Square = 0.0


class ColumnDescription(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A column of a described table."""

    kind: Literal["number", "date", "category", "empty"]
    missing: Count
    count: Count = 0
    mean: float = 0.0
    squares: Square = 0.0
    quantiles: Annotated[list[float], Meta(max_length=MAX_QUANTILES)] = []
    ids: bool = True
    rounded: bool = False
    categories: Annotated[dict[Text, Count], Meta(max_length=MAX_CATEGORIES)] = {}


class TableDescription(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A described table."""

    rows: Count
    label: LabelDescription
    columns: dict[Text, ColumnDescription]


def find_fault(description: Any, train_rows: int) -> str | None:
    """Return what is wrong with the description of a site; None if it is consistent.

    Args:
        description: The description, as it was received.
        train_rows: Number of training and validation rows that the site reported.
    """
    try:
        table = msgspec.convert(description, TableDescription)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as e:
        return f"its description is invalid ({e})"
    if table.rows > train_rows:
        return f"it describes {table.rows} rows and has {train_rows}"
    if table.label.count and not description["label"].keys() >= LABEL_KEYS:
        return "the mean or the squares of its label are missing"
    if table.label.count > table.rows:
        return f"its label has {table.label.count} values in {table.rows} rows"
    if not are_finite(table.label, table.rows):
        return "the mean or the squares of its label are not finite"
    for name, column in table.columns.items():
        if column.count and not description["columns"][name].keys() >= COLUMN_KEYS:
            return f"the description of the column {name} is incomplete"
        if not are_finite(column, table.rows):
            return f"the mean or the squares of the column {name} are not finite"
        fault = find_column_fault(column, table.rows)
        if fault is not None:
            return f"the column {name} is inconsistent: {fault}"
    return None


def are_finite(part: LabelDescription | ColumnDescription, rows: int) -> bool:
    """Whether mean and squares are so small that their pooled sums are finite."""
    return abs(part.mean) < MAX_MOMENT and part.squares < MAX_MOMENT**2 * max(1, rows)


def find_column_fault(column: ColumnDescription, rows: int) -> str | None:
    """Return what is inconsistent in the description of a column; None if nothing is."""
    has_numbers = column.kind in ("number", "date")
    if column.missing > rows or column.count not in (0, rows - column.missing):
        return f"{column.count} values and {column.missing} missing cells in {rows} rows"
    if sum(column.categories.values()) > ROUNDING * rows:
        return f"{sum(column.categories.values())} texts in {rows} rows"
    if (column.categories and column.kind != "category") or (column.count and not has_numbers):
        return "numbers and texts"
    if not column.count:
        return None
    if not column.quantiles or not all(map(math.isfinite, column.quantiles)):
        return "its quantiles are missing or not finite"
    if column.quantiles != sorted(column.quantiles):
        return "its quantiles are not sorted"
    # no value is further from the mean than √(Σ (x − mean)²)
    farthest = ROUNDING * math.sqrt(column.squares) + 1e-9 * abs(column.mean)
    if any(abs(q - column.mean) > farthest for q in column.quantiles):
        return "its quantiles are further from its mean than its squares allow"
    return None


def find_faults_of_sites(
    descriptions: dict[str, Description], rows: dict[str, int]
) -> dict[str, str]:
    """Return the sites whose descriptions are inconsistent, with the reasons."""
    faults = {name: find_fault(d, rows[name]) for name, d in descriptions.items()}
    return {name: fault for name, fault in faults.items() if fault is not None}
