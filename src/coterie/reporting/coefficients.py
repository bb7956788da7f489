"""What each group's linear model goes by: its coefficients, under the names of the columns.

A coefficient says how much the prediction changes when the column rises by one standard deviation:
in the unit of the label, or in log-odds of the second class of two. The categories of a column
always add up to one, so that only their differences mean anything: they are shown relative to their
mean. The place for any other text is left out, as hardly any row was trained on it. So are the
coefficients of a column in a group at whose sites nearly all of its cells were filled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.data.schema import Column, Schema
from coterie.data.site_columns import SiteColumns
from coterie.reporting.text import TextTable, format_number, join_names
from coterie.runs.trained import TrainedRun

MOST_DRAWN = 12  # columns in the figure, those that differ most between groups


class Coefficients(NamedTuple):
    """The coefficients of the groups' models."""

    label: str
    higher: str  # what a positive coefficient makes more likely or higher
    columns: list[str]  # those that differ most between groups first
    groups: list[int]
    values: np.ndarray  # [columns, groups]; NaN: nearly all cells of the column were filled there
    is_class: bool  # the label is a class: values are log-odds
    filled: list[tuple[str, int]]  # (column of the tables, group) of which values are left out


def coefficients(
    trained: TrainedRun, groups: np.ndarray | None, of_sites: SiteColumns | None = None
) -> Coefficients | None:
    """Read the coefficients of linear models on tables; None for other models.

    groups: int64 [N], the group of each client; groups without members are left out.
    of_sites: where cells were empty; None: unknown.
    """
    schema = trained.roster.schema
    weights = linear_weights(trained)
    if schema is None or weights is None or groups is None:
        return None
    if weights.shape[1] != len(schema.columns):
        return None
    known = [group for group in np.unique(groups[groups >= 0]).tolist() if group < len(weights)]
    names, values = named_values(weights[known], schema)
    if not known or not names or not np.isfinite(values).all():
        return None
    members = [
        [trained.roster.training_names[i] for i in np.flatnonzero(groups == group)]
        for group in known
    ]
    filled = filled_columns(schema, members, of_sites)
    values = np.where(positions_of(filled, schema, values.shape), np.nan, values)
    order = order_by_difference(values)
    higher = f"a higher {schema.label}"
    if schema.classes is not None:
        higher = f"{schema.label} = {schema.classes[1]}"
    return Coefficients(
        label=schema.label,
        higher=higher,
        columns=[names[i] for i in order],
        groups=known,
        values=values[order],
        is_class=schema.classes is not None,
        filled=[(name, known[place]) for name, place in filled],
    )


def filled_columns(
    schema: Schema, members: list[list[str]], of_sites: SiteColumns | None
) -> list[tuple[str, int]]:
    """List (column, position of a group) where nearly all of the group's cells were filled."""
    if of_sites is None:
        return []
    return [
        (column.name, place)
        for column in schema.features
        for place, sites in enumerate(members)
        if of_sites.is_nearly_empty(column.name, sites)
    ]


def positions_of(
    filled: list[tuple[str, int]], schema: Schema, shape: tuple[int, ...]
) -> np.ndarray:
    """Tell which of the values [names, groups] belong to filled columns, bool."""
    result = np.zeros(shape, dtype=bool)
    start = 0
    for column in schema.features:
        names = shown_names(column)
        for name, place in filled:
            if name == column.name:
                result[start : start + len(names), place] = True
        start += len(names)
    return result


def order_by_difference(values: np.ndarray) -> np.ndarray:
    """Sort columns by how much they differ between groups, then by size; the largest first.

    values: [columns, groups], NaN where a value is left out.
    """
    known = ~np.isnan(values)
    highest = np.where(known, values, -np.inf).max(1)
    lowest = np.where(known, values, np.inf).min(1)
    difference = np.where(known.any(1), highest - lowest, -1)
    size = np.where(known, np.abs(values), 0).max(1)
    return np.argsort(-(difference + 1e-9 * size), kind="stable")


def shown_names(column: Column) -> list[str]:
    """The names of a column's coefficients, without the place for any other text."""
    if column.kind == "category":
        return column.encoded[:-1]
    return column.encoded


def linear_weights(trained: TrainedRun) -> np.ndarray | None:
    """Return the weights of linear models, [K, columns], in the label's unit; else None."""
    centres = trained.centres
    is_linear = trained.model_name.partition(":")[0] in ("linear", "softmax")
    if centres is None or not is_linear:
        return None
    matrices = [leaf for leaf in centres.values() if leaf.dim() == 3]  # [K, outputs, columns]
    if len(matrices) != 1:
        return None
    weights: np.ndarray = matrices[0].detach().cpu().double().numpy()
    if weights.shape[1] == 2:
        return weights[:, 1] - weights[:, 0]
    if weights.shape[1] != 1:
        return None  # of many classes, there are too many numbers to read
    unit = 1.0
    if trained.task.scale is not None:
        unit = trained.task.scale.deviation
    return unit * weights[:, 0]


def named_values(weights: np.ndarray, schema: Schema) -> tuple[list[str], np.ndarray]:
    """Return (names, values [names, K]) of the weights [K, columns]."""
    names: list[str] = []
    values = []
    start = 0
    for column in schema.features:
        encoded = column.encoded
        block = weights[:, start : start + len(encoded)]
        start += len(encoded)
        if column.kind == "category":
            block = block[:, :-1] - block[:, :-1].mean(1, keepdims=True)
        names += shown_names(column)
        values.append(block)
    return names, np.concatenate(values, 1).T


# ------------------------------------------------------------------------------ as text
def describe_coefficients(result: Coefficients) -> str:
    """Say how to read the coefficients."""
    unit = f"in units of {result.label}"
    if result.is_class:
        unit = "in log-odds"
    sentence = (
        f"How much the prediction of each group's model changes, {unit}, when a column rises by "
        "one standard deviation; of a category, relative to the mean over its column. Right of 0 "
        f"it speaks for {result.higher}. The columns that differ most between groups come first."
    )
    if not result.filled:
        return sentence
    listed = join_names([f"{name} in group {group}" for name, group in result.filled])
    return f"{sentence} Left out, as nearly all of their cells were filled: {listed}."


def describe_coefficient_dots(result: Coefficients) -> str:
    """Say in words what the figure of coefficients shows."""
    return (
        f"Coefficients of {min(MOST_DRAWN, len(result.columns))} columns in the models of "
        f"{len(result.groups)} groups; the numbers stand in the table below."
    )


def coefficients_table(result: Coefficients) -> TextTable:
    """Lay out one row per column."""
    rows = []
    for column, values in zip(result.columns, result.values):
        rows.append([column, *map(format_signed, values)])
    return TextTable(["column", *(f"group {group}" for group in result.groups)], rows)


def format_signed(value: float) -> str:
    """Write a coefficient with its sign; NaN is one that was left out."""
    if np.isnan(value):
        return "filled"
    text = format_number(float(value))
    if value > 0 and text != "0.00":
        return f"+{text}"
    return text
