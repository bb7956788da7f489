"""Figures as plain data: axes, marks and a legend. `svg.py` draws them.

Colours are "#rrggbb" if they are the same on a light and a dark page, otherwise the name of a class
in style.css: "s0" to "s5" are the shades of a sequential scale, "faint" means unknown,
"own" marks a client's own group.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.metrics import METRICS

# Method colours follow Okabe and Ito and are safe for colour-blind readers. Groups use a different
# palette, so that no group looks like a method. Each has a contrast >= 3 to white and to black.
METHOD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C48700", "#3D94C9", "#8A8A8A")
GROUP_COLOURS = (
    "#8461C7", "#0F8F96", "#C94A6E", "#8C7A12", "#5B7FA6", "#A3653A",
    "#5C9440", "#D16BB5", "#3B5BDB", "#E07A1F", "#6B7280", "#00A36C",
)  # fmt: skip
DASHES = ("", "7 4", "2 3", "8 3 2 3", "12 4")
UNKNOWN = "faint"
SHADES = ("s0", "s1", "s2", "s3", "s4", "s5")  # from strong to weak
ACCENT = "#0072B2"  # for figures without methods or groups
MOST_IN_LEGEND = 12  # groups
MOST_TICKS = 6  # fit on a phone
MOST_LABELS = 80  # maps with more rows show names on hover only
MOST_LETTERS = 18  # of a name on an axis

Tick = tuple[float, str]  # (value, text)


# ------------------------------------------------------------------------------ ticks
def linear_ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Return up to MOST_TICKS round values in an interval.

    Args:
        low: Lower end.
        high: Upper end.
        whole: Return integers only.
    """
    width = high - low
    if not width > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(width / MOST_TICKS))
    step = next(s * power for s in (1, 2, 5, 10) if width / (s * power) <= MOST_TICKS)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten in an interval above 0.

    If these are too many, only powers of ten; if fewer than three, linear ticks.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5)]
    ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    if len(ticks) < 3:
        return linear_ticks(low, high)
    if len(ticks) > 2 * MOST_TICKS:
        every = math.ceil(len(powers) / MOST_TICKS)
        kept = [10.0**p for p in powers if p % every == 0]
        ticks = [tick for tick in kept if low <= tick <= high]
    return ticks


def format_tick(value: float) -> str:
    """Format a number as short as possible: 0.5, 2,000 or 1e+06."""
    size = abs(value)
    if size >= 1e5 or 0 < size < 1e-4:
        text = f"{value:.3g}"
    elif size >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:,.6g}"
    return text.replace("-", "−")


def format_percent(value: float) -> str:
    """Format a fraction as a percentage."""
    return f"{100 * value:.3g} %"


def label_ticks(values: list[float], write: Callable[[float], str] = format_tick) -> list[Tick]:
    """Return (value, text) for each tick."""
    return [(value, write(value)) for value in values]


# ------------------------------------------------------------------------------ axes
@dataclass(frozen=True)
class Axis:
    """An axis from `low` (left or bottom) to `high`; low > high if rows are listed downwards."""

    low: float
    high: float
    ticks: Sequence[Tick] = ()
    title: str = ""
    is_log: bool = False
    has_grid: bool = True

    def place(self, value: float) -> float:
        """Return the relative position of a value: 0 at `low`, 1 at `high`."""
        low = self.low
        high = self.high
        if self.is_log:
            value = math.log10(max(value, low))
            low = math.log10(low)
            high = math.log10(high)
        if high == low:
            return 0.5
        return (value - low) / (high - low)


def extent(values: Iterable[float]) -> tuple[float, float]:
    """Return the minimum and maximum of the finite values; (0, 1) if there are none."""
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
    """Return a linear axis that contains all values, with a margin of 4 %.

    Args:
        values: Numbers to show; others than finite ones are ignored.
        title: Title of the axis.
        from_zero: Start at 0 unless a value is below.
        whole: Place ticks at integers only.
    """
    low, high = extent(values)
    margin = 0.04 * (high - low)
    high = high + margin
    low = min(low, 0.0) if from_zero else low - margin
    return Axis(low, high, label_ticks(linear_ticks(low, high, whole)), title)


def log_axis(values: Iterable[float], title: str) -> Axis:
    """Return a logarithmic axis; values that are not positive are ignored."""
    low, high = extent(value for value in values if value > 0)
    low = max(low, high * 1e-12)  # an exact fit (1e-30) would compress everything else
    return Axis(low / 1.05, high * 1.05, label_ticks(log_ticks(low, high)), title, is_log=True)


