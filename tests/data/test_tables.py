"""Federations from DataFrames and tables, and what the command makes of them."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.cli import main
from coterie.data import folder, from_frames, load, table
from coterie.errors import CoterieError, CoterieWarning

needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None,
    reason="Parquet needs pyarrow: pip install 'coterie[data]'",
)


def hospitals() -> tuple[dict[str, pd.DataFrame], list[int]]:
    """Twelve sites in two groups, for which age and dose mean the opposite, and one of one row."""
    random, frames, groups = np.random.default_rng(5), {}, []
    cities = (
        "Besançon,Évreux,Köln Süd,Łódź,Orléans,San José,Saint Denis,Århus,Málaga,Zürich,Brno,Nîmes"
    )
    for i, city in enumerate(cities.split(",")):
        n, sign = 120, 1 if i % 2 else -1
        age, dose = random.normal(60, 12, n), random.gamma(2, 10, n)
        sex = random.choice(["female", "male"] + ["not known"] * (city == "Brno"), n)
        risk = sign * ((age - 60) / 12 - (dose - 20) / 14 + (sex == "male") - 0.5) + random.normal(
            0, 0.3, n
        )
        outcome = np.where(risk > 0, "ill", "well")
        dose[random.random(n) < 0.03] = np.nan
        frames[city] = pd.DataFrame(
            {"age": age.round(1), "dosé mg": dose, "sex": sex, "outcome": outcome}
        )
        groups.append(i % 2)
    frames["Tiny île"] = frames["Nîmes"].iloc[:1].fillna(20)
    return frames, groups


def written(path: Path, frames: dict[str, pd.DataFrame]) -> str:
    path.mkdir()
    for name, frame in frames.items():
        frame.to_csv(path / f"{name}.csv", index=False)
    return str(path)


def joined(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([frame.assign(site=name) for name, frame in frames.items()], ignore_index=True)


ROWS = pd.DataFrame({"v": np.arange(8.0), "c": list("abababab"), "y": [0.5, 1, 2, 3, 4, 5, 6, 7]})


# ------------------------------------------------------------------------------ one way or another
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
        from_frames({"a": ROWS}, "y")
        from_frames({"a": ROWS}, "c")
        from_frames(ROWS.assign(v=[None, *ROWS["v"][1:]]), "y", "c", fill="mean", test_share=0)
    assert [record.message for record in caplog.records] == [
        "columns of numbers: v",
        "columns of text: c (a, b)",
        "the label y holds numbers: regression (kind overrules)",
        "columns of numbers: v, y",
        "the label c has 2 classes (a, b): classification (kind overrules)",
        "columns of numbers: v",
        "empty cells in training rows are filled with the mean: v 1",
        "columns left out: c",
        "the label y holds numbers: regression (kind overrules)",
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
    with pytest.warns(
        UserWarning, match=r"column id has another whole number in each row.*drop=id"
    ):
        from_frames({"a": rows, "b": rows, "c": rows}, "y")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_frames({"a": rows, "b": rows, "c": rows.assign(id=7)}, "y")
        from_frames({"a": rows, "b": rows, "c": rows}, "y", drop="id")


def test_ids_beyond_the_digits_of_a_float_are_pointed_out(tmp_path: Path) -> None:
    """2^53 + 1 is the first whole number that float64 rounds."""
    rows = pd.DataFrame({"id": [2**53 + 1 + i // 2 for i in range(8)], "y": [0, 1] * 4})
    beyond = r"column id has whole numbers above 2\^53, whose last digits are lost: .*drop=id"
    with pytest.warns(CoterieWarning, match=beyond):
        from_frames({"a": rows}, "y")
    (tmp_path / "a.csv").write_text(rows.to_csv(index=False) + ",0\n")  # a gap makes it float
    with pytest.warns(CoterieWarning, match=beyond):
        folder(str(tmp_path), "y", fill="mean")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_frames({"a": rows.assign(id=2**53)}, "y")
        from_frames({"a": rows.assign(id=1e30 * (np.arange(8) % 3))}, "y")
        exact = from_frames({"a": rows}, "y", categories="id", test_share=0).schema
    assert exact.features[0].categories == tuple(str(2**53 + 1 + i) for i in range(4))


def test_every_column_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counting(values, *args, real=pd.to_numeric, **options):
        calls.append(len(values))
        return real(values, *args, **options)

    monkeypatch.setattr(pd, "to_numeric", counting)
    clients = {name: ROWS.assign(code=list("12121212")) for name in "abc"}
    fed = from_frames(clients, "y", unseen=1)
    assert fed.schema is not None and fed.schema.columns[-2:] == ("code", "v")
    assert calls == [2] * 6, "c and code of three clients, by their different cells"


# ------------------------------------------------------------------------------ train and test
def values(fed: ct.data.Federation, part: str, client: int = 0) -> list[float]:
    """The targets, which tell the rows apart."""
    return getattr(fed, part).client(client)[1].tolist()


def test_by_share() -> None:
    frames = {"a": ROWS, "b": ROWS, "c": ROWS[:1]}
    with pytest.warns(UserWarning, match="single training row"):
        fed = from_frames(frames, "y", seed=1)
    assert fed.train.sizes.tolist() == [6, 6, 1] and fed.test.sizes.tolist() == [2, 2, 0]
    assert values(fed, "test", 0) != values(fed, "test", 1), "another draw for each name"
    again = from_frames({"b": ROWS, "a": ROWS}, "y", seed=1)
    assert values(again, "test", 1) == values(fed, "test", 0), (
        "the draw depends on the name, not on the place"
    )
    memory = ct.data.from_memory({"a": (ROWS[["v"]].to_numpy(), ROWS.y.to_numpy())}, seed=1)
    assert values(memory, "test") == values(fed, "test"), "and is the draw of from_memory"


def test_by_column() -> None:
    frame = ROWS.assign(part=["train", "valid", "test", "train", "train", "test", "valid", "train"])
    fed = from_frames({"a": frame, "b": frame.assign(part="train")}, "y", split_column="part")
    assert [values(fed, part) for part in ("train", "valid", "test")] == [
        [0.5, 3, 4, 7],
        [1, 6],
        [2, 5],
    ]
    assert (
        fed.valid is not None
        and fed.valid.x.dtype == fed.train.x.dtype
        and fed.valid.sizes.tolist() == [2, 0]
    )
    assert fed.schema is not None and fed.schema.columns == ("c = a", "c = b", "c = (other)", "v")
    assert from_frames({"a": frame.assign(part="train")}, "y", split_column="part").valid is None


def days(form: str) -> list[str]:
    return [form.format(day) for day in (2, 7, 3, 4, 6)]


@pytest.mark.parametrize(
    "when",
    [
        [5, 1, 8, 2, 7, 3, 4, 6],
        ["2026-01-05", "2025-12-31", "2026-01-08T10:00", *days("2026-01-0{}")],
        ["5.1.2026", "31.12.2025", "8.01.2026", *days("0{}.1.2026")],
        pd.to_datetime(["2026-01-05", "2026-01-01", "2026-01-08", *days("2026-01-0{}")]),
    ],
)
def test_by_time(when) -> None:
    fed = from_frames(
        {"a": ROWS.assign(when=when), "b": ROWS[:1].assign(when="2026-01-01")},
        "y",
        time_column="when",
    )
    assert values(fed, "test") == [2, 4] and values(fed, "train") == [0.5, 1, 3, 5, 6, 7]
    assert values(fed, "train", 1) == [0.5], "the last row is for training"
    assert fed.schema is not None and "when" not in fed.schema.columns


# ------------------------------------------------------------------------------ what is wrong
def changed(**columns) -> dict[str, pd.DataFrame]:
    return {"a": ROWS, "b": ROWS.assign(**columns)}


@pytest.mark.parametrize(
    "frames, options, words",
    [
        ({}, {}, ["at least one client"]),
        ({"a": ROWS, "void": ROWS[:0]}, {}, ["'void'", "no training rows"]),
        ({"a": ROWS.to_numpy()}, {}, ["'a'", "ndarray", "DataFrame"]),
        ({1: ROWS, "1": ROWS}, {}, ["same name"]),
        ({"a": ROWS}, {"client_column": "c"}, ["client_column='c'", "leave it out"]),
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
            ["part in the column c of client 'a'", "'a'", "test, train, valid"],
        ),
        ({"a": ROWS.assign(p="test")}, {"split_column": "p"}, ["'a'", "no training rows"]),
        (changed(t=[None] * 8), {"time_column": "t"}, ["client 'a'", "'t'"]),
        (
            {"a": ROWS.assign(t=[None] + [1] * 7)},
            {"time_column": "t"},
            ["column t of client 'a'", "1 missing"],
        ),
        ({"a": ROWS}, {"time_column": "c"}, ["column c of client 'a' is no time", "2026-01-31"]),
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
    fed = from_frames(changed(v="three"), "y", categories="v", test_share=0)
    assert (
        fed.schema is not None
        and "v = three" in fed.schema.columns
        and "v = 7" in fed.schema.columns
    )


def test_wrong_files(tmp_path: Path) -> None:
    for name, words in (
        ("none.csv", "no file .*none.csv"),
        ("notes.txt", "notes.txt is no table"),
        ("a", "no file"),
    ):
        (tmp_path / "notes.txt").write_text("hello")
        (tmp_path / "a").mkdir(exist_ok=True)
        with pytest.raises(CoterieError, match=words):
            table(str(tmp_path / name), "y", "site")


# ------------------------------------------------------------------------------ Parquet
@needs_pyarrow
def test_parquet(tmp_path: Path) -> None:
    frames, _ = hospitals()
    joined(frames).to_parquet(tmp_path / "all.parquet")
    joined(frames).to_csv(tmp_path / "all.csv", index=False)
    one = table(str(tmp_path / "all.csv"), "outcome", "site", fill="mean")
    other = table(str(tmp_path / "all.parquet"), "outcome", "site", fill="mean")
    assert one.fingerprint() == other.fingerprint()
    (tmp_path / "sites").mkdir()
    for name, frame in frames.items():
        frame.rename_axis("n").to_parquet(tmp_path / "sites" / f"{name}.parquet")
    fed = folder(str(tmp_path / "sites"), "outcome", fill="mean", drop=("n",))
    assert fed.fingerprint() == other.fingerprint(), "a named index is a column"
    (tmp_path / "sites" / "Nîmes.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(CoterieError, match="Nîmes.parquet cannot be read as Parquet"):
        folder(str(tmp_path / "sites"), "outcome")
    frames["Nîmes"][:0].to_parquet(tmp_path / "sites" / "Nîmes.parquet")
    with pytest.raises(CoterieError, match="Nîmes.parquet is empty"):
        folder(str(tmp_path / "sites"), "outcome")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "all.parquet").write_bytes(b"PAR1")
    with pytest.raises(CoterieError, match=r"needs pyarrow: pip install 'coterie\[data\]'"):
        table(str(tmp_path / "all.parquet"), "y", "site")


# ------------------------------------------------------------------------------ hospitals
def test_ifca_finds_the_groups_of_hospitals(tmp_path: Path) -> None:
    frames, groups = hospitals()
    fed = folder(written(tmp_path / "sites", frames), "outcome", fill="median")
    result = ct.run(ct.IFCA(clusters=2, lr=0.5), fed, model="softmax", rounds=20)
    groups_found = [int(result.clusters[-1][fed.names.index(name)]) for name in list(frames)[:12]]
    assert adjusted_rand_score(groups, groups_found) == 1.0
    assert result.accuracy.weighted > 0.85


def say(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(["run", "ifca", "--clusters", "2", "--rounds", "2", "--model", "softmax", *words])
    out, err = capsys.readouterr()
    return status, out + err


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frames, _ = hospitals()
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "my sites", frames)
    joined(frames).to_csv("all.csv", index=False)
    sites = ("--data", "folder:my sites", "--label", "outcome")
    one = ("--data", "table:all.csv", "--label", "outcome")
    status, text = say(capsys, *sites, "--fill", "median", "--out", "a")
    assert status == 0 and "run kept in a" in text
    by_site = (*one, "--client-column", "site")
    status, text = say(
        capsys, *by_site, *("--data.fill", "mean", "--data.drop", "age"), "--out", "b"
    )
    assert status == 0 and "run kept in b" in text
    monkeypatch.chdir(tmp_path / "a")
    assert main(["resume", str(tmp_path / "b"), "--rounds", "3"]) == 0, "from another place"
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    for words, needed in (
        (sites, "with --data.drop 'dosé mg'."),
        ((*sites, "--fill", "zero"), "fill is 'zero': it must be one of mean, median."),
        (one, "the data set table needs the column that names the client"),
        (one, "give --client-column COLUMN."),
        (("--data", "folder:all.csv", "--label", "outcome"), "all.csv is a file: write table:"),
        ((*one, "--client-column", "sites"), "'sites': did you mean 'site'?"),
        (
            (*sites, "--client-column", "site"),
            "unknown option of the data set folder 'client_column'",
        ),
        (("--fill", "median"), "unknown option of the data set rotated 'fill'"),
        (("--data", "folder:my sites"), "needs a label"),
        ((*sites, "--fill", "mean", "--data.kind", "regression"), "where a number belongs"),
    ):
        status, text = say(capsys, *words, "--out", "c")
        assert status == 2 and needed in text and text.count("\n") == 1, text
