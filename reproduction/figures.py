"""Figures of curves over rounds, and what all figures of experiments share.

A function such as `curve_figure(…)` returns a function that draws the figure of a `ResultTable`. It
draws whatever was run: missing lines and columns are skipped.
"""

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
    """Colour and dashes of a line."""

    colour: str
    dashes: str


def line_styles(lines: Sequence[str]) -> dict[str, CurveStyle]:
    """Return a style for each line, by label.

    The first seven have different colours. Dashes differ as well, so that lines on top of each
    other remain visible.
    """
    return {
        line: CurveStyle(COLOURS[at % 7], DASHES[at % len(DASHES)]) for at, line in enumerate(lines)
    }


def curve_figure(
    name: str,
    label: str,
    columns: Sequence[str] = (),
    log: bool = False,
    lines: Sequence[str] = (),
    highest: float | None = None,
    each_seed: bool = False,
    ranges: bool = True,
) -> Draw:
    """Return a function that draws a metric over rounds: a panel per column, a line per method.

    Args:
        name: Name of the curve in `CellResult.curves`.
        label: Title of the panels.
        columns: Labels of the columns; (): all.
        log: Use a logarithmic axis if the values span a large range.
        lines: Labels of the lines; (): all.
        highest: Upper limit of the metric; the axis then starts at 0. None: automatic limits.
        each_seed: Draw a thin line per seed instead of their range. Logarithmic axes always do.
        ranges: Draw the range or the seeds; False if they would hide the lines.
    """

    def draw(results: ResultTable) -> Figure:
        names = chosen(lines, results.lines)
        by_column = {}
        for column in chosen(columns, results.columns):
            runs = collect_curves(results, column, name, names)
            if runs:
                by_column[column] = runs
        if not by_column:
            return text_figure(f"{label}: not run yet")
        styles = line_styles(names)
        count = len(by_column)
        figure = new_figure(width=7.2, height=3.4 * count + 0.4)
        grid = figure.subplots(count, squeeze=False, sharex=True, sharey=name in SHARES)
        panels = grid[:, 0]
        for axes, (column, runs) in zip(panels, by_column.items()):
            is_log = log and spans_orders(runs)
            if is_log:
                set_log_scale(axes, value_ratio(runs))
            if highest is not None:
                axes.set_ylim(0, 1.03 * highest)  # a line at the top is not cut off
            what = f"{label}, median" if is_log and len(results.seeds) > 1 else label
            set_title(axes, panel_title(what, results, column))
            seeds = SeedDrawing(
                each_seed=ranges and (each_seed or is_log), ranges=ranges, use_median=is_log
            )
            draw_curves(axes, runs, styles, seeds)
        if name in SHARES and highest is None:
            skip_start(panels[0], list(by_column.values()))
        for axes, runs in zip(panels, by_column.values()):  # after all limits are settled
            label_curves(axes, runs, styles, log and spans_orders(runs))
        panels[-1].set_xlabel("round", color=INK)
        return figure

    return draw


def set_title(axes: Axes, text: str) -> None:
    """Set the title of a panel, on the left."""
    axes.set_title(text, loc="left", color=INK, fontsize=11)


def text_figure(text: str) -> Figure:
    """Return a figure with one sentence, where there is nothing to draw."""
    figure = new_figure(height=1.0)
    figure.text(0.5, 0.5, text, ha="center", color=INK)
    return figure


def panel_title(label: str, results: ResultTable, column: str) -> str:
    """Return the title of a panel, which mentions a single seed."""
    one = ", one seed" if len(results.seeds) == 1 else ""
    return f"{label}, {column}{one}"


def chosen(wanted: Sequence[str], there: list[str]) -> list[str]:
    """Return those of the existing labels that are wanted, or all if none is."""
    return [label for label in there if label in wanted] or there


class SeedCurves(NamedTuple):
    """The curves of all seeds of a line, cut to the length of the shortest."""

    rounds: list[int]
    values: np.ndarray  # [seeds, points]

    def middle(self, use_median: bool) -> np.ndarray:
        """Return the mean or the median over the seeds, [points]."""
        if use_median:
            return np.asarray(np.median(self.values, 0))
        return np.asarray(self.values.mean(0))


def collect_curves(
    results: ResultTable, column: str, name: str, lines: Sequence[str]
) -> dict[str, SeedCurves]:
    """Return the curves of each line that has any."""
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


def value_ratio(runs: dict[str, SeedCurves]) -> float:
    """Return the ratio of the largest value to the smallest positive one; 0 without any."""
    values = np.concatenate([of.values.flatten() for of in runs.values()] or [np.zeros(1)])
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return 0.0
    return float(values.max() / values.min())


def spans_orders(runs: dict[str, SeedCurves]) -> bool:
    """Return whether a logarithmic axis shows more than a linear one."""
    return value_ratio(runs) >= LEAST_RATIO


def skip_start(axes: Axes, panels: list[dict[str, SeedCurves]]) -> None:
    """Start the axis below the second evaluation: before training all values are low."""
    later = [of.values[:, 1:] for runs in panels for of in runs.values() if len(of.rounds) > 1]
    if not later:
        return
    lowest = min(float(values.min()) for values in later)
    _, top = axes.get_ylim()
    axes.set_ylim(max(0.0, lowest - 0.08 * (top - lowest)), top)


class SeedDrawing(NamedTuple):
    """What to draw of the seeds besides their mean or median."""

    each_seed: bool
    ranges: bool
    use_median: bool


def draw_curves(
    axes: Axes, runs: dict[str, SeedCurves], styles: dict[str, CurveStyle], seeds: SeedDrawing
) -> None:
    """Draw a line per method and the range of its seeds, or each seed."""
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
    style_axes(axes)
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


def set_log_scale(axes: Axes, ratio: float) -> None:
    """Make the vertical axis logarithmic, with plain numbers as ticks.

    Args:
        axes: The axes.
        ratio: Ratio of the largest to the smallest value; decides how many ticks there are.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ticks = (1.0, 2.0, 5.0) if ratio < 1000 else (1.0,)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=ticks, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def style_axes(axes: Axes) -> None:
    """Remove the frame and draw faint horizontal grid lines."""
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(which="both", length=0, colors=INK)
