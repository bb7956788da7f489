"""The figures of a page, as plain plotly figures. Colours of text and grid are the page's, which has a light and a dark
side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.reporting.drawing import (
    COLOURS,
    DASHES,
    UNSEEN,
    Figure,
    bar,
    clients,
    colours,
    plain,
    safe,
    short,
    stepped,
    tall,
)
from coterie.reporting.portrait import Portrait, Projection
from coterie.reporting.source import Source

ROUNDS = 200  # columns of a map; of more rounds, an even sample is drawn
TITLES = {"accuracy": "test accuracy", "mse": "test MSE"}


# ---------------------------------------------------------------------------------------------- methods
def curves(methods: Mapping[str, Sequence[Source]], metric: str, against: str) -> Figure:
    """The metric against "rounds" or "bytes": a line per method, the mean over its seeds, in a band of their range."""
    data: list[Figure] = []
    for i, (label, runs) in enumerate(methods.items()):
        rows = [[row for row in run.history if row.get(metric) is not None] for run in runs]
        rows = [found[: min(map(len, rows))] for found in rows]  # as far as all seeds went
        y = np.array([[row[metric] for row in found] for found in rows])
        x = np.array([steps(run, found, against) for run, found in zip(runs, rows)]).mean(0)
        colour, name = COLOURS[i % len(COLOURS)], plain(label)
        if len(runs) > 1:
            line = {"x": [*x, *x[::-1]], "y": short([*y.max(0), *y.min(0)[::-1]]), "fill": "toself"}
            style = {"line": {"width": 0}, "fillcolor": colour, "opacity": 0.18, "mode": "lines"}
            data.append(
                {**line, **style, "showlegend": False, "hoverinfo": "skip", "legendgroup": name}
            )
        style = {"color": colour, "dash": DASHES[i // 4 % len(DASHES)], "width": 2.2}
        data.append(
            {
                "x": x.tolist(),
                "y": short(y.mean(0)),
                "name": name,
                "line": style,
                "legendgroup": name,
            }
        )
        data[-1] |= {"mode": "lines+markers" if len(x) < 4 else "lines", "type": "scatter"}
    last = max(row["round"] for runs in methods.values() for run in runs for row in run.history)
    x_axis: Figure = {"title": {"text": "round"}, **({"dtick": 1} if last <= 10 else {})}
    if against == "bytes":
        x_axis = {
            "title": {"text": "bytes sent, down and up"},
            "exponentformat": "SI",
            "ticksuffix": "B",
        }
    layout = {
        "xaxis": x_axis,
        "yaxis": scale(metric),
        "hovermode": "closest",
    }  # fmt: skip
    return {"data": data, "layout": {**layout, "height": 380 + 18 * (len(methods) // 3)}}


def scale(metric: str) -> Figure:
    """The axis of a metric; errors are on a log scale, with ticks at 1, 2 and 5."""
    return {
        "title": {"text": TITLES[metric]},
        **({"type": "log", "dtick": "D2"} if metric == "mse" else {}),
    }


def steps(run: Source, rows: Sequence[dict[str, Any]], against: str) -> list[float]:
    """Where the evaluated rows lie on the axis."""
    if against == "rounds":
        return [row["round"] for row in rows]
    spent = dict(zip((row["round"] for row in run.history), traffic(run)))
    return [spent[row["round"]] for row in rows]


def traffic(run: Source) -> list[float]:
    """Bytes sent up to and with each round."""
    return np.cumsum([row["bytes_down"] + row["bytes_up"] for row in run.history]).tolist()


# ---------------------------------------------------------------------------------------------- groups
def history_map(found: np.ndarray, shown: np.ndarray, names: Sequence[str], k: int) -> Figure:
    """found [rounds + 1, N] as a map of colours: a row per client, a column per round."""
    at = np.unique(np.linspace(0, len(found) - 1, min(len(found), ROUNDS)).round().astype(int))
    z = found[at][:, shown].T
    least = min(int(z.min()), 0)  # −1: not seen yet
    style: Figure = {
        "colorscale": stepped([UNSEEN] * -least + colours(k)),
        "zmin": least - 0.5,
        "zmax": k - 0.5,
    }
    style |= {"colorbar": bar("group", range(least, k))} if k <= 12 else {"showscale": False}
    hover = "%{y}<br>round %{x}: group %{z}<extra></extra>"
    heat = {
        "type": "heatmap",
        "z": z.tolist(),
        "x": at.tolist(),
        "y": safe(names, shown),
        "hovertemplate": hover,
    }
    layout = {"xaxis": {"title": {"text": "round (0: the start)"}}, "yaxis": clients(shown, names)}
    return {"data": [heat | style], "layout": {**layout, "height": tall(len(shown))}}


def sizes(history: Sequence[dict[str, Any]], k: int) -> Figure:
    rows = [row for row in history if "sizes" in row]
    x = [row["round"] for row in rows]
    data = [
        {
            "type": "scatter", "mode": "lines", "stackgroup": "all", "name": f"group {g}", "x": x,
            "y": [row["sizes"][g] if g < len(row["sizes"]) else 0 for row in rows],
            "line": {"width": 0.5, "color": colour}, "fillcolor": colour,
        }
        for g, colour in enumerate(colours(k))
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"title": {"text": "clients"}},
        "hovermode": "x",
    }
    return {"data": data, "layout": {**layout, "showlegend": k <= 12, "height": 320}}


def churn(history: Sequence[dict[str, Any]]) -> Figure:
    rows = [row for row in history if "churn" in row]
    bars = {"type": "bar", "x": [row["round"] for row in rows], "y": [row["churn"] for row in rows]}
    layout = {
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {
            "title": {"text": "clients that moved"},
            "tickformat": ".2~%",
            "rangemode": "tozero",
        },
    }
    return {
        "data": [{**bars, "marker": {"color": COLOURS[0]}}],
        "layout": {**layout, "height": 240},
    }


def by_group(
    scores: Mapping[str, np.ndarray],
    groups: np.ndarray,
    shown: np.ndarray,
    names: Sequence[str],
    metric: str,
) -> Figure:
    """A box per group and method over the clients' own scores, with every client as a point."""
    data = [
        {
            "type": "box", "name": plain(label), "x": [f"group {g}" if g >= 0 else "not seen" for g in groups[shown]],
            "y": short(values[shown]), "text": safe(names, shown), "boxpoints": "all", "jitter": 0.5, "pointpos": 0,
            "marker": {"size": 4, "color": COLOURS[i % len(COLOURS)], "opacity": 0.7}, "line": {"width": 1.2},
            "fillcolor": "rgba(0,0,0,0)", "hovertemplate": "%{text}<br>%{y}<extra>%{fullData.name}</extra>",
        }
        for i, (label, values) in enumerate(scores.items())
    ]  # fmt: skip
    layout = {
        "boxmode": "group",
        "yaxis": scale(metric),
        "xaxis": {"type": "category"},
        "showlegend": len(data) > 1,
    }
    return {"data": data, "layout": {**layout, "height": 380}}


