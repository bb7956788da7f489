"""coterie assign, predict and export, on files as a group of hospitals would have them."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from hospitals import OPTIONS, SITES, site

import coterie as ct
from coterie.runs.load import _last_loaded


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def predictions(text: str) -> list[str]:
    return [row["prediction"] for row in table(text)]


def test_a_newcomer_in_three_commands(coterie, run, new, tmp_path) -> None:
    printed = coterie("assign", run, new).out
    group = ct.load(run).clusters[-1][sorted(SITES).index("Köln")]
    assert printed.startswith(f"new: group {group} (loss under")
    outcome = coterie("predict", run, new, "--support", new, "--out predictions.csv")
    assert outcome.status == 0
    assert f"new: group {group} (loss under" in outcome.err, "the newcomer's group is shown"
    answers = table((tmp_path / "predictions.csv").read_text())
    guesses = [row["prediction"] for row in answers]
    assert [row["row"] for row in answers] == [str(i + 1) for i in range(60)]
    for row in answers:
        chances = {name: float(row[f"P({name})"]) for name in ("ill", "well")}
        assert row["prediction"] == max(chances, key=chances.get)
        assert sum(chances.values()) == pytest.approx(1, abs=2e-4)
    assert np.mean(np.array(guesses) == site(7)["outcome"]) > 0.85

    assert coterie("export", run, "--out models").status == 0
    loaded = ct.load("models")
    x, _ = loaded.schema.encode(site(7))
    of_rows = loaded.predict(x, f"group-{group}").tolist()
    assert [loaded.card.labels[i] for i in of_rows] == guesses
    assert loaded.predict(site(7), f"group-{group}").tolist() == of_rows
    assert coterie("assign models", new).out == printed  # without the training files
    for whose in (f"--support {new}", f"--cluster {group}"):
        outcome = coterie("predict models", new, whose)
        assert outcome.status == 0 and predictions(outcome.out) == guesses


def test_as_json_and_for_a_client_and_a_group(coterie, run, new) -> None:
    assignment = json.loads(coterie("assign", run, new, "--json").out)
    assert set(assignment) == {"group", "losses", "margin", "typical_loss", "rows"}
    assert len(assignment["losses"]) == 2
    assert assignment["rows"] == 60 and assignment["typical_loss"] == ct.load(run).final["loss"]
    by_client = coterie("predict", run, new, "--client Köln")
    by_group = coterie("predict", run, new, "--cluster", assignment["group"])
    assert by_client == by_group and by_client.status == 0
    assert by_client.out.splitlines()[0] == "row,prediction,P(ill),P(well)"


@pytest.mark.parametrize(
    "change, word",
    [
        (lambda t: t.drop(columns="age"), "age"),
        (lambda t: t.drop(columns="outcome"), "outcome"),
        (lambda t: t.assign(outcome="dead"), "dead"),
        (lambda t: t.assign(age=["old", *t["age"][1:].astype(str)]), "age"),
        (lambda t: t.assign(age=[np.nan, *t["age"][1:]]), "age"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(
    coterie, run, tmp_path, change, word
) -> None:
    change(site(7)).to_csv(tmp_path / "bad.csv", index=False)
    outcome = coterie("assign", run, "bad.csv")
    assert outcome.status == 2
    assert word in outcome.err and "bad.csv" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "change, what",
    [
        (lambda t: t.drop(columns="outcome"), "has no column outcome"),
        (lambda t: t.assign(outcome=None), "has no outcome in any row"),
    ],
)
def test_a_newcomer_without_labels_is_told_what_to_do(coterie, run, new, tmp_path, change, what):
    change(site(7)).to_csv(tmp_path / "bare.csv", index=False)
    sentence = (
        f"bare.csv {what}, but a new client's group is found by its labels: add labels to ten rows "
        "or more, or predict with a group that you choose, --cluster K.\n"
    )
    for command in (["assign", run, "bare.csv"], ["predict", run, new, "--support bare.csv"]):
        for flag in ("", "--drop-incomplete"):
            outcome = coterie(*command, flag)
            assert outcome.status == 2 and outcome.err.endswith(sentence)
    assert coterie("predict", run, "bare.csv --cluster 0").status == 0


def test_rows_without_a_label_are_left_out_if_asked(coterie, run, new, tmp_path) -> None:
    whole = site(7)
    whole.iloc[:40].to_csv(tmp_path / "part.csv", index=False)
    gaps = whole.assign(outcome=[*whole["outcome"][:40], *[None] * 20])
    gaps.to_csv(tmp_path / "gaps.csv", index=False)
    outcome = coterie("assign", run, "gaps.csv")
    assert outcome.status == 2
    assert "has 20 missing values in 60 rows: give these rows a label, or drop " in outcome.err
    assert outcome.err.endswith("them with --drop-incomplete.\n")
    outcome = coterie("assign", run, "gaps.csv --drop-incomplete")
    assert outcome.status == 0
    assert outcome.out == coterie("assign", run, "part.csv").out.replace("part", "gaps")
    assert "dropped 20 of 60 rows of gaps.csv that have no outcome" in outcome.err
    by_gaps = coterie("predict", run, new, "--support gaps.csv --drop-incomplete")
    assert by_gaps.status == 0
    assert by_gaps.out == coterie("predict", run, new, "--support part.csv").out


def test_an_unknown_category_is_taken_for_another(coterie, run, tmp_path) -> None:
    site(7).assign(sex="diverse").to_csv(tmp_path / "new.csv", index=False)
    outcome = coterie("assign", run, "new.csv")
    assert outcome.status == 0 and "group" in outcome.out
    assert "warning: the column sex of " in outcome.err
    assert "new.csv has texts that few or no training rows had (diverse; 60" in outcome.err


def test_doubts_are_shown(coterie, run, tmp_path) -> None:
    """Three rows decide little; a column in another unit fits no group and is named."""
    site(7).iloc[:3].to_csv(tmp_path / "few.csv", index=False)
    outcome = coterie("assign", run, "few.csv")
    assert outcome.status == 0
    doubt = "warning: few: it rests on 3 rows only; more rows may change it."
    assert doubt in outcome.err
    site(7).assign(age=site(7)["age"] * 100).to_csv(tmp_path / "months.csv", index=False)
    outcome = coterie("assign", run, "months.csv")
    assert outcome.status == 0
    assert "warning: the column age of " in outcome.err and "check its unit" in outcome.err
    assert "warning: months: it fits none of the groups: its least loss is " in outcome.err
    site(7).to_csv(tmp_path / "fine.csv", index=False)
    outcome = coterie("assign", run, "fine.csv")
    assert outcome.status == 0 and outcome.err == ""


def test_columns_are_kept_beside_predictions(coterie, run, new) -> None:
    for columns in (["sex, age"], ["sex,age"]):
        rows = table(coterie("predict", run, new, "--cluster 0 --keep", columns).out)
        kept = [(row["sex"], float(row["age"])) for row in rows]
        assert kept == list(zip(site(7)["sex"], site(7)["age"]))


def test_kept_columns_stay_as_written(coterie, run, tmp_path) -> None:
    site(7).iloc[:2].assign(id=["007", None]).to_csv(tmp_path / "new.csv", index=False)
    outcome = coterie("predict", run, "new.csv --cluster 0 --keep id")
    assert outcome.status == 0
    assert [row["id"] for row in table(outcome.out)] == ["007", ""]


def test_what_a_run_answers_without_its_training_files(coterie, run, new) -> None:
    """All but a client's own answers, which its training rows help with."""
    moved = run.parent / "hospitals"
    jobs = [
        f"assign {run} {new}",
        f"predict {run} {new} --support {new}",
        f"predict {run} {new} --cluster 1",
    ]
    before = [coterie(job) for job in jobs]
    assert [outcome.status for outcome in before] == [0, 0, 0]
    moved.rename(moved.with_name("elsewhere"))
    _last_loaded.cache_clear()
    try:
        assert [coterie(job) for job in jobs] == before
        assert coterie("export", run, "--out models").status == 0
        for job in (f"predict {run} {new} --client Köln", f"export {run} --per client"):
            outcome = coterie(job, "--out out")
            assert outcome.status == 2 and len(outcome.err.strip().splitlines()) == 1
            assert "cannot be read again: there is no folder" in outcome.err
        result = ct.load(run)
        assert f"new: {result.assign(site(7))}\n" == before[0].out
        with pytest.raises(ct.CoterieError, match="cannot be read again: there is no folder"):
            result.predict(site(7), client="Köln")
        outcome = coterie("resume", run, "--rounds 9")
        assert outcome.status == 2, "training goes on with the data only"
    finally:
        moved.with_name("elsewhere").rename(moved)


