"""Coefficients of the groups' linear models, by column.

A coefficient is the change of the prediction when a column increases by one standard deviation: in
the unit of the label, or in log-odds of the second of two classes. The categories of a column add
up to one, so their coefficients are shown relative to their mean. Two kinds are left out: that of
the catch-all category, which hardly any row was trained on, and those of a column at whose group
nearly all cells were filled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from coterie.core.errors import CoterieError
from coterie.core.params import Params, unstack
from coterie.data.site_columns import SiteColumns
from coterie.reporting.text import TextTable, format_number, join_names
from coterie.runs.trained import TrainedRun
from coterie.serve.effects import Effect, column_effects

MOST_DRAWN = 12  # columns in the figure, those that differ most between groups


class Coefficients(NamedTuple):
    """The coefficients of the groups' models."""

    label: str
    higher: str  # what a positive coefficient makes higher or more likely
    columns: list[str]  # those that differ most between groups first
    groups: list[int]
    values: np.ndarray  # [columns, groups]; NaN: nearly all cells were filled
    is_class: bool  # the label is a class: values are log-odds
    filled: list[tuple[str, int]]  # (table column, group) of the values left out


def collect_coefficients(
    trained: TrainedRun, groups: np.ndarray | None, site_columns: SiteColumns | None = None
) -> Coefficients | None:
    """Collect the coefficients of linear models on tables.

    Args:
        trained: The models.
        groups: int64 [N], the group of each client; groups without members are left out.
        site_columns: Where cells were empty; None: unknown.

    Returns:
        The coefficients; None for other models and data.
    """
    schema = trained.roster.schema
    weights = linear_weights(trained)
    if schema is None or weights is None or groups is None:
        return None
    if weights.shape[1] != len(schema.columns):
        return None
    known = [group for group in np.unique(groups[groups >= 0]).tolist() if group < len(weights)]
    if not known or not schema.features:
        return None
    names: list[str] = []
    blocks = []  # by table column: [groups, coefficients]
    filled = []
    start = 0
    for column in schema.features:
        shown = column.encoded
        block = weights[known, start : start + len(shown)]
        start += len(shown)
        if column.kind == "category":
            shown = shown[:-1]  # without the catch-all category
            block = block[:, :-1] - block[:, :-1].mean(1, keepdims=True)
        if not np.isfinite(block).all():
            return None  # diverged
        for place, group in enumerate(known):
            sites = [trained.roster.training_names[i] for i in np.flatnonzero(groups == group)]
            if site_columns is not None and site_columns.is_nearly_empty(column.name, sites):
                filled.append((column.name, group))
                block[place] = np.nan
        names += shown
        blocks.append(block)
    if not names:
        return None
    values = np.concatenate(blocks, 1).T
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
        filled=filled,
    )


def order_by_difference(values: np.ndarray) -> np.ndarray:
    """Sort columns by their range over groups, then by size, largest first.

    Args:
        values: [columns, groups], NaN: left out.
    """
    known = ~np.isnan(values)
    highest = np.where(known, values, -np.inf).max(1)
    lowest = np.where(known, values, np.inf).min(1)
    difference = np.where(known.any(1), highest - lowest, -1)
    size = np.where(known, np.abs(values), 0).max(1)
    return np.argsort(-(difference + 1e-9 * size), kind="stable")


def linear_weights(trained: TrainedRun) -> np.ndarray | None:
    """Return the weights of linear group models, [K, columns], in the label's unit; else None.

    Those of additive models are mean slopes, from one deviation below the mean to one above.
    """
    centres = trained.centres
    model = trained.model_name.partition(":")[0]
    if centres is not None and model == "additive" and len(trained.task.row_shape) == 1:
        return mean_slopes(trained, centres)
    if centres is None or model not in ("linear", "softmax"):
        return None
    matrices = [leaf for leaf in centres.values() if leaf.dim() == 3]  # [K, outputs, columns]
    if len(matrices) != 1:
        return None
    weights: np.ndarray = matrices[0].detach().cpu().double().numpy()
    if weights.shape[1] == 2:
        return weights[:, 1] - weights[:, 0]
    if weights.shape[1] != 1:
        return None  # many classes have too many numbers to read
    unit = 1.0 if trained.task.scale is None else trained.task.scale.deviation
    return unit * weights[:, 0]


