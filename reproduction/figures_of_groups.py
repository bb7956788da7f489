"""Figures of groups: members, number of groups, and weights of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from coterie.reporting import plots
from coterie.reporting.plots import INK, colours_for, new_figure
from coterie.reporting.text import capitalise, join_names
from reproduction.figures import (
    Draw,
    chosen,
    curve_figure,
    panel_title,
    set_title,
    style_axes,
    text_figure,
)
from reproduction.figures_of_tables import mean_value
from reproduction.result_table import CellResult, ResultTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOT_KEPT = "these results do not have it: run the experiment again"


# ------------------------------------------------------------------------------ who is in which
def identity_figure(results: ResultTable) -> Figure:
    """Draw the share of clients in the right group over rounds; for older results the ARI."""
    draw = curve_figure(
        "ari", "Agreement with the planted groups (ARI)", highest=1.0, each_seed=True
    )
    if any("matched" in cell.curves for cell in results.cells.values()):
        draw = curve_figure(
            "matched", "Clients in the right group, %", highest=100.0, each_seed=True
        )
    return draw(results)


def group_map_figure(line: str, column: str = "") -> Draw:
    """Return a function that draws the group of each client after each round, for the first seed.

    The cells of the line need `extra["groups"]`, [rounds + 1][clients].

    Args:
        line: Label of the line.
        column: Label of the column; "": the first.
    """

    def draw(results: ResultTable) -> Figure:
        label = column or results.columns[0]
        cells = results.of(line, label)
        if not cells:
            return text_figure(f"Groups of {line}: not run yet")
        cell = cells[0]
        groups = np.array(cell.extra["groups"])
        title = f"Groups of {line} after each round, {label}, seed {cell.seed}"
        return plots.plot_groups(groups, title)

    return draw


# ------------------------------------------------------------------------------ how many
def group_count_figure(counts: Mapping[str, int], heuristic: str, others: Sequence[str]) -> Draw:
    """Return a function that draws the first quantity against the number of groups.

    Args:
        counts: By label of the line, its number of groups.
        heuristic: Label of the line that chooses the number; its cells have a value `groups`.
        others: Labels of lines without groups, drawn as horizontal lines.
    """

    def draw(results: ResultTable) -> Figure:
        quantity = results.experiment.quantity()
        figure = new_figure(width=7.2, height=3.6 * len(results.columns) + 0.4)
        panels = figure.subplots(len(results.columns), squeeze=False)[:, 0]
        for axes, column in zip(panels, results.columns):
            values = {k: results.values(line, column, quantity.name) for line, k in counts.items()}
            known = {k: np.array(list(of.values())) for k, of in values.items() if of}
            if known:
                rows = [row * quantity.factor for row in known.values()]
                draw_against(axes, list(known), rows)
            draw_choice(axes, results, column, heuristic)
            draw_across(axes, results, column, others)
            set_title(axes, panel_title(capitalise(quantity.label), results, column))
            style_axes(axes)
            axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
        panels[-1].set_xlabel("number of groups K", color=INK)
        return figure

    return draw


def draw_against(axes: Axes, counts: list[int], rows: list[np.ndarray]) -> None:
    """Draw the mean over seeds at each number of groups, and a band from minimum to maximum."""
    colour = colours_for(1)[0]
    axes.plot(counts, [row.mean() for row in rows], color=colour, marker="o", label="CGPFL(K)")
    low, high = [row.min() for row in rows], [row.max() for row in rows]
    axes.fill_between(counts, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xticks(counts)


def draw_choice(axes: Axes, results: ResultTable, column: str, line: str) -> None:
    """Draw a star per seed of the line that chooses the number of groups itself."""
    quantity = results.experiment.quantity()
    values = results.values(line, column, quantity.name)
    numbers = results.values(line, column, "groups")
    seeds = [seed for seed in values if seed in numbers]
    if seeds:
        choices = [numbers[seed] for seed in seeds]
        heights = [quantity.factor * values[seed] for seed in seeds]
        label = f"{line}, which chose {join_names([f'{k:g}' for k in choices])}"
        axes.plot(choices, heights, "*", color=colours_for(2)[1], markersize=13, label=label)


def draw_across(axes: Axes, results: ResultTable, column: str, lines: Sequence[str]) -> None:
    """Draw a dashed horizontal line per method without groups."""
    quantity = results.experiment.quantity()
    shown = [line for line in lines if line in results.lines]
    for colour, line in zip(colours_for(2 + len(shown))[2:], shown):
        value = mean_value(results, line, column, quantity.name) * quantity.factor
        axes.axhline(value, color=colour, linestyle="--", linewidth=1.5, label=line)


# ------------------------------------------------------------------------------ weights
def weight_figure(column: str, lines: Sequence[str], source: str) -> Draw:
    """Return a function that draws the weight of one source for each client, for the first seed.

    The cells need `extra["weights"]` (estimated) and `extra["shares"]` (planted), one number per
    client.

    Args:
        column: Label of the column.
        lines: Labels of the lines, one panel each.
        source: Name of the source, for the label of the axis.
    """

    def draw(results: ResultTable) -> Figure:
        cells: dict[str, CellResult] = {}
        for line in chosen(lines, results.lines):
            for cell in results.of(line, column)[:1]:
                if "weights" in cell.extra:
                    cells[line] = cell
        figure = new_figure(width=3.0 * max(len(cells), 2), height=3.4)
        if not cells:
            figure.text(0.5, 0.5, NOT_KEPT, ha="center", color=INK)
            return figure
        panels = figure.subplots(1, len(cells), squeeze=False, sharey=True)[0]
        for axes, (line, cell) in zip(panels, cells.items()):
            draw_weights(axes, cell.extra)
            set_title(axes, line)
            axes.set_xlabel("client, by its share", color=INK)
            axes.locator_params(axis="x", integer=True)
        panels[0].set_ylabel(f"weight of the centre for {source}", color=INK)
        panels[0].legend(frameon=False, fontsize=8, loc="upper left")
        seed = next(iter(cells.values())).seed
        title = f"Weights of every client, {column}, seed {seed}"
        figure.suptitle(title, x=0.02, ha="left", color=INK, fontsize=11)
        return figure

    return draw


def draw_weights(axes: Axes, extra: Mapping[str, Sequence[float]]) -> None:
    """Draw a point per client over its planted share."""
    shares = np.array(extra["shares"])
    order = shares.argsort(kind="stable")
    found, planted = colours_for(2)
    axes.plot(shares[order], color=planted, drawstyle="steps-mid", label="planted share")
    weights = np.array(extra["weights"])[order]
    axes.plot(weights, ".", color=found, markersize=5, label="weight found")
    axes.set_ylim(-0.03, 1.03)
    style_axes(axes)
