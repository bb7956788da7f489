"""The figures of a page, as plain plotly figures: {"data": [...], "layout": {...}}. Colours of text and grid are the
page's, which has a light and a dark side.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.page.portrait import Portrait, Projection
from coterie.page.source import Source

Figure = dict[str, Any]

# Okabe and Ito's colours, which colour-blind readers can tell apart, without black and yellow: all show on white and
# on black
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
DASHES = ("solid", "dash", "dot", "dashdot")
UNSEEN = "#D9D9D9"
LABELS = 40  # rows of a map above which their names are shown on hover only
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
            data.append({**line, **style, "showlegend": False, "hoverinfo": "skip", "legendgroup": name})
        style = {"color": colour, "dash": DASHES[i // len(COLOURS) % len(DASHES)], "width": 2.2}
        data.append({"x": x.tolist(), "y": short(y.mean(0)), "name": name, "line": style, "legendgroup": name})
        data[-1] |= {"mode": "lines+markers" if len(x) < 4 else "lines", "type": "scatter"}
    x_axis: Figure = {"title": {"text": "round"}}
    if against == "bytes":
        x_axis = {"title": {"text": "bytes sent, down and up"}, "exponentformat": "SI", "ticksuffix": "B"}
    layout = {
        "xaxis": x_axis,
        "yaxis": {"title": {"text": TITLES[metric]}, "type": "log" if metric == "mse" else "linear"},
        "hovermode": "closest",
    }  # fmt: skip
    return {"data": data, "layout": {**layout, "height": 380 + 18 * (len(methods) // 3)}}


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
    style: Figure = {"colorscale": stepped([UNSEEN] * -least + colours(k)), "zmin": least - 0.5, "zmax": k - 0.5}
    style |= {"colorbar": bar("group", range(least, k))} if k <= 12 else {"showscale": False}
    hover = "%{y}<br>round %{x}: group %{z}<extra></extra>"
    heat = {"type": "heatmap", "z": z.tolist(), "x": at.tolist(), "y": safe(names, shown), "hovertemplate": hover}
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
    layout = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": "clients"}}, "hovermode": "x"}
    return {"data": data, "layout": {**layout, "showlegend": k <= 12, "height": 320}}


def churn(history: Sequence[dict[str, Any]]) -> Figure:
    rows = [row for row in history if "churn" in row]
    bars = {"type": "bar", "x": [row["round"] for row in rows], "y": [row["churn"] for row in rows]}
    layout = {
        "xaxis": {"title": {"text": "round"}},
        "yaxis": {"title": {"text": "clients that moved"}, "tickformat": ".2~%", "rangemode": "tozero"},
    }
    return {"data": [{**bars, "marker": {"color": COLOURS[0]}}], "layout": {**layout, "height": 240}}


def by_group(
    scores: Mapping[str, np.ndarray], groups: np.ndarray, shown: np.ndarray, names: Sequence[str], metric: str
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
    y = {"title": {"text": TITLES[metric]}, "type": "log" if metric == "mse" else "linear"}
    layout = {"boxmode": "group", "yaxis": y, "xaxis": {"type": "category"}, "showlegend": len(data) > 1}
    return {"data": data, "layout": {**layout, "height": 380}}


def client_map(z: np.ndarray, shown: np.ndarray, names: Sequence[str], what: str) -> Figure:
    """[shown, K] numbers: a row per client, a column per centre."""
    top = float(np.nanquantile(z, 0.98)) if np.isfinite(z).any() else 1.0
    heat = {
        "type": "heatmap", "z": [short(row) for row in z], "y": safe(names, shown),
        "x": [f"centre {k}" for k in range(z.shape[1])], "colorscale": "Viridis", "zmax": top,
        "zmin": float(np.nanmin(z)) if np.isfinite(z).any() else 0.0, "colorbar": bar(what),
        "hovertemplate": f"%{{y}}<br>%{{x}}: {what} %{{z}}<extra></extra>",
    }  # fmt: skip
    layout = {"xaxis": {"type": "category"}, "yaxis": clients(shown, names), "height": tall(len(shown))}
    return {"data": [heat], "layout": layout}


def scatter(found: Projection, portrait: Portrait, groups: np.ndarray, names: Sequence[str], word: str) -> Figure:
    mine, data = groups[portrait.shown], []
    shades = dict(enumerate(colours(int(groups.max()) + 1)))
    for g in np.unique(mine).tolist():
        at = mine == g
        x, y = found.points[at].T
        points: Figure = {"type": "scatter", "mode": "markers", "x": short(x), "y": short(y)}
        points |= {"text": safe(names, portrait.shown[at]), "marker": {"size": 8, "color": shades.get(g, UNSEEN)}}
        points["hovertemplate"] = "%{text}<extra>%{fullData.name}</extra>"
        data.append({**points, "name": f"{word} {g}" if g >= 0 else "not seen"})
    axis = lambda which: {"title": {"text": f"{which} direction"}, "zeroline": False}
    layout = {"xaxis": axis("first"), "yaxis": axis("second"), "showlegend": len(data) <= 12, "height": 380}
    return {"data": data, "layout": layout}


# ---------------------------------------------------------------------------------------------- notes
def curve_over_k(curve: Sequence[float], chosen: int | None) -> Figure:
    x = list(range(1, len(curve) + 1))
    line = {"type": "scatter", "mode": "lines+markers", "x": x, "y": short(curve), "name": "curve"}
    data: list[Figure] = [{**line, "line": {"color": COLOURS[0]}, "showlegend": False}]
    if chosen is not None and 1 <= chosen <= len(curve):
        mark = {"type": "scatter", "mode": "markers", "x": [chosen], "y": short([curve[chosen - 1]])}
        style = {"size": 13, "color": COLOURS[1], "symbol": "diamond"}
        data.append({**mark, "marker": style, "name": f"chosen: {chosen}", "showlegend": True})
    layout = {"xaxis": {"title": {"text": "number of groups"}, "dtick": 1}, "yaxis": {"title": {"text": "criterion"}}}
    return {"data": data, "layout": {**layout, "height": 280}}


def transitions(q: Sequence[Sequence[float]]) -> Figure:
    k = len(q)
    heat = {
        "type": "heatmap", "z": [short(row) for row in q], "x": [f"to {j}" for j in range(k)],
        "y": [f"from {j}" for j in range(k)], "colorscale": "Viridis", "zmin": 0, "zmax": 1, "colorbar": bar("share"),
        "hovertemplate": "%{y} %{x}: %{z}<extra></extra>",
    }  # fmt: skip
    layout = {"xaxis": {"type": "category"}, "yaxis": {"type": "category", "autorange": "reversed"}, "height": 320}
    return {"data": [heat], "layout": layout}


# ---------------------------------------------------------------------------------------------- parts
def short(values: Any) -> list[float | None]:
    """Four digits are enough to draw with; what is not finite is left out."""
    return [float(f"{v:.4g}") if v is not None and np.isfinite(v) else None for v in values]


def plain(text: str) -> str:
    """Text as plotly takes it, which reads < and & as markup."""
    return html.escape(text, quote=False)


def safe(names: Sequence[str], clients: np.ndarray) -> list[str]:
    return [plain(names[i]) for i in clients]


def colours(k: int) -> list[str]:
    """k colours that can be told apart: a fixed set, and beyond it steps of a sequential scale."""
    if k <= len(COLOURS):
        return list(COLOURS[:k])
    from plotly.colors import sample_colorscale

    found: list[str] = sample_colorscale("Viridis", k)
    return found


def stepped(shades: Sequence[str]) -> list[list[Any]]:
    """A colour scale of equal steps."""
    n = len(shades)
    return [[edge / n, shade] for i, shade in enumerate(shades) for edge in (i, i + 1)]


def bar(title: str, ticks: Sequence[int] | None = None) -> Figure:
    """A colour bar above the figure, where it takes no width from a phone."""
    style: Figure = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "thickness": 10, "len": 0.7, "x": 0.5}
    style |= {"title": {"text": title, "side": "top"}, "outlinewidth": 0}
    if ticks is not None:
        style |= {"tickvals": list(ticks), "ticktext": [str(t) if t >= 0 else "not seen" for t in ticks]}
    return style


def clients(shown: np.ndarray, names: Sequence[str]) -> Figure:
    """The axis of a map whose rows are clients."""
    axis: Figure = {"type": "category", "autorange": "reversed", "showgrid": False}
    if len(shown) > LABELS:
        return {**axis, "showticklabels": False, "title": {"text": f"{len(shown)} clients"}}
    brief = [name if len(name) <= 16 else f"{name[:15]}…" for name in (names[i] for i in shown)]
    return {
        **axis,
        "tickvals": safe(names, shown),
        "ticktext": [plain(name) for name in brief],
        "tickfont": {"size": 10},
    }


def tall(rows: int) -> int:
    return int(min(640, 170 + 15 * rows))
