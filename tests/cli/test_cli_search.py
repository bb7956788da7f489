"""`coterie search`."""

from __future__ import annotations

import json
import signal
import tomllib

import pytest
from test_cli_errors import refused

import coterie as ct
from coterie.cli.setup import read_setup


@pytest.fixture
def tiny() -> str:
    return "--clients 4 --samples 20 --rounds 2 --model softmax"


def test_table_and_winner(coterie, tiny):
    search = f"search fedavg {tiny} --over lr=0.01,0.5,1e38 --over local-steps=2,4 --seeds 2"
    outcome = coterie(search, "--out out")
    assert outcome.status == 0
    head, *rows = outcome.out.splitlines()
    assert head.split() == ["lr", "local_steps", "validation", "accuracy", "±", "seeds"]
    assert [row.split()[:2] for row in rows[:2]] == [["0.5", "4"], ["0.5", "2"]]
    assert rows[0].endswith(" *") and sum(row.endswith(" *") for row in rows) == 1
    assert all(row.endswith("diverged with 2 of 2 seeds") for row in rows[4:6])
    assert "training rows, mean ± standard deviation over 2 seeds; * best. Test rows" in rows[6]
    assert rows[7] == "local_steps 4 is the largest tried: values beyond it may be better."
    assert rows[8:] == [
        "search saved in out; train the winner with",
        "  coterie run fedavg --config out/winner.toml",
    ]
    assert "fedavg lr=0.5,local_steps=4 seed 1 (validation)  round 2/2  accuracy 0." in outcome.err

    document = json.loads(coterie(search, "--out out --json --quiet").out)
    same = ct.FedAvg(lr=0.5, local_steps=4)
    scores = []
    for seed in (0, 1):
        fed = ct.data.rotated(clients=4, samples=20, seed=seed)
        result = ct.run(same, fed, "softmax", rounds=2, seed=seed, valid=0.2)
        scores.append(result.final["valid_accuracy"])
    assert document["metric"] == "valid_accuracy" and document["cells"][0]["scores"] == scores
    assert document["best"] == {"lr": 0.5, "local_steps": 4} and len(document["cells"]) == 6
    assert document["command"] == "coterie run fedavg --config out/winner.toml"


