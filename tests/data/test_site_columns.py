"""Empty cells and values that never change, at single sites."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.core.errors import CoterieWarning
from coterie.data.description import describe
from coterie.data.site_columns import (
    ConstantColumn,
    describe_constants,
    describe_nearly_empty,
    summarise_site_columns,
)


def table(seed: int, rows: int = 40, **columns) -> pd.DataFrame:
    """Rows with a cholesterol, a sex, a rare flag and an outcome; columns: others instead."""
    rng = np.random.default_rng(seed)
    usual = {
        "chol": rng.normal(200, 30, rows).round(),
        "flag": (np.arange(rows) == 0).astype(int),
        "sex": rng.permutation(np.resize(["f", "m"], rows)),
        "outcome": rng.permutation(np.resize(["ill", "well"], rows)),
    }
    return pd.DataFrame({**usual, **columns})


def columns_of(**tables: pd.DataFrame):
    return summarise_site_columns(
        {name: describe(frame, "outcome") for name, frame in tables.items()}
    )


def test_a_value_that_never_changes_at_one_site_is_found():
    result = columns_of(a=table(0), b=table(1), c=table(2, chol=0.0), d=table(3, sex="f"))
    assert result.constants == [
        ConstantColumn("chol", "c", "0", 40),
        ConstantColumn("sex", "d", "f", 40),
    ]
    assert describe_constants(result.constants[:1]) == (
        "a column never changes at one site, and varies elsewhere: chol (always 0 at c, 40 rows)"
    )


def test_what_may_be_chance_is_no_news():
    rare = table(2, flag=0)  # as nearly all rows elsewhere
    few = table(3, rows=9, chol=0.0)
    gone = table(4, chol=np.nan)
    assert columns_of(a=table(0), b=table(1), rare=rare, few=few, gone=gone).constants == []
    # the more columns of sites there are, the more rows it takes
    at_half = {f"s{i}": table(i) for i in range(500)}
    assert columns_of(**at_half, girls=table(9, rows=16, sex="f")).constants == []
    girls = columns_of(**at_half, girls=table(9, rows=40, sex="f")).constants
    assert [constant.site for constant in girls] == ["girls"]


def test_what_is_the_same_at_several_sites_is_a_trait_of_sites():
    odd = {"b": table(1, chol=0.0), "c": table(2, chol=1.0)}
    usual = {f"s{i}": table(i) for i in range(40)}
    assert columns_of(a=table(0), **odd).constants == []
    assert columns_of(**odd, **dict(list(usual.items())[:39])).constants == []
    assert [constant.site for constant in columns_of(**odd, **usual).constants] == ["b", "c"]
    assert columns_of(a=table(1, chol=0.0)).constants == []  # there is no other


def test_at_most_five_are_named():
    constants = [ConstantColumn(f"x{i}", "a", "0", 40) for i in range(300)]
    text = describe_constants(constants)
    assert "x4" in text and "x5" not in text and text.endswith(" and 295 more")


def test_nearly_empty_columns_are_named_with_their_sites():
    hollow = table(1)
    hollow.loc[:37, "chol"] = np.nan  # 38 of 40
    half = table(2)
    half.loc[:19, "chol"] = np.nan
    result = columns_of(a=table(0), hollow=hollow, half=half)
    assert result.empty == {"chol": {"hollow": 38, "half": 20}}
    assert result.nearly_empty("chol") == ["hollow"] and result.nearly_empty("sex") == []
    assert describe_nearly_empty(result) == "chol at hollow"
    assert result.is_nearly_empty("chol", ["hollow"])
    assert not result.is_nearly_empty("chol", ["hollow", "half"])
    assert not result.is_nearly_empty("chol", [])


def test_a_federation_knows_them_and_warns_once():
    frames = {"a": table(0), "b": table(1), "c": table(2, chol=0.0)}
    with pytest.warns(CoterieWarning, match="chol \\(always 0 at c, 30 rows\\)") as caught:
        fed = ct.data.from_frames(frames, label="outcome")
    assert len(caught) == 1 and "drop=chol" in str(caught[0].message)
    assert [constant.column for constant in fed.site_columns.constants] == ["chol"]
    assert fed.subset([0, 1]).site_columns is fed.site_columns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ct.data.from_frames({"a": table(0), "b": table(1)}, label="outcome")
