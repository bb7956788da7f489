"""Federations from DataFrames, folders and tables: the same rows give the same federation."""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sample_tables import ROWS, hospitals, joined, written

import coterie as ct
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.data import columns, folder, from_frames, load, table


def test_folder_table_and_frames_are_the_same(tmp_path: Path) -> None:
    frames, _ = hospitals()
    frames = dict(sorted(frames.items()))
    everyone = joined(frames)
    in_turn = (
        everyone.groupby("site").cumcount().argsort(kind="stable")
    )  # the clients' first rows, then their second
    everyone.iloc[in_turn].to_csv(tmp_path / "all.csv", index=False)
    options = {"label": "outcome", "fill": "median", "seed": 3}
    made = [
        from_frames(frames, **options),
        from_frames(everyone, client_column="site", **options),
        folder(written(tmp_path / "sites", frames), **options),
        table(str(tmp_path / "all.csv"), client_column="site", **options),
        load(f"table:{tmp_path / 'all.csv'}?client_column=site&fill=median", 3, label="outcome"),
    ]
    assert (
        len({fed.fingerprint() for fed in made}) == 1
        and len({replace(fed.schema, ignored=()) for fed in made}) == 1
    )
    fed = made[0]
    assert fed.names == tuple(frames) and fed.labels == ("ill", "well") and fed.source == "frames"
    assert fed.schema is not None and fed.schema.columns == (
        "age", "dosé mg", "sex = female", "sex = male", "sex = not known", "sex = (other)"
    )  # fmt: skip
    assert fed.train.sizes.tolist() == [1 if name == "Tiny île" else 90 for name in frames]
    assert made[2].source.startswith("folder:") and "fill=median" in made[2].source
    assert load(made[3].source, seed=99).fingerprint() == fed.fingerprint()


def test_the_schema_stays_with_the_federation() -> None:
    fed = from_frames(dict.fromkeys("abcd", ROWS), "y")
    assert fed.schema is not None
    for other in (
        fed.subset([2, 0]),
        fed.with_unseen(1, 0),
        fed.with_valid(0.3, 0),
        fed.to(torch.float64),
    ):
        assert other.schema is fed.schema
    assert fed.fingerprint() == ct.data.from_memory(
        [fed.train.client(i) for i in range(4)], "abcd", [fed.test.client(i) for i in range(4)]
    ).fingerprint(), "the fingerprint is of what training sees"  # fmt: skip


def test_only_training_rows_of_training_clients_are_described() -> None:
    """The moments of the schema are those of the training rows, also where clients are kept out."""
    random = np.random.default_rng(0)
    frames = {
        name: pd.DataFrame({"v": random.normal(i, 1, 40), "y": random.normal(0, 1, 40)})
        for i, name in enumerate("abcdef")
    }
    fed = from_frames(frames, "y", unseen=2)
    assert fed.unseen == 2 and fed.schema is not None and fed.schema.rows == 4 * 30
    x = fed.train.x[: 4 * 30, 0].double()
    assert abs(x.mean()) < 1e-6 and abs(x.std(correction=0) - 1) < 1e-6
    last = fed.names[-1]
    back = (
        torch.cat([part.client(5)[0][:, 0] for part in (fed.train, fed.test)])
        * fed.schema.features[0].deviation
    )
    assert sorted((back + fed.schema.features[0].mean).tolist()) == pytest.approx(
        sorted(frames[last].v), abs=1e-5
    )


def test_a_class_that_only_a_test_row_has(tmp_path: Path) -> None:
    frame = ROWS.assign(y=["a"] * 7 + ["b"], part=["train"] * 7 + ["test"], c=list("pppppppq"))
    fed = from_frames({"a": frame, "b": frame.assign(y=list("abababab"))}, "y", split_column="part")
    assert fed.labels == ("a", "b") and fed.test.y.tolist() == [1, 1]
    assert fed.schema is not None and fed.schema.columns == ("c = p", "c = (other)", "v")
    assert fed.test.x[:, :2].tolist() == [[0, 1]] * 2, "a text that no training row has is another"


def test_the_task_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "coterie"):
        from_frames({"a": ROWS}, "y", min_category_count=1)
        from_frames({"a": ROWS}, "c")
        from_frames(ROWS.assign(v=[None, *ROWS["v"][1:]]), "y", "c", fill="mean", test_share=0)
    assert [record.message for record in caplog.records] == [
        "columns of numbers: v",
        "columns of text: c (a, b)",
        "the label y holds numbers: regression (kind overrides)",
        "columns of numbers: v, y",
        "the label c has 2 classes (a, b): classification (kind overrides)",
        "columns of numbers: v",
        "empty cells in training rows are filled with the mean: v 1",
        "columns ignored: c",
        "the label y holds numbers: regression (kind overrides)",
    ]