@pytest.mark.slow
def test_the_winners_file_is_the_winner(coterie, sites, own, tmp_path):
    """All that was asked comes back from the file, but for the rows that the search held out."""
    asked = "--data folder:sites --label outcome --rounds 2 --seed 3 --seeds 2"
    settings = "--batch 4 --mine.dropout 0.25"
    over = "--over lr=0.1,0.2 --over clip=none,1"
    search = f"search own.py:Mine {asked} {settings} {over} --valid 0.3 --quiet --out"
    out = tmp_path / "a b"
    assert coterie(search, out).status == 0
    assert tomllib.loads((out / "winner.toml").read_text())["mine"]["dropout"] == 0.25
    document = json.loads(coterie(search, out, "--json").out)
    best = {name: "none" if value is None else value for name, value in document["best"].items()}
    values = " ".join(f"--{name}={value}" for name, value in best.items())
    one = read_setup("run", ["own.py:Mine"], f"{asked} {settings} {values}".split())
    other = read_setup("run", ["own.py:Mine"], ["--config", "a b/winner.toml"])
    assert repr(one.methods) == repr(other.methods)
    assert (one.options, one.spec, one.seeds) == (other.options, other.spec, other.seeds)
    assert one.data_arguments(3) == other.data_arguments(3)
    run = coterie("run own.py:Mine --quiet --out won --config", out / "winner.toml")
    assert run.status == 0
    won = coterie("run own.py:Mine --quiet --json --out again", asked, settings, values)
    for seed in (3, 4):
        rows = (tmp_path / "won" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        same = json.loads(won.out)["runs"][seed - 3]
        assert json.loads(rows[-1])["accuracy"] == same["accuracy"]


def test_a_model_of_ones_own(coterie, own, tmp_path):
    """A search finds it, and so does the run of the winner."""
    given = "--clients 4 --samples 20 --rounds 1 --quiet"
    search = "search fedavg --model own.py:Net --over lr=0.1,0.2 --out out"
    assert coterie(search, given).status == 0
    assert coterie("run fedavg --config out/winner.toml --out won --quiet").status == 0
    config = json.loads((tmp_path / "won" / "config.json").read_text())
    assert config["origin"]["model"] == f"{own}:Net"


@pytest.mark.parametrize("method", ["ifca --clusters 2", "one-shot --clusters 2", "cfl"])
def test_every_method_comes_back_from_its_file(coterie, tiny, method):
    assert coterie("search", method, tiny, "--over lr=0.1 --out out --quiet").status == 0
    name, *flags = f"{method} {tiny} --lr 0.1".split()
    one = read_setup("run", [name], flags)
    other = read_setup("run", [name], ["--config", "out/winner.toml"])
    assert one.methods == other.methods
    assert (one.options, one.data_arguments(0)) == (other.options, other.data_arguments(0))


def test_a_required_setting_may_be_searched(coterie, tiny):
    over = "--over clusters=1,2,4 --random 2 --quiet --out out"
    outcome = coterie("search ifca", tiny, over)
    cells = [line for line in outcome.out.splitlines() if line[:8].strip().isdigit()]
    assert outcome.status == 0 and len(cells) == 2


def test_a_flag_for_what_is_searched_is_refused(coterie, tiny, tmp_path):
    """It would have no effect; a value in the file is only a default, and may stay."""
    for flag in ("--ifca.lr", "--lr"):
        outcome = coterie("search ifca --clusters 2", tiny, "--over lr=0.1,1", flag, 0.5)
        refused(outcome, f"{flag} has no effect, because values of lr are searched")
    refused(coterie("search ifca", tiny, "--over clusters=1,2 --clusters 2"), "--clusters has no")
    (tmp_path / "c.toml").write_text("lr = 0.3\n[fedavg]\nlr = 0.4\n")
    config = ["--config", str(tmp_path / "c.toml")]
    asked = read_setup("search", ["fedavg"], [*tiny.split(), *config, "--over", "lr=0.1,1"])
    assert asked.methods["fedavg"].lr == 0.1


def test_regression(coterie):
    given = "--data linear?dim=3 --clients 4 --rounds 2 --over lr=0.1,0.000001 --quiet"
    outcome = coterie("search fedavg", given)
    assert outcome.status == 0 and "validation MSE" in outcome.out
    assert outcome.out.splitlines()[1].split()[0] == "0.1"


def test_all_diverged(coterie, tiny, tmp_path):
    outcome = coterie("search fedavg", tiny, "--over lr=1e38 --out out --quiet")
    assert outcome.status == 2 and "1e+38             diverged" in outcome.out
    assert "winner" not in outcome.out
    assert "coterie: every cell of fedavg diverged, such as lr=1e+38: round 1" in outcome.err
    assert not (tmp_path / "out" / "winner.toml").exists()


def test_dry_run_trains_nothing(coterie, tiny, tmp_path):
    search = f"search fedavg {tiny} --over lr=0.1,0.2 --dry-run"
    outcome = coterie(search, "--seeds 3")
    assert outcome.status == 0 and "6 such runs" in outcome.out and not list(tmp_path.iterdir())
    assert json.loads(coterie(search, "--json").out)["runs"] == 2


@pytest.mark.parametrize(
    "command, words",
    [
        ("search", ["search needs one method"]),
        ("search fedavg local --over lr=1", ["search needs one method"]),
        ("search fedavg", ["search needs --over"]),
        ("search fedavg --over lr", ["--over is 'lr'", "NAME=A,B"]),
        ("search fedavg --over lr=,", ["--over is 'lr=,'"]),
        ("search fedavg --over lr=1 --over lr=2,3", ["--over names lr twice: write lr=1,2,3."]),
        ("search fedavg --over lrr=1,2", ["unknown hyper-parameter of fedavg 'lrr'", "'lr'"]),
        ("search fedavg --over rounds=1,2", ["unknown hyper-parameter of fedavg 'rounds'"]),
        ("search fedavg --over lr=0.1,fast", ["lr is 'fast'", "a number"]),
        ("search fedavg --over lr=0.1,-1", ["lr of fedavg is -1.0", "> 0"]),
        ("search ifca --over clusters=many", ["clusters is 'many'", "or auto"]),
        ("search ifca --over clusters=2,9 --clients 8", ["clusters is 9", "8"]),
        ("search fedavg --over lr=0.1 --random 0", ["random is 0"]),
        ("search fedavg --over lr=0.1 --valid 0", ["a validation split", "--valid 0.2"]),
        ("run fedavg --over lr=0.1", ["unknown flag '--over'"]),
    ],
)
def test_one_sentence_before_anything_runs(coterie, tmp_path, command, words):
    refused(coterie(command), *words)
    assert not list(tmp_path.iterdir())


def test_folders(coterie, tiny, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    search = f"search fedavg {tiny} --over lr=1"
    refused(coterie(search, "--out out"), "out exists and is not a search")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    assert coterie(search, "--out s --quiet").status == 0
    refused(coterie("resume s"), "s is a search", "--out s")
    refused(coterie(search, "--out s --rounds 5"), "begun with rounds 2")


@pytest.mark.slow
@pytest.mark.parametrize("number, status", [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_search_that_was_stopped_goes_on_to_the_same_end(
    coterie, coterie_with_signal, tiny, tmp_path, number, status
):
    """Stopped in the second cell: the first is not trained again, the second goes on."""
    search = f"search fedavg {tiny} --rounds 6 --eval-every 2 --over lr=0.01,0.1"
    first = tmp_path / "out" / "lr=0.01" / "seed-0" / "metrics.jsonl"
    second = tmp_path / "out" / "lr=0.1" / "seed-0" / "metrics.jsonl"
    outcome = coterie_with_signal(
        search, "--out out", number=number, at=lambda run: run.method.lr == 0.1 and run.round == 3
    )
    assert outcome.status == status, outcome.err
    if number == signal.SIGINT:
        assert "stopped; continue with: the same command, --out out" in outcome.err
        assert "Traceback" not in outcome.err
    assert 0 < second.read_text().count("\n") < 7
    before = first.read_text()
    assert before.count("\n") == 7
    resumed = json.loads(coterie(search, "--out out --json").out)
    uninterrupted = json.loads(coterie(search, "--out full --json").out)
    assert resumed["cells"] == uninterrupted["cells"] and first.read_text() == before
    assert second.read_text().count("\n") == 7
