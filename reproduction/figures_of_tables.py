"""Figures of tables: a quantity against the columns, rankings and heat maps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coterie.reporting.plots import COLOURS, INK, LineEnd, label_ends, new_figure
from coterie.reporting.text import capitalise
from reproduction.figures import Draw, chosen, line_styles, set_log_scale, set_title, style_axes
from reproduction.result_table import ResultTable
from reproduction.spec import Quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class NumberAxis(NamedTuple):
    """Columns that are values of one number, such as λ=11 and λ=12."""

    name: str
    numbers: list[float]


def find_number_axis(labels: Sequence[str]) -> NumberAxis | None:
    """Return the number in which the labels differ; None if they are names."""
    found = [re.fullmatch(r"(.+)=([\d.]+)", label) for label in labels]
    names = {match[1] for match in found if match is not None}
    if None in found or len(names) != 1:
        return None
    return NumberAxis(names.pop(), [float(match[2]) for match in found if match is not None])


# ------------------------------------------------------------------------------ against columns
def column_figure(
    label: str,
    lines: Sequence[str] = (),
    quantity: str = "",
    log: bool = False,
    also: Callable[[Axes, ResultTable], None] | None = None,
) -> Draw:
    """Return a function that draws a quantity against the columns.

    Columns that are numbers get a line per method, columns that are names get dots, and a single
    column is drawn as a ranking of the lines.

    Args:
        label: Title of the figure.
        lines: Labels of the lines; (): all.
        quantity: Name of the quantity; "": the first.
        log: Use a logarithmic axis.
        also: Draws more into the axes, at the numbers of the columns.
    """

    def draw(results: ResultTable) -> Figure:
        if len(results.columns) == 1:
            title = f"{label}, {results.columns[0]}"
            return ranking_figure(title, lines=lines, quantity=quantity, log=log)(results)
        axis = find_number_axis(results.columns)
        figure = new_figure()
        axes = figure.subplots()
        if log:
            set_log_scale(axes, ratio=1000)
        set_title(axes, label)
        shown = results.experiment.quantity(quantity)
        names = [
            line
            for line in chosen(lines, results.lines)
            if np.isfinite(seed_range(results, line, shown)).any()
        ]
        style_axes(axes)
        if axis is None:
            draw_dots(axes, results, names, shown)
            return figure
        if also is not None:
            also(axes, results)
        draw_lines(axes, axis, results, names, shown)
        return figure

    return draw


def draw_lines(
    axes: Axes, axis: NumberAxis, results: ResultTable, names: list[str], shown: Quantity
) -> None:
    """Draw a line per method with a band for its seeds."""
    from matplotlib.ticker import NullLocator

    if max(axis.numbers) >= 8 * min(axis.numbers) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    ends = []
    for name in names:
        colour, dashes = line_styles(names)[name]
        low, mean, high = seed_range(results, name, shown)
        axes.plot(axis.numbers, mean, dashes, color=colour, linewidth=2, marker="o", markersize=4)
        axes.fill_between(axis.numbers, low, high, color=colour, alpha=0.12, linewidth=0)
        known = np.flatnonzero(np.isfinite(mean))
        if len(known):
            last = known[np.argmax(np.array(axis.numbers)[known])]
            ends.append(LineEnd(float(mean[last]), name, colour, dashes, x=axis.numbers[last]))
    axes.set_xticks(axis.numbers, [f"{number:g}" for number in axis.numbers])
    axes.set_xlabel(axis.name, color=INK)
    label_ends(axes, ends)


def draw_dots(axes: Axes, results: ResultTable, names: list[str], shown: Quantity) -> None:
    """Draw a dot per method above the name of each column, with the range of its seeds."""
    places = np.arange(len(results.columns))
    for at, name in enumerate(names):
        colour, _ = line_styles(names)[name]
        low, mean, high = seed_range(results, name, shown)
        beside = places + 0.8 * ((at + 0.5) / len(names) - 0.5)
        axes.vlines(beside, low, high, color=colour, linewidth=2, alpha=0.4)
        axes.plot(beside, mean, "o", color=colour, markersize=6, label=name)
    axes.set_xticks(places, results.columns)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))


def seed_range(results: ResultTable, line: str, quantity: Quantity) -> np.ndarray:
    """Return the minimum, mean and maximum of a line over the seeds, [3, columns]."""
    found = []
    for column in results.columns:
        values = list(results.values(line, column, quantity.name).values()) or [np.nan]
        found.append([min(values), float(np.mean(values)), max(values)])
    return np.array(found).T * quantity.factor


# ------------------------------------------------------------------------------ rankings
def ranking_figure(
    label: str,
    apart: Sequence[str] = (),
    apart_are: str = "",
    lines: Sequence[str] = (),
    quantity: str = "",
    log: bool = False,
) -> Draw:
    """Return a function that draws a row per line, the best on top: the mean, and a dot per seed.

    Only the first column is drawn. Some seeds are harder for all methods. The mean effect of a seed
    over all lines is subtracted from its dots, which keeps the means and shows the noise that
    remains.

    Args:
        label: Title of the figure.
        apart: Labels of lines in another colour.
        apart_are: Name of these lines in the legend.
        lines: Labels of the lines; (): all.
        quantity: Name of the quantity; "": the first.
        log: Use a logarithmic axis and leave the seeds as they are.
    """

    def draw(results: ResultTable) -> Figure:
        shown = results.experiment.quantity(quantity)
        values = values_by_line(results, shown, chosen(lines, results.lines))
        means = {line: float(np.mean(list(of.values()))) for line, of in values.items()}
        shared = {} if log else shared_by_seed(values)
        order = sorted(means, key=lambda line: means[line], reverse=shown.higher_is_better)
        figure = new_figure(width=7.2, height=0.26 * len(order) + 1.3)
        axes = figure.subplots()
        if log:
            axes.set_xscale("log")
        for place, line in enumerate(order):
            colour = COLOURS[1] if line in apart else COLOURS[0]
            seeds = [value - shared.get(seed, 0.0) for seed, value in values[line].items()]
            axes.plot(seeds, np.full(len(seeds), place), ".", color=colour, alpha=0.5)
            axes.plot(means[line], place, "|", color=colour, markersize=12, markeredgewidth=2.5)
        axes.set_yticks(range(len(order)), order)
        axes.set_ylim(len(order) - 0.5, -0.5)
        set_title(axes, label)
        dots = "dots: seeds" if log else "dots: seeds, shifted by what all methods share in them"
        axes.set_xlabel(f"{capitalise(shown.label)}; {dots}", color=INK)
        style_axes(axes)
        if apart:
            name_colours(axes, apart_are)
        return figure

    return draw


def values_by_line(
    results: ResultTable, shown: Quantity, lines: list[str]
) -> dict[str, dict[int, float]]:
    """Return, by line and seed, the values in the first column; lines that diverged are skipped."""
    found = {}
    for line in lines:
        values = results.values(line, results.columns[0], shown.name)
        if values and np.isfinite(list(values.values())).all():
            found[line] = {seed: shown.factor * value for seed, value in values.items()}
    return found


def shared_by_seed(values: dict[str, dict[int, float]]) -> dict[int, float]:
    """Return, by seed, the difference of its mean over the lines from that of all seeds.

    Only lines with all seeds count; without any, the differences are 0.
    """
    seeds = sorted({seed for of in values.values() for seed in of})
    whole = [[of[seed] for seed in seeds] for of in values.values() if len(of) == len(seeds)]
    if not whole:
        return dict.fromkeys(seeds, 0.0)
    by_seed = np.mean(whole, axis=0)
    return dict(zip(seeds, (by_seed - by_seed.mean()).tolist()))


def name_colours(axes: Axes, apart_are: str) -> None:
    """Add a legend for the two colours of a ranking."""
    axes.plot([], [], "o", color=COLOURS[0], label="federated")
    axes.plot([], [], "o", color=COLOURS[1], label=apart_are)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))


# ------------------------------------------------------------------------------ heat maps
def heat_map_figure(label: str, rows: str, columns: str, name: str) -> Draw:
    """Return a function that draws a heat map of a value between 0 and 1.

    Args:
        label: Title of the figure.
        rows: Label of the vertical axis (lines of the table, upwards).
        columns: Label of the horizontal axis.
        name: Name of the value.
    """

    def draw(results: ResultTable) -> Figure:
        figure = new_figure(width=6.0, height=0.55 * len(results.lines) + 1.4)
        axes = figure.subplots()
        means = np.array(
            [
                [mean_value(results, line, c, name) for c in results.columns]
                for line in results.lines
            ]
        )
        axes.imshow(means, cmap="viridis", vmin=0, vmax=1, aspect="auto", origin="lower")
        for (i, j), value in np.ndenumerate(means):
            if np.isfinite(value):
                axes.text(j, i, f"{value:.3g}", ha="center", va="center", color=text_colour(value))
        axes.set_xticks(range(len(results.columns)), tick_labels(results.columns))
        axes.set_yticks(range(len(results.lines)), tick_labels(results.lines))
        axes.set_xlabel(columns, color=INK)
        axes.set_ylabel(rows, color=INK)
        set_title(axes, f"{label}, {len(results.seeds)} trials")
        axes.tick_params(length=0, colors=INK)
        axes.spines[:].set_visible(False)
        return figure

    return draw


def tick_labels(labels: list[str]) -> list[str]:
    """Return the labels without the name that the axis already has."""
    axis = find_number_axis(labels)
    return labels if axis is None else [f"{number:g}" for number in axis.numbers]


def mean_value(results: ResultTable, line: str, column: str, name: str) -> float:
    """Return the mean of a value over seeds; NaN without any."""
    values = list(results.values(line, column, name).values())
    return float(np.mean(values)) if values else np.nan


def text_colour(value: float) -> str:
    """Return the colour of a number on a field of the heat map."""
    return "black" if value > 0.5 else "white"
