"""What is odd about columns at single sites: empty cells, and values that never change there.

Both come from the sites' descriptions of their training rows. A column that never changes at one
site is often a value that stands for "unknown", such as a cholesterol of 0. It is odd only where
it varies at other sites, and where that many equal values by chance are next to impossible.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.core.errors import CoterieWarning, Option
from coterie.data.description import Description

SEVERAL = 10  # rows at a site: of fewer, equal values are no news
CHANCE = 0.01  # that a sentence is said of sites that do not differ
RARE = 20  # one site in so many may have a column that never changes
NEARLY_ALL = 0.9  # of a column's cells: what a model makes of the others hardly counts
MOST_NAMED = 5  # columns or sites in one sentence
ROUNDING = 1e-24  # of the squared mean: a spread that is no larger comes from rounding


class ConstantColumn(NamedTuple):
    """A column that never changes at one site and varies elsewhere."""

    column: str
    site: str
    value: str
    rows: int  # training rows of the site that have it


@dataclass(frozen=True)
class SiteColumns:
    """What the sites' columns are like, site by site."""

    rows: Mapping[str, int]  # by site: training rows
    empty: Mapping[str, Mapping[str, int]]  # by column, by site: empty cells, where there are any
    constants: Sequence[ConstantColumn]  # those of the largest sites first

    def nearly_empty(self, column: str) -> list[str]:
        """The sites at which nearly all cells of a column are empty."""
        cells = self.empty.get(column, {})
        return [site for site, empty in cells.items() if empty >= NEARLY_ALL * self.rows[site]]

    def is_nearly_empty(self, column: str, sites: Collection[str]) -> bool:
        """Whether nearly all cells of a column are empty at these sites taken together."""
        cells = self.empty.get(column, {})
        rows = sum(self.rows.get(site, 0) for site in sites)
        return rows > 0 and sum(cells.get(site, 0) for site in sites) >= NEARLY_ALL * rows


def summarise_site_columns(descriptions: Mapping[str, Description]) -> SiteColumns:
    """Collect what is odd at single sites from the descriptions of all sites, by name."""
    trained = {site: d for site, d in descriptions.items() if d["rows"]}
    empty: dict[str, dict[str, int]] = {}
    constants: list[ConstantColumn] = []
    columns = next(iter(descriptions.values()))["columns"]
    looks = len(columns) * len(trained)
    for name in sorted(columns):
        parts = {site: d["columns"][name] for site, d in trained.items()}
        gaps = {site: d["missing"] for site, d in parts.items() if d["missing"]}
        if gaps:
            empty[name] = gaps
        constants += find_constant_columns(name, parts, looks)
    constants.sort(key=lambda constant: -constant.rows)
    rows = {site: d["rows"] for site, d in trained.items()}
    return SiteColumns(rows, empty, constants)


# ------------------------------------------------------------------------------ constants
def find_constant_columns(
    column: str, parts: Mapping[str, Description], looks: int
) -> list[ConstantColumn]:
    """List the sites at which a column never changes, unless that is the way of several sites.

    A sex that never changes at a third of the schools says what schools they are.
    looks: how many columns of sites are looked at in all.
    """
    values = {site: find_constant(d) for site, d in parts.items() if count_values(d) >= SEVERAL}
    varying = [parts[site] for site, value in values.items() if value is None]
    constant = {site: value for site, value in values.items() if value is not None}
    if not varying or len(constant) > max(1, len(varying) // RARE):
        return []
    result = []
    for site, value in constant.items():
        rows = count_values(parts[site])
        by_chance = estimate_share(value, varying) ** rows
        if by_chance < CHANCE / looks:
            result.append(ConstantColumn(column, site, format_value(value), rows))
    return result


def count_values(description: Description) -> int:
    """The number of cells that hold a value."""
    if "categories" in description:
        return sum(description["categories"].values())
    return int(description.get("count", 0))


def find_constant(description: Description) -> str | float | None:
    """The value that all cells of a site hold; None where they differ."""
    if "categories" in description:
        texts = list(description["categories"])
        return texts[0] if len(texts) == 1 else None
    mean = float(description["mean"])
    if description["squares"] > ROUNDING * description["count"] * mean**2:
        return None
    return mean


def estimate_share(value: str | float, parts: Sequence[Description]) -> float:
    """The share of cells that hold a value, at other sites; of numbers, by their quantiles."""
    cells = sum(map(count_values, parts))
    if isinstance(value, str):
        return sum(d["categories"].get(value, 0) for d in parts) / cells
    equal = [count_values(d) * float(np.isclose(d["quantiles"], value).mean()) for d in parts]
    return sum(equal) / cells


def format_value(value: str | float) -> str:
    """A value as text."""
    if isinstance(value, str):
        return value
    return f"{value:.6g}"


# ------------------------------------------------------------------------------ as text
def describe_constants(constants: Sequence[ConstantColumn]) -> str:
    """Name the columns that never change at a site, a few of them."""
    some = [f"{c.column} (always {c.value} at {c.site}, {c.rows} rows)" for c in constants]
    listed = ", ".join(some[:MOST_NAMED])
    if len(some) > MOST_NAMED:
        listed += f" and {len(some) - MOST_NAMED} more"
    if len(constants) == 1:
        return f"a column never changes at one site, and varies elsewhere: {listed}"
    return f"columns never change at a site, and vary elsewhere: {listed}"


def warn_about_constants(constants: Sequence[ConstantColumn]) -> None:
    """Warn of columns that never change at a site, in one sentence."""
    if not constants:
        return
    names = list(dict.fromkeys(constant.column for constant in constants[:MOST_NAMED]))
    doubt = CoterieWarning(
        describe_constants(constants),
        "if such a value stands for unknown, empty these cells and use {}, or leave columns out "
        "with {}",
        options=[Option("fill", "median"), Option("drop", ",".join(names), of_data=True)],
    )
    warnings.warn(doubt, stacklevel=2)


def describe_nearly_empty(columns: SiteColumns) -> str:
    """Name the columns of which nearly all cells are empty at some sites; "" where none is."""
    parts = []
    for column in columns.empty:
        sites = columns.nearly_empty(column)
        if sites:
            listed = ", ".join(sites[:MOST_NAMED])
            if len(sites) > MOST_NAMED:
                listed += f" and {len(sites) - MOST_NAMED} more"
            parts.append(f"{column} at {listed}")
    if len(parts) > MOST_NAMED:
        parts[MOST_NAMED:] = [f"{len(parts) - MOST_NAMED} more columns"]
    return "; ".join(parts)
