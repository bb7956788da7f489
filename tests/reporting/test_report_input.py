"""What a report refuses: runs that do not fit together, and files that it would overwrite."""

from __future__ import annotations

import shutil

import pytest
from small_runs import HOW, two_kinds

import coterie as ct
from coterie.cli import main


def test_bad_input_is_one_sentence_and_exit_2(tmp_path, monkeypatch, capsys, fedavg_run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    (tmp_path / "mine.html").write_text("<!doctype html>mine")
    shutil.copytree(fedavg_run, tmp_path / "run")
    for words, why in (
        ([], "report needs runs"),
        (["nowhere"], "there is no folder nowhere"),
        (["empty"], "no run was found in empty"),
        (["other"], "is damaged (Object missing required field"),
        (["run", "--target", "high"], "must be a number"),
        (["run", "--out", "absent/page.html"], "cannot be written"),
        (["run", "--out", "empty"], "cannot be written"),
        (["run", "--out", "mine.html"], "mine.html already exists and is not a report of Coterie"),
        (["run", "--what"], "--what"),
    ):
        assert main(["report", *words]) == 2
        error = capsys.readouterr().err
        assert why in error and error.count("\n") == 1, error


def test_only_a_report_or_an_empty_file_is_replaced(results, tmp_path):
    path = tmp_path / "page.html"
    path.touch()
    first = ct.report(results[1], path).read_text()
    second = ct.report(results[0], path).read_text()
    assert "ifca" in second and "ifca" not in first
    for other in ("my notes", "<!doctype html>\n<html>", second[1:]):
        path.write_text(other)
        with pytest.raises(ct.CoterieError, match="page.html already exists and is not a report"):
            ct.report(results[0], path)
        assert path.read_text() == other
    tables = {"page-groups.csv", "page-clients.csv", "page.xlsx"}
    assert {file.name for file in tmp_path.iterdir()} - tables == {path.name}


def test_runs_on_different_data_are_refused(results, tmp_path):
    other = ct.run(ct.FedAvg(**HOW), two_kinds(seed=1), "softmax", rounds=1)
    with pytest.raises(ct.CoterieError, match="different data"):
        ct.report([results[0], other], tmp_path / "page.html")
    fewer = ct.run(ct.FedAvg(**HOW), two_kinds().subset(range(5)), "softmax", rounds=1, seed=1)
    with pytest.raises(ct.CoterieError, match="different data"):
        ct.report([results[0], fewer], tmp_path / "page.html")
    same_seed = [
        ct.run(ct.FedAvg(**HOW), two_kinds(seed=draw), "softmax", rounds=1, seed=1)
        for draw in (0, 1)
    ]
    with pytest.raises(ct.CoterieError, match="different data"):
        ct.report([results[0], *same_seed], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_run_that_measured_nothing_yet_is_left_out_or_refused(results, fedavg_run, tmp_path):
    run = shutil.copytree(fedavg_run, tmp_path / "run")
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(ct.CoterieError, match="no test scores yet: train it"):
        ct.report(run, tmp_path / "page.html")
    assert "is left out" in ct.report([*results, run], tmp_path / "page.html").read_text()


def test_a_search_is_not_taken_for_a_run(tmp_path):
    out = tmp_path / "found"
    ct.search(ct.FedAvg(), two_kinds(), "softmax", over={"lr": [0.1]}, rounds=1, out=out)
    sentence = "found is a search.*settings it found with `coterie run`, and report"
    with pytest.raises(ct.CoterieError, match=sentence):
        ct.report(out, tmp_path / "page.html")
    (out / "winner.toml").write_text("")
    with pytest.raises(ct.CoterieError, match="`coterie run METHOD --config .*found/winner.toml`"):
        ct.report(out, tmp_path / "page.html")
