"""A figure as plain data: axes, marks and a legend. svg.py draws it.

Colours are "#rrggbb", the same on a light and on a dark page, or the name of a class in style.css
where the two differ: "s0" to "s5" are the shades of a scale, "faint" is what is not known.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coterie.reporting.axes import Axis

# Methods: after Okabe and Ito, which colour-blind readers can tell apart. Groups: another scale, so
# that no group is taken for a method. Each has a contrast of at least 3 to white and to black.
METHOD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C48700", "#3D94C9", "#8A8A8A")
GROUP_COLOURS = ("#8461C7", "#0F8F96", "#C94A6E", "#8C7A12", "#5B7FA6", "#A3653A", "#5C9440")
DASHES = ("", "7 4", "2 3", "8 3 2 3", "12 4")
UNSEEN = "faint"
SHADES = ("s0", "s1", "s2", "s3", "s4", "s5")  # the strongest first
ACCENT = "#0072B2"  # of a figure that is about no method and no group
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
class Figure:
    """Marks between two axes."""

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    height: int  # of the plotted area, in pixels
    legend: Sequence[Entry] = ()
