"""Groups of real sites: members, differences, and whether they are stable.

Natural sites have no true groups to compare with. We can ask whether another split of the same rows
into training and test rows gives the same groups.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.data import Federation
from coterie.data.roster import natural_key
from coterie.metrics import agreement
from coterie.reporting.group_differences import compare_groups, describe_differences
from coterie.reporting.plots import INK, colours_for, new_figure
from coterie.reporting.text import format_number, join_names
from coterie.result import Result
from reproduction.figures import Draw, set_title, style_axes, text_figure
from reproduction.result_table import CellResult, ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMES = 12  # of a group's sites that are named


class SiteRecord(NamedTuple):
    """A site of a run, as files of results have it."""

    name: str
    group: int
    level: float  # the mean of its training labels; of two classes the share of the second


def group_record(result: Result, fed: Federation) -> dict[str, Any]:
    """Return what the page needs of a run's groups, for `Measured.extra`; {} without groups.

    Args:
        result: The run.
        fed: Its data.
    """
    groups = result.trained.hard_groups
    if groups is None:
        return {}
    groups = number_by_size(groups)
    labels = [fed.train.client(i)[1].double() for i in range(len(fed))]
    levels = [round(float(y.mean()), 4) for y in labels]
    names = fed.roster.training_names
    sites = [SiteRecord(*each) for each in zip(names, groups.tolist(), levels)]
    label = "" if fed.schema is None else fed.schema.label  # classes have no mean
    return {"sites": sites, "label": label, "apart": describe_group_differences(fed, groups)}


def describe_group_differences(fed: Federation, groups: np.ndarray) -> list[str]:
    """Return sentences about the differences between groups; none if there is one group."""
    comparisons = compare_groups(fed, groups).comparisons
    if not comparisons:
        return []
    parts, rest = describe_differences(comparisons, clients=len(fed))
    sentences = [f"{title} {s}".strip() for title, part in parts for s in part]
    return [*sentences, *rest]


def number_by_size(groups: np.ndarray) -> np.ndarray:
    """Renumber groups from the largest on; −1 (no group) stays.

    Args:
        groups: int64 [N].
    """
    known, counts = np.unique(groups[groups >= 0], return_counts=True)
    order = known[np.argsort(-counts, kind="stable")]
    numbered = np.full_like(groups, -1)
    for number, group in enumerate(order):
        numbered[groups == group] = number
    return numbered


# ------------------------------------------------------------------------------ as text
def describe_groups(line: str) -> Callable[[ResultTable], list[str]]:
    """Return a function that lists the groups of a line for the first seed, and their stability."""

    def describe(results: ResultTable) -> list[str]:
        cells = cells_with_groups(results, line)
        if not cells:
            return []
        return [*describe_members(cells[0]), *cells[0].extra["apart"], *describe_stability(results)]

    return describe


def cells_with_groups(results: ResultTable, line: str) -> list[CellResult]:
    """Return the cells of a line that have groups, by seed."""
    cells = [cell for column in results.columns for cell in results.of(line, column)]
    return [cell for cell in cells if "sites" in cell.extra]


def describe_members(cell: CellResult) -> list[str]:
    """Return a sentence per group with its members."""
    sites = [SiteRecord(*each) for each in cell.extra["sites"]]
    numbers = sorted({site.group for site in sites if site.group >= 0})
    if len(numbers) == 1:
        return [f"{cell.line}, seed {cell.seed}: one group of all {len(sites)} sites."]
    sentences = []
    for number in numbers:
        inside = [site for site in sites if site.group == number]
        names = sorted([site.name for site in inside], key=natural_key)
        level = ""
        if cell.extra["label"]:
            mean = float(np.mean([site.level for site in inside]))
            level = f", with a mean {cell.extra['label']} of {format_number(mean)}"
        who = join_names(names, MOST_NAMES)
        sentences.append(f"{cell.line}, seed {cell.seed}, group {number}{level}: {who}.")
    return sentences


def describe_stability(results: ResultTable) -> list[str]:
    """Return one sentence about the agreement of groups between seeds."""
    parts = []
    for line in results.lines:
        cells = cells_with_groups(results, line)
        found = [{name: group for name, group, _ in cell.extra["sites"]} for cell in cells]
        pairs = [group_agreement(a, b) for a, b in combinations(found, 2)]
        known = [ari for ari in pairs if ari is not None]
        if known:
            is_one = all(len(set(groups.values())) == 1 for groups in found)
            parts.append(f"{line} {'has one group' if is_one else f'{np.mean(known):.2f}'}")
    if not parts:
        return []
    return [f"Groups of two seeds agree by (ARI; chance 0, the same 1): {', '.join(parts)}."]


def group_agreement(first: dict[str, int], second: dict[str, int]) -> float | None:
    """Return the ARI of two groupings over their common sites; None if fewer than two."""
    common = [name for name in first if name in second]
    if len(common) < 2:
        return None
    a, b = (np.array([groups[name] for name in common]) for groups in (first, second))
    return float(agreement(a, b)["ari"])


# ------------------------------------------------------------------------------ as a figure
def level_figure(line: str) -> Draw:
    """Return a function that draws the mean label of each site by group, a panel per seed."""

    def draw(results: ResultTable) -> Figure:
        cells = cells_with_groups(results, line)
        if not cells:
            return text_figure(f"{line} has no groups here")
        rows = [1 + max(group for _, group, _ in cell.extra["sites"]) for cell in cells]
        if max(rows) == 1:
            return text_figure(f"{line} has one group of all sites, with every seed")
        heights = [count + 1.5 for count in rows]  # with room for a title
        figure = new_figure(width=7.2, height=0.24 * sum(heights) + 0.6)
        panels = figure.subplots(
            len(cells), squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        for axes, cell, count in zip(panels, cells, rows):
            sites = [SiteRecord(*each) for each in cell.extra["sites"]]
            for number, colour in enumerate(colours_for(count)):
                levels = [site.level for site in sites if site.group == number]
                axes.plot(levels, np.full(len(levels), number), "o", color=colour, alpha=0.6)
            axes.set_yticks(range(count), [f"group {number}" for number in range(count)])
            axes.set_ylim(count - 0.4, -0.6)
            set_title(axes, f"Groups of {line}, a dot for each site, seed {cell.seed}")
            style_axes(axes)
        panels[-1].set_xlabel(f"mean of {cells[0].extra['label']} at a site", color=INK)
        return figure

    return draw
