"""Figures about methods, as plain plotly figures.

The colours of text and grid are those of the page, which has a light and a dark side: script.js.
"""

from __future__ import annotations

import numpy as np

from coterie.reporting.convergence import Convergence, Curve
from coterie.reporting.drawing import (
    COLOURS,
    DASHES,
    Figure,
    axis,
    colour_bar,
    escape,
    figure,
    heat_map,
    metric_axis,
    round_numbers,
)
from coterie.reporting.notes import GroupCount, Transitions


# ------------------------------------------------------------------------------ methods
def curves(convergence: Convergence, over: str) -> Figure:
    """Draw the metric over "rounds" or "bytes": a line per method in a band of its seeds' range."""
    data: list[Figure] = []
    for i, curve in enumerate(convergence.curves):
        colour = COLOURS[i % len(COLOURS)]
        dash = DASHES[i // 4 % len(DASHES)]
        x = curve.rounds
        if over == "bytes":
            x = curve.bytes
        if curve.seeds > 1:
            data.append(band(curve, x, colour))
        data.append(line(curve, x, colour, dash))
    x_axis = axis("round")
    if over == "bytes":
        x_axis = axis("bytes sent, down and up", exponentformat="SI", ticksuffix="B")
    elif convergence.last_round <= 10:
        x_axis = axis("round", dtick=1)
    return figure(
        data,
        height=380 + 18 * (len(convergence.curves) // 3),
        xaxis=x_axis,
        yaxis=metric_axis(convergence.metric),
        hovermode="closest",
    )


def line(curve: Curve, x: np.ndarray, colour: str, dash: str) -> Figure:
    """Return the mean of a method over its seeds; few points have markers, too."""
    mode = "lines"
    if len(x) < 4:
        mode = "lines+markers"
    return {
        "x": x.tolist(),
        "y": round_numbers(curve.mean),
        "name": escape(curve.label),
        "line": {"color": colour, "dash": dash, "width": 2.2},
        "legendgroup": escape(curve.label),
        "mode": mode,
        "type": "scatter",
    }


def band(curve: Curve, x: np.ndarray, colour: str) -> Figure:
    """Return the range of a method over its seeds, as an area that is hidden with its line."""
    return {
        "x": [*x, *x[::-1]],
        "y": round_numbers([*curve.high, *curve.low[::-1]]),
        "fill": "toself",
        "line": {"width": 0},
        "fillcolor": colour,
        "opacity": 0.18,
        "mode": "lines",
        "showlegend": False,
        "hoverinfo": "skip",
        "legendgroup": escape(curve.label),
    }


# ------------------------------------------------------------------------------ notes
def group_count(result: GroupCount) -> Figure:
    """Draw the criterion for each number of groups, and the one that was chosen."""
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": list(range(1, len(result.criterion) + 1)),
            "y": round_numbers(result.criterion),
            "name": "curve",
            "line": {"color": COLOURS[0]},
            "showlegend": False,
        }
    ]
    if result.chosen is not None and 1 <= result.chosen <= len(result.criterion):
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [result.chosen],
                "y": round_numbers([result.criterion[result.chosen - 1]]),
                "marker": {"size": 13, "color": COLOURS[1], "symbol": "diamond"},
                "name": f"chosen: {result.chosen}",
                "showlegend": True,
            }
        )
    return figure(
        data, height=280, xaxis=axis("number of groups", dtick=1), yaxis=axis("criterion")
    )


def transitions(result: Transitions) -> Figure:
    """Draw where the members of each group came from."""
    groups = range(len(result.shares))
    trace = heat_map(
        [round_numbers(row) for row in result.shares],
        x=[f"to {group}" for group in groups],
        y=[f"from {group}" for group in groups],
        colorscale="Viridis",
        zmin=0,
        zmax=1,
        colorbar=colour_bar("share"),
        hovertemplate="%{y} %{x}: %{z}<extra></extra>",
    )
    y_axis = {"type": "category", "autorange": "reversed"}
    return figure([trace], height=320, xaxis={"type": "category"}, yaxis=y_axis)
