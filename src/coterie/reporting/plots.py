"""Matplotlib figures of runs: test scores over rounds, and cluster assignments over rounds.

They need no display. The HTML report does not use them: it draws its figures as SVG (`figures.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.metrics import METRICS
from coterie.metrics.scores import find_main_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, safe for colour-blind readers
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
INK = "#333333"
FAINT = "#DDDDDD"
UNKNOWN = "#EEEEEE"  # clients without a group
GAP = 0.06  # minimum distance between two labels, as a fraction of the axes' height

History = Sequence[Mapping[str, Any]]  # one row of metrics per round


# ------------------------------------------------------------------------------ curves
def plot_curves(
    histories: Mapping[str, Sequence[History]],
    title: str = "",
    starts: Mapping[str, float] | None = None,
) -> Figure:
    """Plot the test accuracy (or MSE) over rounds: mean and range over the runs of each method.

    Args:
        histories: By method, the history of each run. Curves end where the shortest run ends.
        title: Title of the figure.
        starts: By method, the local training before the first round, in rounds.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure()
    axes = figure.add_subplot()
    first_runs = (find_main_metric(runs[0]) for runs in histories.values())
    metric = METRICS[next(filter(None, first_runs), "accuracy")]
    ends: list[LineEnd] = []
    for colour, (name, runs) in zip(colours_for(len(histories)), histories.items()):
        rows = [[row for row in run if metric.name in row] for run in runs]
        shortest = min(map(len, rows))
        rounds = np.array([row["round"] for row in rows[0][:shortest]]) + (starts or {}).get(
            name, 0
        )
        values = np.array([[row[metric.name] for row in run[:shortest]] for run in rows])
        mean = values.mean(0)
        axes.plot(rounds, mean, color=colour, linewidth=2.2, solid_capstyle="round", zorder=3)
        axes.fill_between(
            rounds, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0
        )
        number = metric.format_value(mean[-1])
        ends.append(LineEnd(float(mean[-1]), f"{name}  {number}", colour, x=float(rounds[-1])))
    if not metric.higher_is_better:
        axes.set_yscale("log")
    axes.set_xlim(0, max(end.x for end in ends))
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(which="both", length=0, colors=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rounds of local training", color=INK)
    title = title or f"test {metric.label}"
    axes.set_title(title, loc="left", color=INK, fontsize=11, pad=12)
    label_ends(axes, ends)
    return figure


class LineEnd(NamedTuple):
    """The right end of a line and its label."""

    y: float
    text: str
    colour: str
    dashes: str = "-"
    x: float = 0.0


def label_ends(axes: Axes, ends: list[LineEnd]) -> None:
    """Write a label at the end of each line, without overlaps.

    A short segment connects each line with its label.
    """
    axes.get_ylim()  # fixes the limits, which the positions depend on
    to_axes = axes.transAxes.inverted()
    heights = [to_axes.transform(axes.transData.transform((end.x, end.y)))[1] for end in ends]
    in_order = sorted(zip(heights, ends))
    for height, (_, end) in zip(spread_labels([h for h, _ in in_order]), in_order):
        label = axes.annotate(
            end.text,
            xy=(end.x, end.y),
            xytext=(1.06, height),
            textcoords="axes fraction",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.colour,
                "linestyle": end.dashes,
                "relpos": (0, 0.5),
                "shrinkA": 2,
                "shrinkB": 0,
            },
        )
        label.set(color=end.colour, fontweight="bold")


def spread_labels(heights: list[float]) -> list[float]:
    """Return label positions at least GAP apart, as close to their lines as possible.

    Args:
        heights: Heights of the line ends, ascending, as fractions of the axes.

    Returns:
        Heights between 0 and 1, unless there are too many labels.
    """
    from scipy.optimize import isotonic_regression

    if not heights:
        return []
    steps = GAP * np.arange(len(heights))
    spread = isotonic_regression(np.array(heights) - steps).x + steps
    spread = np.minimum(spread, 1.0 - steps[::-1])
    return list(np.maximum(spread, steps))


