"""A figure as plain data: axes, marks and a legend. svg.py draws it.

Colours are "#rrggbb", the same on a light and on a dark page, or the name of a class in style.css
where the two differ: "s0" to "s5" are the shades of a scale, "faint" is what is not known.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.reporting.ticks import Tick, label_ticks, linear_ticks, log_ticks

# Methods: after Okabe and Ito, which colour-blind readers can tell apart. Groups: another scale, so
# that no group is taken for a method. Each has a contrast of at least 3 to white and to black.
METHOD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C48700", "#3D94C9", "#8A8A8A")
GROUP_COLOURS = ("#8461C7", "#0F8F96", "#C94A6E", "#8C7A12", "#5B7FA6", "#A3653A", "#5C9440")
DASHES = ("", "7 4", "2 3", "8 3 2 3", "12 4")
UNSEEN = "faint"
SHADES = ("s0", "s1", "s2", "s3", "s4", "s5")  # the strongest first
ACCENT = "#0072B2"  # of a figure that is about no method and no group
MOST_LABELS = 80  # rows of a map above which their names are shown on hover only
MOST_LETTERS = 18  # of a name on an axis
MOST_IN_LEGEND = 12  # groups that a legend names


# ------------------------------------------------------------------------------ colours
class MethodStyle(NamedTuple):
    """How a method is drawn, everywhere on a page."""

    colour: str
    dash: str


Styles = Mapping[str, MethodStyle]  # by method


def method_styles(labels: Iterable[str]) -> dict[str, MethodStyle]:
    """Give each method a colour and a dash; no two of 35 look alike."""
    styles = {}
    for i, label in enumerate(labels):
        colour = METHOD_COLOURS[i % len(METHOD_COLOURS)]
        dash = DASHES[i // len(METHOD_COLOURS) % len(DASHES)]
        styles[label] = MethodStyle(colour, dash)
    return styles


def group_colour(group: int) -> str:
    """Return the colour of a group; one that was not seen is faint."""
    if group < 0:
        return UNSEEN
    if group < len(GROUP_COLOURS):
        return GROUP_COLOURS[group]
    hue = group * 0.618034 % 1  # steps by the golden section never meet
    parts = colorsys.hls_to_rgb(hue, 0.48, 0.4)
    return "#" + "".join(f"{round(255 * part):02X}" for part in parts)


def group_title(number: int, word: str = "group") -> str:
    """Name a group in a legend."""
    if number < 0:
        return "not seen"
    return f"{word} {number}"


# ------------------------------------------------------------------------------ marks
class Line(NamedTuple):
    """A line through points; a point that is not finite breaks it."""

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    title: str
    dash: str = ""
    has_points: bool = False


class Area(NamedTuple):
    """The area between two lines."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: str
    title: str
    opacity: float = 0.18


class Dot(NamedTuple):
    """A point."""

    x: float
    y: float
    colour: str
    title: str = ""
    radius: float = 4.5


class Box(NamedTuple):
    """A rectangle: a bar, or a cell of a map, which may have a text."""

    left: float
    right: float
    low: float
    high: float
    colour: str
    title: str = ""
    opacity: float = 1.0
    text: str = ""


class Named(NamedTuple):
    """Marks with one title for all of them, so that a large map stays small."""

    title: str
    marks: Sequence[Line | Area | Dot | Box]
    series: str = ""  # the entry of the legend that hides them


Mark = Line | Area | Dot | Box | Named


class Entry(NamedTuple):
    """A line of the legend."""

    name: str
    colour: str
    dash: str = ""
    is_line: bool = False  # a click hides its series
    is_round: bool = False  # its mark is a point


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


@dataclass(frozen=True)
class Figure:
    """Marks between two axes."""

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    height: int  # of the plotted area, in pixels
    legend: Sequence[Entry] = ()
    margin: int = 58  # left of the plotted area, in pixels


# ------------------------------------------------------------------------------ axes
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
        return 640
    return max(40, 15 * rows)


def map_margin(axis: Axis) -> int:
    """Return the room that the names of an axis need, in pixels."""
    longest = max((len(text) for _, text in axis.ticks), default=4)
    return 22 + 7 * longest
