"""Files that version 0.2 wrote: a run, its export, a search and a store, in tests/fixtures/v02."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.cli import main

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v02"


@pytest.fixture
def v02(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, which is the current folder: they name their data as `folder:sites`."""
    shutil.copytree(FIXTURES, tmp_path / "v02")
    monkeypatch.chdir(tmp_path / "v02")
    return tmp_path / "v02"


def table_of_site(v02: Path, site: int) -> pd.DataFrame:
    return pd.read_csv(v02 / "sites" / f"site{site}.csv")


def test_a_run_is_loaded_with_its_history_and_scores(v02: Path) -> None:
    result = ct.load("run")
    assert [row["round"] for row in result.history] == [0, 1, 2, 3]
    assert all(row["rejected"] == [] and row["clipped"] == [] for row in result.history)
    assert 0 <= result.accuracy.mean <= 1 and result.clusters.shape == (4, 6)
    assert ((result.confidence >= 0) & (result.confidence <= 1)).all()


def test_a_run_is_resumed(v02: Path) -> None:
    result = ct.resume("run", rounds=5)
    assert [row["round"] for row in result.history] == [0, 1, 2, 3, 4, 5]
    again = ct.load("run")
    assert again.final == result.final and "rejected" in again.history[0]


def test_resuming_is_as_if_it_had_been_trained_now(v02: Path) -> None:
    fed = ct.data.load("folder:sites", label="label", seed=1)
    new = ct.run(ct.IFCA(clusters=2), fed, "softmax", rounds=5, seed=1, eval_every=1)
    old = ct.resume("run", rounds=5)
    np.testing.assert_array_equal(old.clusters, new.clusters)
    for mine, theirs in zip(old.history, new.history):
        assert mine["accuracy"] == theirs["accuracy"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-6)


def test_a_run_predicts_is_exported_and_reported_on(v02: Path) -> None:
    result = ct.load("run")
    table = table_of_site(v02, 0)
    group = result.assign(table).group
    predicted = result.predict(table, cluster=group)
    new = ct.load(result.export("export-new"))
    assert (new.predict(table, f"group-{group}") == predicted).all()
    assert result.predict(table, client="site0").shape == (24,)
    assert "site5" in result.report("report.html").read_text()


def test_exported_models_answer_as_their_run(v02: Path) -> None:
    exported = ct.load("export")
    table = table_of_site(v02, 1)
    assignment = exported.assign(table)
    assert assignment.group == ct.load("run").assign(table).group
    predicted = exported.predict(table, f"group-{assignment.group}")
    assert (predicted == ct.load("run").predict(table, cluster=assignment.group)).all()


def test_a_search_continues_in_its_folder(v02: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its first cell is kept; the second, whose folder is missing, is trained now."""
    words = (
        "search fedavg --data folder:sites --label label --rounds 2 --model softmax --out search"
    )
    kept = (v02 / "search/lr=0.1/seed-0/checkpoints/000002.safetensors").read_bytes()
    assert main([*words.split(), "--over", "lr=0.1,1"]) == 0
    assert (v02 / "search/lr=1.0/seed-0/config.json").exists()
    assert (v02 / "search/lr=0.1/seed-0/checkpoints/000002.safetensors").read_bytes() == kept


def test_a_store_holds_the_same_federation(v02: Path) -> None:
    stored = ct.data.load("store:store", seed=0)
    fed = ct.data.load("folder:sites", label="label", seed=0)
    assert stored.names == fed.names
    assert (stored.train.x == fed.train.x).all() and (stored.test.y == fed.test.y).all()
    assert ct.run(ct.FedAvg(), stored, "softmax", rounds=1).accuracy.mean >= 0
