"""Figures about methods: scores over rounds and bytes, chosen numbers of groups, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.reporting.convergence import Convergence, Curve
from coterie.reporting.drawing import (
    ACCENT,
    METHOD_COLOURS,
    Area,
    Axis,
    Box,
    Dot,
    Figure,
    LegendEntry,
    Mark,
    NamedMarks,
    Polyline,
    Styles,
    column_axis,
    format_percent,
    label_ticks,
    linear_ticks,
    map_height,
    metric_axis,
    number_axis,
    round_axis,
    row_axis,
)
from coterie.reporting.notes import GroupCount, Transitions
from coterie.reporting.text import format_bytes, format_score

FEW_POINTS = 4  # evaluations below which a line has points, too


# ------------------------------------------------------------------------------ methods
def curves(convergence: Convergence, over: str, styles: Styles) -> Figure:
    """Draw the metric over "rounds" or "bytes": a line per method in a band of its seeds' range."""
    marks: list[Mark] = []
    values: list[float] = []
    farthest = 0.0
    for curve in convergence.curves:
        x = curve.rounds
        if over == "bytes":
            x = curve.bytes
        farthest = max(farthest, *x)
        values += [*curve.low, *curve.high]
        marks.append(
            NamedMarks(curve.label, line_in_band(curve, x, convergence, styles), curve.label)
        )
    x_axis = round_axis(farthest)
    if over == "bytes":
        ticks = label_ticks(linear_ticks(0.0, farthest), format_round_bytes)
        x_axis = Axis(0.0, farthest, ticks, "sent down and up")
    legend = []
    for curve in convergence.curves:
        colour, dash = styles[curve.label]
        legend.append(LegendEntry(curve.label, colour, dash, is_line=True))
    return Figure(x_axis, metric_axis(convergence.metric, values), marks, 300, legend)


def format_round_bytes(size: float) -> str:
    """Write a number of bytes without decimals that say nothing, as in 200 kB."""
    return format_bytes(size).replace(".0 ", " ")


def line_in_band(
    curve: Curve, x: np.ndarray, convergence: Convergence, styles: Styles
) -> list[Polyline | Area | Dot | Box]:
    """Return the mean of a method over its seeds, and their range where there are several."""
    colour, dash = styles[curve.label]
    title = curve.label
    if curve.label in convergence.final:
        end = format_score(convergence.final[curve.label], convergence.metric)
        title = f"{curve.label}: at the end {end}"
    has_points = len(x) < FEW_POINTS
    line = Polyline(x.tolist(), curve.mean.tolist(), colour, title, dash, has_points)
    if curve.seeds == 1:
        return [line]
    return [Area(x.tolist(), curve.low.tolist(), curve.high.tolist(), colour, title), line]


# ------------------------------------------------------------------------------ notes
def group_count(result: GroupCount) -> Figure:
    """Draw the criterion for each number of groups, and the one that was chosen."""
    numbers = list(range(1, len(result.criterion) + 1))
    marks: list[Mark] = [Polyline(numbers, result.criterion, ACCENT, "criterion", has_points=True)]
    legend = []
    if result.chosen is not None and 1 <= result.chosen <= len(numbers):
        name = f"chosen: {result.chosen}"
        chosen = result.criterion[result.chosen - 1]
        marks.append(Dot(result.chosen, chosen, METHOD_COLOURS[1], name, radius=7))
        legend.append(LegendEntry(name, METHOD_COLOURS[1]))
    x_axis = number_axis(numbers, "number of groups", whole=True)
    return Figure(x_axis, number_axis(result.criterion, "criterion"), marks, 200, legend)


def transitions(result: Transitions) -> Figure:
    """Draw where the members of each group came from."""
    groups = range(len(result.shares))
    to = [f"to {group}" for group in groups]
    return shares_map(result.shares, [f"from {group}" for group in groups], to)


def shares_map(
    shares: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str]
) -> Figure:
    """Draw shares from 0 to 1 as a map, the stronger the larger, with each share as text."""
    marks: list[Mark] = []
    for i, row in enumerate(shares):
        for j, share in enumerate(row):
            if np.isfinite(share):
                text = format_percent(round(share, 2))
                title = f"{rows[i]}, {columns[j]}: {text}"
                marks.append(cell(i, j, share, title, text))
    y_axis = row_axis(rows)
    height = max(2 * map_height(len(rows)), 80)
    return Figure(column_axis(columns), y_axis, marks, height)


def cell(
    row: int, column: int, share: float, title: str, text: str = "", half: float = 0.46
) -> Box:
    """Return a cell of a map whose strength is a share from 0 to 1. half: of its height."""
    strength = 0.06 + 0.6 * share  # so that text on it can be read
    return Box(column - 0.48, column + 0.48, row - half, row + half, ACCENT, title, strength, text)


# ------------------------------------------------------------------------------ predictions
class CalibrationPoint(NamedTuple):
    """Test rows for which a method predicted about the same probability."""

    predicted: float  # the mean of the predicted probabilities
    observed: float  # the share of these rows for which it came true
    rows: int


def draw_calibration(points: Sequence[CalibrationPoint]) -> Figure:
    """Draw what came true against what was predicted; on the diagonal, both agree."""
    axis = Axis(0.0, 1.0, label_ticks(linear_ticks(0.0, 1.0), format_percent))
    x_axis = Axis(0.0, 1.0, axis.ticks, "predicted")
    y_axis = Axis(0.0, 1.0, axis.ticks, "came true")
    marks: list[Mark] = [Polyline([0, 1], [0, 1], "#8A8A8A", "predicted as it comes true", "4 4")]
    predicted = [point.predicted for point in points]
    observed = [point.observed for point in points]
    marks.append(Polyline(predicted, observed, ACCENT, ""))
    for point in points:
        title = (
            f"predicted {format_percent(point.predicted)}, came true "
            f"{format_percent(point.observed)}: {point.rows:,} rows"
        )
        marks.append(Dot(point.predicted, point.observed, ACCENT, title))
    return Figure(x_axis, y_axis, marks, 300)


def draw_confusion(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> Figure:
    """Draw how often each true class (row) was taken for each class (column)."""
    marks: list[Mark] = []
    for i, row in enumerate(matrix):
        total = max(1, sum(row))
        for j, count in enumerate(row):
            title = f"{labels[i]}, taken for {labels[j]}: {count:,} of {total:,}"
            marks.append(cell(i, j, count / total, title, f"{count:,}"))
    y_axis = row_axis(labels)
    height = max(2 * map_height(len(labels)), 80)
    x_axis = column_axis(labels, "predicted")
    return Figure(x_axis, y_axis, marks, height)
