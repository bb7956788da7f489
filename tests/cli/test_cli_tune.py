"""`coterie compare --tune`."""

from __future__ import annotations

import json

import pytest
from test_cli_errors import refused

import coterie as ct
from coterie.cli.setup import read_setup

TUNE = "--tune lr=0.01,0.5 --fedprox.tune lr=0.02,0.03,0.04 --fedprox.tune mu=0.1"


@pytest.fixture
def tiny() -> str:
    return "--clients 4 --samples 20 --rounds 2 --model softmax"


@pytest.mark.slow
def test_compare_tunes_each_method_that_has_the_setting(coterie, tiny, tmp_path):
    outcome = coterie("compare fedavg fedprox", tiny, TUNE, "--seeds 2 --out out")
    assert outcome.status == 0
    names = [line.split("  ")[0] for line in outcome.out.splitlines()[1:3]]
    assert names == ["fedavg lr=0.5", "fedprox lr=0.04 mu=0.1"]
    assert "chosen on a validation split, with one seed;" in outcome.out
    assert "fedavg: lr 0.5 is the largest tried" in outcome.err
    configs = tmp_path.glob("out/tune/**/config.json")
    assert {str(path.parent.relative_to(tmp_path / "out/tune")) for path in configs} == {
        "fedavg/lr=0.01/seed-0",
        "fedavg/lr=0.5/seed-0",
        "fedprox/lr=0.02,mu=0.1/seed-0",
        "fedprox/lr=0.03,mu=0.1/seed-0",
        "fedprox/lr=0.04,mu=0.1/seed-0",
    }
    for path in tmp_path.glob("out/tune/**/metrics.jsonl"):
        keys = [key for line in path.open() for key in json.loads(line)]
        assert keys and not any(key.startswith("accuracy") for key in keys)
    check_same_command_again(coterie, tiny, tmp_path)


def check_same_command_again(coterie, tiny, tmp_path):
    """Nothing is trained anew; the runs are those of Python, with all training rows."""
    again = coterie("compare fedavg fedprox", tiny, TUNE, "--seeds 2 --out out --json --quiet")
    runs = json.loads(again.out)["runs"]
    assert [(run["method"], run["seed"], run["tuned"]["lr"]) for run in runs] == [
        ("fedavg", 0, 0.5),
        ("fedprox", 0, 0.04),
        ("fedavg", 1, 0.5),
        ("fedprox", 1, 0.04),
    ]
    for run in runs[::2]:
        fed = ct.data.rotated(clients=4, samples=20, seed=run["seed"])
        same = ct.run(ct.FedAvg(lr=0.5), fed, "softmax", rounds=2, seed=run["seed"])
        assert run["accuracy"] == pytest.approx(same.accuracy.weighted, abs=1e-12)
    outcome = coterie("resume out")
    sentence = "out is a tuned comparison: repeat its `coterie compare` command"
    assert outcome.status == 2 and sentence in outcome.err


def test_a_method_without_the_setting_runs_as_it_is(coterie, tiny):
    outcome = coterie("compare fedavg fedprox", tiny, "--tune mu=0.1,1 --quiet --json")
    runs = json.loads(outcome.out)["runs"]
    assert [set(run["tuned"]) for run in runs] == [set(), {"mu"}]
    assert not any("valid_accuracy" in run for run in runs), "no row is held out from either"


def test_rows_stay_held_out_where_early_stopping_needs_them(coterie, tiny):
    tune = "--tune lr=0.1,0.2 --stop-after 3 --valid 0.4 --quiet --json"
    runs = json.loads(coterie("compare fedavg fedprox", tiny, tune).out)["runs"]
    assert all("valid_accuracy" in run for run in runs)


def test_a_method_that_always_diverges_leaves_the_others(coterie, tiny):
    tune = "--tune lr=0.1 --fedprox.tune lr=1e38 --out out --quiet"
    outcome = coterie("compare fedprox fedavg", tiny, tune)
    assert outcome.status == 2 and "fedavg lr=0.1" in outcome.out
    assert "fedprox" not in outcome.out
    assert "coterie: every cell of fedprox diverged" in outcome.err


def test_what_is_tried_may_stand_in_the_file(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('tune = "lr=0.1,0.2"\n[fedprox]\ntune = ["lr=0.3", "mu=0.1,1"]\n')
    asked = read_setup("compare", ["fedavg", "fedprox", "local"], ["--config", str(config)])
    assert asked.grids == {
        "fedavg": {"lr": [0.1, 0.2]},
        "fedprox": {"lr": [0.3], "mu": [0.1, 1.0]},
        "local": {"lr": [0.1, 0.2]},
    }


@pytest.mark.parametrize(
    "command, words",
    [
        ("run fedavg --tune lr=0.1", ["unknown flag '--tune'"]),
        ("compare fedavg local --tune mu=1,2", ["--tune names 'mu'"]),
        ("compare fedavg fedprox --fedavg.tune mu=1,2", ["unknown hyper-parameter of fedavg 'mu'"]),
        ("compare fedavg fedprox --tune mu=1,-1", ["mu of fedprox is -1.0"]),
        ("compare fedavg fedprox --fedprox.tune mu", ["--fedprox.tune is 'mu': write NAME=A,B"]),
        (
            "compare fedavg pdl-tc --clusters 2 --tune lr=0.1 --participation 0.5",
            ["needs all clients"],
        ),
        ("compare fedavg fedprox --tune lr=0.1,1 --lr 0.5", ["--lr has no effect"]),
        ("compare fedavg fedprox --tune lr=0.1,1 --fedavg.lr 0.5", ["--fedavg.lr has no effect"]),
    ],
)
def test_one_sentence_before_anything_runs(coterie, tmp_path, command, words):
    refused(coterie(command), *words)
    assert not list(tmp_path.iterdir())


def test_a_common_flag_may_serve_the_methods_that_are_not_tuned():
    argv = ["--lr", "0.5", "--fedprox.tune", "lr=0.1,1"]
    methods = read_setup("compare", ["fedavg", "fedprox"], argv).methods
    assert (methods["fedavg"].lr, methods["fedprox"].lr) == (0.5, 0.1)


def test_a_folder_that_exists_is_not_touched(coterie, tiny, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    refused(coterie("compare fedavg", tiny, "--tune lr=1 --out out"), "out exists")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