@pytest.mark.parametrize(
    "command, sentence",
    [
        ("assign", "write coterie assign RUN FILE"),
        ("assign RUN nowhere.csv", "nowhere.csv"),
        ("assign nowhere x.csv", "there is no folder nowhere"),
        ("assign PARENT NEW", "contains several runs: give one of "),
        ("assign RUN NEW --fill mode", "fill is 'mode': it must be one of mean, median"),
        ("predict RUN NEW", "one of --client, --cluster and --support"),
        (
            "predict RUN NEW --cluster 1 --client Köln",
            "which name different models: give one of --client",
        ),
        ("predict RUN NEW --cluster 1 --keep agee", "did you mean 'age'"),
        ("predict RUN NEW --cluster 7", "the groups are 0 to 1"),
        ("predict RUN NEW --cluster x", "whole number"),
        ("predict RUN NEW --client Koln", "Köln"),
        ("export RUN --per site", "one of cluster, client"),
    ],
)
def test_bad_words_are_one_sentence(coterie, run, new, command, sentence) -> None:
    for name, path in {"RUN": run, "NEW": new, "PARENT": run.parent}.items():
        command = command.replace(name, str(path))
    outcome = coterie(command)
    assert outcome.status == 2
    assert sentence in outcome.err and len(outcome.err.strip().splitlines()) == 1


