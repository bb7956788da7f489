"""coterie assign, predict and export, on files as a group of hospitals would have them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.cli import main
from coterie.runs.reopen import _last_loaded

SITES = ("Zürich Nord", "Köln", "São Paulo", "north", "south", "été")


def site(i: int, rows: int = 60) -> pd.DataFrame:
    """Two kinds of site: what makes people ill in the one keeps them well in the other."""
    rng = np.random.default_rng(i)
    age, sex = rng.normal(50 + 5 * (i % 2), 10, rows), rng.choice(["female", "male"], rows)
    ill = (1 if i % 2 else -1) * ((age - 52) / 10 + (sex == "male")) + rng.normal(0, 0.3, rows) > 0
    return pd.DataFrame({"age": age.round(1), "sex": sex, "outcome": np.where(ill, "ill", "well")})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("sites")
    for i, name in enumerate(SITES):
        site(i).to_csv(folder / f"{name}.csv", index=False)
    out = folder.parent / "run"
    flags = f"--label outcome --clusters 2 --rounds 8 --lr 0.3 --model softmax --quiet --out {out}".split()
    assert main(["run", "ifca", "--data", f"folder:{folder}", *flags]) == 0
    return str(out)


@pytest.fixture
def new(tmp_path):
    """A newcomer of the second kind."""
    path = tmp_path / "new.csv"
    site(7).to_csv(path, index=False)
    return path


def test_a_newcomer_in_three_commands(run, new, tmp_path, capsys) -> None:
    assert main(["assign", run, str(new)]) == 0
    told = capsys.readouterr().out
    group = ct.load(run).clusters[-1][sorted(SITES).index("Köln")]
    assert told.startswith(f"new: group {group} (loss under")
    out = tmp_path / "predictions.csv"
    assert main(["predict", run, str(new), "--support", str(new), "--out", str(out)]) == 0
    assert f"new: group {group} (loss under" in capsys.readouterr().err, (
        "the newcomer's group is said"
    )
    with out.open(newline="") as file:
        answers = list(csv.DictReader(file))
    guesses = [row["prediction"] for row in answers]
    assert [row["row"] for row in answers] == [str(i + 1) for i in range(60)]
    for row in answers:
        chances = {name: float(row[f"P({name})"]) for name in ("ill", "well")}
        assert row["prediction"] == max(chances, key=chances.get) and sum(
            chances.values()
        ) == pytest.approx(1, abs=2e-4)
    assert np.mean(np.array(guesses) == site(7)["outcome"]) > 0.85
    assert main(["export", run, "--out", str(tmp_path / "models")]) == 0
    loaded = ct.load(tmp_path / "models")
    x, _ = loaded.schema.encode(site(7))
    assert [loaded.card.labels[i] for i in loaded.predict(x, f"group-{group}").tolist()] == guesses
    assert (
        loaded.predict(site(7), f"group-{group}").tolist()
        == loaded.predict(x, f"group-{group}").tolist()
    )
    capsys.readouterr()
    assert main(["assign", str(tmp_path / "models"), str(new)]) == 0  # without the training files
    assert capsys.readouterr().out == told
    for whose in (["--support", str(new)], ["--cluster", str(group)]):
        assert main(["predict", str(tmp_path / "models"), str(new), *whose]) == 0
        assert [
            row["prediction"] for row in csv.DictReader(capsys.readouterr().out.splitlines())
        ] == guesses


def test_as_json_and_for_a_client_and_a_group(run, new, capsys) -> None:
    assert main(["assign", run, str(new), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        set(found) == {"group", "losses", "margin", "usual", "rows"} and len(found["losses"]) == 2
    )
    assert found["rows"] == 60 and found["usual"] == ct.load(run).final["loss"]
    by = {}
    for whose in (["--client", "Köln"], ["--cluster", str(found["group"])]):
        assert main(["predict", run, str(new), *whose]) == 0
        by[whose[0]] = capsys.readouterr().out
    assert (
        by["--client"] == by["--cluster"]
        and by["--client"].splitlines()[0] == "row,prediction,P(ill),P(well)"
    )


def changed(change) -> pd.DataFrame:
    return change(site(7))


@pytest.mark.parametrize(
    "table, says",
    [
        (changed(lambda t: t.drop(columns="age")), "age"),
        (changed(lambda t: t.drop(columns="outcome")), "outcome"),
        (changed(lambda t: t.assign(outcome="dead")), "dead"),
        (changed(lambda t: t.assign(age=["old", *t["age"][1:].astype(str)])), "age"),
        (changed(lambda t: t.assign(age=[np.nan, *t["age"][1:]])), "age"),
    ],
)
def test_a_file_that_does_not_fit_is_told_in_one_sentence(
    run, tmp_path, table, says, capsys
) -> None:
    table.to_csv(tmp_path / "bad.csv", index=False)
    assert main(["assign", run, str(tmp_path / "bad.csv")]) == 2
    err = capsys.readouterr().err.strip()
    assert says in err and "bad.csv" in err and len(err.splitlines()) == 1


def test_an_unknown_category_is_taken_for_another(run, tmp_path, capsys) -> None:
    site(7).assign(sex="diverse").to_csv(tmp_path / "new.csv", index=False)
    assert main(["assign", run, str(tmp_path / "new.csv")]) == 0
    out, err = capsys.readouterr()
    assert "group" in out
    assert (
        "warning: the column sex of " in err
        and "new.csv has texts that no training row had (diverse; 60" in err
    )


def test_doubts_are_said(run, tmp_path, capsys) -> None:
    """Three rows decide little; a column in another unit fits no group and is named."""
    site(7).iloc[:3].to_csv(tmp_path / "few.csv", index=False)
    assert main(["assign", run, str(tmp_path / "few.csv")]) == 0
    assert (
        "warning: few: it is chosen by 3 rows only, and more may change it."
        in capsys.readouterr().err
    )
    site(7).assign(age=site(7)["age"] * 100).to_csv(tmp_path / "months.csv", index=False)
    assert main(["assign", run, str(tmp_path / "months.csv")]) == 0
    err = capsys.readouterr().err
    assert "warning: the column age of " in err and "check its unit" in err
    assert "warning: months: it fits none of the groups: its least loss is " in err
    site(7).to_csv(tmp_path / "fine.csv", index=False)
    assert main(["assign", run, str(tmp_path / "fine.csv")]) == 0
    assert capsys.readouterr().err == ""


def test_columns_are_kept_beside_predictions(run, new, capsys) -> None:
    assert main(["predict", run, str(new), "--cluster", "0", "--keep", "sex, age"]) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(line["sex"], float(line["age"])) for line in lines] == list(
        zip(site(7)["sex"], site(7)["age"])
    )


def test_kept_columns_stay_as_written(run, tmp_path, capsys) -> None:
    site(7).iloc[:2].assign(id=["007", None]).to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", run, str(tmp_path / "new.csv"), "--cluster", "0", "--keep", "id"]) == 0
    assert [line["id"] for line in csv.DictReader(capsys.readouterr().out.splitlines())] == [
        "007",
        "",
    ]


def test_one_model_for_all_needs_no_name(tmp_path, new, capsys) -> None:
    (tmp_path / "sites").mkdir()
    for i, name in enumerate(SITES):
        site(i).to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    flags = f"--label outcome --rounds 1 --model softmax --quiet --out {tmp_path / 'run'}".split()
    assert main(["run", "fedavg", "--data", f"folder:{tmp_path / 'sites'}", *flags]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "models")]) == 0
    capsys.readouterr()
    told = []
    for of in ("run", "models"):
        assert main(["predict", str(tmp_path / of), str(new)]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and len(told[0].splitlines()) == 61


def test_models_of_clients_choose_no_group(run, new, tmp_path, capsys) -> None:
    assert main(["export", run, "--per", "client", "--out", str(tmp_path / "models")]) == 0
    assert main(["assign", str(tmp_path / "models"), str(new)]) == 2
    assert "holds models of clients, not of groups" in capsys.readouterr().err


def test_what_a_run_tells_without_its_training_files(run, new, tmp_path, capsys) -> None:
    """All but a client's own answers, which its training rows help with."""
    moved = Path(run).parent / "sites0"
    told = {}
    jobs = {
        "assign": ["assign", run, str(new)],
        "support": ["predict", run, str(new), "--support", str(new)],
        "cluster": ["predict", run, str(new), "--cluster", "1"],
    }
    for name, words in jobs.items():
        assert main(words) == 0
        told[name] = capsys.readouterr().out
    moved.rename(moved.with_name("elsewhere"))
    _last_loaded.cache_clear()
    try:
        for name, words in jobs.items():
            assert main(words) == 0
            assert capsys.readouterr().out == told[name]
        assert main(["export", run, "--out", str(tmp_path / "models")]) == 0
        for words in (
            ["predict", run, str(new), "--client", "Köln"],
            ["export", run, "--per", "client"],
        ):
            capsys.readouterr()
            assert main([*words, "--out", str(tmp_path / "out")]) == 2
            err = capsys.readouterr().err.strip()
            assert "cannot be read again: there is no folder" in err and len(err.splitlines()) == 1
        result = ct.load(run)
        assert f"new: {result.assign(site(7))}\n" == told["assign"]
        with pytest.raises(ct.CoterieError, match="cannot be read again: there is no folder"):
            result.predict(site(7), client="Köln")
        assert main(["resume", run, "--rounds", "9"]) == 2, "training goes on with the data only"
    finally:
        moved.with_name("elsewhere").rename(moved)


