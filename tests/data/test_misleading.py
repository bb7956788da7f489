"""Warnings about rows and columns that mislead a comparison."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.data.misleading import find_misleading, roc_area


def sentences(tables: dict[str, pd.DataFrame], **how) -> list[str]:
    with warnings.catch_warnings(action="ignore"):
        fed = ct.data.from_frames(tables, label="y", **how)
    return [str(warning) for warning in find_misleading(fed)]


def tables(sites: int = 4, rows: int = 40, classes: bool = False) -> dict[str, pd.DataFrame]:
    """Tables in which nothing misleads."""
    rng = np.random.default_rng(0)
    result = {}
    for site in range(sites):
        x = rng.normal(size=rows)
        y = x + rng.normal(size=rows)
        result[f"s{site}"] = pd.DataFrame(
            {"x": x, "y": np.where(y > 0, "b", "a") if classes else y}
        )
    return result


@pytest.mark.parametrize("classes", [False, True])
def test_ordinary_tables_are_not_warned_of(classes):
    assert sentences(tables(classes=classes)) == []


def test_a_column_that_alone_predicts_the_label():
    classes = tables(classes=True)
    for table in classes.values():
        table["result"] = (table["y"] == "b") + 0.0
        table["words"] = np.where(table["y"] == "b", "positive", "negative")
    assert sentences(classes) == [
        f"the column {name} alone predicts the label (AUC 1.00): if it is known only together with "
        f"the label, drop it with drop={name}."
        for name in ("result", "words")
    ]
    numbers = tables()
    for table in numbers.values():
        table["double"] = 2 * table["y"]
        table["bent"] = np.exp(2 * table["y"])  # R² of a straight line is 0.3
    found = sentences(numbers)
    assert [text.split()[2] for text in found] == ["bent", "double"]
    assert "(R² 0.9" in found[0] and "(R² 1.00)" in found[1]


def test_a_column_that_names_the_site_again():
    named = tables()
    for number, table in enumerate(named.values()):
        table["number"] = number
        table["letter"] = "ABCD"[number]
        table["height"] = [0.1, 2.7, 1.4, 9.3][number]  # a property of the site
        table["size"] = [3, 3, 4, 5][number]  # two sites share it
    assert [text.split()[2] for text in sentences(named)] == ["letter", "number"]


def test_dates_that_cannot_be_read():
    dated = tables()
    for table in dated.values():
        table["day"] = np.where(table["x"] > 0, "31/05/26 noon", "30/05/26 noon")
    (text,) = sentences(dated)
    assert "the column day looks like dates, such as '30/05/26 noon', that cannot be read" in text


def test_small_sites_and_sites_of_one_class():
    few = tables(classes=True)
    few["s1"] = few["s1"][few["s1"]["y"] == "b"]
    few["s2"] = few["s2"][:1]
    small, single = sentences(few)
    assert small.startswith("1 of 4 sites has no more training rows than the table has columns (1)")
    assert "(s2)" in small and small.endswith("learn from the other sites.")
    assert "min_rows=2" in small
    assert single.startswith("2 of 4 sites have training rows of one class only (s1, s2)")


def test_the_roc_area_by_hand():
    """Of 2 · 2 pairs, 3 are in order and one is a tie: 3.5 / 4."""
    area = roc_area(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, True, False, True]))
    assert area == pytest.approx(3.5 / 4)


def test_other_data_are_not_looked_at():
    assert find_misleading(ct.data.rotated("digits", clients=4, samples=10)) == []
