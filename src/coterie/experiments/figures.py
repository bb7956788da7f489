"""Figures like the papers': curves with bands, heat maps, groups over rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from coterie.experiments.claims import find_quantity
from coterie.experiments.outcome import Outcome
from coterie.plots import FAINT, INK, colours_for, label_ends, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[[Outcome], "Figure"]


def curves_of(name: str, label: str, columns: Sequence[str] = (), log: bool = False) -> Draw:
    """A figure of a metric against rounds: a panel for each column, a line for each method.

    columns: the labels of those that are drawn; none: all.
    """

    def draw(outcome: Outcome) -> Figure:
        shown = [column for column in columns or outcome.columns if column in outcome.columns]
        figure = new_figure(width=7.2, height=3.6 * len(shown) + 0.4)
        panels = figure.subplots(len(shown), squeeze=False)[:, 0]
        for axes, column in zip(panels, shown):
            if log:
                axes.set_yscale("log")
            draw_curves(axes, outcome, column, name)
            axes.set_title(f"{label}, {column}", loc="left", color=INK, fontsize=11)
        panels[-1].set_xlabel("round", color=INK)
        return figure

    return draw


def draw_curves(axes: Axes, outcome: Outcome, column: str, name: str) -> None:
    """A line for each method: the mean over its seeds, and a band from the least to the most."""
    ends = []
    for colour, line in zip(colours_for(len(outcome.lines)), outcome.lines):
        runs = [cell.curves[name] for cell in outcome.of(line, column) if name in cell.curves]
        if not runs:
            continue
        shortest = min(map(len, runs))
        rounds = [round for round, _ in runs[0][:shortest]]
        values = np.array([[value for _, value in run[:shortest]] for run in runs], dtype=float)
        mean = values.mean(0)
        axes.plot(rounds, mean, color=colour, linewidth=2)
        axes.fill_between(
            rounds, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0
        )
        ends.append((float(mean[-1]), line, colour))
    tidy(axes)
    label_ends(axes, [end for end in ends if np.isfinite(end[0])])


def tidy(axes: Axes) -> None:
    """Only what is read: faint lines across, no frame."""
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(which="both", length=0, colors=INK)


def against_columns(label: str, lines: Sequence[str] = (), quantity: str = "") -> Draw:
    """A figure of a quantity against the columns: a line for each method, bars for the seeds."""

    def draw(outcome: Outcome) -> Figure:
        figure = new_figure()
        axes = figure.subplots()
        shown = find_quantity(outcome, quantity)
        places = np.arange(len(outcome.columns))
        ends = []
        names = [line for line in lines or outcome.lines if line in outcome.lines]
        for colour, line in zip(colours_for(len(names)), names):
            means = [mean_of(outcome, line, c, shown.name) * shown.factor for c in outcome.columns]
            spreads = [
                np.std(list(outcome.values(line, c, shown.name).values()) or [0.0]) * shown.factor
                for c in outcome.columns
            ]
            axes.errorbar(places, means, spreads, color=colour, linewidth=2, marker="o", capsize=3)
            ends.append((float(means[-1]), line, colour))
        axes.set_xticks(places, outcome.columns)
        axes.set_title(label, loc="left", color=INK, fontsize=11)
        tidy(axes)
        label_ends(axes, [end for end in ends if np.isfinite(end[0])])
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


def groups_over_rounds(line: str, column: str = "") -> Draw:
    """A colour map of who was in which group after each round, of the first seed.

    The work must keep it under `extra["groups"]`: [rounds][clients].
    """

    def draw(outcome: Outcome) -> Figure:
        cell = outcome.of(line, column or outcome.columns[0])[0]
        groups = np.array(cell.extra["groups"]).T
        order = np.lexsort(groups.T[[-1]])
        figure = new_figure(width=7.2, height=4.6)
        axes = figure.subplots()
        axes.imshow(groups[order], cmap="tab20", aspect="auto", interpolation="nearest")
        axes.set_xlabel("round", color=INK)
        axes.set_ylabel("client, by its last group", color=INK)
        axes.set_title(f"Groups of {line}", loc="left", color=INK, fontsize=11)
        axes.tick_params(length=0, colors=INK)
        axes.spines[:].set_visible(False)
        return figure

    return draw


def weights_of_clients(column: str, lines: Sequence[str], source: str) -> Draw:
    """A panel for each method: every client's weight of the centre that stands for a source.

    Of the first seed. The work must keep `extra["weights"]` and `extra["shares"]`, one of each per
    client: what was found, and what was planted.
    """

    def draw(outcome: Outcome) -> Figure:
        names = [line for line in lines if line in outcome.lines]
        figure = new_figure(width=3.0 * len(names), height=3.4)
        panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
        for axes, line in zip(panels, names):
            draw_weights(axes, outcome.of(line, column)[0].extra)
            axes.set_title(line, loc="left", color=INK, fontsize=11)
            axes.set_xlabel("client, by its share", color=INK)
        panels[0].set_ylabel(f"weight of the centre for {source}", color=INK)
        return figure

    return draw


def draw_weights(axes: Axes, extra: Mapping[str, Sequence[float]]) -> None:
    """A point for each client, over the share that was planted."""
    shares = np.array(extra["shares"])
    order = shares.argsort(kind="stable")
    found, planted = colours_for(2)
    axes.plot(shares[order], color=planted, drawstyle="steps-mid", label="planted share")
    weights = np.array(extra["weights"])[order]
    axes.plot(weights, ".", color=found, markersize=5, label="weight found")
    axes.set_ylim(-0.03, 1.03)
    tidy(axes)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
