"""`coterie network` on the command line: mistakes are one sentence, and exit status 2."""

from __future__ import annotations

import json
import socket
import sys

import pytest
from made_network import NAMES, InProcessNetwork, write_tables

import coterie as ct
from coterie.cli import main
from coterie.cli.commands import NETWORK_COMMANDS, import_command

CONFIG = """
method = "ifca"
clusters = 2
rounds = 2
label = "outcome"
data = "folder:sites"
model = "mlp:4"
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with tables of sites and a config file."""
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "sites")
    (tmp_path / "net.toml").write_text(CONFIG)
    return tmp_path


def says(capsys, words: list[str], sentence: str) -> None:
    """The command fails with one sentence."""
    assert main(["network", *words]) == 2
    error = capsys.readouterr().err.strip()
    assert sentence in error and len(error.splitlines()) == 1


COMMANDS = [
    ["simulate", "net.toml"],
    ["server", "net.toml"],
    ["node", "--data", "sites/ash.csv", "--server", "localhost:1", "--key", "ash.pem"],
    ["certs", "certs", "--host", "localhost"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("missing", ["aiohttp", "cryptography"])
def test_without_the_extra_nothing_begins(words, missing, place, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    sentence = "a network needs aiohttp and cryptography: pip install 'coterie[network]'."
    says(capsys, words, sentence)


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        ('method = "ifca"', "", "does not name a method"),
        ('label = "outcome"', "", "does not name the label"),
        ("folder:sites", "rotated:digits", "each site of a network has a table"),
        ("rounds = 2", "rounds = 2\ndropout = 0.1", "dropout is for simulations"),
        ("rounds = 2", "rounds = 2\nunseen = 1", "unseen is for simulations"),
    ],
)
def test_a_config_that_no_network_can_run_is_one_sentence(old, new, sentence, place, capsys):
    (place / "net.toml").write_text(CONFIG.replace(old, new))
    says(capsys, ["describe", "net.toml", "--data", "sites/ash.csv"], sentence)


def test_describe_shows_what_would_leave_and_nothing_else(place, capsys):
    words = ["network", "describe", "net.toml", "--data", "sites/ash.csv"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == {"train": 10, "test": 4, "valid": 0}
    assert set(told["description"]["columns"]) == {"a", "b", "colour"}
    first_cell = (place / "sites/ash.csv").read_text().splitlines()[1].split(",")[0]
    assert first_cell not in json.dumps(told)
    mean = told["description"]["columns"]["a"]["mean"]
    assert mean == float(f"{mean:.3g}"), "rounded as a node rounds it"
    counts = told["description"]["columns"]["colour"]["categories"]
    assert len(counts) < 3 and all(n >= 5 for n in counts.values()), "the others have fewer"
    cluster = told["modes"]["plain"]["uploads"]["train"]["reports"]["cluster"]
    assert cluster == "which centre fits it best: individually"
    (place / "net.toml").write_text(CONFIG.replace("rounds = 2", "rounds = 2\nsecure = true"))
    assert main([*words, "--json"]) == 0
    secure = json.loads(capsys.readouterr().out)["modes"]["secure"]["uploads"]
    assert "train" not in secure
    assert secure["train_own"]["values"] == "only in sums over clients"
    (place / "sites/ash.csv").write_text("a,b,colour\n1,2,red\n")
    says(capsys, ["describe", "net.toml", "--data", "sites/ash.csv"], "'outcome'")


def test_the_same_file_is_for_run_and_for_networks(place, capsys):
    (place / "net.toml").write_text(CONFIG + "\n[network]\ndeadline = 5\n")
    assert main(["run", "ifca", "--config", "net.toml", "--out", "run", "--quiet"]) == 0


def test_status_says_who_answers_and_who_does_not(place, capsys):
    network = InProcessNetwork(place / "made", ct.IFCA(clusters=2))
    run = network.begin()
    run.folder.append(run.step())
    network.transport.away.add("oak")
    run.folder.append(run.step())
    assert main(["network", "status", str(network.out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ifca  round 1 of 3") and len(lines) == 1 + len(NAMES)
    assert "since then: not connected" in lines[-1] and "since" not in lines[1]
    assert main(["network", "status", str(network.out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sites"]["oak"]["fault"] == "not connected"
    says(capsys, ["status", "sites"], "is not a run folder")
    says(capsys, ["status", "none"], "the server creates it when the sites have connected.")


def test_help_lists_every_command_of_a_network_and_each_is_there(capsys):
    for words in (["--help"], ["network"], ["network", "--help"]):
        assert main(words) == 0
        printed = capsys.readouterr().out
        for name, command in NETWORK_COMMANDS.items():
            assert f"coterie network {command.usage} " in printed and command.help in printed
            assert command.usage.split()[0] == name
    for command in NETWORK_COMMANDS.values():
        assert callable(import_command(command.function))


@pytest.mark.parametrize("command", ["simulate", "server"])
def test_flags_of_a_run_belong_into_the_config_file(command, place, capsys):
    there = "belongs to the run, which the config file describes: write"
    words = [command, "net.toml"]
    says(capsys, [*words, "--fill", "median"], f"--fill {there} fill = VALUE there.")
    says(capsys, [*words, "--local-steps=3"], f"--local-steps {there} local_steps = VALUE there.")
    says(capsys, [*words, "--data.kind", "x"], f'{there} it as in data = "folder:PATH?kind=VALUE".')
    says(capsys, [*words, "--quorun", "1"], "unknown flag '--quorun': did you mean '--quorum'?")


def test_unknown_commands_are_named(capsys):
    says(capsys, ["simulat"], "did you mean 'simulate'?")
    assert main(["network"]) == 0


# ------------------------------------------------------------------------------ with Flower
def test_a_simulation_does_not_start_nodes_for_a_folder_that_is_taken(place, capsys):
    (place / "out/run").mkdir(parents=True)
    (place / "out/run/notes.txt").write_text("mine")
    words = ["simulate", "net.toml", "--out", "out"]
    says(capsys, words, "out/run exists: choose another --out.")
    assert not (place / "out/sites").exists()


def test_a_port_in_use_is_one_sentence(place, capsys):
    assert main(["network", "certs", "certs", "--host", "localhost", "--sites", "ash,elm"]) == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["server", "net.toml", "--host", "127.0.0.1", "--port", port, "--quiet"]
        capsys.readouterr()
        in_use = f"cannot listen on 127.0.0.1:{port} (Address already in use): choose another"
        says(capsys, words, f"coterie: the server {in_use} --port.")
        words = ["server", "net.toml", "--host", "127.0.0.1", "--page", port, "--quiet"]
        says(capsys, words, f"coterie: the live page {in_use} --page.")
        words = ["server", "net.toml", "--page", "8800", "--page-host", "192.0.2.1", "--quiet"]
        says(capsys, words, "choose another --page-host.")


def test_keys_and_certificates_are_made_once_and_read_by_their_owner_alone(place, capsys):
    assert main(["network", "certs", "certs", "--host", "localhost", "--sites", "ash"]) == 0
    for name in ("ca", "server", "ash"):
        assert (place / f"certs/{name}.pem").stat().st_mode & 0o77 == 0
    capsys.readouterr()
    says(capsys, ["certs", "certs", "--sites", "ash"], "is registered")
    says(capsys, ["certs", "certs", "--host", "localhost"], "has certificates already")
    for name in ("../ash", "server", "ca", ".ash", "x" * 65):
        says(capsys, ["certs", "certs", "--sites", name], "cannot be the name of a site")
    says(
        capsys, ["certs", "certs", "--renew", "elm"], "there is no site 'elm' in certs: registered"
    )
    says(capsys, ["certs", "certs", "--revoke", "elm"], "registered are: ash.")
    says(capsys, ["certs", "none", "--sites", "ash"], "there is no file none/ca.pem")
    node = ["node", "--data", "sites/ash.csv", "--server", "localhost:1"]
    says(capsys, [*node, "--key", "net.toml"], "is not a site's file of `coterie network certs`")
    says(capsys, [*node, "--key", "no.pem"], "there is no file no.pem")
    says(capsys, ["server", "net.toml", "--certs", "none"], "register sites with")