@pytest.mark.parametrize("label", [np.nan, "not known yet"])
def test_predict_does_not_look_at_labels(coterie, run, tmp_path, label) -> None:
    site(7).assign(outcome=label).to_csv(tmp_path / "new.csv", index=False)
    outcome = coterie("predict", run, "new.csv --cluster 0")
    assert outcome.status == 0 and len(outcome.out.splitlines()) == 61


def test_a_run_is_only_read(coterie, run, new) -> None:
    def state():
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in run.rglob("*")}

    (run / "log.txt").unlink(missing_ok=True)
    before = state()
    assert coterie("assign", run, new).status == 0
    assert not (run / "log.txt").exists()
    assert state() == before


def test_predictions_are_not_formulas(coterie, tmp_path) -> None:
    rows = site(1).assign(outcome=lambda t: t["outcome"].replace("ill", "=yes()"))
    for name in ("a", "b"):
        (tmp_path / "odd").mkdir(exist_ok=True)
        rows.to_csv(tmp_path / "odd" / f"{name}.csv", index=False)
    assert coterie("run fedavg --data folder:odd", OPTIONS, "--rounds 1 --out odd-run").status == 0
    kept = rows.assign(**{"=cmd": "＝1+1", "change": -1.5})
    kept.to_csv(tmp_path / "kept.csv", index=False)
    coterie("predict odd-run kept.csv --client a --keep", "=cmd,change", "--out out.csv")
    answers = table((tmp_path / "out.csv").read_text())
    assert {row["prediction"] for row in answers} <= {"'=yes()", "well"}
    assert "'=yes()" in {row["prediction"] for row in answers}
    assert answers[0]["'=cmd"] == "'＝1+1" and answers[0]["change"] == "-1.5"
    assert all(float(row["P(=yes())"]) <= 1 for row in answers)
