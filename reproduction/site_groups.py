"""The groups of real sites: who is in which, what sets them apart, and whether they come back.

Sites that nobody grouped have no true groups to compare with. What can be asked is whether another
split of the same sites' rows into training and test rows gives the same groups.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.data import Federation
from coterie.metrics import agreement
from coterie.reporting.group_differences import compare_groups, describe_differences
from coterie.reporting.plots import INK, colours_for, new_figure
from coterie.reporting.text import format_number, join_names, natural_key
from coterie.result import Result
from reproduction.figures import Draw, give_title, sentence_alone, tidy
from reproduction.result_table import CellResult, ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMES = 12  # of a group's sites that are named


class SiteRecord(NamedTuple):
    """A site of a run, as results keep it."""

    name: str
    group: int
    level: float  # the mean of its training labels; of two classes the share of the second


def keep_groups(result: Result, fed: Federation) -> dict[str, Any]:
    """What the page needs of a run's groups, for `extra`; nothing where it has none."""
    groups = result.trained.hard_groups
    if groups is None:
        return {}
    groups = by_size(groups)
    labels = [fed.train.client(i)[1].double() for i in range(len(fed))]
    levels = [round(float(y.mean()), 4) for y in labels]
    names = fed.roster.training_names
    sites = [SiteRecord(*each) for each in zip(names, groups.tolist(), levels)]
    label = "" if fed.schema is None else fed.schema.label  # of people's classes no mean is told
    return {"sites": sites, "label": label, "apart": sentences_apart(fed, groups)}


def sentences_apart(fed: Federation, groups: np.ndarray) -> list[str]:
    """What sets the groups apart, a sentence each; none where there is one group."""
    comparisons = compare_groups(fed, groups).comparisons
    if not comparisons:
        return []
    parts, rest = describe_differences(comparisons, clients=len(fed))
    sentences = [f"{title} {s}".strip() for title, part in parts for s in part]
    return [*sentences, *rest]


def by_size(groups: np.ndarray) -> np.ndarray:
    """The same groups, numbered from the largest on; −1 stays."""
    known, counts = np.unique(groups[groups >= 0], return_counts=True)
    order = known[np.argsort(-counts, kind="stable")]
    numbered = np.full_like(groups, -1)
    for number, group in enumerate(order):
        numbered[groups == group] = number
    return numbered


# ------------------------------------------------------------------------------ as text
def describe_groups(line: str) -> Callable[[ResultTable], list[str]]:
    """A list for the page: the groups of a line with the first seed, and how they come back."""

    def describe(results: ResultTable) -> list[str]:
        cells = cells_with_groups(results, line)
        if not cells:
            return []
        return [
            *members(cells[0]),
            *cells[0].extra["apart"],
            *comes_back(results),
        ]

    return describe


def cells_with_groups(results: ResultTable, line: str) -> list[CellResult]:
    """The cells of a line that kept their groups, by seed."""
    cells = [cell for column in results.columns for cell in results.of(line, column)]
    return [cell for cell in cells if "sites" in cell.extra]


def members(cell: CellResult) -> list[str]:
    """A sentence for each group: who is in it."""
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


def comes_back(results: ResultTable) -> list[str]:
    """How well the groups of one seed agree with those of another, as one sentence."""
    told = []
    for line in results.lines:
        cells = cells_with_groups(results, line)
        found = [{name: group for name, group, _ in cell.extra["sites"]} for cell in cells]
        pairs = [agreement_of(a, b) for a, b in combinations(found, 2)]
        known = [ari for ari in pairs if ari is not None]
        if known:
            is_one = all(len(set(groups.values())) == 1 for groups in found)
            told.append(f"{line} {'has one group' if is_one else f'{np.mean(known):.2f}'}")
    if not told:
        return []
    return [f"Groups of two seeds agree by (ARI; chance 0, the same 1): {', '.join(told)}."]


def agreement_of(first: dict[str, int], second: dict[str, int]) -> float | None:
    """The ARI of two groupings, over the sites that trained in both; None of fewer than two."""
    common = [name for name in first if name in second]
    if len(common) < 2:
        return None
    a, b = (np.array([groups[name] for name in common]) for groups in (first, second))
    return float(agreement(a, b)["ari"])


# ------------------------------------------------------------------------------ as a figure
def levels_by_group(line: str) -> Draw:
    """A panel for each seed: every site a dot at the level of its label, a row for each group."""

    def draw(results: ResultTable) -> Figure:
        cells = cells_with_groups(results, line)
        if not cells:
            return sentence_alone(f"{line} has no groups here")
        rows = [1 + max(group for _, group, _ in cell.extra["sites"]) for cell in cells]
        if max(rows) == 1:
            return sentence_alone(f"{line} has one group of all sites, with every seed")
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
            give_title(axes, f"Groups of {line}, a dot for each site, seed {cell.seed}")
            tidy(axes)
        panels[-1].set_xlabel(f"mean of {cells[0].extra['label']} at a site", color=INK)
        return figure

    return draw
