"""`coterie search` and `coterie compare --tune`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib

import pytest
from test_cli_errors import refused

import coterie as ct
from coterie.cli.setup import setup


@pytest.fixture
def tiny() -> list[str]:
    return ["--clients", "4", "--samples", "20", "--rounds", "2", "--model", "softmax"]


def test_table_and_winner(coterie, tiny, tmp_path):
    over = ["--over", "lr=0.01,0.5,1e38", "--over", "local-steps=2,4"]
    said = coterie("search", "fedavg", *tiny, *over, "--seeds", 2, "--out", "out")
    assert said.status == 0
    head, *rows = said.out.splitlines()
    assert head.split() == ["lr", "local_steps", "valid", "accuracy", "±", "seeds"]
    assert [row.split()[:2] for row in rows[:2]] == [["0.5", "4"], ["0.5", "2"]]
    assert rows[0].endswith(" *") and sum(row.endswith(" *") for row in rows) == 1
    assert all(row.endswith("diverged with 2 of 2 seeds") for row in rows[4:6])
    assert "held out, mean ± standard deviation over 2 seeds; * best. No test row" in rows[6]
    assert rows[7] == "local_steps 4 is the largest tried: values beyond may do better."
    assert rows[8:] == [
        "search kept in out; train the winner with",
        "  coterie run fedavg --config out/winner.toml",
    ]
    assert "fedavg lr=0.5,local_steps=4 seed 1 (valid)  round 2/2  accuracy 0." in said.err

    again = coterie(
        "search", "fedavg", *tiny, *over, "--seeds", 2, "--out", "out", "--json", "--quiet"
    )
    found = json.loads(again.out)
    fed = lambda seed: ct.data.rotated(clients=4, samples=20, seed=seed)
    same = ct.FedAvg(lr=0.5, local_steps=4)
    runs = [
        ct.run(same, fed(s), "softmax", rounds=2, seed=s, valid=0.2).final["valid_accuracy"]
        for s in (0, 1)
    ]
    assert found["metric"] == "valid_accuracy" and found["cells"][0]["scores"] == runs
    assert found["best"] == {"lr": 0.5, "local_steps": 4} and len(found["cells"]) == 6
    assert found["command"] == "coterie run fedavg --config out/winner.toml"


def test_the_winners_file_is_the_winner(coterie, sites, own, tmp_path):
    """Everything that was asked comes back from the file, for a method, a model and data of one's own."""
    asked = [
        "--data",
        "folder:sites",
        "--label",
        "outcome",
        "--valid",
        0.3,
        "--rounds",
        2,
        "--seed",
        3,
        "--seeds",
        2,
    ]
    over = ["--over", "lr=0.1,0.2", "--batch", 4, "--mine.dropout", 0.25, "--over", "clip=none,1"]
    assert coterie("search", "own.py:Mine", *asked, *over, "--out", "a b", "--quiet").status == 0
    assert tomllib.loads((tmp_path / "a b" / "winner.toml").read_text())["mine"]["dropout"] == 0.25
    found = json.loads(
        coterie("search", "own.py:Mine", *asked, *over, "--out", "a b", "--quiet", "--json").out
    )
    values = [
        f"--{name}={'none' if value is None else value}" for name, value in found["best"].items()
    ]
    one = setup(
        "run",
        ["own.py:Mine"],
        [*map(str, asked), "--batch", "4", "--mine.dropout", "0.25", *values],
    )
    other = setup("run", ["own.py:Mine"], ["--config", "a b/winner.toml"])
    assert repr(one.methods) == repr(other.methods)
    assert (one.options, one.spec, one.seeds) == (other.options, other.spec, other.seeds)
    assert one.origin(3) == other.origin(3)
    assert (
        coterie(
            "run", "own.py:Mine", "--config", "a b/winner.toml", "--out", "won", "--quiet"
        ).status
        == 0
    )
    for seed in (3, 4):
        rows = (tmp_path / "won" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        assert json.loads(rows[-1])["valid_accuracy"] == found["cells"][0]["scores"][seed - 3]


def test_every_method_comes_back_from_its_file(coterie, tiny):
    for method in ("ifca", "one-shot", "cfl"):
        more = [] if method == "cfl" else ["--clusters", 2]
        assert (
            coterie(
                "search", method, *tiny, *more, "--over", "lr=0.1", "--out", method, "--quiet"
            ).status
            == 0
        )
        one = setup("run", [method], [*tiny, *map(str, more), "--lr", "0.1", "--valid", "0.2"])
        other = setup("run", [method], ["--config", f"{method}/winner.toml"])
        assert (one.methods, one.options, one.origin(0)) == (
            other.methods,
            other.options,
            other.origin(0),
        )


def test_a_required_setting_may_be_searched(coterie, tiny):
    said = coterie(
        "search",
        "ifca",
        *tiny,
        "--over",
        "clusters=1,2,4",
        "--random",
        2,
        "--quiet",
        "--out",
        "out",
    )
    assert (
        said.status == 0
        and len([line for line in said.out.splitlines() if line[:8].strip().isdigit()]) == 2
    )


def test_regression(coterie):
    given = [
        "--data",
        "linear?dim=3",
        "--clients",
        4,
        "--rounds",
        2,
        "--over",
        "lr=0.1,0.000001",
        "--quiet",
    ]
    said = coterie("search", "fedavg", *given)
    assert (
        said.status == 0
        and "valid MSE" in said.out
        and said.out.splitlines()[1].split()[0] == "0.1"
    )


def test_all_diverged(coterie, tiny, tmp_path):
    said = coterie("search", "fedavg", *tiny, "--over", "lr=1e38", "--out", "out", "--quiet")
    assert said.status == 2 and "1e+38        diverged" in said.out and "winner" not in said.out
    assert "coterie: every cell of fedavg diverged, such as lr=1e+38: round 1" in said.err
    assert not (tmp_path / "out" / "winner.toml").exists()


def test_dry_run_trains_nothing(coterie, tiny, tmp_path):
    said = coterie("search", "fedavg", *tiny, "--over", "lr=0.1,0.2", "--seeds", 3, "--dry-run")
    assert said.status == 0 and "6 such runs" in said.out and not list(tmp_path.iterdir())
    said = coterie("search", "fedavg", *tiny, "--over", "lr=0.1,0.2", "--dry-run", "--json")
    assert json.loads(said.out)["runs"] == 2


@pytest.mark.parametrize(
    "command, words",
    [
        ("search", ["search needs one method"]),
        ("search fedavg local --over lr=1", ["search needs one method"]),
        ("search fedavg", ["search needs --over"]),
        ("search fedavg --over lr", ["over is 'lr'", "NAME=A,B"]),
        ("search fedavg --over lr=,", ["over is 'lr=,'"]),
        ("search fedavg --over lrr=1,2", ["unknown setting of fedavg 'lrr'", "'lr'"]),
        ("search fedavg --over rounds=1,2", ["unknown setting of fedavg 'rounds'"]),
        ("search fedavg --over lr=0.1,fast", ["lr is 'fast'", "a number"]),
        ("search fedavg --over lr=0.1,-1", ["lr of fedavg is -1.0", "> 0"]),
        ("search ifca --over lr=0.1", ["ifca needs --clusters"]),
        ("search ifca --over clusters=2,9 --clients 8", ["clusters is 9", "8"]),
        ("search fedavg --over lr=0.1 --random 0", ["random is 0"]),
        ("search fedavg --over lr=0.1 --valid 0", ["valid part"]),
        ("run fedavg --over lr=0.1", ["unknown flag '--over'"]),
        ("run fedavg --tune lr=0.1", ["unknown flag '--tune'"]),
        ("compare fedavg local --tune mu=1,2", ["tune names 'mu'"]),
        ("compare fedavg fedprox --fedavg.tune mu=1,2", ["unknown setting of fedavg 'mu'"]),
        ("compare fedavg fedprox --tune mu=1,-1", ["mu of fedprox is -1.0"]),
        (
            "compare fedavg pdl-tc --clusters 2 --tune lr=0.1 --participation 0.5",
            ["everyone takes part"],
        ),
    ],
)
def test_one_sentence_before_anything_runs(coterie, tmp_path, command, words):
    refused(coterie(*command.split()), *words)
    assert not list(tmp_path.iterdir())


def test_folders(coterie, tiny, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    refused(
        coterie("search", "fedavg", *tiny, "--over", "lr=1", "--out", "out"),
        "out exists and holds no search",
    )
    refused(coterie("compare", "fedavg", *tiny, "--tune", "lr=1", "--out", "out"), "out exists")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    assert coterie("search", "fedavg", *tiny, "--over", "lr=1", "--out", "s", "--quiet").status == 0
    refused(coterie("resume", "s"), "s is a search", "--out s")
    refused(
        coterie("search", "fedavg", *tiny, "--over", "lr=1", "--out", "s", "--rounds", 5),
        "begun with rounds 2",
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_search_that_was_stopped_goes_on_to_the_same_end(coterie, tiny, tmp_path, how):
    asked = [
        "search",
        "fedavg",
        *tiny,
        "--rounds",
        "60",
        "--eval-every",
        "20",
        "--over",
        "lr=0.01,0.1",
    ]
    command = [sys.executable, "-m", "coterie.cli", *asked, "--out", "out"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=env)
    second = tmp_path / "out" / "lr=0.1" / "seed-0" / "metrics.jsonl"
    until = time.monotonic() + 60
    while not (second.exists() and second.read_text()) and time.monotonic() < until:
        time.sleep(0.005)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if how == signal.SIGKILL else 130), err
    if how == signal.SIGINT:
        assert "stopped; the same command with --out out goes on" in err and "Traceback" not in err
    assert second.read_text().count("\n") < 61
    first = tmp_path / "out" / "lr=0.01" / "seed-0" / "metrics.jsonl"
    before = first.read_text()
    on = json.loads(coterie(*asked, "--out", "out", "--json").out)
    whole = json.loads(coterie(*asked, "--out", "whole", "--json").out)
    assert on["cells"] == whole["cells"] and first.read_text() == before
    assert second.read_text().count("\n") == 61


# ---------------------------------------------------------------------------------------------- compare --tune
def test_compare_tunes_each_method_that_has_the_setting(coterie, tiny, tmp_path):
    given = [
        *tiny,
        "--tune",
        "lr=0.01,0.5",
        "--fedprox.tune",
        "lr=0.02,0.03,0.04",
        "--fedprox.tune",
        "mu=0.1",
    ]
    said = coterie("compare", "fedavg", "fedprox", *given, "--seeds", 2, "--out", "out")
    assert said.status == 0
    names = [line.split("  ")[0] for line in said.out.splitlines()[1:3]]
    assert names == ["fedavg lr=0.5", "fedprox lr=0.04 mu=0.1"]
    assert "chosen on training rows that were held out, with one seed." in said.out
    assert "fedavg: lr 0.5 is the largest tried" in said.err
    tuned = {
        str(p.parent.relative_to(tmp_path / "out/tune"))
        for p in tmp_path.glob("out/tune/**/config.json")
    }
    steps = {
        "fedavg/lr=0.01",
        "fedavg/lr=0.5",
        *(f"fedprox/lr={lr},mu=0.1" for lr in (0.02, 0.03, 0.04)),
    }
    assert tuned == {f"{name}/seed-0" for name in steps}
    for path in tmp_path.glob("out/tune/**/metrics.jsonl"):
        assert not any(
            key.startswith("accuracy") for line in path.open() for key in json.loads(line)
        )

    again = coterie(
        "compare", "fedavg", "fedprox", *given, "--seeds", 2, "--out", "out", "--json", "--quiet"
    )
    runs = json.loads(again.out)["runs"]
    assert [(run["method"], run["seed"], run["tuned"]["lr"]) for run in runs] == [
        ("fedavg", 0, 0.5), ("fedprox", 0, 0.04), ("fedavg", 1, 0.5), ("fedprox", 1, 0.04),
    ]  # fmt: skip
    for run in runs[::2]:
        fed = ct.data.rotated(clients=4, samples=20, seed=run["seed"])
        same = ct.run(ct.FedAvg(lr=0.5), fed, "softmax", rounds=2, seed=run["seed"], valid=0.2)
        assert run["accuracy"] == pytest.approx(same.accuracy.weighted, abs=1e-12)
    rows = (tmp_path / "out/tune/fedavg/lr=0.5/seed-0/metrics.jsonl").read_text().splitlines()
    assert (
        json.loads(rows[-1])["valid_accuracy"] == runs[0]["valid_accuracy"]
    )  # the same rows are held out
    said = coterie("resume", "out")
    assert (
        said.status == 2
        and "out is a tuned comparison: go on with its `coterie compare` command" in said.err
    )


def test_a_method_without_the_setting_runs_as_it_is(coterie, tiny):
    said = coterie("compare", "fedavg", "fedprox", *tiny, "--tune", "mu=0.1,1", "--quiet", "--json")
    assert [set(run["tuned"]) for run in json.loads(said.out)["runs"]] == [set(), {"mu"}]
    assert all(
        "valid_accuracy" in run for run in json.loads(said.out)["runs"]
    )  # the same rows are left to both


def test_a_method_that_always_diverges_leaves_the_others(coterie, tiny):
    given = ["--tune", "lr=0.1", "--fedprox.tune", "lr=1e38", "--out", "out", "--quiet"]
    said = coterie("compare", "fedprox", "fedavg", *tiny, *given)
    assert said.status == 2 and "fedavg lr=0.1" in said.out and "fedprox" not in said.out
    assert "coterie: every cell of fedprox diverged" in said.err


def test_what_is_tried_may_stand_in_the_file(coterie, tiny, tmp_path):
    (tmp_path / "c.toml").write_text(
        'tune = "lr=0.1,0.2"\n[fedprox]\ntune = ["lr=0.3", "mu=0.1,1"]\n'
    )
    asked = setup("compare", ["fedavg", "fedprox", "local"], ["--config", str(tmp_path / "c.toml")])
    assert asked.over == {
        "fedavg": {"lr": [0.1, 0.2]}, "fedprox": {"lr": [0.3], "mu": [0.1, 1.0]}, "local": {"lr": [0.1, 0.2]},
    }  # fmt: skip
