"""Tables that are refused, and how they can be used all the same."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from sample_tables import ROWS

from coterie.core.errors import CoterieError
from coterie.data import from_frames, table


def changed(**columns) -> dict[str, pd.DataFrame]:
    return {"a": ROWS, "b": ROWS.assign(**columns)}


@pytest.mark.parametrize(
    "frames, options, words",
    [
        ({}, {}, ["at least one client"]),
        ({"a": ROWS, "void": ROWS[:0]}, {}, ["'void'", "no training rows"]),
        ({"a": ROWS.to_numpy()}, {}, ["'a'", "ndarray", "DataFrame"]),
        ({1: ROWS, "1": ROWS}, {}, ["same name"]),
        ({"a": ROWS}, {"client_column": "c"}, ["client_column='c'", "omit it"]),
        (ROWS, {}, ["client_column"]),
        (ROWS, {"client_column": "sites"}, ["client column", "'sites'"]),
        (
            ROWS.assign(site=[None] + ["a"] * 7),
            {"client_column": "site"},
            ["client column site", "1 missing"],
        ),
        ({"a": ROWS, "b": ROWS.drop(columns="v")}, {}, ["'b'", "lacks v", "adds nothing"]),
        ({"a": ROWS, "b": ROWS.drop(columns="y")}, {}, ["label column of client 'b'", "'y'"]),
        (
            changed(v=[None, 1, 2, 3, 4, 5, 6, 7]),
            {},
            ["column v of client 'b'", "1 missing", "fill=median"],
        ),
        (changed(c=[None, *"abababa"]), {}, ["column c of client 'b'", "1 missing"]),
        (
            changed(y=[None, 1, 2, 3, 4, 5, 6, 7]),
            {"fill": "mean"},
            ["label column y of client 'b'", "1 missing"],
        ),
        (
            changed(v=[0, 1, 2, "three", 4, 5, 6, 7]),
            {},
            ["column v of client 'b'", "'three'", "row 4"],
        ),
        (changed(v="three"), {}, ["column v", "numbers for client 'a'", "text for client 'b'"]),
        (changed(v=[[1, 2]] * 8), {}, ["column v of client 'b'", "more than one value", "drop=v"]),
        ({"a": ROWS.set_axis(["v", "v", "y"], axis=1)}, {}, ["'a'", "more than one column v"]),
        ({"a": ROWS}, {"drop": ["w"]}, ["column to drop", "'w'"]),
        ({"a": ROWS}, {"drop": ["c", "v"]}, ["no column but the label"]),
        ({"a": ROWS}, {"categories": ["w"]}, ["'w'", "categories"]),
        ({"a": ROWS}, {"split_column": "w"}, ["client 'a'", "'w'"]),
        (
            {"a": ROWS},
            {"split_column": "c"},
            ["split in the column c of client 'a'", "'a'", "test, train, validation"],
        ),
        ({"a": ROWS.assign(p="test")}, {"split_column": "p"}, ["'a'", "no training rows"]),
        (changed(t=[None] * 8), {"time_column": "t"}, ["client 'a'", "'t'"]),
        (
            {"a": ROWS.assign(t=[None] + [1] * 7)},
            {"time_column": "t"},
            ["column t of client 'a'", "1 missing"],
        ),
        (
            {"a": ROWS},
            {"time_column": "c"},
            ["column c of client 'a' contains no times", "2026-01-31"],
        ),
        ({"a": ROWS}, {"time_column": "v", "split_column": "c"}, ["split_column and time_column"]),
        ({"a": ROWS}, {"test_share": 1.0}, ["test share", "1.0"]),
        ({"a": ROWS, "b": ROWS}, {"unseen": 2}, ["unseen=2"]),
        (
            {"a": ROWS},
            {"label": "c", "kind": "regression"},
            ["column c of client 'a'", "'a'", "number"],
        ),
        ({"a": ROWS}, {"fill": "zero"}, ["fill", "'zero'"]),
    ],
)
def test_errors(frames, options, words) -> None:
    with pytest.raises(CoterieError) as error:
        from_frames(frames, **{"label": "y"} | options)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


def test_ways_out() -> None:
    odd = {"a": ROWS, "b": ROWS.drop(columns="c").assign(v=[None, *range(7)])}
    fed = from_frames(odd, "y", drop="c", fill="mean", test_share=0)
    assert fed.schema is not None and fed.schema.columns == ("v",)
    assert fed.train.client(1)[0][0] == 0, "the mean, standardised"
    fed = from_frames(changed(v="three"), "y", categories="v", test_share=0, min_category_count=1)
    assert (
        fed.schema is not None
        and "v = three" in fed.schema.columns
        and "v = 7" in fed.schema.columns
    )


def test_wrong_files(tmp_path: Path) -> None:
    for name, words in (
        ("none.csv", "no file .*none.csv"),
        ("notes.txt", "notes.txt is not a table"),
        ("a", "no file"),
    ):
        (tmp_path / "notes.txt").write_text("hello")
        (tmp_path / "a").mkdir(exist_ok=True)
        with pytest.raises(CoterieError, match=words):
            table(str(tmp_path / name), "y", "site")
