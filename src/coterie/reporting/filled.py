"""Which cells of the tables were empty, and what stands for them."""

from __future__ import annotations

from typing import NamedTuple

from coterie.data.schema import Schema
from coterie.data.site_columns import SiteColumns, describe_nearly_empty
from coterie.reporting.text import join_names

MAX_COLUMNS = 12  # that are named


class Filled(NamedTuple):
    """The empty cells in the training rows of all clients together."""

    fill: str  # what stands for numbers: "mean" or "median"; "" where all empty cells are texts
    columns: list[tuple[str, int]]  # (name, empty cells), those with most first
    rows: int  # in all
    nearly_all: str  # columns that are nearly empty at some sites, with these; "": none, or unknown


def filled(schema: Schema | None, of_sites: SiteColumns | None) -> Filled | None:
    """Collect the columns with empty cells; None where there are none.

    of_sites: the same site by site; None: unknown.
    """
    if schema is None:
        return None
    with_gaps = [column for column in schema.features if column.missing]
    if not with_gaps:
        return None
    fill = ""
    if any(column.kind != "category" for column in with_gaps):
        fill = schema.fill or ""
    nearly_all = ""
    if of_sites is not None:
        nearly_all = describe_nearly_empty(of_sites)
    columns = sorted(((c.name, c.missing) for c in with_gaps), key=lambda column: -column[1])
    return Filled(fill, columns, schema.rows, nearly_all)


# ------------------------------------------------------------------------------ as text
def describe_filled(result: Filled, one_seed: str = "") -> str:
    """Say how many cells of which columns were filled, and with what.

    one_seed: the seed whose training rows were counted, where there are several.
    """
    what = "Empty cells count as other"
    if result.fill:
        what = f"Empty cells were filled with the {result.fill} over all clients"
    columns = [f"{name} {empty:,}" for name, empty in result.columns]
    of = f"of {result.rows:,} training rows"
    if one_seed:
        of += f" with {one_seed}"
    return f"{what}, {of}: {join_names(columns, MAX_COLUMNS)}."


def describe_nearly_all(result: Filled) -> str:
    """Say at which sites a column was all but empty; "" where none was, or that is unknown."""
    if not result.nearly_all:
        return ""
    return (
        f"Nearly all cells of a column were filled: {result.nearly_all}. What is said of these "
        "columns there does not come from these sites."
    )
