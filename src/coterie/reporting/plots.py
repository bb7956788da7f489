"""Figures of runs: accuracy against rounds, and who was in which group. They need no display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from coterie.core.errors import CoterieError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
INK = "#333333"
FAINT = "#DDDDDD"
UNKNOWN = "#EEEEEE"  # a client that has no group yet
DASHES = ("-", "--", "-.", ":")
GAP = 0.06  # least distance between two labels, as a share of the height


class Method(Protocol):
    """What a figure needs of a method."""

    @property
    def name(self) -> str: ...


class Run(Protocol):
    """What a figure needs of a run: `Result` has it, and any plain object with these attributes.

    A run may also have `truth`, the true group of each client, int64 [N] or None.
    """

    @property
    def method(self) -> Method: ...

    @property
    def names(self) -> Sequence[str]:
        """The clients."""
        ...

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        """A row of metrics per round."""
        ...

    @property
    def clusters(self) -> np.ndarray | None:
        """int64 [rounds + 1, N]: the group of each client after each round; −1: not yet known."""
        ...


# ------------------------------------------------------------------------------ curves
class Curve(NamedTuple):
    """One method's metric: over its runs, at each round that was evaluated."""

    rounds: np.ndarray  # [points]
    values: np.ndarray  # [runs, points]


def curves(
    results: Mapping[str, Sequence[Run]],
    title: str = "",
    starts: Mapping[str, float] | None = None,
) -> Figure:
    """Test accuracy (or MSE) against rounds: a line per method, the mean and range of its runs.

    starts: by name, how many rounds' worth of local training a method does before its first round.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure()
    axes = figure.add_subplot()
    metric = _metric(results)
    ends: list[LineEnd] = []
    last = 0.0
    for colour, (name, runs) in zip(colours_for(len(results)), results.items()):
        curve = _curve(runs, metric, (starts or {}).get(name, 0))
        mean = curve.values.mean(0)
        lowest = curve.values.min(0)
        highest = curve.values.max(0)
        axes.plot(curve.rounds, mean, color=colour, linewidth=2.2, solid_capstyle="round", zorder=3)
        axes.fill_between(curve.rounds, lowest, highest, color=colour, alpha=0.15, linewidth=0)
        text = f"{name}  {_number(float(mean[-1]), metric)}"
        ends.append(LineEnd(float(mean[-1]), text, colour, x=float(curve.rounds[-1])))
        last = max(last, curve.rounds[-1])
    if metric == "mse":
        axes.set_yscale("log")
    axes.set_xlim(0, last)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(which="both", length=0, colors=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rounds of local training", color=INK)
    title = title or f"test {metric.replace('mse', 'MSE')}"
    axes.set_title(title, loc="left", color=INK, fontsize=11, pad=12)
    label_ends(axes, ends)
    return figure


def _metric(results: Mapping[str, Sequence[Run]]) -> str:
    """What the runs were judged by: "mse" or "accuracy"."""
    for runs in results.values():
        if any("mse" in row for row in runs[0].history):
            return "mse"
    return "accuracy"


def _curve(runs: Sequence[Run], metric: str, start: float) -> Curve:
    """The metric of all runs, as far as the shortest of them went."""
    rows = [[row for row in run.history if metric in row] for run in runs]
    shortest = min(map(len, rows))
    rounds = np.array([row["round"] for row in rows[0][:shortest]]) + start
    return Curve(rounds, np.array([[row[metric] for row in of[:shortest]] for of in rows]))


def _number(value: float, metric: str) -> str:
    if metric == "mse":
        return f"{value:.3g}"
    return f"{value:.3f}"


class LineEnd(NamedTuple):
    """The right end of a line, which has its name beside it."""

    y: float
    text: str
    colour: str
    dashes: str = "-"
    x: float = 0.0


def label_ends(axes: Axes, ends: list[LineEnd]) -> None:
    """Write a name at the end of each line, moved apart where lines end close together.

    A short piece of the line leads from its end to its name.
    """
    axes.get_ylim()  # settles the limits, on which heights depend
    to_axes = axes.transAxes.inverted()
    heights = [to_axes.transform(axes.transData.transform((end.x, end.y)))[1] for end in ends]
    in_order = sorted(zip(heights, ends))
    for height, (_, end) in zip(moved_apart([h for h, _ in in_order]), in_order):
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


def moved_apart(heights: list[float]) -> list[float]:
    """Heights from the lowest up, at least a line of text apart and moved as little as that takes.

    None is outside the axes, unless there are too many for them.
    """
    from scipy.optimize import isotonic_regression

    if not heights:
        return []
    steps = GAP * np.arange(len(heights))
    apart = isotonic_regression(np.array(heights) - steps).x + steps
    apart = np.minimum(apart, 1.0 - steps[::-1])
    return list(np.maximum(apart, steps))


# ------------------------------------------------------------------------------ groups
def groups(result: Run, title: str = "") -> Figure:
    """The group of each client after every round.

    A strip on the left shows the true groups, where they are known; clients are sorted by them. A
    group takes the colour of the true group it agrees with most. Grey: not yet asked.
    """
    clusters = result.clusters
    if clusters is None:
        raise CoterieError(
            f"{result.method.name} has no groups to draw: choose a clustered method."
        )
    truth: np.ndarray | None = getattr(result, "truth", None)
    if truth is None:
        true = clusters[-1]
        titles = ("", "")
    else:
        true = truth
        titles = ("true", "found")
    order = np.lexsort((clusters[-1], true))
    matched = _matched(clusters, true)[:, order].T
    style = _group_style(int(max(matched.max(), true.max())) + 1)

    figure = new_figure()
    strip, axes = figure.subplots(1, 2, width_ratios=(1.4, 28), gridspec_kw={"wspace": 0.03})
    rounds, clients = clusters.shape
    strip.imshow(true[order][:, None], extent=(0, 1, clients, 0), **style)
    axes.imshow(matched, extent=(-0.5, rounds - 0.5, clients, 0), **style)
    edges = np.flatnonzero(np.diff(true[order])) + 1
    for part, name in zip((strip, axes), titles):
        part.set_title(name, loc="left", color=INK, fontsize=9)
        _separate(part, edges, clients)
    middles = [(a + b) / 2 for a, b in zip([0, *edges], [*edges, clients])]
    strip.set(xticks=[], yticks=middles, yticklabels=[_group_name(g) for g in np.unique(true)])
    _label_rounds(axes, some_unknown=bool((clusters < 0).any()))
    title = title or f"{result.method.name}: the group of each client"
    figure.suptitle(title, x=0.02, ha="left", color=INK, fontsize=11)
    return figure


def _group_name(group: int) -> str:
    if group < 0:
        return "no group"
    return f"group {group + 1}"


def _group_style(groups: int) -> dict[str, Any]:
    """How `imshow` paints group numbers, −1 included."""
    from matplotlib.colors import ListedColormap

    return {
        "cmap": ListedColormap([UNKNOWN, *colours_for(groups)]),
        "vmin": -1,
        "vmax": groups - 1,
        "aspect": "auto",
        "interpolation": "nearest",
    }


def _separate(axes: Axes, edges: np.ndarray, clients: int) -> None:
    """Draw white lines between the true groups, and between clients where there are few."""
    if clients <= 80:
        axes.hlines(np.arange(1, clients), *axes.get_xlim(), color="white", linewidth=0.6)
    axes.hlines(edges, *axes.get_xlim(), color="white", linewidth=4)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=INK)


def _label_rounds(axes: Axes, some_unknown: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    label = "round (0: the start)"
    if some_unknown:
        label += "; grey: not yet asked"
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(label, color=INK)


def _matched(clusters: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Groups renumbered so that those of the last round agree best with the true ones; −1 stays."""
    from scipy.optimize import linear_sum_assignment

    k = int(max(clusters.max(), true.max())) + 1
    overlap = np.zeros((k, k))
    known = clusters[-1] >= 0
    np.add.at(overlap, (clusters[-1][known], true[known]), 1)
    number = np.append(linear_sum_assignment(-overlap)[1], -1)  # the last entry serves −1
    renumbered: np.ndarray = number[clusters]
    return renumbered


# ------------------------------------------------------------------------------ common
def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the same figure gives the same bytes."""
    import matplotlib

    metadata = None
    if str(path).endswith(".svg"):
        metadata = {"Date": None}
    with matplotlib.rc_context({"svg.hashsalt": "coterie"}):
        figure.savefig(path, dpi=150, metadata=metadata)
    return Path(path)


def new_figure(width: float = 7.2, height: float = 4.2) -> Figure:
    """A figure of its own, in inches: no global state, no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def colours_for(n: int) -> list[str]:
    """n colours that differ visibly: a fixed set, a larger one, then steps of a sequential map."""
    if n <= len(COLOURS):
        return list(COLOURS[:n])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if n <= 20:
        return [to_hex(colormaps["tab20"](i)) for i in range(n)]
    return [to_hex(colormaps["viridis"](i / (n - 1))) for i in range(n)]
