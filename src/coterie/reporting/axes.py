"""The axes of figures: of numbers, logs, rounds and names, and the size of maps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.reporting.ticks import Tick, label_ticks, linear_ticks, log_ticks

MOST_LABELS = 80  # rows of a map above which their names are shown on hover only
MOST_LETTERS = 18  # of a name on an axis


@dataclass(frozen=True)
class Axis:
    """An axis from `low`, left or below, to `high`; where rows are listed downwards, low > high."""

    low: float
    high: float
    ticks: Sequence[Tick] = ()
    title: str = ""
    is_log: bool = False
    has_grid: bool = True

    def place(self, value: float) -> float:
        """Return where a value stands, from 0 at `low` to 1 at `high`."""
        if self.is_log:
            value = math.log10(max(value, self.low))
            low = math.log10(self.low)
            high = math.log10(self.high)
        else:
            low = self.low
            high = self.high
        if high == low:
            return 0.5
        return (value - low) / (high - low)


def extent(values: Iterable[float]) -> tuple[float, float]:
    """Return the least and the largest finite value; (0, 1) where there are none."""
    numbers = np.asarray(list(values), dtype=float)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return 0.0, 1.0
    low = float(numbers.min())
    high = float(numbers.max())
    if low == high:
        pad = abs(low) * 0.1 or 0.5
        return low - pad, high + pad
    return low, high


def number_axis(
    values: Iterable[float], title: str, *, from_zero: bool = False, whole: bool = False
) -> Axis:
    """Return an axis that holds all values with a little room at both ends."""
    low, high = extent(values)
    room = 0.04 * (high - low)
    if from_zero:
        low = min(low, 0.0)
        high = high + room
    else:
        low = low - room
        high = high + room
    return Axis(low, high, label_ticks(linear_ticks(low, high, whole)), title)


def log_axis(values: Iterable[float], title: str) -> Axis:
    """Return a log axis with ticks at 1, 2 and 5; values up to 0 are left out."""
    low, high = extent(value for value in values if value > 0)
    low = max(low, high * 1e-12)  # an error of 1e-30 is an exact fit, which no axis can show
    return Axis(low / 1.05, high * 1.05, label_ticks(log_ticks(low, high)), title, is_log=True)


def metric_axis(metric: str, values: Iterable[float]) -> Axis:
    """Return the axis of a metric; errors are on a log scale."""
    values = list(values)
    if metric == "mse" and any(value > 0 for value in values):
        return log_axis(values, "test MSE")
    return number_axis(values, f"test {metric}")


def round_axis(last: float, title: str = "round") -> Axis:
    """Return the axis of rounds, from 0 on."""
    last = max(float(last), 1.0)
    return Axis(0.0, last, label_ticks(linear_ticks(0.0, last, whole=True)), title)


def row_axis(names: Sequence[str]) -> Axis:
    """Return the axis of a map whose rows are listed downwards; of very many, without names."""
    ticks: list[Tick] = []
    title = f"{len(names)} clients"
    if len(names) <= MOST_LABELS:
        ticks = [(float(i), shorten(name)) for i, name in enumerate(names)]
        title = ""
    return Axis(len(names) - 0.5, -0.5, ticks, title, has_grid=False)


def column_axis(names: Sequence[str], title: str = "") -> Axis:
    """Return an axis of categories from left to right."""
    ticks = [(float(i), name) for i, name in enumerate(names)]
    return Axis(-0.5, len(names) - 0.5, ticks, title, has_grid=False)


def shorten(name: str) -> str:
    """Cut a long name, so that it fits on an axis."""
    if len(name) <= MOST_LETTERS:
        return name
    return f"{name[: MOST_LETTERS - 1]}…"


def map_height(rows: int) -> int:
    """Return the height in pixels of a map with this number of rows."""
    if rows > MOST_LABELS:
        return max(640, 2 * rows)
    return max(40, 15 * rows)


def half_row(rows: int) -> float:
    """Return half the height of a row of a map, where 1 is the distance between rows.

    Rows without names touch each other, as gaps between very many would be all that one sees.
    """
    if rows > MOST_LABELS:
        return 0.5
    return 0.46
