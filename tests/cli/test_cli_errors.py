"""Bad input: one sentence on stderr with a remedy, status 2, no traceback, nothing left behind."""

from __future__ import annotations

import inspect
import json

import pytest

from coterie import data
from coterie.cli.flags import TABLE_OPTIONS


def refused(outcome, *words: str) -> None:
    assert outcome.status == 2
    assert outcome.out == ""
    lines = [line for line in outcome.err.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1 and lines[0].startswith("coterie: "), outcome.err
    assert lines[0].endswith((".", "?")) and "Traceback" not in outcome.err
    for word in words:
        assert word in lines[0], outcome.err


@pytest.mark.parametrize(
    "command, words",
    [
        ("rnu", ["unknown command 'rnu'", "'run'"]),
        ("--hlep", ["--help"]),
        ("help rnu", ["unknown command 'rnu'", "'run'"]),
        ("run", ["needs one method", "coterie list"]),
        ("run ifca fedavg --clusters 2", ["needs one method"]),
        ("compare ifca ifca --clusters 2", ["named twice"]),
        ("run ifac --clusters 2", ["unknown method 'ifac'", "'ifca'"]),
        ("run ifca --clusters many", ["--clusters is 'many'", "a whole number or auto"]),
        ("run fedavg --ifca.lr 1", ["--ifca.lr has no effect: this command does not run ifca."]),
        ("run ifca --cluster 2", ["unknown flag '--cluster'", "'--clusters'"]),
        ("run ifca --clusters", ["--clusters needs a value."]),
        ("run ifca --clusters two", ["--clusters is 'two': it must be a whole number or auto."]),
        ("run fedavg --lr fast", ["--lr is 'fast': it must be a number."]),
        ("run fedavg --lr inf", ["--lr is 'inf': it must be a number."]),
        ("run fedavg --batch x", ["a whole number or none"]),
        ("run fedavg stray", ["needs one method"]),
        ("run fedavg --rounds 2 stray", ["'stray' belongs to no flag"]),
        ("run fedavg --json=3", ["--json takes no value."]),
        ("run fedavg --mu 1", ["unknown flag '--mu'"]),
        ("compare fedavg fedprox --mu 1", ["--mu belongs to one method: write --fedprox.mu"]),
        ("compare fedavg local --mu 1", ["unknown flag '--mu'"]),
        (
            "compare fedavg local --fedprox.mu 1",
            ["--fedprox.mu has no effect: this command does not run fedprox."],
        ),
        ("run ifca --clusters 0", ["clusters of ifca is 0", "≥ 1"]),
        ("run ifca --clusters 9 --clients 8", ["clusters is 9", "8"]),
        ("run fedavg --lr 0", ["lr of fedavg is 0.0", "> 0"]),
        ("run fedavg --lr -1", ["lr of fedavg is -1.0", "> 0"]),
        (
            "run ifca --clusters 2 --init best",
            ["init of ifca is 'best'", "updates, random, balanced"],
        ),
        ("run fedavg --rounds 0", ["rounds is 0", "≥ 1"]),
        ("run fedavg --seeds 0", ["seeds is 0", "≥ 1"]),
        ("run fedavg --stop-after 2", ["valid"]),
        ("run fedavg --plan 4", ["CHUNK,WORKERS"]),
        ("run fedavg --device cuda", ["cuda"]),
        ("run fedavg --data rotatde", ["unknown data set 'rotatde'", "'rotated'"]),
        ("run fedavg --data .", ["'.' is a path: write folder:."]),
        ("run fedavg --data folder: --label y", ["needs the option path"]),
        ("run fedavg --drop id", ["--drop is an option of the data set: write --data.drop."]),
        ("run fedavg --time-column t", ["write --data.time-column."]),
        ("run fedavg --data rotated:digist", ["unknown base set 'digist'", "'digits'"]),
        ("run fedavg --data rotated?angels=0,90", ["unknown option", "'angels'", "'angles'"]),
        ("run fedavg --data.angels 0,90", ["unknown option", "'angels'", "'angles'"]),
        ("run fedavg --data.angles", ["--data.angles needs a value."]),
        ("run fedavg --data.angles a,b", ["angles", "number"]),
        ("run fedavg --clients 2", ["clients=2", "at least 4"]),
        ("run fedavg --label x", ["unknown option", "'label'"]),
        ("run fedavg --model mpl", ["unknown model 'mpl'", "'mlp'"]),
        ("run fedavg --model none.py:Net", ["there is no file", "none.py"]),
        ("run none.py:Mine", ["there is no file", "none.py"]),
        ("resume", ["wrong number of names: write coterie resume RUN"]),
        ("resume nowhere", ["there is no folder nowhere"]),
        ("resume nowhere --rounds x", ["rounds is 'x'"]),
        ("list ifca", ["list takes no names"]),
        (
            "run fedavg --config none.toml",
            ["cannot read the config file none.toml", "No such file"],
        ),
    ],
)
def test_one_sentence(coterie, tmp_path, command, words):
    refused(coterie(command), *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "model, words",
    [
        ("Norm", ["has no running statistics", "GroupNorm"]),
        ("Drop", ["alpha_dropout", "nn.Dropout"]),
        ("Narrow", ["10 classes", "10 outputs"]),
        ("Nett", ["'Nett'", "'Net'"]),
    ],
)
def test_models_of_ones_own(coterie, own, model, words):
    refused(coterie(f"run fedavg --model {own}:{model}"), *words)


def test_methods_of_ones_own(coterie, own):
    refused(coterie(f"run {own}:NoMethod"), "not a method")


@pytest.mark.parametrize(
    "file, text, words",
    [
        ("site1.csv", "age,dose,result\n1,2,0\n", ["label column", "outcome"]),
        ("site1.csv", "age,dose,outcome\n1,high,0\n2,1,1\n", ["'high'", "number", "dose"]),
        ("site1.csv", "age,dose,outcome\n1,,0\n2,1,1\n", ["missing", "dose"]),
        ("site1.csv", "age,weight,outcome\n1,2,0\n", ["columns", "weight"]),
        ("site1.csv", "", ["empty"]),
    ],
)
def test_tables(coterie, sites, file, text, words):
    (sites / file).write_text(text)
    refused(coterie("run fedavg --data folder:sites --label outcome"), *words)


def test_folders(coterie, sites, tmp_path):
    refused(coterie("run fedavg --data folder:sites"), "label")
    refused(coterie("run fedavg --data folder:sites --label outcom"), "outcom")
    refused(coterie("run fedavg --data folder:nowhere --label y"), "there is no folder")
    (tmp_path / "bare").mkdir()
    refused(coterie("run fedavg --data folder:bare --label y"), "bare")


def test_a_folder_that_exists_is_not_touched(coterie, tiny, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    refused(coterie("run fedavg", tiny, "--out out"), "out exists: choose another --out.")
    refused(coterie("demo --out out"), "out exists: choose another --out.")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"
    assert coterie("run fedavg", tiny, "--out begun").status == 0
    for method in ("fedavg", "local"):
        outcome = coterie("run", method, tiny, "--out begun")
        refused(outcome, "begun exists", "or continue it with `coterie resume begun`.")


def test_resuming_with_other_data_or_another_model(coterie, sites, own, tmp_path):
    tables = "--data folder:sites --label outcome"
    assert coterie("run fedavg", tables, "--rounds 1 --out a").status == 0
    images = f"--model {own}:Net --clients 8"
    assert coterie("run fedavg", images, "--rounds 1 --out b").status == 0
    (sites / "site0.csv").write_text("age,dose,outcome\n1,1,0\n2,2,1\n3,3,0\n")
    refused(coterie("resume a --quiet"), "the data have changed since a was trained")
    changed = own.read_text().replace("Net = lambda: net(", "Net = lambda: net(nn.Linear(64, 64), ")
    own.write_text(changed)
    refused(coterie("resume b"), "own.py, which would be run and has changed since", "--trust ")
    refused(coterie(f"resume b --model {own}:Net"), "the model is not the one")


def test_damaged_run_folders(coterie, tmp_path):
    (tmp_path / "run").mkdir()
    refused(coterie("resume run"), "run is not a run folder")
    (tmp_path / "run" / "config.json").write_text("{")
    refused(coterie("resume run"), "damaged")
    (tmp_path / "run" / "config.json").write_text(json.dumps({"origin": {}}))
    what = "config.json is damaged (Object missing required field `method`)"
    refused(coterie("resume run"), what)


def test_an_empty_word_is_no_folder(coterie, tiny, tmp_path):
    """As in `coterie resume "$RUN"` with RUN not set: not the runs of this folder."""
    assert coterie("run fedavg", tiny).status == 0
    refused(coterie("resume", [""]), "wrong number of names: write coterie resume RUN")


def test_diverged_says_where_the_last_good_checkpoint_is(coterie, tiny):
    outcome = coterie("run fedavg", tiny, "--lr 1e38 --out out --quiet")
    assert outcome.status == 2 and "diverged" in outcome.err
    assert "The last good checkpoint is out/checkpoints" in outcome.err


def test_a_bug_is_called_a_bug(coterie, monkeypatch):
    monkeypatch.setattr("coterie.cli.listing.show", lambda *_: 1 / 0)
    outcome = coterie("list")
    assert outcome.status == 1 and "a bug" in outcome.err and "--debug" in outcome.err
    assert "Traceback" not in outcome.err
    assert "Traceback" in coterie("list --debug").err


@pytest.mark.parametrize(
    "error, status, words",
    [
        (MemoryError(), 2, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "out of memory"),
        (
            PermissionError(13, "Permission denied", "secret"),
            2,
            "cannot use secret: Permission denied",
        ),
        (KeyboardInterrupt(), 130, "coterie: stopped."),
        (KeyboardInterrupt("saved; go on"), 130, "coterie: saved; go on\n"),
    ],
)
def test_what_the_system_refuses(coterie, monkeypatch, error, status, words):
    def fail(*_):
        raise error

    monkeypatch.setattr("coterie.cli.listing.show", fail)
    outcome = coterie("list")
    assert outcome.status == status and words in outcome.err and "Traceback" not in outcome.err


def test_the_options_of_tables_in_the_help_are_real(coterie):
    of_folder = inspect.signature(data.folder).parameters.keys()
    of_table = inspect.signature(data.table).parameters.keys()
    assert set(TABLE_OPTIONS) <= of_folder & of_table
    assert "--data.split_column" in coterie("run --help").out
    assert "--data.drop" in coterie("run ifca --help").out


@pytest.mark.parametrize("method, model", [("fedavg", "mlp:8"), ("own.py:Mine", "own.py:Net")])
def test_a_config_with_another_method_or_model(
    method: str, model: str, coterie, tiny, own, tmp_path
) -> None:
    run = f"run {method} --model {model} {tiny} --rounds 1 --out out"
    assert coterie(run).status == 0
    file = tmp_path / "out" / "config.json"
    good = json.loads(file.read_text())
    refusals = {"nonsense method": good | {"method": good["method"] | {"name": "no-method"}}}
    refusals["nonsense model"] = good | {"model": "no-model"}
    for config in refusals.values():
        file.write_text(json.dumps(config))
        for command in ("resume out --rounds 2", "export out --out models"):
            refused(coterie(command), "out", "no-m")
    file.write_text(json.dumps(good))
    assert coterie("resume out --rounds 2").status == 0
