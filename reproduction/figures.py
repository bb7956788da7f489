"""Figures like the papers': curves against rounds, with every seed or their range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coterie.reporting.plots import COLOURS, FAINT, INK, LineEnd, label_ends, new_figure
from reproduction.result_table import ResultTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[[ResultTable], "Figure"]
SHARES = ("accuracy", "matched")  # metrics that are drawn as percent, with one scale for all panels
FEW_POINTS = 15  # of a curve: each is marked
DASHES = ("-", "--", "-.", ":")
LEAST_RATIO = 8  # between the most and the least, for an axis of logarithms


class CurveStyle(NamedTuple):
    """How a line is drawn."""

    colour: str
    dashes: str


def styles_of(lines: Sequence[str]) -> dict[str, CurveStyle]:
    """By label, a style for each line; up to seven have colours of their own.

    Dashes differ, too, so that lines on top of each other are both seen.
    """
    return {
        line: CurveStyle(COLOURS[at % 7], DASHES[at % len(DASHES)]) for at, line in enumerate(lines)
    }


def curves_of(
    name: str,
    label: str,
    columns: Sequence[str] = (),
    log: bool = False,
    lines: Sequence[str] = (),
    highest: float | None = None,
    each_seed: bool = False,
    ranges: bool = True,
) -> Draw:
    """A figure of a metric against rounds: a panel for each column, a line for each method.

    columns, lines: the labels of those that are drawn; none: all.
    log: with logarithms, where the values span enough of them.
    highest: what the metric can be at most, where the axis is to go from 0 to there.
    each_seed: thin lines of all seeds, not the range of them; so it is with logarithms, too.
    ranges: False where the seeds' data differ so much that ranges, or seeds, would hide the lines.
    """

    def draw(results: ResultTable) -> Figure:
        names = chosen(lines, results.lines)
        by_column = {}
        for column in chosen(columns, results.columns):
            runs = runs_of(results, column, name, names)
            if runs:
                by_column[column] = runs
        if not by_column:
            return sentence_alone(f"{label}: not run yet")
        styles = styles_of(names)
        count = len(by_column)
        figure = new_figure(width=7.2, height=3.4 * count + 0.4)
        grid = figure.subplots(count, squeeze=False, sharex=True, sharey=name in SHARES)
        panels = grid[:, 0]
        for axes, (column, runs) in zip(panels, by_column.items()):
            is_log = log and spans_orders(runs)
            if is_log:
                logarithmic(axes, ratio_of(runs))
            if highest is not None:
                axes.set_ylim(0, 1.03 * highest)  # a line at the top is not cut off
            what = f"{label}, median" if is_log and len(results.seeds) > 1 else label
            give_title(axes, panel_title(what, results, column))
            seeds = Seeds(
                each_seed=ranges and (each_seed or is_log), ranges=ranges, use_median=is_log
            )
            draw_curves(axes, runs, styles, seeds)
        if name in SHARES and highest is None:
            leave_out_start(panels[0], list(by_column.values()))
        for axes, runs in zip(panels, by_column.values()):  # after all limits are settled
            label_curves(axes, runs, styles, log and spans_orders(runs))
        panels[-1].set_xlabel("round", color=INK)
        return figure

    return draw


def give_title(axes: Axes, text: str) -> None:
    """A title at the left."""
    axes.set_title(text, loc="left", color=INK, fontsize=11)


def sentence_alone(text: str) -> Figure:
    """A figure that says why there is nothing to draw."""
    figure = new_figure(height=1.0)
    figure.text(0.5, 0.5, text, ha="center", color=INK)
    return figure


def panel_title(label: str, results: ResultTable, column: str) -> str:
    """What a panel shows; a single seed is said."""
    one = ", one seed" if len(results.seeds) == 1 else ""
    return f"{label}, {column}{one}"


def chosen(wanted: Sequence[str], there: list[str]) -> list[str]:
    """Those that are wanted of those that there are; all where none is wanted, or none is there."""
    return [label for label in there if label in wanted] or there


class SeedCurves(NamedTuple):
    """The curves of a line, as far as the shortest of its seeds went."""

    rounds: list[int]
    values: np.ndarray  # [seeds, points]

    def middle(self, use_median: bool) -> np.ndarray:
        """The mean over the seeds, or their median."""
        if use_median:
            return np.asarray(np.median(self.values, 0))
        return np.asarray(self.values.mean(0))


def runs_of(
    results: ResultTable, column: str, name: str, lines: Sequence[str]
) -> dict[str, SeedCurves]:
    """By line, its curves of a metric; lines without any are left out."""
    found = {}
    factor = 100.0 if name in SHARES else 1.0
    for line in lines:
        curves = [cell.curves[name] for cell in results.of(line, column) if name in cell.curves]
        if curves:
            shortest = min(map(len, curves))
            rounds = [round for round, _ in curves[0][:shortest]]
            values = [[value for _, value in curve[:shortest]] for curve in curves]
            found[line] = SeedCurves(rounds, factor * np.array(values, dtype=float))
    return found


def ratio_of(runs: dict[str, SeedCurves]) -> float:
    """The most of all values in units of the least that is above 0; 0 where there is none."""
    values = np.concatenate([of.values.flatten() for of in runs.values()] or [np.zeros(1)])
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return 0.0
    return float(values.max() / values.min())


def spans_orders(runs: dict[str, SeedCurves]) -> bool:
    """Whether the values differ so much that logarithms show more."""
    return ratio_of(runs) >= LEAST_RATIO


def leave_out_start(axes: Axes, panels: list[dict[str, SeedCurves]]) -> None:
    """Begin the axis below the second evaluation: before any training all are low."""
    later = [of.values[:, 1:] for runs in panels for of in runs.values() if len(of.rounds) > 1]
    if not later:
        return
    lowest = min(float(values.min()) for values in later)
    _, top = axes.get_ylim()
    axes.set_ylim(max(0.0, lowest - 0.08 * (top - lowest)), top)


class Seeds(NamedTuple):
    """What is drawn of the seeds beside their middle."""

    each_seed: bool
    ranges: bool
    use_median: bool


def draw_curves(
    axes: Axes, runs: dict[str, SeedCurves], styles: dict[str, CurveStyle], seeds: Seeds
) -> None:
    """A line for each method: the mean or median of its seeds, and their range or each of them."""
    for line, of in runs.items():
        colour, dashes = styles[line]
        marker = "o" if len(of.rounds) < FEW_POINTS else ""
        middle = of.middle(seeds.use_median)
        axes.plot(of.rounds, middle, dashes, color=colour, linewidth=2, marker=marker, markersize=4)
        if seeds.ranges and not seeds.each_seed:
            low, high = of.values.min(0), of.values.max(0)
            axes.fill_between(of.rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        elif seeds.each_seed and len(of.values) > 1:
            axes.plot(of.rounds, of.values.T, color=colour, linewidth=0.7, alpha=0.5)
    tidy(axes)
    axes.locator_params(axis="x", integer=True)  # there is no half a round
    is_linear = axes.get_yscale() == "linear"
    if is_linear and all(bool((of.values % 1 == 0).all()) for of in runs.values()):  # counts
        axes.locator_params(axis="y", integer=True)


def label_curves(
    axes: Axes, runs: dict[str, SeedCurves], styles: dict[str, CurveStyle], use_median: bool
) -> None:
    """Write the name of each line at its end."""
    ends = []
    for line, of in runs.items():
        value = float(of.middle(use_median)[-1])
        if np.isfinite(value):
            ends.append(LineEnd(value, line, *styles[line], x=of.rounds[-1]))
    label_ends(axes, ends)


def logarithmic(axes: Axes, ratio: float) -> None:
    """An axis of logarithms whose ticks are plain numbers.

    ratio: the most of the values in units of the least.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ticks = (1.0, 2.0, 5.0) if ratio < 1000 else (1.0,)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=ticks, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def tidy(axes: Axes) -> None:
    """Only what is read: faint lines across, no frame."""
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(which="both", length=0, colors=INK)
