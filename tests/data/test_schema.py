"""Describe, merge, encode: what three separate steps give is what pooling all rows gives."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coterie.data import Schema, describe, merge
from coterie.errors import CoterieError


def ward(n: int, seed: int, sexes: str) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": random.normal(40 + 10 * seed, 5, n),
            "sex": random.choice(list(sexes), n),
            "smoker": random.random(n) < 0.3,
            "unit": 7.1,
            "outcome": random.choice(["well", "ill"], n),
        }
    )


WARDS = {"Nord-Ouest": ward(30, 1, "fm"), "été": ward(7, 2, "fx"), "one": ward(1, 3, "m")}


def sent(frame: pd.DataFrame, *more, **options) -> dict:
    """A description as it arrives: through JSON."""
    return json.loads(json.dumps(describe(frame, *more, **options)))


def of(frames: dict[str, pd.DataFrame], label: str = "outcome", **options) -> Schema:
    return merge({name: sent(frame, label, **options) for name, frame in frames.items()})


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
        "new.csv has columns that training did not have, which are passed over: extra, more.",
        "the column sex of new.csv has texts that no training row had "
        "(unheard of; 1 of 1 rows): they count as other.",
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
        CoterieError, match="ward of the table has '3A' in data row 1, where a number belongs"
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
    with pytest.raises(CoterieError, match="note has another text in each of 12 rows.*drop=note"):
        of({"a": table(many[:6]), "b": table(many[6:12])}, "y")
    months = {"a": table(many[:12]), "b": table(many[:12])}
    assert len(of(months, "y").columns) == 13, "different in every row of a client, but not of all"


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda f: f.drop(columns="age"),
            "client 'one' differ .* 'Nord-Ouest': it lacks age and adds nothing.*drop=age",
        ),
        (lambda f: f.rename(columns={"age": "Age"}), "it lacks age and adds Age"),
        (lambda f: f.rename(columns={"outcome": "outcom"}), "'outcome': did you mean 'outcom'"),
        (lambda f: f.rename(columns={"sex": "age"}), "more than one column age"),
        (lambda f: f.assign(age=np.inf), "'inf' in data row 1"),
        (lambda f: f.assign(age=pd.Timestamp("2026-01-31")), "age of the table holds datetime64"),
        (lambda f: f.assign(age=1j), "age of the table holds complex"),
        (lambda f: f.assign(outcome=None), "label column outcome .* 1 missing"),
    ],
)
def test_one_site_that_is_wrong(change, words) -> None:
    with pytest.raises(CoterieError, match=words) as error:
        of({**WARDS, "one": change(WARDS["one"])})
    assert "\n" not in str(error.value)


def altered(description: dict, **age: object) -> dict:
    columns = description["columns"]
    return description | {"columns": columns | {"age": columns["age"] | age}}


def test_wrong_descriptions() -> None:
    good = sent(WARDS["été"], "outcome")
    for wrong, words in (
        ({}, "at least one client"),
        ({"a": good, "b": {}}, "not one that `describe` makes"),
        ({"a": good, "b": good | {"columns": None}}, "not one that `describe` makes"),
        ({"a": altered(good, squares=-1e9)}, "not one that `describe` makes"),
        ({"a": altered(good, quantiles=[])}, "not one that `describe` makes"),
        ({"a": altered(good, mean=float("nan"))}, "not all finite"),
        (
            {"a": good, "b": sent(WARDS["one"], "sex")},
            "label column is outcome for client 'a' and sex for client 'b'",
        ),
        (
            {"a": sent(WARDS["one"][["outcome"]], "outcome")},
            "client 'a' has no column but the label",
        ),
        ({"a": sent(WARDS["one"].iloc[:0], "outcome")}, "no value"),
    ):
        with pytest.raises(CoterieError, match=words):
            merge(wrong)
    with pytest.raises(CoterieError, match="in categories: 'sexe': did you mean 'sex'"):
        describe(WARDS["one"], "outcome", categories=["sexe"])


def test_json() -> None:
    schema = of({name: frame.rename(columns={"age": "âge"}) for name, frame in WARDS.items()})
    text = schema.to_json()
    assert "âge" in text and Schema.from_json(text) == schema
    regression = of({"a": pd.DataFrame({"v": [1, 2], "y": [0.5, 1]})}, "y")
    assert Schema.from_json(regression.to_json()) == regression
    raw = json.loads(text)
    for wrong, words in (
        ("{", "not a schema in JSON"),
        ("[]", "not a schema in JSON"),
        (json.dumps(raw | {"more": 1}), "not a schema in JSON .*more"),
        (json.dumps({k: v for k, v in raw.items() if k != "classes"}), "not a schema in JSON"),
        (json.dumps(raw | {"kind": "regression"}), "contradict"),
        (json.dumps(raw | {"kind": "cooking"}), "kind is 'cooking'"),
        (json.dumps(raw | {"features": []}), "none"),
        (json.dumps(raw | {"features": raw["features"] * 2}), "twice"),
        (text.replace('"mean": ', '"mean": NaN, "median": ', 1), "finite"),
        (text.replace('["f", "m", "x"]', '["m", "f", "x"]'), "not in order"),
        (text.replace('["f", "m", "x"]', "[1, 2, 3]"), "not text"),
        (json.dumps(raw | {"classes": ["well", "well"]}), "not in order"),
    ):
        with pytest.raises(CoterieError, match=words):
            Schema.from_json(wrong)
    with pytest.raises(CoterieError, match="negative"):
        replace(schema, features=(replace(schema.features[0], deviation=-1.0),))
