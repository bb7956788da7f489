"""Flags: from fields, from a config file, in every spelling; and help that does not load torch."""

from __future__ import annotations

import json

import pytest

from coterie.cli.flags import take_data
from coterie.cli.setup import setup


def method(command, words, *argv):
    """The settings of the first method."""
    return next(iter(setup(command, words.split(), [str(a) for a in argv]).methods.values()))


def test_every_type_is_read():
    found = method(
        "run", "ifca", "--clusters", 3, "--lr", "1e-2", "--local-epochs", 2, "--batch", 16, "--weighted",
        "--share", "1,3", "--init", "random", "--patience", "none",
    )  # fmt: skip
    assert (found.clusters, found.lr, found.local_epochs, found.batch) == (3, 0.01, 2, 16)
    assert (found.weighted, found.share, found.init, found.patience) == (
        True,
        ("1", "3"),
        "random",
        None,
    )
    assert method("run", "fedavg", "--no-weighted").weighted is False


def test_dashes_and_underscores():
    for flag in ("--local-steps", "--local_steps"):
        assert method("run", "fedavg", flag, 7).local_steps == 7
        assert method("run", "fedavg", f"{flag}=7").local_steps == 7
    assert method("run", "one-shot", "--clusters", 2, "--one_shot.solve_steps", 5).solve_steps == 5


def test_compare_gives_common_settings_to_all_and_others_by_name():
    argv = [
        "--clusters",
        "3",
        "--lr",
        "0.2",
        "--ifca.lr",
        "0.3",
        "--fedprox.mu",
        "0.5",
        "--ifca.init",
        "random",
    ]
    made = setup("compare", ["ifca", "fedprox", "local"], argv).methods
    assert {name: m.lr for name, m in made.items()} == {"ifca": 0.3, "fedprox": 0.2, "local": 0.2}
    assert (made["ifca"].clusters, made["ifca"].init, made["fedprox"].mu) == (3, "random", 0.5)


def test_a_setting_named_like_an_option_needs_its_method(own):
    """The file's method has a field `dropout`, which is an option of every run."""
    asked = setup("run", [f"{own}:Mine"], ["--dropout", "0.25"])
    assert asked.options == {"dropout": 0.25} and next(iter(asked.methods.values())).dropout == 0.5
    assert method("run", f"{own}:Mine", "--mine.dropout", 0.1).dropout == 0.1


def test_flags_count_over_the_file_and_the_file_over_defaults(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text(
        """
        rounds = 7
        lr = 0.2
        clusters = 3
        eval-every = 2
        [ifca]
        init = "random"
        share = ["1", "2"]
        patience = "none"
        lr = 0.4
        [fedprox]
        mu = 0.7
        [data]
        spec = "rotated:digits?samples=9"
        angles = [0, 180]
        """
    )
    asked = setup(
        "compare",
        ["ifca", "local"],
        ["--config", str(config), "--rounds", "5", "--data.angles", "0,90"],
    )
    ifca, local = asked.methods.values()
    assert asked.options == {"rounds": 5, "eval_every": 2}
    assert (ifca.lr, local.lr, ifca.init, ifca.share, ifca.clusters) == (
        0.4,
        0.2,
        "random",
        ("1", "2"),
        3,
    )
    assert asked.origin(0) == {"spec": "rotated:digits?samples=9", "seed": 0, "angles": "0,90"}
    asked = setup("compare", ["ifca", "local"], ["--config", str(config), "--lr", "0.1"])
    assert [m.lr for m in asked.methods.values()] == [0.1, 0.1]
    assert asked.origin(0)["angles"] == "0,180"


def test_data_has_the_seed_of_the_run_unless_it_has_its_own():
    assert setup("run", ["fedavg"], ["--seed", "4"]).origin(4) == {
        "spec": "rotated:digits",
        "seed": 4,
    }
    asked = setup(
        "run",
        ["fedavg"],
        ["--data", "rotated?clients=8&seed=2", "--data.seed", "9", "--seeds", "2"],
    )
    assert asked.origin(1)["spec"] == "rotated?clients=8&seed=2&seed=9" and list(asked.seeds) == [
        0,
        1,
    ]


def test_data_options_may_stand_anywhere():
    found, rest = take_data(["--data.angles", "0,90", "--rounds", "2", "--data.test_samples=3"])
    assert found == {"angles": "0,90", "test_samples": "3"} and rest == ["--rounds", "2"]


@pytest.mark.parametrize(
    "argv", [["--help"], [], ["run", "--help"], ["compare", "-h"], ["--version"]]
)
def test_help(coterie, argv):
    said = coterie(*argv)
    assert said.status == 0 and "coterie" in said.out and said.err == ""


def test_help_of_a_method_shows_its_settings(coterie):
    said = coterie("run", "ifca", "--help")
    assert said.status == 0
    assert (
        "--clusters N" in said.out
        and "required" in said.out
        and "--init updates|random|balanced" in said.out
    )
    assert "--rounds N" in said.out and "(≥ 1, default 50)" in said.out and "--plan" not in said.out
    assert "--ifca." not in said.out
    assert "coterie run ifca --help" in coterie("run", "--help").out
    said = coterie("compare", "ifca", "fedprox", "--help")
    assert "--fedprox.mu X" in said.out and "--ifca.lr X" not in said.out and "--lr X" in said.out
    for command in ("resume", "demo", "list"):
        assert coterie(command, "--help").status == 0


def test_json_is_all_that_stdout_gets(coterie, tiny):
    said = coterie("run", "local", *tiny, "--json")
    assert json.loads(said.out)["runs"][0]["method"] == "local"
