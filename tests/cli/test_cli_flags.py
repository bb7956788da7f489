"""Flags: from fields, from a config file, in every spelling; and help that does not load torch."""

from __future__ import annotations

import json

import pytest

from coterie.cli import split_at_first_flag
from coterie.cli.flags import split_data_options
from coterie.cli.setup import read_setup
from coterie.core.errors import CoterieError


def ask(command, words, flags, *more):
    """What a command is asked for."""
    return read_setup(command, words.split(), [*flags.split(), *more])


def method(command, words, flags):
    """The settings of the first method."""
    return next(iter(ask(command, words, flags).methods.values()))


def test_every_type_is_read():
    flags = "--clusters 3 --lr 1e-2 --local-epochs 2 --batch 16 --weighted --share 1,3"
    ifca = method("run", "ifca", f"{flags} --init random --patience none")
    assert (ifca.clusters, ifca.lr, ifca.local_epochs, ifca.batch) == (3, 0.01, 2, 16)
    assert (ifca.weighted, ifca.share) == (True, ("1", "3"))
    assert (ifca.init, ifca.patience) == ("random", None)
    assert method("run", "fedavg", "--no-weighted").weighted is False


def test_numbers_may_be_spelled_as_in_python(tmp_path):
    """JSON, and so msgspec, knows neither .5 nor +2 nor 007."""
    fedavg = method("run", "fedavg", "--lr .5 --l2 1. --local-steps +2")
    assert (fedavg.lr, fedavg.l2, fedavg.local_steps) == (0.5, 1.0, 2)
    assert read_setup("run", ["fedavg"], ["--seed", "007"]).options == {"seed": 7}


def test_dashes_and_underscores():
    for flag in ("--local-steps", "--local_steps"):
        assert method("run", "fedavg", f"{flag} 7").local_steps == 7
        assert method("run", "fedavg", f"{flag}=7").local_steps == 7
    assert method("run", "one-shot", "--clusters 2 --one_shot.solve_steps 5").solve_steps == 5


def test_compare_gives_common_settings_to_all_and_others_by_name():
    flags = "--clusters 3 --lr 0.2 --ifca.lr 0.3 --fedprox.mu 0.5 --ifca.init random"
    methods = ask("compare", "ifca fedprox local", flags).methods
    assert {name: m.lr for name, m in methods.items()} == {
        "ifca": 0.3,
        "fedprox": 0.2,
        "local": 0.2,
    }
    assert (methods["ifca"].clusters, methods["ifca"].init) == (3, "random")
    assert methods["fedprox"].mu == 0.5


def test_a_setting_named_like_an_option_needs_its_method(own):
    """The file's method has a field `dropout`, which is an option of every run."""
    asked = read_setup("run", [f"{own}:Mine"], ["--dropout", "0.25"])
    assert asked.options == {"dropout": 0.25} and next(iter(asked.methods.values())).dropout == 0.5
    assert method("run", f"{own}:Mine", "--mine.dropout 0.1").dropout == 0.1


CONFIG = """
rounds = 7
lr = 0.2
clusters = 3
eval-every = 2
[ifca]
init = "random"
share = ["1", 2]
patience = "none"
lr = 0.4
[fedprox]
mu = 0.7
[data]
spec = "rotated:digits?samples=9"
angles = [0, 180]
"""