def test_the_columns_that_training_left_out_are_known(tmp_path, capsys) -> None:
    """The schema, in the run and in the card, knows what was dropped and how cells were filled."""
    sites = tmp_path / "sites"
    sites.mkdir()
    for i, name in enumerate(SITES):
        site(i).assign(patient=[f"{name} {j}" for j in range(60)]).to_csv(
            sites / f"{name}.csv", index=False
        )
    out = tmp_path / "run"
    flags = f"--label outcome --clusters 2 --rounds 1 --model softmax --quiet --out {out}".split()
    options = ["--data.drop", "patient", "--fill", "median"]
    assert main(["run", "ifca", "--data", f"folder:{sites}", *flags, *options]) == 0
    new = site(7).assign(patient="x")
    new.loc[3, "age"] = np.nan
    new.to_csv(tmp_path / "new.csv", index=False)
    assert main(["export", str(out), "--out", str(tmp_path / "models")]) == 0
    capsys.readouterr()
    for of in (out, tmp_path / "models"):
        assert main(["assign", str(of), str(tmp_path / "new.csv")]) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words, says",
    [
        (["assign"], "write coterie assign RUN FILE"),
        (["assign", "RUN", "nowhere.csv"], "nowhere.csv"),
        (["assign", "nowhere", "x.csv"], "there is no folder nowhere"),
        (["assign", "PARENT", "NEW"], "holds several runs: give one of "),
        (["predict", "RUN", "NEW"], "one of --client, --cluster and --support"),
        (
            ["predict", "RUN", "NEW", "--cluster", "1", "--client", "Köln"],
            "models of client and cluster at once: give one of --client",
        ),
        (["predict", "RUN", "NEW", "--cluster", "1", "--keep", "agee"], "did you mean 'age'"),
        (["predict", "RUN", "NEW", "--cluster", "7"], "the groups are 0 to 1"),
        (["predict", "RUN", "NEW", "--cluster", "x"], "whole number"),
        (["predict", "RUN", "NEW", "--client", "Koln"], "Köln"),
        (["export", "RUN", "--per", "site"], "one of cluster, client"),
    ],
)
def test_bad_words_are_one_sentence(run, new, words, says, capsys) -> None:
    words = [
        {"RUN": run, "NEW": str(new), "PARENT": str(Path(run).parent)}.get(word, word)
        for word in words
    ]
    assert main(words) == 2
    err = capsys.readouterr().err.strip()
    assert says in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("outcome", [np.nan, "not known yet"])