def mean_slopes(trained: TrainedRun, centres: Params) -> np.ndarray | None:
    """Return half the change of each group's prediction from −1 to 1 in each column."""
    task = trained.task
    rows = torch.eye(task.row_shape[0], dtype=task.dtype)
    slopes = []
    for model in unstack(centres):
        change = (task.outputs(model, rows) - task.outputs(model, -rows)) / 2
        if change.dim() == 2 and change.shape[1] != 2:
            return None
        slopes.append(change[:, 1] - change[:, 0] if change.dim() == 2 else change)
    return torch.stack(slopes).double().numpy()


# ------------------------------------------------------------------------------ curves
MOST_CURVES = 8  # columns whose effects are drawn


class EffectCurves(NamedTuple):
    """The effects of columns on the predictions of one method's models."""

    method: str
    label: str
    higher: str  # what a positive effect makes higher or more likely
    is_class: bool  # the label is a class: effects are log odds
    columns: list[list[Effect]]  # by column, the effect in each group; the strongest first
    left_out: int  # columns with weaker effects

    @property
    def has_bands(self) -> bool:
        """Whether any effect has a 95 % band."""
        return any(effect.low is not None for effects in self.columns for effect in effects)


def collect_effects(trained: TrainedRun, label: str = "") -> EffectCurves | None:
    """Collect the effects of columns; None for data without columns and methods without models.

    Args:
        trained: The models.
        label: The method with settings; "": the method's name.
    """
    schema = trained.roster.schema
    if schema is None or trained.centres is None or len(schema.classes or "12") != 2:
        return None
    try:
        effects = column_effects(trained)
    except CoterieError:  # other models than those of tables
        return None
    by_column: dict[str, list[Effect]] = {}
    for effect in effects:
        if np.isfinite(effect.mean).all() and len(effect.x) > 1:
            by_column.setdefault(effect.column, []).append(effect)

    def strength(column: str) -> float:
        return max(float(np.ptp(effect.mean)) for effect in by_column[column])

    strongest = sorted(by_column, key=strength, reverse=True)
    if not strongest or strength(strongest[0]) == 0:
        return None
    higher = f"a higher {schema.label}"
    if schema.classes is not None:
        higher = f"{schema.label} = {schema.classes[1]}"
    return EffectCurves(
        method=label or trained.method.name,
        label=schema.label,
        higher=higher,
        is_class=schema.classes is not None,
        columns=[by_column[column] for column in strongest[:MOST_CURVES]],
        left_out=len(strongest[MOST_CURVES:]),
    )


def describe_effects(result: EffectCurves) -> str:
    """Explain the curves."""
    unit = "in log odds" if result.is_class else f"in units of {result.label}"
    sentences = [
        f"How the predictions of {result.method} change with each column, {unit}, all other "
        f"columns at their means. Upwards: {result.higher}. The strongest effects come first."
    ]
    if result.has_bands:
        sentences.append("The band is a 95 % interval of the effect.")
    if result.left_out:
        sentences.append(f"{result.left_out} columns with weaker effects are left out.")
    return " ".join(sentences)


# ------------------------------------------------------------------------------ as text
def describe_coefficients(result: Coefficients) -> str:
    """Explain the coefficients."""
    unit = "in log-odds" if result.is_class else f"in units of {result.label}"
    sentence = (
        f"The change of each group's prediction, {unit}, when a column increases by one standard "
        "deviation; for categories, relative to the mean over the column. Positive values favour "
        f"{result.higher}. The columns that differ most between groups come first."
    )
    if not result.filled:
        return sentence
    listed = join_names([f"{name} in group {group}" for name, group in result.filled])
    return f"{sentence} Left out because nearly all of their cells were filled: {listed}."


def coefficients_table(result: Coefficients) -> TextTable:
    """Return one row per column."""
    rows = []
    for column, values in zip(result.columns, result.values):
        rows.append([column, *map(format_coefficient, values)])
    return TextTable(["column", *(f"group {group}" for group in result.groups)], rows)


def format_coefficient(value: float) -> str:
    """Format a coefficient with its sign; NaN means that it was left out."""
    if np.isnan(value):
        return "filled"
    text = format_number(float(value))
    if value > 0 and text != "0.00":
        return f"+{text}"
    return text
