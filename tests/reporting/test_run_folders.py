"""Pages about run folders, which are only read, and what a page says when something is missing."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from small_runs import HOW, figures, statistics_of, tables, trained

import coterie as ct
from coterie.cli import main
from coterie.data import load
from coterie.reporting.client_statistics import collect_statistics
from coterie.reporting.run_records import label_runs, records_in
from coterie.runs.config import Origin
from coterie.runs.load import _last_loaded
from coterie.runs.start import prepare_run


def written(runs, path, **how) -> str:
    return ct.report(runs, path, **how).read_text(encoding="utf-8")


def fingerprints(folder: Path) -> dict[str, str]:
    """What every file holds, and when it was written."""
    prints = {}
    for file in folder.rglob("*"):
        if file.is_file():
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            prints[str(file)] = f"{digest} {file.stat().st_mtime_ns}"
    return prints


@pytest.fixture(scope="module")
def ifca(tmp_path_factory) -> ct.Result:
    """A run on data in memory, in a folder."""
    return trained(ct.IFCA(clusters=2, **HOW), tmp_path_factory.mktemp("ifca") / "run")


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> ct.Result:
    """A run in a folder that knows where its data come from."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    data = {"spec": "rotated:digits", "seed": 0, "clients": 8, "samples": 10}
    options = {"rounds": 4, "eval_every": 1}
    origin = Origin(data=data, method="ifca", model="softmax")
    method = ct.IFCA(clusters=4, **HOW)
    run = prepare_run(method, load(**data), "softmax", out=folder, origin=origin, **options)
    return ct.Result.of(run.train())


@pytest.fixture
def fedavg(fedavg_run, tmp_path) -> Path:
    """A copy of a run's folder, which may be changed."""
    return shutil.copytree(fedavg_run, tmp_path / "run")


def curves(page: str) -> list[str]:
    """The lines over rounds and over bytes."""
    drawn = [figure for figure in figures(page) if "data-line" in figure]
    return [re.search(r'<path d="([^"]*)"', figure)[1] for figure in drawn]


def change_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


# ------------------------------------------------------------------------------ folders
def test_a_result_writes_its_own_page_and_folders_give_the_same(ifca, tmp_path):
    assert ifca.report(tmp_path / "one.html") == tmp_path / "one.html"
    before = fingerprints(ifca.folder)
    page = written(ifca.folder, tmp_path / "two.html")
    assert fingerprints(ifca.folder) == before  # a page only reads
    assert "without its training data: the data of the run were in memory.<" in page
    assert curves(page) == curves((tmp_path / "one.html").read_text())
    assert "The final groups of ifca" in page
    assert "Fit of each group" not in page and "Each client" in page


def test_a_result_and_its_folder_are_one_run(ifca, tmp_path):
    page = written([ifca, ifca.folder], tmp_path / "page.html")
    assert "<td>ifca</td>" in page and "shown without its" not in page