def metric_axis(metric: str, values: Iterable[float]) -> Axis:
    """Return the axis of a metric; errors have a log scale."""
    values = list(values)
    title = f"test {METRICS[metric].label}"
    if not METRICS[metric].higher_is_better and any(value > 0 for value in values):
        return log_axis(values, title)
    return number_axis(values, title)


def round_axis(last: float, title: str = "round") -> Axis:
    """Return the axis of rounds, from 0."""
    last = max(float(last), 1.0)
    return Axis(0.0, last, label_ticks(linear_ticks(0.0, last, whole=True)), title)


def row_axis(names: Sequence[str]) -> Axis:
    """Return the vertical axis of a map with one row per name, listed downwards.

    Maps with more than MOST_LABELS rows have no names.
    """
    if len(names) > MOST_LABELS:
        return Axis(len(names) - 0.5, -0.5, [], f"{len(names)} clients", has_grid=False)
    ticks = []
    for i, name in enumerate(names):
        short = name
        if len(name) > MOST_LETTERS:
            short = f"{name[: MOST_LETTERS - 1]}…"
        ticks.append((float(i), short))
    return Axis(len(names) - 0.5, -0.5, ticks, has_grid=False)


def column_axis(names: Sequence[str], title: str = "") -> Axis:
    """Return a horizontal axis of categories."""
    ticks = [(float(i), name) for i, name in enumerate(names)]
    return Axis(-0.5, len(names) - 0.5, ticks, title, has_grid=False)


def map_height(rows: int) -> int:
    """Return the height in pixels of a map with this number of rows."""
    if rows > MOST_LABELS:
        return max(640, 2 * rows)
    return max(40, 15 * rows)


def half_row(rows: int) -> float:
    """Return half the height of a row of a map, as a fraction of the distance between rows.

    Thin rows touch each other, since the gaps between them would dominate.
    """
    return 0.5 if rows > MOST_LABELS else 0.46


# ------------------------------------------------------------------------------ colours
class MethodStyle(NamedTuple):
    """The line style of a method, the same in every figure of a page."""

    colour: str
    dash: str


Styles = Mapping[str, MethodStyle]  # by method


def method_styles(labels: Iterable[str]) -> dict[str, MethodStyle]:
    """Assign a colour and a dash pattern to each method; 35 combinations are distinct."""
    styles = {}
    for i, label in enumerate(labels):
        colour = METHOD_COLOURS[i % len(METHOD_COLOURS)]
        dash = DASHES[i // len(METHOD_COLOURS) % len(DASHES)]
        styles[label] = MethodStyle(colour, dash)
    return styles


def group_colour(group: int) -> str:
    """Return the colour of a group; UNKNOWN for −1."""
    if group < 0:
        return UNKNOWN
    if group < len(GROUP_COLOURS):
        return GROUP_COLOURS[group]
    hue = group * 0.618034 % 1  # multiples of the golden ratio never coincide
    parts = colorsys.hls_to_rgb(hue, 0.48, 0.4)
    return "#" + "".join(f"{round(255 * part):02X}" for part in parts)


def group_title(number: int, word: str = "group") -> str:
    """Return the name of a group in a legend; "not seen" for −1."""
    if number < 0:
        return "not seen"
    return f"{word} {number}"


# ------------------------------------------------------------------------------ marks
class Polyline(NamedTuple):
    """A line through points, interrupted at points that are not finite."""

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
    """A rectangle: a bar, or a cell of a map with an optional text."""

    left: float
    right: float
    low: float
    high: float
    colour: str
    title: str = ""
    opacity: float = 1.0
    text: str = ""


Shape = Polyline | Area | Dot | Box


class NamedMarks(NamedTuple):
    """Marks that share one tooltip, which keeps the markup of large maps small."""

    title: str
    marks: Sequence[Shape]
    series: str = ""  # the legend entry that hides them


Mark = Shape | NamedMarks


class LegendEntry(NamedTuple):
    """An entry of a legend."""

    name: str
    colour: str
    dash: str = ""
    is_line: bool = False  # a click hides its series
    is_round: bool = False  # drawn as a point


@dataclass(frozen=True)
class Figure:
    """Marks between two axes."""

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    height: int  # of the plot area, in pixels
    legend: Sequence[LegendEntry] = ()
