"""Figures of runs: accuracy against rounds, and who was in which group. They need no display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.errors import CoterieError
from coterie.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
INK, FAINT = "#333333", "#DDDDDD"


def curves(
    results: Mapping[str, Sequence[Result]],
    title: str = "",
    starts: Mapping[str, float] | None = None,
) -> Figure:
    """Test accuracy (or MSE) against rounds, one labelled line per method: the mean over its runs, and their range.

    starts: by name, how many rounds' worth of local training a method does before its first round.
    """
    from matplotlib.ticker import MaxNLocator

    figure = _figure()
    axes = figure.add_subplot()
    metric = (
        "mse"
        if any("mse" in row for runs in results.values() for row in runs[0].history)
        else "accuracy"
    )
    ends: list[tuple[float, str, str]] = []
    last = 0.0
    for colour, (name, runs) in zip(_colours(len(results)), results.items()):
        rows = [[row for row in run.history if metric in row] for run in runs]
        rows = [found[: min(map(len, rows))] for found in rows]  # as long as all of them went on
        x = np.array([row["round"] for row in rows[0]]) + (starts or {}).get(name, 0)
        y = np.array([[row[metric] for row in found] for found in rows])
        axes.plot(x, y.mean(0), color=colour, linewidth=2.2, solid_capstyle="round", zorder=3)
        axes.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, linewidth=0)
        ends.append(
            (float(y.mean(0)[-1]), f"{name}  {_told(float(y.mean(0)[-1]), metric)}", colour)
        )
        last = max(last, x[-1])
    if metric == "mse":
        axes.set_yscale("log")
    axes.set_xlim(0, last)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(which="both", length=0, colors=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rounds of local training", color=INK)
    axes.set_title(
        title or f"test {metric.replace('mse', 'MSE')}", loc="left", color=INK, fontsize=11, pad=12
    )
    _label_ends(axes, ends)
    return figure


def groups(result: Result, title: str = "") -> Figure:
    """Each client's group after every round; a strip on the left shows the true groups, by which clients are sorted.

    A found group takes the colour of the true group it agrees with most; grey: not seen yet.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    found = result.clusters
    if found is None:
        raise CoterieError(
            f"{result.method.name} has no groups to draw: choose a clustered method."
        )
    truth = result.trained.roster.truth
    true = found[-1] if truth is None else _hard(truth.numpy())[: found.shape[1]]
    order = np.lexsort((found[-1], true))
    matched = _matched(found, true)[:, order].T
    colours = ["#EEEEEE", *_colours(int(max(matched.max(), true.max())) + 1)]
    style = {
        "cmap": ListedColormap(colours),
        "vmin": -1,
        "vmax": len(colours) - 2,
        "aspect": "auto",
    }
    figure = _figure()
    strip, axes = figure.subplots(1, 2, width_ratios=(1.4, 28), gridspec_kw={"wspace": 0.03})
    rounds, clients = found.shape
    strip.imshow(true[order][:, None], extent=(0, 1, clients, 0), interpolation="nearest", **style)
    axes.imshow(matched, extent=(-0.5, rounds - 0.5, clients, 0), interpolation="nearest", **style)
    edges = np.flatnonzero(np.diff(true[order])) + 1
    for part, name in ((strip, "true"), (axes, "found")):
        part.set_title(name if truth is not None else "", loc="left", color=INK, fontsize=9)
        if clients <= 80:  # a row for each client can be seen
            part.hlines(np.arange(1, clients), *part.get_xlim(), color="white", linewidth=0.6)
        part.hlines(edges, *part.get_xlim(), color="white", linewidth=4)
        part.spines[:].set_visible(False)
        part.tick_params(length=0, colors=INK)
    middles = [(a + b) / 2 for a, b in zip([0, *edges], [*edges, clients])]
    strip.set(xticks=[], yticks=middles, yticklabels=[f"group {g + 1}" for g in np.unique(true)])
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(
        "round (0: the start)" + ("; grey: not yet asked" if (found < 0).any() else ""), color=INK
    )
    title = title or f"{result.method.name}: the group of each client"
    figure.suptitle(title, x=0.02, ha="left", color=INK, fontsize=11)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the same figure gives the same bytes."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "coterie"}):
        figure.savefig(
            path, dpi=150, metadata={"Date": None} if str(path).endswith(".svg") else None
        )
    return Path(path)


# ---------------------------------------------------------------------------------------------- parts
def _figure() -> Figure:
    """A figure of its own: no global state, no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(7.2, 4.2), layout="constrained", facecolor="white")


def _colours(n: int) -> list[str]:
    """n colours that can be told apart: a fixed set, and beyond it steps of a sequential map."""
    if n <= len(COLOURS):
        return list(COLOURS[:n])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](i / (n - 1))) for i in range(n)]


def _label_ends(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """A name at the end of each line, moved apart where lines end close together."""
    axes.get_ylim()  # settles the limits, on which heights depend
    heights = [
        axes.transAxes.inverted().transform(axes.transData.transform((0, y)))[1] for y, _, _ in ends
    ]
    lowest, gap = -1.0, 0.06
    for height, (_, text, colour) in sorted(zip(heights, ends)):
        lowest = max(height, lowest + gap)
        axes.text(
            1.015,
            lowest,
            text,
            color=colour,
            transform=axes.transAxes,
            va="center",
            fontweight="bold",
        )


def _told(value: float, metric: str) -> str:
    return f"{value:.3g}" if metric == "mse" else f"{value:.3f}"


def _hard(truth: np.ndarray) -> np.ndarray:
    return truth.argmax(1) if truth.ndim == 2 else truth


def _matched(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Found groups renumbered so that, in the last round, they agree best with the true ones; −1 stays."""
    from scipy.optimize import linear_sum_assignment

    k = int(max(found.max(), true.max())) + 1
    overlap = np.zeros((k, k))
    seen = found[-1] >= 0
    np.add.at(overlap, (found[-1][seen], true[seen]), 1)
    name: np.ndarray = np.append(linear_sum_assignment(-overlap)[1], -1)  # the last entry serves −1
    renamed: np.ndarray = name[found]
    return renamed