# ------------------------------------------------------------------------------ groups
def plot_groups(clusters: np.ndarray, title: str, truth: np.ndarray | None = None) -> Figure:
    """Plot the group of each client after every round as a colour map.

    If the true groups are known, a strip on the left shows them, clients are sorted by them, and
    each group has the colour of the true group that it matches best.

    Args:
        clusters: int64 [rounds + 1, N], −1: not assigned yet (grey).
        title: Title of the figure.
        truth: int64 [N], the true groups; None: unknown.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    true = clusters[-1] if truth is None else truth
    order = np.lexsort((clusters[-1], true))
    matched = match_groups(clusters, true)[:, order].T
    count = int(max(matched.max(), true.max())) + 1
    style: dict[str, Any] = {
        "cmap": ListedColormap([UNKNOWN, *colours_for(count)]),
        "vmin": -1,
        "vmax": count - 1,
        "aspect": "auto",
        "interpolation": "nearest",
    }
    figure = new_figure()
    strip, axes = figure.subplots(1, 2, width_ratios=(1.4, 28), gridspec_kw={"wspace": 0.03})
    rounds, clients = clusters.shape
    strip.imshow(true[order][:, None], extent=(0, 1, clients, 0), **style)
    axes.imshow(matched, extent=(-0.5, rounds - 0.5, clients, 0), **style)
    edges = np.flatnonzero(np.diff(true[order])) + 1
    titles = ("", "") if truth is None else ("true", "found")
    for part, name in zip((strip, axes), titles):
        part.set_title(name, loc="left", color=INK, fontsize=9)
        if clients <= 80:
            part.hlines(np.arange(1, clients), *part.get_xlim(), color="white", linewidth=0.6)
        part.hlines(edges, *part.get_xlim(), color="white", linewidth=4)
        part.spines[:].set_visible(False)
        part.tick_params(length=0, colors=INK)
    middles = [(a + b) / 2 for a, b in zip([0, *edges], [*edges, clients])]
    names = ["no group" if group < 0 else f"group {group + 1}" for group in np.unique(true)]
    strip.set(xticks=[], yticks=middles, yticklabels=names)
    label = "round (0: start)"
    if (clusters < 0).any():
        label += "; grey: not assigned yet"
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(label, color=INK)
    figure.suptitle(title, x=0.02, ha="left", color=INK, fontsize=11)
    return figure


def match_groups(clusters: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Renumber groups so that the last round agrees best with the true groups; −1 stays.

    Args:
        clusters: int64 [rounds + 1, N].
        true: int64 [N].
    """
    from scipy.optimize import linear_sum_assignment

    k = int(max(clusters.max(), true.max())) + 1
    overlap = np.zeros((k, k))
    known = clusters[-1] >= 0
    np.add.at(overlap, (clusters[-1][known], true[known]), 1)
    number = np.append(linear_sum_assignment(-overlap)[1], -1)  # index −1 maps to −1
    renumbered: np.ndarray = number[clusters]
    return renumbered


# ------------------------------------------------------------------------------ common
def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the same figure gives the same bytes."""
    import matplotlib

    metadata = {"Date": None} if str(path).endswith(".svg") else None
    with matplotlib.rc_context({"svg.hashsalt": "coterie"}):
        figure.savefig(path, dpi=150, metadata=metadata)
    return Path(path)


def new_figure(width: float = 7.2, height: float = 4.2) -> Figure:
    """Return an empty figure, size in inches, without pyplot's global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def colours_for(n: int) -> list[str]:
    """Return n distinct colours: COLOURS, then tab20, then steps of viridis."""
    if n <= len(COLOURS):
        return list(COLOURS[:n])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if n <= 20:
        return [to_hex(colormaps["tab20"](i)) for i in range(n)]
    return [to_hex(colormaps["viridis"](i / (n - 1))) for i in range(n)]
