"""Columns that are suspicious at single sites: mostly empty, or constant.

Both are found in the sites' descriptions of their training rows. A constant at one site often
stands for "unknown", such as a cholesterol of 0. It is reported only if the column varies at
other sites and if so many equal values are very unlikely by chance.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coterie.core.errors import CoterieWarning, Option
from coterie.data.description import Description
from coterie.data.merging import ColumnChoice, find_lacking

log = logging.getLogger("coterie")
MIN_ROWS = 10  # rows at a site; constants in fewer rows are not reported
SIGNIFICANCE = 0.01  # probability of any report if the sites do not differ
SITES_PER_CONSTANT = 20  # more frequent constants are a property of the column
NEARLY_EMPTY = 0.9  # share of missing cells
MAX_LISTED = 5  # columns or sites in one message
ROUNDING = 1e-24  # relative to the squared mean; a smaller variance is a rounding error


class ConstantColumn(NamedTuple):
    """A column that is constant at one site and varies at others."""

    column: str
    site: str
    value: str
    rows: int  # training rows of the site with this value


@dataclass(frozen=True)
class SiteColumns:
    """Missing cells and constant columns, by site."""

    rows: Mapping[str, int]  # training rows by site
    empty: Mapping[str, Mapping[str, int]]  # missing cells by column and site, if any
    constants: Sequence[ConstantColumn]  # the largest sites first
    lacking: Mapping[str, Sequence[str]] = field(default_factory=dict)  # sites by column, if any

    def nearly_empty(self, column: str) -> list[str]:
        """Return the sites where nearly all cells of a column are missing."""
        cells = self.empty.get(column, {})
        return [site for site, empty in cells.items() if empty >= NEARLY_EMPTY * self.rows[site]]

    def is_nearly_empty(self, column: str, sites: Collection[str]) -> bool:
        """Whether nearly all cells of a column are missing at these sites together."""
        cells = self.empty.get(column, {})
        rows = sum(self.rows.get(site, 0) for site in sites)
        return rows > 0 and sum(cells.get(site, 0) for site in sites) >= NEARLY_EMPTY * rows


def summarise_site_columns(descriptions: Mapping[str, Description]) -> SiteColumns:
    """Find missing cells and constant columns in the descriptions of all sites, by name."""
    trained = {site: d for site, d in descriptions.items() if d["rows"]}
    empty: dict[str, dict[str, int]] = {}
    constants: list[ConstantColumn] = []
    columns = {name for d in descriptions.values() for name in d["columns"]}
    num_tests = len(columns) * len(trained)
    for name in sorted(columns):
        parts = {site: d["columns"][name] for site, d in trained.items() if name in d["columns"]}
        gaps = {site: d["missing"] for site, d in parts.items() if d["missing"]}
        if gaps:
            empty[name] = gaps
        constants += find_constant_columns(name, parts, num_tests)
    constants.sort(key=lambda constant: -constant.rows)
    rows = {site: d["rows"] for site, d in trained.items()}
    return SiteColumns(rows, empty, constants, find_lacking(descriptions))


# ------------------------------------------------------------------------------ constants
def find_constant_columns(
    column: str, parts: Mapping[str, Description], num_tests: int
) -> list[ConstantColumn]:
    """Find the sites where a column is constant, unless it is constant at several sites.

    A sex that is constant at a third of the schools is a property of the schools, not an error.

    Args:
        column: Name of the column.
        parts: Descriptions of the column by site.
        num_tests: Number of columns times sites, for the Bonferroni correction.
    """
    values = {site: find_constant(d) for site, d in parts.items() if count_values(d) >= MIN_ROWS}
    varying = [parts[site] for site, value in values.items() if value is None]
    constant = {site: value for site, value in values.items() if value is not None}
    if not varying or len(constant) > max(1, len(varying) // SITES_PER_CONSTANT):
        return []
    result = []
    for site, value in constant.items():
        rows = count_values(parts[site])
        by_chance = estimate_share(value, varying) ** rows
        if by_chance < SIGNIFICANCE / num_tests:
            result.append(ConstantColumn(column, site, format_value(value), rows))
    return result


def count_values(description: Description) -> int:
    """Count the cells that are not missing."""
    if "categories" in description:
        return sum(description["categories"].values())
    return int(description.get("count", 0))


def find_constant(description: Description) -> str | float | None:
    """Return the value of all cells of a site; None if they differ."""
    if "categories" in description:
        texts = list(description["categories"])
        return texts[0] if len(texts) == 1 else None
    mean = float(description["mean"])
    if description["squares"] > ROUNDING * description["count"] * mean**2:
        return None
    return mean


def estimate_share(value: str | float, parts: Sequence[Description]) -> float:
    """Estimate the share of cells with this value at other sites; numbers use the quantiles."""
    cells = sum(map(count_values, parts))
    if isinstance(value, str):
        return sum(d["categories"].get(value, 0) for d in parts) / cells
    equal = [count_values(d) * float(np.isclose(d["quantiles"], value).mean()) for d in parts]
    return sum(equal) / cells


def format_value(value: str | float) -> str:
    """Format a value for a message."""
    if isinstance(value, str):
        return value
    return f"{value:.6g}"


# ------------------------------------------------------------------------------ as text
def describe_constants(constants: Sequence[ConstantColumn]) -> str:
    """Describe the columns that are constant at one site; a few are named."""
    some = [f"{c.column} (always {c.value} at {c.site}, {c.rows} rows)" for c in constants]
    listed = ", ".join(some[:MAX_LISTED])
    if len(some) > MAX_LISTED:
        listed += f" and {len(some) - MAX_LISTED} more"
    if len(constants) == 1:
        return f"a column never changes at one site, and varies elsewhere: {listed}"
    return f"columns never change at a site, and vary elsewhere: {listed}"


def warn_about_constants(constants: Sequence[ConstantColumn]) -> None:
    """Warn about columns that are constant at one site."""
    if not constants:
        return
    names = list(dict.fromkeys(constant.column for constant in constants[:MAX_LISTED]))
    doubt = CoterieWarning(
        describe_constants(constants),
        "if such a value stands for unknown, clear these cells and use {}, or drop columns with {}",
        options=[Option("fill", "median"), Option("drop", ",".join(names), of_data=True)],
    )
    warnings.warn(doubt, stacklevel=2)


def describe_nearly_empty(columns: SiteColumns) -> str:
    """Describe the columns that are nearly empty at some sites; "" if there are none."""
    return list_columns_at({column: columns.nearly_empty(column) for column in columns.empty})


def log_lacking(columns: SiteColumns, choice: ColumnChoice | None) -> None:
    """Log which sites lack which columns, and what becomes of these."""
    outcome = "they count as missing there"
    if choice == "common":
        outcome = "they are left out"
    if columns.lacking:
        log.info("some clients lack columns, %s: %s", outcome, list_columns_at(columns.lacking))


def list_columns_at(sites_of: Mapping[str, Sequence[str]]) -> str:
    """List columns with the sites that they concern; a few of each are named."""
    parts = []
    for column, sites in sites_of.items():
        if sites:
            listed = ", ".join(sites[:MAX_LISTED])
            if len(sites) > MAX_LISTED:
                listed += f" and {len(sites) - MAX_LISTED} more"
            parts.append(f"{column} at {listed}")
    if len(parts) > MAX_LISTED:
        parts[MAX_LISTED:] = [f"{len(parts) - MAX_LISTED} more columns"]
    return "; ".join(parts)
