"""What the figures of a page share: colours, axes, short numbers and escaped names."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Figure = dict[str, Any]  # {"data": [...], "layout": {...}}, as plotly takes it

# After Okabe and Ito, which colour-blind readers can tell apart; the light ones are darkened, so
# that each has a contrast of at least 3 to the page's white and to its black
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#C48700", "#3D94C9", "#8A8A8A")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
UNSEEN = "#D9D9D9"
MOST_LABELS = 40  # rows of a map above which their names are shown on hover only
MOST_LETTERS = 16  # of a name on an axis
MOST_IN_LEGEND = 12  # groups that a legend or a colour bar names


# ------------------------------------------------------------------------------ values
def round_numbers(values: Iterable[float | None]) -> list[float | None]:
    """Round to four digits, which are enough to draw with; None for what is not finite."""
    numbers: list[float | None] = []
    for value in values:
        if value is None or not np.isfinite(value):
            numbers.append(None)
        else:
            numbers.append(float(f"{value:.4g}"))
    return numbers


def escape(text: str) -> str:
    """Escape text for plotly, which reads < and & as markup."""
    return html.escape(text, quote=False)


def escape_all(names: Iterable[str]) -> list[str]:
    """Escape names for plotly."""
    return [escape(name) for name in names]


def group_title(number: int, word: str = "group") -> str:
    """Name a group in a legend."""
    if number < 0:
        return "not seen"
    return f"{word} {number}"


# ------------------------------------------------------------------------------ colours
def colours(k: int) -> list[str]:
    """Return k colours that can be told apart: a fixed set, or steps of a sequential scale."""
    if k <= len(COLOURS):
        return list(COLOURS[:k])
    from plotly.colors import sample_colorscale

    steps: list[str] = sample_colorscale("Viridis", k)
    return steps


def stepped_scale(shades: Sequence[str]) -> list[list[Any]]:
    """Return a colour scale of equal steps."""
    n = len(shades)
    return [[edge / n, shade] for i, shade in enumerate(shades) for edge in (i, i + 1)]


def colour_bar(title: str) -> Figure:
    """Return a colour bar above the figure, where it takes no width from a phone."""
    return {
        "orientation": "h",
        "y": 1.0,
        "yanchor": "bottom",
        "thickness": 10,
        "len": 0.7,
        "x": 0.5,
        "ypad": 4,
        "title": {"text": title, "side": "top"},
        "outlinewidth": 0,
    }


def group_bar(numbers: Sequence[int]) -> Figure:
    """Return a colour bar that names groups."""
    names = []
    for number in numbers:
        name = str(number)
        if number < 0:
            name = "not seen"
        names.append(name)
    return {**colour_bar("group"), "tickvals": list(numbers), "ticktext": names}


# ------------------------------------------------------------------------------ axes
def axis(title: str, **more: Any) -> Figure:
    """Return an axis with a title."""
    return {"title": {"text": title}, **more}


def metric_axis(metric: str) -> Figure:
    """Return the axis of a metric; errors are on a log scale, with ticks at 1, 2 and 5."""
    if metric == "mse":
        return axis("test MSE", type="log", dtick="D2")
    return axis(f"test {metric}")


def client_axis(names: Sequence[str]) -> Figure:
    """Return the axis of a map whose rows are clients."""
    rows = {"type": "category", "autorange": "reversed", "showgrid": False}
    if len(names) > MOST_LABELS:
        return axis(f"{len(names)} clients", **rows, showticklabels=False)
    return {
        **rows,
        "tickvals": escape_all(names),
        "ticktext": [escape(shorten(name)) for name in names],
        "tickfont": {"size": 10},
    }


def shorten(name: str) -> str:
    """Cut a long name, so that it fits on an axis."""
    if len(name) <= MOST_LETTERS:
        return name
    return f"{name[: MOST_LETTERS - 1]}…"


def map_height(rows: int) -> int:
    """Return the height in pixels of a map with this number of rows."""
    return int(min(640, 170 + 15 * rows))


def figure(data: list[Figure], height: int, **layout: Any) -> Figure:
    """Put traces and layout together."""
    return {"data": data, "layout": {**layout, "height": height}}


def heat_map(z: Sequence[Sequence[Any]], x: list[Any], y: list[str], **style: Any) -> Figure:
    """Return a trace of coloured cells, z[row][column]."""
    return {"type": "heatmap", "z": z, "x": x, "y": y, **style}
