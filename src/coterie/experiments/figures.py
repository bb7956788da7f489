"""Figures like the papers': curves with bands, quantities against columns, heat maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from coterie.experiments.claims import find_quantity
from coterie.experiments.outcome import Outcome
from coterie.experiments.spec import Quantity
from coterie.plots import COLOURS, FAINT, INK, label_ends, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[[Outcome], "Figure"]


def curves_of(
    name: str,
    label: str,
    columns: Sequence[str] = (),
    log: bool = False,
    lines: Sequence[str] = (),
    highest: float | None = None,
) -> Draw:
    """A figure of a metric against rounds: a panel for each column, a line for each method.

    columns, lines: the labels of those that are drawn; none: all.
    highest: what the metric can be at most, where the axis is to go from 0 to there.
    """

    def draw(outcome: Outcome) -> Figure:
        shown = chosen(columns, outcome.columns)
        figure = new_figure(width=7.2, height=3.6 * len(shown) + 0.4)
        panels = figure.subplots(len(shown), squeeze=False)[:, 0]
        for axes, column in zip(panels, shown):
            if log:
                axes.set_yscale("log")
            if highest is not None:
                axes.set_ylim(0, 1.03 * highest)  # a line at the top is not cut off
            draw_curves(axes, outcome, column, name, chosen(lines, outcome.lines))
            axes.set_title(f"{label}, {column}", loc="left", color=INK, fontsize=11)
        panels[-1].set_xlabel("round", color=INK)
        return figure

    return draw


def chosen(wanted: Sequence[str], there: list[str]) -> list[str]:
    """Those that are wanted of those that there are; all where none is wanted, or none is there."""
    return [label for label in there if label in wanted] or there


def draw_curves(axes: Axes, outcome: Outcome, column: str, name: str, lines: Sequence[str]) -> None:
    """A line for each method: the mean over its seeds, and a band from the least to the most."""
    ends = []
    drawn = {
        line: [cell.curves[name] for cell in outcome.of(line, column) if name in cell.curves]
        for line in lines
    }
    drawn = {line: runs for line, runs in drawn.items() if runs}
    for (colour, dashes), (line, runs) in zip(styles(), drawn.items()):
        shortest = min(map(len, runs))
        rounds = [round for round, _ in runs[0][:shortest]]
        values = np.array([[value for _, value in run[:shortest]] for run in runs], dtype=float)
        mean = values.mean(0)
        axes.plot(rounds, mean, dashes, color=colour, linewidth=2)
        axes.fill_between(
            rounds, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0
        )
        ends.append((float(mean[-1]), line, colour))
    tidy(axes)
    axes.locator_params(axis="x", integer=True)  # there is no half a round
    label_ends(axes, [end for end in ends if np.isfinite(end[0])])


def styles() -> Iterator[tuple[str, str]]:
    """A colour and dashes for each line: solid ones in every colour first."""
    return ((colour, dashes) for dashes in ("-", "--", ":") for colour in COLOURS[:7])


def tidy(axes: Axes) -> None:
    """Only what is read: faint lines across, no frame."""
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(which="both", length=0, colors=INK)


def against_columns(
    label: str,
    lines: Sequence[str] = (),
    quantity: str = "",
    log: bool = False,
    also: Callable[[Axes, Outcome], None] | None = None,
) -> Draw:
    """A figure of a quantity against the columns: a line for each method, a band for the seeds.

    also: draws more into the figure.
    """

    def draw(outcome: Outcome) -> Figure:
        figure = new_figure()
        axes = figure.subplots()
        if log:
            axes.set_yscale("log")
        shown = find_quantity(outcome, quantity)
        places = np.arange(len(outcome.columns))
        ends = []
        names = chosen(lines, outcome.lines)
        for (colour, dashes), line in zip(styles(), names):
            low, mean, high = range_of(outcome, line, shown)
            axes.plot(places, mean, dashes, color=colour, linewidth=2, marker="o", markersize=4)
            axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
            ends.append((float(mean[-1]), line, colour))
        if also is not None:
            also(axes, outcome)
        axes.set_xticks(places, outcome.columns)
        axes.set_title(label, loc="left", color=INK, fontsize=11)
        tidy(axes)
        label_ends(axes, [end for end in ends if np.isfinite(end[0])])
        return figure

    return draw


def range_of(outcome: Outcome, line: str, quantity: Quantity) -> np.ndarray:
    """[3, columns]: the least, the mean and the most of a line's values over the seeds."""
    found = []
    for column in outcome.columns:
        values = list(outcome.values(line, column, quantity.name).values()) or [np.nan]
        found.append([min(values), float(np.mean(values)), max(values)])
    return np.array(found).T * quantity.factor


def ranking(label: str, apart: Sequence[str] = ()) -> Draw:
    """A row for each line of the table, the best on top: its mean, and every seed as a small dot.

    Of the first column and quantity.  apart: the labels of lines in another colour.
    """

    def draw(outcome: Outcome) -> Figure:
        shown = find_quantity(outcome, "")
        values = {
            line: np.array(list(outcome.values(line, outcome.columns[0], shown.name).values()))
            for line in outcome.lines
        }
        means = {line: v.mean() for line, v in values.items() if len(v) and np.isfinite(v).all()}
        order = sorted(means, key=lambda line: means[line], reverse=shown.higher_is_better)
        figure = new_figure(width=7.2, height=0.26 * len(order) + 1.0)
        axes = figure.subplots()
        for place, line in enumerate(order):
            colour = COLOURS[1] if line in apart else COLOURS[0]
            seeds = values[line] * shown.factor
            axes.plot(seeds, np.full(len(seeds), place), ".", color=colour, alpha=0.4)
            axes.plot(means[line] * shown.factor, place, "o", color=colour)
        axes.set_yticks(range(len(order)), order)
        axes.set_ylim(len(order) - 0.5, -0.5)
        axes.set_title(label, loc="left", color=INK, fontsize=11)
        tidy(axes)
        return figure

    return draw


def heat_map(label: str, rows: str, columns: str, name: str) -> Draw:
    """A heat map of a quantity: lines of the table down, columns across."""

    def draw(outcome: Outcome) -> Figure:
        figure = new_figure(width=6.0, height=0.8 * len(outcome.lines) + 1.6)
        axes = figure.subplots()
        means = np.array(
            [[mean_of(outcome, line, c, name) for c in outcome.columns] for line in outcome.lines]
        )
        axes.imshow(means, cmap="viridis", vmin=0, vmax=1, aspect="auto")
        for (i, j), value in np.ndenumerate(means):
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=ink_on(value))
        axes.set_xticks(range(len(outcome.columns)), outcome.columns)
        axes.set_yticks(range(len(outcome.lines)), outcome.lines)
        axes.set_xlabel(columns, color=INK)
        axes.set_ylabel(rows, color=INK)
        axes.set_title(label, loc="left", color=INK, fontsize=11)
        axes.tick_params(length=0, colors=INK)
        axes.spines[:].set_visible(False)
        return figure

    return draw


def mean_of(outcome: Outcome, line: str, column: str, name: str) -> float:
    """The mean over seeds of a value; NaN where there is none."""
    values = list(outcome.values(line, column, name).values())
    return float(np.mean(values)) if values else np.nan


def ink_on(value: float) -> str:
    """The colour of a number on a field of the heat map."""
    return "black" if value > 0.6 else "white"
