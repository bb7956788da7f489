"""Figures of tables: a quantity against the columns, rankings, heat maps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coterie.reporting.plots import COLOURS, INK, LineEnd, label_ends, new_figure
from coterie.reporting.text import capitalise
from reproduction.figures import Draw, chosen, give_title, logarithmic, styles_of, tidy
from reproduction.result_table import ResultTable
from reproduction.spec import Quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class NumberAxis(NamedTuple):
    """Columns that are values of one number, such as λ=11, λ=12."""

    name: str
    numbers: list[float]


def axis_of(labels: Sequence[str]) -> NumberAxis | None:
    """The number that labels differ in; None where they are names."""
    found = [re.fullmatch(r"(.+)=([\d.]+)", label) for label in labels]
    names = {match[1] for match in found if match is not None}
    if None in found or len(names) != 1:
        return None
    return NumberAxis(names.pop(), [float(match[2]) for match in found if match is not None])


# ------------------------------------------------------------------------------ against columns
def against_columns(
    label: str,
    lines: Sequence[str] = (),
    quantity: str = "",
    log: bool = False,
    also: Callable[[Axes, ResultTable], None] | None = None,
) -> Draw:
    """A figure of a quantity against the columns: a line for each method where columns are numbers.

    Columns that are names have dots, and a single column has the lines of the table in their order.
    also: draws more into the figure, at the numbers of the columns.
    """

    def draw(results: ResultTable) -> Figure:
        if len(results.columns) == 1:
            title = f"{label}, {results.columns[0]}"
            return ranking(title, lines=lines, quantity=quantity, log=log)(results)
        axis = axis_of(results.columns)
        figure = new_figure()
        axes = figure.subplots()
        if log:
            logarithmic(axes, ratio=1000)
        give_title(axes, label)
        shown = results.experiment.quantity(quantity)
        names = [
            line
            for line in chosen(lines, results.lines)
            if np.isfinite(range_of(results, line, shown)).any()
        ]
        tidy(axes)
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
    """A line for each method, and a band for its seeds; numbers of several orders by logarithm."""
    from matplotlib.ticker import NullLocator

    if max(axis.numbers) >= 8 * min(axis.numbers) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    ends = []
    for name in names:
        colour, dashes = styles_of(names)[name]
        low, mean, high = range_of(results, name, shown)
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
    """A dot for each method over each column's name, with the range of its seeds."""
    places = np.arange(len(results.columns))
    for at, name in enumerate(names):
        colour, _ = styles_of(names)[name]
        low, mean, high = range_of(results, name, shown)
        beside = places + 0.8 * ((at + 0.5) / len(names) - 0.5)
        axes.vlines(beside, low, high, color=colour, linewidth=2, alpha=0.4)
        axes.plot(beside, mean, "o", color=colour, markersize=6, label=name)
    axes.set_xticks(places, results.columns)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))


def range_of(results: ResultTable, line: str, quantity: Quantity) -> np.ndarray:
    """[3, columns]: the least, the mean and the most of a line's values over the seeds."""
    found = []
    for column in results.columns:
        values = list(results.values(line, column, quantity.name).values()) or [np.nan]
        found.append([min(values), float(np.mean(values)), max(values)])
    return np.array(found).T * quantity.factor


# ------------------------------------------------------------------------------ rankings
def ranking(
    label: str,
    apart: Sequence[str] = (),
    apart_are: str = "",
    lines: Sequence[str] = (),
    quantity: str = "",
    log: bool = False,
) -> Draw:
    """A row for each line of the table, the best on top: its mean, and every seed as a small dot.

    Of the first column. Some seeds are harder for all methods: what all of them share
    in a seed is taken off the dots, which leaves means as they are and shows what may be chance.
    apart: the labels of lines in another colour, and what the legend calls them.
    lines: the labels of those that are drawn; none: all.
    quantity: none: the first.  log: with logarithms, and seeds as they are.
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
        give_title(axes, label)
        dots = "dots: seeds" if log else "dots: seeds, shifted by what all methods share in them"
        axes.set_xlabel(f"{capitalise(shown.label)}; {dots}", color=INK)
        tidy(axes)
        if apart:
            name_colours(axes, apart_are)
        return figure

    return draw


def values_by_line(
    results: ResultTable, shown: Quantity, lines: list[str]
) -> dict[str, dict[int, float]]:
    """By line and seed, the quantity in the first column; lines with one that is not finite go."""
    found = {}
    for line in lines:
        values = results.values(line, results.columns[0], shown.name)
        if values and np.isfinite(list(values.values())).all():
            found[line] = {seed: shown.factor * value for seed, value in values.items()}
    return found


def shared_by_seed(values: dict[str, dict[int, float]]) -> dict[int, float]:
    """By seed, how far its mean over the lines is above that of all seeds.

    Lines that have every seed count; where there is none, nothing is taken to be shared.
    """
    seeds = sorted({seed for of in values.values() for seed in of})
    whole = [[of[seed] for seed in seeds] for of in values.values() if len(of) == len(seeds)]
    if not whole:
        return dict.fromkeys(seeds, 0.0)
    by_seed = np.mean(whole, axis=0)
    return dict(zip(seeds, (by_seed - by_seed.mean()).tolist()))


def name_colours(axes: Axes, apart_are: str) -> None:
    """A legend for the two colours of a ranking."""
    axes.plot([], [], "o", color=COLOURS[0], label="federated")
    axes.plot([], [], "o", color=COLOURS[1], label=apart_are)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))


# ------------------------------------------------------------------------------ heat maps
def heat_map(label: str, rows: str, columns: str, name: str) -> Draw:
    """A heat map of a quantity: lines of the table upwards, columns across."""

    def draw(results: ResultTable) -> Figure:
        figure = new_figure(width=6.0, height=0.55 * len(results.lines) + 1.4)
        axes = figure.subplots()
        means = np.array(
            [[mean_of(results, line, c, name) for c in results.columns] for line in results.lines]
        )
        axes.imshow(means, cmap="viridis", vmin=0, vmax=1, aspect="auto", origin="lower")
        for (i, j), value in np.ndenumerate(means):
            if np.isfinite(value):
                axes.text(j, i, f"{value:.3g}", ha="center", va="center", color=ink_on(value))
        axes.set_xticks(range(len(results.columns)), numbers_in(results.columns))
        axes.set_yticks(range(len(results.lines)), numbers_in(results.lines))
        axes.set_xlabel(columns, color=INK)
        axes.set_ylabel(rows, color=INK)
        give_title(axes, f"{label}, {len(results.seeds)} trials")
        axes.tick_params(length=0, colors=INK)
        axes.spines[:].set_visible(False)
        return figure

    return draw


def numbers_in(labels: list[str]) -> list[str]:
    """The labels without the name that the axis has already."""
    axis = axis_of(labels)
    return labels if axis is None else [f"{number:g}" for number in axis.numbers]


def mean_of(results: ResultTable, line: str, column: str, name: str) -> float:
    """The mean over seeds of a value; NaN where there is none."""
    values = list(results.values(line, column, name).values())
    return float(np.mean(values)) if values else np.nan


def ink_on(value: float) -> str:
    """The colour of a number on a field of the heat map."""
    return "black" if value > 0.5 else "white"
