"""Coarsen the description of a site's table: the owner's limits on what leaves the site.

A description of `describe` is exact, which suits simulations. Before it leaves a real site, numbers
are rounded to a few digits and everything that fewer than `min_rows` rows have is withheld, so that
neither a rare text nor the difference between two versions of a table points at a person.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from coterie.core.rounding import round_significant, round_to_scale
from coterie.data.description import MAX_CLASSES, Description


def coarsen_description(
    description: Description,
    class_rows: Mapping[str, int],
    *,
    min_rows: int,
    digits: int | None,
    knows_label: bool,
) -> Description:
    """Round the statistics of a table and withhold those of few rows.

    Args:
        description: What `describe` returned.
        class_rows: Rows of the table by class of the label; empty for a regression target.
        min_rows: Counts below this are withheld.
        digits: Significant digits; None: all.
        knows_label: Whether the owner named this label, so that the names of up to 20 classes may
            leave however rare they are.

    Returns:
        A description of the same form.
    """
    rows = description["rows"]
    columns = {
        name: coarsen_column(column, rows, min_rows, digits)
        for name, column in description["columns"].items()
    }
    label = dict(description["label"])
    may_name_all = knows_label and len(label["classes"]) <= MAX_CLASSES
    if label["classes"] and not may_name_all:
        label["classes"] = [name for name in label["classes"] if class_rows[name] >= min_rows]
        if not label["classes"]:  # too few rows of any class: the other sites decide
            label = {"name": label["name"], "kind": "empty", "classes": []}
    if label.get("count"):
        label |= round_moments(label, digits)
    return {"rows": rows, "label": label, "columns": columns}


def coarsen_column(
    column: Description, rows: int, min_rows: int, digits: int | None
) -> Description:
    """Round the statistics of a column; few missing cells count as none, few present as missing."""
    coarse = dict(column)
    if coarse["missing"] < min_rows:
        coarse["missing"] = 0
    if rows - coarse["missing"] < min_rows:
        coarse["missing"] = rows
    if "categories" in column:
        coarse["categories"] = {
            text: int(round_significant(count, digits))
            for text, count in column["categories"].items()
            if count >= min_rows
        }
    if column.get("count"):
        coarse |= round_moments(column, digits)
        coarse["count"] = rows - coarse["missing"]
        coarse["squares"] *= coarse["count"] / column["count"]
    return coarse


def round_moments(column: Description, digits: int | None) -> Description:
    """Round mean, squared deviations and quantiles to the resolution of the standard deviation."""
    if digits is None:
        return {}
    deviation = math.sqrt(column["squares"] / column["count"])
    if not deviation > 0:
        value = round_significant(column["mean"], 2 * digits)
        return {"mean": value, "quantiles": [value]} if "quantiles" in column else {"mean": value}
    rounded: Description = {
        "mean": round_to_scale(column["mean"], deviation, digits),
        "squares": column["count"] * round_significant(deviation, digits) ** 2,
    }
    if "quantiles" in column:
        rounded["quantiles"] = [round_to_scale(q, deviation, digits) for q in column["quantiles"]]
    return rounded
