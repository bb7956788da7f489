"""Describe, merge, encode: what three separate steps give is what pooling all rows gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from wards import WARDS, of, sent

from coterie.core.errors import CoterieError


def test_the_three_steps_are_pooling() -> None:
    schema = of(WARDS)
    rows = pd.concat(WARDS.values())
    assert schema.columns == (
        "age",
        "sex = f",
        "sex = m",
        "sex = x",
        "sex = (other)",
        "smoker",
        "unit",
    )
    assert (
        schema.kind == "classification" and schema.classes == ("ill", "well") and schema.rows == 38
    )
    age, smoker = rows.age.to_numpy(), rows.smoker.to_numpy().astype(float)
    expected = np.stack(
        [
            (age - age.mean()) / age.std(),
            *(rows.sex == s for s in "fmx"),
            np.zeros(38),
            (smoker - smoker.mean()) / smoker.std(),
            np.zeros(38),  # 7.1 everywhere
        ],
        axis=1,
    )
    parts = [schema.encode(frame) for frame in WARDS.values()]
    x, y = (np.concatenate(part) for part in zip(*parts))
    assert x.dtype == np.float32 and y.dtype == np.int64
    np.testing.assert_allclose(x, expected, atol=1e-6)
    assert y.tolist() == (rows.outcome == "well").astype(int).tolist()
    by_name = {column.name: column for column in schema.features}
    assert by_name["age"].mean == pytest.approx(age.mean(), rel=1e-14)
    assert by_name["age"].deviation == pytest.approx(age.std(), rel=1e-13)
    assert by_name["unit"].deviation == 0


def test_by_hand() -> None:
    """Sites {1, 3} and {8}: mean 4, squares 9 + 1 + 16 = 26, deviation √(26/3)."""
    one, two = pd.DataFrame({"v": [1, 3], "y": [0.5, 1]}), pd.DataFrame({"v": [8], "y": [-2.25]})
    described = sent(one, "y")
    assert described["rows"] == 2 and described["columns"]["v"]["mean"] == 2
    assert described["columns"]["v"]["squares"] == 2 and described["columns"]["v"]["missing"] == 0
    schema = of({"a": one, "b": two}, "y")
    assert schema.features[0].mean == 4 and schema.features[0].deviation == pytest.approx(
        (26 / 3) ** 0.5, rel=1e-15
    )
    x, y = schema.encode(two)
    assert (
        x[0, 0] == pytest.approx(4 / (26 / 3) ** 0.5) and y is not None and y.tolist() == [-2.25]
    ), "y as it is"


def test_order_of_clients_and_of_columns_does_not_matter() -> None:
    turned = {name: WARDS[name][WARDS[name].columns[::-1]] for name in reversed(WARDS)}
    assert of(turned) == of(WARDS)
    x, _ = of(WARDS).encode(WARDS["été"])
    assert (of(WARDS).encode(turned["été"])[0] == x).all()


def test_medians() -> None:
    one = of({"a": pd.DataFrame({"v": [1.0, 2, 9, 100], "y": [0, 1, 0, 1]})}, "y")
    assert one.features[0].median == 5.5, "of one client it is exact"
    halves = {
        name: pd.DataFrame({"v": [value, value], "y": [0, 1]})
        for name, value in (("a", 0), ("b", 10))
    }
    assert of(halves, "y").features[0].median == 5, "half of the rows below, half above"
    random = np.random.default_rng(0)
    values = [random.exponential(size, size) for size in (200, 300, 80)]
    frames = {str(len(v)): pd.DataFrame({"v": v, "y": v}) for v in values}
    share_below = (np.concatenate(values) < of(frames, "y").features[0].median).mean()
    assert abs(share_below - 0.5) <= 1 / 21, "of several to within the grid"


def test_missing_cells() -> None:
    frames = {
        "a": pd.DataFrame({"v": [1.0, None, 2, 9], "c": ["p", "q", None, "p"], "y": [0, 1, 0, 1]})
    }
    schema = of(frames, "y")
    assert [c.missing for c in schema.features] == [1, 1]
    with pytest.raises(CoterieError, match="column c of client 'a' has 1 missing values in 4 rows"):
        schema.encode(frames["a"], where="client 'a'")
    for fill, value in (("mean", 4), ("median", 2)):
        x, _ = schema.encode(frames["a"], fill)  # columns: c = p, c = q, c = (other), v
        assert x[:, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
        assert x[1, 3] == pytest.approx((value - 4) / np.std([1, 2, 9]))
    with pytest.raises(CoterieError, match="unknown fill 'men': did you mean 'mean'"):
        schema.encode(frames["a"], "men")
    empty_here = {**frames, "b": pd.DataFrame({"v": [None], "c": [None], "y": [1]})}
    assert of(empty_here, "y").features[1].mean == 4, (
        "a column empty at one site is as the others say"
    )
    with pytest.raises(CoterieError, match="column v has no value in any training row"):
        of({"b": empty_here["b"].assign(c="p")}, "y")


def test_newcomers() -> None:
    schema = of(WARDS)
    new = WARDS["one"].assign(sex="unheard of", extra=1, more=2).drop(columns="outcome")
    x, y = schema.encode(new)
    assert y is None and x[0, 1:5].tolist() == [0, 0, 0, 1]
    assert schema.remarks(new, "new.csv") == [
        "new.csv has columns that training did not have, which are ignored: extra, more.",
        "the column sex of new.csv has texts that few or no training rows had "
        "(unheard of; 1 of 1 rows): they are encoded as other.",
    ]
    assert (
        replace(schema, ignored=("extra", "more"))
        .remarks(new)[0]
        .startswith("the column sex of the table")
    )
    assert schema.remarks(WARDS["one"]) == []
    assert schema.encode(WARDS["one"].iloc[:0])[0].shape == (0, 7)
    for change, words in (
        (new.rename(columns={"age": "ages"}), "the table lacks the column age: it has ages"),
        (WARDS["one"].assign(age="old"), "column age of the table has 'old' in data row 1"),
        (WARDS["one"].assign(outcome="wel"), "unknown class .* 'wel': did you mean 'well'"),
        (WARDS["one"].assign(outcome=None), "label column outcome of the table has 1 missing"),
    ):
        with pytest.raises(CoterieError, match=words):
            schema.encode(change)
    with pytest.raises(CoterieError, match="it has .*; a column that was not measured may be"):
        schema.encode(new.drop(columns="age"), fill="median")


@pytest.mark.parametrize(
    "values, kind, classes",
    [
        (["b", "a"], None, ("a", "b")),
        ([True, False], None, ("False", "True")),
        ([10, 9], None, ("9", "10")),
        ([1.0, 0.0], None, ("0", "1")),
        ([1.5, 0.0], None, None),
        (list(range(20)), None, tuple(map(str, range(20)))),
        (list(range(21)), None, None),
        (list(range(21)), "classification", tuple(map(str, range(21)))),
        ([1, 0], "regression", None),
        ([True, False], "regression", None),
        ([1.5, 0.0], "classification", ("0", "1.5")),
        (pd.Categorical(["b", "a"]), None, ("a", "b")),
        (pd.array([2, 1], dtype="Int64"), None, ("1", "2")),
    ],
)
def test_the_task_is_told_by_the_label(values, kind, classes) -> None:
    frame = pd.DataFrame({"v": np.arange(len(values)), "y": values})
    schema = of({"a": frame}, "y", kind=kind)
    assert schema.classes == classes and schema.kind == (
        "classification" if classes else "regression"
    )
    halves = {"a": frame[: len(frame) // 2], "b": frame[len(frame) // 2 :]}
    assert of(halves, "y", kind=kind).classes == classes, "the clients decide together"


def test_text_and_numbers() -> None:
    """Numbers here and text there are refused, and read as text when they are named."""
    frames = {
        "a": pd.DataFrame({"ward": [1.0, 2], "y": [0, 1]}),
        "b": pd.DataFrame({"ward": ["3A", "1"], "y": [0, 1]}),
    }
    with pytest.raises(
        CoterieError, match="ward of the table has '3A' in data row 1, which is not a number"
    ):
        of(frames, "y")
    assert of(frames, "y", categories=["ward"]).columns == (
        "ward = 1",
        "ward = 2",
        "ward = 3A",
        "ward = (other)",
    )
    frames["b"]["ward"] = ["3A", "3B"]
    with pytest.raises(
        CoterieError,
        match="ward holds numbers for client 'a' and text for client 'b'.*categories=ward",
    ):
        of(frames, "y")
    frames["b"] = frames["b"].assign(ward=1, y=["ill", "well"])
    with pytest.raises(
        CoterieError,
        match="label column y holds numbers for client 'a' and text for client 'b'.*kind",
    ):
        of(frames, "y")
    assert of(frames, "y", kind="classification").classes == ("0", "1", "ill", "well")


def test_ids_and_free_text() -> None:
    def table(texts: list[str]) -> pd.DataFrame:
        return pd.DataFrame({"note": texts, "y": np.arange(len(texts)) % 2})

    many = [f"t{i}" for i in range(51)] * 2
    with pytest.raises(CoterieError, match="note of the table has 51 different texts.*drop=note"):
        of({"a": table(many)}, "y")
    assert len(of({"a": table(many[:50] * 2)}, "y").columns) == 51
    with pytest.raises(CoterieError, match="note of all clients together has 51 different"):
        of({"a": table(many[:30] * 2), "b": table(many[30:51] * 2)}, "y")
    with pytest.raises(CoterieError, match="note has a different text in each of 12 .*drop=note"):
        of({"a": table(many[:6]), "b": table(many[6:12])}, "y")
    months = {"a": table(many[:12]), "b": table(many[:12])}
    assert len(of(months, "y").columns) == 13, "different in every row of a client, but not of all"