def test_predict_does_not_look_at_labels(run, tmp_path, outcome, capsys) -> None:
    site(7).assign(outcome=outcome).to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", run, str(tmp_path / "new.csv"), "--cluster", "0"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 61


def test_a_newcomer_that_would_train_needs_the_run(tmp_path, new, capsys) -> None:
    """The models of FedSoft's groups alone are not what a newcomer of the run would answer with."""
    (tmp_path / "sites").mkdir()
    for i, name in enumerate(SITES):
        site(i).to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    flags = f"--label outcome --clusters 2 --rounds 1 --model softmax --quiet --out {tmp_path / 'run'}".split()
    assert main(["run", "fedsoft", "--data", f"folder:{tmp_path / 'sites'}", *flags]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "models")]) == 0
    words = [str(new), "--support", str(new)]
    assert main(["predict", str(tmp_path / "run"), *words]) == 0
    assert main(["predict", str(tmp_path / "models"), *words]) == 2
    assert (
        "a newcomer of fedsoft trains a model of its own: give the run's folder"
        in capsys.readouterr().err
    )


def test_a_run_is_only_read(run, new, capsys) -> None:
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in Path(run).rglob("*")}
    (Path(run) / "log.txt").unlink(missing_ok=True)
    assert main(["assign", run, str(new)]) == 0
    assert not (Path(run) / "log.txt").exists()
    after = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in Path(run).rglob("*")}
    folders = {Path(run)}
    assert {p: v for p, v in after.items() if p not in folders} == {
        p: v for p, v in before.items() if p in after
    }