def test_flags_count_over_the_file_and_the_file_over_defaults(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text(CONFIG)
    flags = "--rounds 5 --data.angles 0,90 --config"
    asked = ask("compare", "ifca local", flags, str(config))
    ifca, local = asked.methods.values()
    assert asked.options == {"rounds": 5, "eval_every": 2}
    assert (ifca.lr, local.lr, ifca.init, ifca.clusters) == (0.4, 0.2, "random", 3)
    assert (ifca.share, ifca.patience) == (("1", "2"), None)
    assert asked.data_arguments(0) == {
        "spec": "rotated:digits?samples=9",
        "seed": 0,
        "angles": "0,90",
    }
    asked = ask("compare", "ifca local", "--lr 0.1 --config", str(config))
    assert [m.lr for m in asked.methods.values()] == [0.1, 0.1]
    assert asked.data_arguments(0)["angles"] == "0,180"


def test_flags_of_data_count_over_the_file_too(tmp_path):
    (tmp_path / "c.toml").write_text(
        "clients = 4\n[data]\nspec = 'table:t.csv'\nlabel = 'a'\nclients = 5\nfill = 'mean'\n"
    )
    data = lambda flags: ask("run", "fedavg", flags, "--config", str(tmp_path / "c.toml")).data
    assert data("") == {"label": "a", "clients": 5, "fill": "mean"}
    flags = "--label b --clients 6 --data.label c"
    assert data(flags) == {"label": "c", "clients": 6, "fill": "mean"}
    assert data("--label b")["label"] == "b"


def test_data_has_the_seed_of_the_run_unless_it_has_its_own():
    origin = read_setup("run", ["fedavg"], ["--seed", "4"]).data_arguments(4)
    assert origin == {"spec": "rotated:digits", "seed": 4}
    flags = "--data rotated?clients=8&seed=2 --data.seed 9 --seeds 2"
    asked = ask("run", "fedavg", flags)
    assert asked.data_arguments(1)["spec"] == "rotated?clients=8&seed=2&seed=9"
    assert list(asked.seeds) == [0, 1]


def test_paths_are_full_and_may_begin_with_a_tilde(tmp_path, monkeypatch):
    """No shell expands the tilde in folder:~/sites."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    spec = lambda flags: ask("run", "fedavg", flags).spec
    assert spec("--data folder:~/sites?label=y") == f"folder:{tmp_path}/home/sites?label=y"
    assert spec("--data table:../t.csv") == f"table:{tmp_path.parent}/t.csv"


def test_data_options_may_stand_anywhere():
    argv = ["--data.angles", "0,90", "--rounds", "2", "--data.test_samples=3"]
    options, rest = split_data_options(argv)
    assert options == {"angles": "0,90", "test_samples": "3"} and rest == ["--rounds", "2"]


@pytest.mark.parametrize("command", ["--help", "", "run --help", "compare -h", "--version", "help"])
def test_help(coterie, command):
    outcome = coterie(command)
    assert outcome.status == 0 and "coterie" in outcome.out and outcome.err == ""


def test_help_of_a_method_shows_its_settings(coterie):
    out = coterie("run ifca --help").out
    assert "--clusters N|auto" in out
    assert "required" in coterie("network node --help").out
    assert "--init updates|random|balanced" in out
    assert "--rounds N" in out and "(≥ 1, default 50)" in out and "--plan" not in out
    assert "--ifca." not in out
    assert "coterie run ifca --help" in coterie("run --help").out
    out = coterie("compare ifca fedprox --help").out
    assert "--fedprox.mu X" in out and "--ifca.lr X" not in out and "--lr X" in out
    for command in ("resume", "demo", "list", "assign", "predict", "export", "report"):
        assert coterie(command, "--help") == coterie("help", command)
        assert coterie(command, "--help").status == 0


def test_a_limit_in_the_help_stays_on_one_line(coterie, monkeypatch):
    for columns in range(80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = coterie("run --help").out
        assert "--eval-clients N " in out
        assert not [line for line in out.splitlines() if line.endswith((" ≥", " <", "default"))]


def test_json_is_all_that_stdout_gets(coterie, tiny):
    outcome = coterie("run local", tiny, "--json")
    assert json.loads(outcome.out)["runs"][0]["method"] == "local"


@pytest.mark.parametrize(
    "command", ["run ifca", "compare ifca fedavg", "search ifca --over lr=1,2"]
)
def test_the_number_of_groups_is_chosen_from_the_data_by_default(coterie, command):
    name, *words = command.split()
    methods, flags = split_at_first_flag(words)
    assert read_setup(name, methods, flags).methods["ifca"].clusters == "auto"
    help = " ".join(coterie(command, "--help").out.split())
    assert "--clusters N|auto number of groups to look for; auto: chosen from the data" in help
    assert "≥ 1, default auto)" in help


def test_a_hyper_parameter_without_default_must_be_given(own):
    text = own.read_text().replace(
        'dropout: float = setting(0.5, "', 'strength: float = setting(..., "'
    )
    own.write_text(text)
    with pytest.raises(CoterieError, match="mine needs --strength, the shares its name"):
        read_setup("run", [f"{own}:Mine"], [])


def test_help_names_the_recommended_methods_and_leaves_out_python_examples(coterie):
    recommended = "the recommended methods (mixed, fedavg, fedavg-ft, local, ifca)"
    assert recommended in coterie("compare --help").out
    help = coterie("run ifca --help").out
    assert "Each client trains" in help and ">>>" not in help and "Args:" not in help
