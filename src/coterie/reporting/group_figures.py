"""Figures about the groups and clients of one method, as plain plotly figures."""

from __future__ import annotations

import numpy as np

from coterie.reporting.drawing import (
    COLOURS,
    MOST_IN_LEGEND,
    UNSEEN,
    Figure,
    axis,
    client_axis,
    colour_bar,
    colours,
    escape,
    escape_all,
    figure,
    group_bar,
    group_title,
    heat_map,
    map_height,
    metric_axis,
    round_numbers,
    stepped_scale,
)
from coterie.reporting.fit import ClientMap, ClientPositions, GroupScores
from coterie.reporting.moves import Moves

MOST_ROUNDS = 200  # columns of a map; of more rounds, an even sample is drawn


# ------------------------------------------------------------------------------ groups over rounds
def history_map(moves: Moves) -> Figure:
    """Draw everyone's group as a map of colours: a row per client, a column per round."""
    rounds = len(moves.groups)
    columns = np.linspace(0, rounds - 1, min(rounds, MOST_ROUNDS)).round().astype(int)
    z = moves.groups[np.unique(columns)][:, moves.shown].T
    shades = colours(moves.group_count)
    least = 0
    if z.min() < 0:  # somebody was not seen yet
        least = -1
        shades = [UNSEEN, *shades]
    names = [moves.names[i] for i in moves.shown]
    trace = heat_map(
        z.tolist(),
        x=[moves.rounds[i] for i in np.unique(columns)],
        y=escape_all(names),
        hovertemplate="%{y}<br>round %{x}: group %{z}<extra></extra>",
        colorscale=stepped_scale(shades),
        zmin=least - 0.5,
        zmax=moves.group_count - 0.5,
    )
    if moves.group_count <= MOST_IN_LEGEND:
        trace["colorbar"] = group_bar(range(least, moves.group_count))
    else:
        trace["showscale"] = False
    return figure(
        [trace],
        height=map_height(len(names)),
        xaxis=axis("round (0: the start)"),
        yaxis=client_axis(names),
    )


def group_sizes(moves: Moves) -> Figure:
    """Draw the size of each group as areas on top of each other."""
    data = []
    for group, colour in enumerate(colours(moves.group_count)):
        sizes = [sum(counts[group : group + 1]) for _, counts in moves.sizes]  # 0 if not yet there
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "stackgroup": "all",
                "name": group_title(group),
                "x": [round for round, _ in moves.sizes],
                "y": sizes,
                "line": {"width": 0.5, "color": colour},
                "fillcolor": colour,
            }
        )
    return figure(
        data,
        height=320,
        xaxis=axis("round"),
        yaxis=axis("clients"),
        hovermode="x",
        showlegend=moves.group_count <= MOST_IN_LEGEND,
    )


def churn(moves: Moves) -> Figure:
    """Draw the share of clients that moved in each round."""
    bars = {
        "type": "bar",
        "x": [round for round, _ in moves.churn],
        "y": [share for _, share in moves.churn],
        "marker": {"color": COLOURS[0]},
    }
    y_axis = axis("clients that moved", tickformat=".2~%", rangemode="tozero")
    return figure([bars], height=240, xaxis=axis("round"), yaxis=y_axis)


# ------------------------------------------------------------------------------ clients
def scores_by_group(result: GroupScores) -> Figure:
    """Draw a box per group and method over the clients' own scores, with a point per client."""
    data = []
    for i, (label, scores) in enumerate(result.scores.items()):
        data.append(
            {
                "type": "box",
                "name": escape(label),
                "x": [group_title(group) for group in result.groups],
                "y": round_numbers(scores),
                "text": escape_all(result.names),
                "boxpoints": "all",
                "jitter": 0.5,
                "pointpos": 0,
                "marker": {"size": 4, "color": COLOURS[i % len(COLOURS)], "opacity": 0.7},
                "line": {"width": 1.2},
                "fillcolor": "rgba(0,0,0,0)",
                "hovertemplate": "%{text}<br>%{y}<extra>%{fullData.name}</extra>",
            }
        )
    return figure(
        data,
        height=380,
        boxmode="group",
        yaxis=metric_axis(result.metric),
        xaxis={"type": "category"},
        showlegend=len(data) > 1,
    )


def client_group_map(result: ClientMap) -> Figure:
    """Draw a number for each client and group: a row per client, a column per group."""
    trace = heat_map(
        [round_numbers(row) for row in result.values],
        x=[group_title(group) for group in range(result.values.shape[1])],
        y=escape_all(result.names),
        colorscale="Viridis",
        zmin=float(np.nanmin(result.values)),
        zmax=float(np.nanquantile(result.values, 0.98)),
        colorbar=colour_bar(result.what),
        hovertemplate=f"%{{y}}<br>%{{x}}: {result.what} %{{z}}<extra></extra>",
    )
    return figure(
        [trace],
        height=map_height(len(result.names)),
        xaxis={"type": "category"},
        yaxis=client_axis(result.names),
    )


def client_positions(result: ClientPositions) -> Figure:
    """Draw clients as points, coloured by group."""
    shades = colours(result.group_count)
    data = []
    for group in np.unique(result.groups).tolist():
        members = np.flatnonzero(result.groups == group)
        x, y = result.points[members].T
        colour = UNSEEN
        if group >= 0:
            colour = shades[group]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": round_numbers(x),
                "y": round_numbers(y),
                "text": escape_all(result.names[i] for i in members),
                "marker": {"size": 8, "color": colour},
                "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
                "name": group_title(group, result.word),
            }
        )
    return figure(
        data,
        height=380,
        xaxis=axis("first direction", zeroline=False),
        yaxis=axis("second direction", zeroline=False),
        showlegend=len(data) <= MOST_IN_LEGEND,
    )