def test_all_columns_that_cannot_be_used_are_named_at_once() -> None:
    n = 80
    rows = pd.DataFrame(
        {"id": [f"p{i}" for i in range(n)], "v": [None, *range(n - 1)], "w": ["x", *range(n - 1)]}
    )
    good = rows.assign(y=[0, 1] * (n // 2), id="p", v=1, w=1)
    with pytest.raises(ct.CoterieError) as error:
        from_frames({"a": good, "b": rows.assign(y=[0, 1] * (n // 2))}, "y")
    sentence = str(error.value)
    assert (
        sentence.startswith("3 columns cannot be used as they are: ")
        and sentence.endswith(".")
        and sentence.count(".\n") == 0
    )
    for words in (
        "drop=id fill=median",
        "column v of client 'b' has 1 missing",
        "column w of client 'b' has 'x'",
    ):
        assert sentence.count(words) == 1
    assert "categories=w" not in sentence, "80 different texts would be refused next"


def test_numbers_that_look_like_ids_are_pointed_out() -> None:
    rows = pd.DataFrame(
        {"id": range(1000, 1030), "v": [i % 7 for i in range(30)], "y": [0, 1] * 15}
    )
    with pytest.warns(UserWarning, match=r"column id has a different integer in each row.*drop=id"):
        from_frames({"a": rows, "b": rows, "c": rows}, "y")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_frames({"a": rows, "b": rows, "c": rows.assign(id=[7, 8] * 15)}, "y")
        from_frames({"a": rows, "b": rows, "c": rows}, "y", drop="id")


def test_ids_beyond_the_digits_of_a_float_are_pointed_out(tmp_path: Path) -> None:
    """2^53 + 1 is the first whole number that float64 rounds."""
    rows = pd.DataFrame({"id": [2**53 + 1 + i // 2 for i in range(8)], "y": [0, 1] * 4})
    beyond = r"column id has integers above 2\^53, whose last digits are lost: .*drop=id"
    with pytest.warns(CoterieWarning, match=beyond):
        from_frames({"a": rows}, "y")
    (tmp_path / "a.csv").write_text(rows.to_csv(index=False) + ",0\n")  # a gap makes it float
    with pytest.warns(CoterieWarning, match=beyond):
        folder(str(tmp_path), "y", fill="mean")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_frames({"a": rows.assign(id=2**53)}, "y")
        from_frames({"a": rows.assign(id=1e30 * (np.arange(8) % 3))}, "y")
        exact = from_frames(
            {"a": rows}, "y", categories="id", test_share=0, min_category_count=1
        ).schema
    assert exact.features[0].categories == tuple(str(2**53 + 1 + i) for i in range(4))


def test_every_column_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counting(texts, real=columns.parse_numbers):
        calls.append(len(texts))
        return real(texts)

    monkeypatch.setattr(columns, "parse_numbers", counting)
    clients = {name: ROWS.assign(code=list("12121212")) for name in "abc"}
    fed = from_frames(clients, "y", unseen=1)
    assert fed.schema is not None and fed.schema.columns[-2:] == ("code", "v")
    assert calls == [2] * 2, "c and code of all clients at once, by their different cells"


# ------------------------------------------------------------------------------ many and large
def test_ids_above_what_a_float_holds(tmp_path: Path) -> None:
    """Sites 2^53, 2^53 + 1 and 2^53 + 2 are three; as floats the first two are one."""
    ids = np.repeat([2**53, 2**53 + 1, 2**53 + 2], 8)
    rows = pd.concat([ROWS] * 3, ignore_index=True)
    names = ("9007199254740992", "9007199254740993", "9007199254740994")
    assert from_frames(rows.assign(site=ids), "y", "site").names == names
    rows.assign(site=ids).to_csv(tmp_path / "all.csv", index=False)
    assert table(str(tmp_path / "all.csv"), "y", "site").names == names
    with pytest.raises(CoterieError, match="column site of the table .* above 2\\^53"):
        from_frames(rows.assign(site=ids.astype(float)), "y", "site")
    with pytest.raises(CoterieError, match="column c of client 'a' .* above 2\\^53"):
        from_frames({"a": rows.assign(c=ids.astype(float))}, "y", categories=["c"])
    with pytest.warns(CoterieWarning, match="column id has integers above 2\\^53"):
        from_frames({"a": rows.assign(id=ids)}, "y")


def test_sites_parsed_together_or_apart_are_the_same() -> None:
    """A site whose columns have other types is parsed alone."""
    frames, _ = hospitals()
    together = from_frames(frames, "outcome", fill="mean")
    for types in ({"sex": object}, {"age": object, "sex": "category"}):
        frames["Brno"] = frames["Brno"].astype(types)
        apart = from_frames(frames, "outcome", fill="mean")
        assert together.fingerprint() == apart.fingerprint()


def test_a_thousand_sites_are_quick() -> None:
    """1,000 sites of 30 rows and 20 columns take 1.5 s of processor time; five are allowed."""
    random = np.random.default_rng(0)
    rows = pd.DataFrame(random.normal(size=(30_000, 18))).assign(
        c=random.choice(list("abc"), 30_000),
        d=random.choice(list("xyz"), 30_000),
        y=random.normal(size=30_000),
        site=np.repeat(np.arange(1000), 30),
    )
    start = time.process_time()
    fed = from_frames(rows, "y", "site")
    assert len(fed) == 1000 and time.process_time() - start < 5


@pytest.mark.parametrize(
    "first, second, outcome",
    [
        ("Köln", "Ko\u0308ln", "one client"),  # composed and decomposed
        ("1", "1.0", "one client"),
        ("north", "north ", "two clients"),
        ("north 2", "north  2", "two clients"),
        ("north", "ｎorth", "two clients"),  # a full-width letter
        ("north", "nor\u200bth", "two clients"),  # an invisible space
    ],
)
def test_client_names_that_look_the_same(first: str, second: str, outcome: str) -> None:
    rows = pd.DataFrame({"site": [first, "b", second] * 8, "x": range(24), "y": [0, 1, 1, 0] * 6})
    with pytest.warns(CoterieWarning) as caught:
        fed = from_frames(rows, "y", client_column="site")
    (text,) = [str(w.message) for w in caught if "look the same" in str(w.message)]
    assert f"{first!a} (data row 1)" in text and f"{second!a} (data row 3)" in text
    assert outcome in text and "\n" not in text
    assert fed.total == {"one client": 2, "two clients": 3}[outcome]


def test_client_names_that_differ_give_no_warning() -> None:
    rows = pd.DataFrame({"site": ["North", "north", "b"] * 8, "x": range(24), "y": [0, 1] * 12})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_frames(rows, "y", client_column="site").total == 3
