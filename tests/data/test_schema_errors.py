"""Descriptions and schemas that make no sense are refused, those in JSON, too."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from wards import WARDS, of, sent

from coterie.core.errors import CoterieError
from coterie.data import Schema, describe, merge


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
        (
            lambda f: f.assign(age=pd.Timestamp("2026-01-31")),
            "age holds numbers for client 'été' and dates for client 'one'",
        ),
        (lambda f: f.assign(age=pd.Timedelta("3D")), "age of the table holds duration"),
        (lambda f: f.assign(age=1j), "age of the table holds more than one value"),
        (lambda f: f.assign(outcome=None), "label column outcome .* 1 missing"),
    ],
)
def test_one_site_that_is_wrong(change, words) -> None:
    with pytest.raises(CoterieError, match=words) as error:
        of({**WARDS, "one": change(WARDS["one"])})
    assert "\n" not in str(error.value)


def test_all_sites_whose_columns_are_not_the_usual_ones_are_named() -> None:
    good = sent(WARDS["été"], "outcome")
    lacking = sent(WARDS["été"].drop(columns="age"), "outcome")
    adding = sent(WARDS["été"].assign(more=1.0), "outcome")
    with pytest.raises(CoterieError) as error:
        merge({"a": lacking, "b": good, "c": good, "d": adding})
    assert str(error.value) == (
        "the columns of client 'a' differ from those of client 'b': it lacks age and adds nothing; "
        "the columns of client 'd' differ from those of client 'b': it lacks nothing and adds "
        "more: give all clients the same columns, drop those that some clients lack with "
        "drop=age,more, or take all columns with columns=union or the common ones with "
        "columns=common."
    )
    many = {f"site {i}": lacking for i in range(7)} | {f"usual {i}": good for i in range(8)}
    with pytest.raises(CoterieError, match="client 'site 4' .*; and 2 more clients: give"):
        merge(many)


def altered(description: dict, **age: object) -> dict:
    columns = description["columns"]
    return description | {"columns": columns | {"age": columns["age"] | age}}


def test_wrong_descriptions() -> None:
    good = sent(WARDS["été"], "outcome")
    for wrong, words in (
        ({}, "at least one client"),
        ({"a": good, "b": {}}, "was not made by `describe`"),
        ({"a": good, "b": good | {"columns": None}}, "was not made by `describe`"),
        ({"a": altered(good, squares=-1e9)}, "was not made by `describe`"),
        ({"a": altered(good, quantiles=[])}, "was not made by `describe`"),
        ({"a": altered(good, mean=float("nan"))}, "a moment of a column is not finite"),
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
        (json.dumps(raw | {"kind": "regression"}), "do not match its kind"),
        (json.dumps(raw | {"kind": "cooking"}), "kind is 'cooking'"),
        (json.dumps(raw | {"features": []}), "it has no columns"),
        (json.dumps(raw | {"features": raw["features"] * 2}), "twice"),
        (text.replace('"mean": ', '"mean": NaN, "median": ', 1), "finite"),
        (text.replace('["f", "m", "x"]', '["m", "f", "x"]'), "not sorted"),
        (text.replace('["f", "m", "x"]', "[1, 2, 3]"), "not text"),
        (json.dumps(raw | {"classes": ["well", "well"]}), "not sorted"),
    ):
        with pytest.raises(CoterieError, match=words):
            Schema.from_json(wrong)
    with pytest.raises(CoterieError, match="negative"):
        replace(schema, features=(replace(schema.features[0], deviation=-1.0),))