def test_a_folder_whose_data_can_be_had_again_shows_everything(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (
        "compare ifca fedavg --clusters 2 --data rotated:digits?angles=0,180 --clients 6 "
        "--samples 12 --rounds 2 --model softmax --seeds 2"
    )
    monkeypatch.setattr("sys.argv", ["/usr/bin/coterie", *words.split()])
    assert main([*sys.argv[1:], "--out", "runs", "--quiet"]) == 0
    before = fingerprints(tmp_path / "runs")
    assert main(["report", "runs", "--out", "page.html", "--target", "0.1"]) == 0
    assert fingerprints(tmp_path / "runs") == before
    page = (tmp_path / "page.html").read_text()
    for word in (
        "Fit of each group",
        "2 seeds",
        "coterie compare ifca fedavg",
        "accuracy 0.100 or better",
        "Fairness",
    ):
        assert word in page, word
    assert "shown without its" not in page


def test_the_same_run_opened_from_its_folder_has_the_same_portrait(digits):
    one = statistics_of(digits)
    (source,) = records_in(digits.folder)
    two = collect_statistics(source.load_trained(), source.load_run(), source.fingerprint.data)
    assert one.groups.tolist() == two.groups.tolist() and one.fingerprint == two.fingerprint
    np.testing.assert_array_equal(one.losses, two.losses)
    np.testing.assert_array_equal(one.per_client["accuracy"], two.per_client["accuracy"])


def test_a_run_that_goes_on_meanwhile_is_left_alone(digits, tmp_path):
    folder = shutil.copytree(digits.folder, tmp_path / "run")
    old, last = sorted((folder / "checkpoints").glob("*"))
    last.unlink()  # round 4 is measured, but not saved yet
    before = fingerprints(folder)
    page = written(folder, tmp_path / "page.html")
    assert fingerprints(folder) == before
    assert (
        f"ifca: clients and models are from its last checkpoint, after round {int(old.stem)}"
        in page
        and "Fit of each group" in page
    )
    over_rounds, _ = curves(page)
    assert over_rounds.count("L") == 4  # from round 0 to 4


def test_runs_of_the_same_settings_and_seed_are_told_apart_by_folder_or_number(tmp_path):
    folders = [tmp_path / "runs" / name for name in ("monday", "friday")]
    for folder in folders:
        for seed in (0, 1):
            trained(ct.FedAvg(**HOW), folder / f"seed-{seed}", seed=seed, rounds=1)
    page = written(folders[0], tmp_path / "page.html")
    assert "<td>fedavg</td>" in page and "2 seeds" in page
    page = written(folders, tmp_path / "page.html")
    assert "<td>fedavg (monday)</td>" in page and "<td>fedavg (friday)</td>" in page
    assert "2 seeds" in page
    page = written([trained(ct.FedAvg(**HOW), rounds=1) for _ in range(2)], tmp_path / "page.html")
    assert "<td>fedavg (run 1)</td>" in page and "<td>fedavg (run 2)</td>" in page


# ------------------------------------------------------------------------------ missing
def test_seeds_of_one_command_are_one_method_though_their_data_gave_other_steps(tmp_path):
    for seed, lr in enumerate((0.5, 0.4)):
        method = ct.FedAvg(lr=lr, local_steps=1)
        trained(method, tmp_path / "both" / "fedavg" / f"seed-{seed}", rounds=1, seed=seed)
        trained(method, tmp_path / "apart" / f"run {seed}", rounds=1, seed=seed)
    both, apart = (label_runs(records_in(tmp_path / name)) for name in ("both", "apart"))
    assert [run.label for run in both] == ["fedavg", "fedavg"]
    assert sorted(run.label for run in apart) == ["fedavg lr=0.4", "fedavg lr=0.5"]


def test_runs_whose_data_are_gone_say_so_once_and_show_their_groups(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path / "sites")
    words = (
        "compare ifca fedavg --clusters 2 --data folder:sites --label outcome --rounds 2 "
        "--model softmax --out runs --quiet"
    )
    assert main(words.split()) == 0
    (tmp_path / "sites").rename(tmp_path / "moved")
    _last_loaded.cache_clear()  # as in a new process
    page = written("runs", tmp_path / "page.html")
    assert page.count("cannot be read again") == 1
    assert "ifca and fedavg are shown without their training data: " in page
    loaded = ct.load("runs/ifca")  # answers without its data
    page = written(loaded, tmp_path / "page.html")
    assert "ifca is shown without its training data: the training data" in page
    assert "The final groups of ifca" in page and "Each client" in page


@pytest.mark.parametrize("name", ["e", "run", "the data of"])
def test_the_name_of_a_folder_is_not_replaced_inside_words(fedavg, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    fedavg.rename(name)
    sentences = []
    ct.report(name, "page.html", warn=sentences.append)
    assert sentences == [
        "fedavg is shown without its training data: the data of the run were in memory."
    ]


def test_a_setting_that_the_method_no_longer_has(fedavg, tmp_path):
    config = json.loads((fedavg / "config.json").read_text())
    config["method"]["settings"]["gone"] = 1
    origin = {"data": {"spec": "rotated:digits", "seed": 0}, "method": "fedavg"}
    change_config(fedavg, method=config["method"], origin=origin)
    assert "another version of" in written(fedavg, tmp_path / "page.html")


def test_a_run_that_was_stopped_is_said_to_be(fedavg, tmp_path, capsys):
    config = json.loads((fedavg / "config.json").read_text())
    change_config(fedavg, options={**config["options"], "rounds": 9})
    words = "fedavg stopped after round 2 of 9: results are from that round."
    assert words in written([fedavg], tmp_path / "page.html")
    other = tmp_path / "other.html"
    assert main(["report", str(fedavg), "--out", str(other)]) == 0
    out, err = capsys.readouterr()
    assert f"warning: {words}" in err and "UserWarning" not in err
    assert out == f"report saved in {other}\n"


@pytest.fixture(scope="module")
def trained_seeds(tmp_path_factory) -> Path:
    """Three seeds of a method."""
    base = tmp_path_factory.mktemp("seeds") / "fedavg"
    for seed in range(3):
        trained(ct.FedAvg(**HOW), base / f"seed-{seed}", seed=seed, rounds=2)
    return base


@pytest.fixture
def seeds(trained_seeds, tmp_path) -> Path:
    """A copy of three seeds, which may be changed."""
    return shutil.copytree(trained_seeds, tmp_path / "fedavg")


def warnings_about(runs: Path, capsys) -> list[str]:
    """The warnings that `coterie report` prints about runs; the page shows each of them once."""
    path = runs.parent / "page.html"
    assert main(["report", str(runs), "--out", str(path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    printed = [line.removeprefix("warning: ") for line in lines if " is damaged (" not in line]
    page = path.read_text(encoding="utf-8")
    assert [sentence for sentence in printed if page.count(sentence) != 1] == []
    return [sentence for sentence in printed if "were in memory" not in sentence]


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_damaged_seed_is_named_where_the_numbers_are_without_it(seeds, capsys, damaged):
    assert warnings_about(seeds, capsys) == []
    for checkpoint in (seeds / f"seed-{damaged}" / "checkpoints").iterdir():
        checkpoint.write_bytes(b"damaged")
    assert warnings_about(seeds, capsys)[-1] == (
        "The intervals and the tables of groups and clients are without "
        f"fedavg/seed-{damaged}: every checkpoint in the run is damaged: the run cannot be "
        "resumed; start it again."
    )
    clients = (seeds.parent / "page-clients.csv").read_text()
    assert f"fedavg,{damaged}," not in clients and clients.count("\n") == 1 + 2 * 6


def test_seeds_without_checkpoints_share_a_warning(seeds, capsys):
    for seed in (1, 2):
        shutil.rmtree(seeds / f"seed-{seed}" / "checkpoints")
    assert warnings_about(seeds, capsys) == [
        "The intervals and the tables of groups and clients are without fedavg/seed-1 and "
        "fedavg/seed-2: the run has not been trained yet: resume it first."
    ]


def test_a_seed_that_only_the_tables_are_without(seeds, capsys):
    config = json.loads((seeds / "seed-1" / "config.json").read_text())
    settings = {**config["method"]["settings"], "gone": 1}
    change_config(seeds / "seed-1", method={**config["method"], "settings": settings})
    (sentence,) = warnings_about(seeds, capsys)
    assert sentence.startswith("The tables of groups and clients are without fedavg/seed-1: ")


def test_a_seed_whose_last_checkpoint_is_damaged_shows_an_earlier_round(seeds, capsys):
    earlier, last = sorted((seeds / "seed-1" / "checkpoints").iterdir())
    last.write_bytes(b"damaged")
    assert warnings_about(seeds, capsys) == [
        "fedavg/seed-1: its scores by client are from its last checkpoint, after round "
        f"{int(earlier.stem)}."
    ]


def test_a_seed_without_config_is_named(seeds, capsys):
    (seeds / "seed-1" / "config.json").unlink()
    assert warnings_about(seeds, capsys) == [
        "fedavg/seed-1 has no config.json and is left out: restore the file, or train it again."
    ]


@pytest.mark.slow
def test_the_demo_writes_a_page_and_says_where(tmp_path, monkeypatch, capsys):
    from coterie.cli import demo

    small = {"CLIENTS": 8, "SAMPLES": 15, "ROUNDS": 6, "SEEDS": 2, "MODEL": "softmax"}
    for name, value in {**small, "LOCAL": {"lr": 0.3, "local_steps": 2}}.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--quiet"]) == 0
    assert "report: demo/report.html" in capsys.readouterr().out
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "<h1>Predictions for 8 clients: rotated:digits" in page and "seed 0" in page
    monkeypatch.setattr(demo, "SEEDS", 1)
    assert main(["demo", "--quiet"]) == 0  # over the first one