def client_map(z: np.ndarray, shown: np.ndarray, names: Sequence[str], what: str) -> Figure:
    """[shown, K] numbers: a row per client, a column per group."""
    top = float(np.nanquantile(z, 0.98)) if np.isfinite(z).any() else 1.0
    heat = {
        "type": "heatmap", "z": [short(row) for row in z], "y": safe(names, shown),
        "x": [f"group {k}" for k in range(z.shape[1])], "colorscale": "Viridis", "zmax": top,
        "zmin": float(np.nanmin(z)) if np.isfinite(z).any() else 0.0, "colorbar": bar(what),
        "hovertemplate": f"%{{y}}<br>%{{x}}: {what} %{{z}}<extra></extra>",
    }  # fmt: skip
    layout = {
        "xaxis": {"type": "category"},
        "yaxis": clients(shown, names),
        "height": tall(len(shown)),
    }
    return {"data": [heat], "layout": layout}


def scatter(
    found: Projection, portrait: Portrait, groups: np.ndarray, names: Sequence[str], word: str
) -> Figure:
    mine, data = groups[portrait.shown], []
    shades = dict(enumerate(colours(int(groups.max()) + 1)))
    for g in np.unique(mine).tolist():
        at = mine == g
        x, y = found.points[at].T
        points: Figure = {"type": "scatter", "mode": "markers", "x": short(x), "y": short(y)}
        points |= {
            "text": safe(names, portrait.shown[at]),
            "marker": {"size": 8, "color": shades.get(g, UNSEEN)},
        }
        points["hovertemplate"] = "%{text}<extra>%{fullData.name}</extra>"
        data.append({**points, "name": f"{word} {g}" if g >= 0 else "not seen"})
    axis = lambda which: {"title": {"text": f"{which} direction"}, "zeroline": False}
    layout = {
        "xaxis": axis("first"),
        "yaxis": axis("second"),
        "showlegend": len(data) <= 12,
        "height": 380,
    }
    return {"data": data, "layout": layout}


# ---------------------------------------------------------------------------------------------- notes
def curve_over_k(curve: Sequence[float], chosen: int | None) -> Figure:
    x = list(range(1, len(curve) + 1))
    line = {"type": "scatter", "mode": "lines+markers", "x": x, "y": short(curve), "name": "curve"}
    data: list[Figure] = [{**line, "line": {"color": COLOURS[0]}, "showlegend": False}]
    if chosen is not None and 1 <= chosen <= len(curve):
        mark = {
            "type": "scatter",
            "mode": "markers",
            "x": [chosen],
            "y": short([curve[chosen - 1]]),
        }
        style = {"size": 13, "color": COLOURS[1], "symbol": "diamond"}
        data.append({**mark, "marker": style, "name": f"chosen: {chosen}", "showlegend": True})
    layout = {
        "xaxis": {"title": {"text": "number of groups"}, "dtick": 1},
        "yaxis": {"title": {"text": "criterion"}},
    }
    return {"data": data, "layout": {**layout, "height": 280}}


def transitions(q: Sequence[Sequence[float]]) -> Figure:
    k = len(q)
    heat = {
        "type": "heatmap", "z": [short(row) for row in q], "x": [f"to {j}" for j in range(k)],
        "y": [f"from {j}" for j in range(k)], "colorscale": "Viridis", "zmin": 0, "zmax": 1, "colorbar": bar("share"),
        "hovertemplate": "%{y} %{x}: %{z}<extra></extra>",
    }  # fmt: skip
    layout = {
        "xaxis": {"type": "category"},
        "yaxis": {"type": "category", "autorange": "reversed"},
        "height": 320,
    }
    return {"data": [heat], "layout": layout}
