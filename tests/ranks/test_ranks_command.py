"""--ranks on one machine: real processes, and what cannot be asked for."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import coterie as ct
from cases import federation
from coterie.cli import main
from machines import environment, free_port, wait_for
from oracles import private_states
from test_contract import same_bits

slow = pytest.mark.slow
TINY = (
    "run ditto --clients 8 --samples 12 --local-steps 2 --model mlp:12 --dtype float64 --unseen 1 "
    "--participation 0.6"
)


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def status(*words: str) -> int:
    return main(" ".join(words).split())


def error(capfd, *words: str) -> str:
    """The one sentence with which a command ends."""
    assert status(*words) == 2
    sentence = capfd.readouterr().err
    assert sentence.startswith("coterie: ") and sentence.count("\n") == 1, sentence
    return sentence


def kept(folder: str):
    """All that a run has kept: the server's state, and the clients' private states."""
    from coterie.runs.load import load_run

    run = load_run(folder)
    return run.state, private_states(run)


# ------------------------------------------------------------------------------ what is the same
@pytest.mark.parametrize("rounds", [4, pytest.param(3, marks=slow)])
def test_two_ranks_are_two_threads_to_the_bit_and_a_finished_run_goes_on(
    rounds, capfd, monkeypatch
):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    words = TINY.replace("float64", "float32")
    assert status(words, "--rounds 4 --quiet --plan 4,2 --out one") == 0
    assert status(words, f"--rounds {rounds} --quiet --plan 4,1 --ranks 2 --json --out two") == 0
    assert json.loads(capfd.readouterr().out.split("coterie report one\n")[1])
    if rounds < 4:
        assert status("resume two --rounds 4 --quiet") == 0
    assert "GLOO_SOCKET_IFNAME" not in os.environ, "later groups may be elsewhere"
    assert same_bits(kept("two"), kept("one"))
    one, two = ct.load("one"), ct.load("two")
    assert two.options.ranks == 2
    for name in ("accuracy", "loss", "unseen_accuracy", "unseen_loss"):
        assert two.final[name] == one.final[name]
    x = federation().test.x[:3].float()
    client = one.names[0]
    assert two.predict(x, client=client).tolist() == one.predict(x, client=client).tolist()


class Command:
    """A command with ranks, in a process of its own."""

    def __init__(self, words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coterie", *words.split()],
            env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_for_round(self, folder: str, number: int) -> None:
        metrics = Path(folder, "metrics.jsonl")
        wait_for(
            lambda: metrics.exists() and metrics.read_text().count("\n") > number,
            400, f"round {number}",
        )  # fmt: skip

    def ranks(self) -> list[int]:
        """Process ids of all ranks, which the launcher started."""
        ranks = {}
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        for child in " ".join(task.read_text() for task in tasks).split():
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            ranks[next(v for v in variables if v.startswith(b"RANK="))] = int(child)
        return [ranks[name] for name in sorted(ranks)]

    def end(self) -> tuple[int, str]:
        """(exit status, what it said)"""
        _, said = self.process.communicate(timeout=400)
        return self.process.returncode, said


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def all_gone(processes: list[int]) -> None:
    wait_for(lambda: not any(map(is_alive, processes)), 120, "the end of all ranks")


MANY = f"{TINY} --rounds 200 --eval-every 1000 --ranks 3"


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("never-stopped") / "run")
    assert status(MANY, "--quiet --out", folder) == 0
    return kept(folder)


@slow
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_ends_all_and_resume_gives_the_same_bits(victim, never_stopped):
    command = Command(f"{MANY} --out run")
    command.wait_for_round("run", 5)
    ranks = command.ranks()
    assert len(ranks) == 3
    os.kill(ranks[victim], signal.SIGKILL)
    code, said = command.end()
    all_gone(ranks)
    assert code == 2
    last = said.splitlines()[-1]
    if victim:
        rank = f"rank {victim} ({os.uname().nodename}, process {ranks[victim]})"
        assert last.startswith(f"coterie: {rank} ended before the run did: ")
        assert last.endswith("coterie resume run.") and "Traceback" not in said
    else:
        assert last.startswith("coterie: rank 0 ended before the run did (signal 9): ")
    assert Path("run/metrics.jsonl").read_text().count("\n") < 201, "killed before the end"
    assert status("resume run --quiet") == 0
    assert same_bits(kept("run"), never_stopped)


@slow
def test_a_killed_launcher_leaves_no_rank(never_stopped):
    command = Command(f"{MANY} --out run")
    command.wait_for_round("run", 5)
    ranks = command.ranks()
    command.process.kill()
    command.process.wait()
    all_gone(ranks)
    assert status("resume run --quiet") == 0
    assert same_bits(kept("run"), never_stopped)


@slow
def test_ctrl_c_finishes_the_round_and_saves(never_stopped):
    command = Command(f"{MANY} --out run")
    command.wait_for_round("run", 5)
    ranks = command.ranks()
    command.process.send_signal(signal.SIGINT)
    code, said = command.end()
    assert code == 130 and said.endswith("coterie: saved; continue with: coterie resume run\n")
    all_gone(ranks)
    assert status("resume run --quiet") == 0
    assert same_bits(kept("run"), never_stopped)


@slow
def test_a_comparison_trains_all_its_runs_with_the_same_ranks():
    words = "compare fedavg ifca --clusters 2 --clients 6 --samples 10 --rounds 2 --model softmax"
    assert status(words, "--quiet --ranks 3 --out both") == 0
    assert {p.parent.name for p in Path("both").glob("*/config.json")} == {"fedavg", "ifca"}
    assert ct.load("both/ifca").options.ranks == 3


@slow
def test_data_that_another_rank_does_not_have_are_one_sentence():
    """They change after rank 0 has read them, and before rank 1 does."""
    Path("sites").mkdir()
    for i in range(3):
        rows = "\n".join(f"{n + i},{n * i % 5},{n % 2}" for n in range(12))
        Path(f"sites/site{i}.csv").write_text(f"age,dose,outcome\n{rows}\n")
    words = "run fedavg --data folder:sites --label outcome --rounds 2 --out run --quiet"
    port = free_port()
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def start(rank: int) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "coterie", *words.split()], stderr=subprocess.PIPE, text=True,
            env={**environment(), **address, "RANK": str(rank)},
        )  # fmt: skip

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    server = start(0)
    wait_for(listens, 400, "the store of rank 0")
    Path("sites/site1.csv").write_text("age,dose,outcome\n1,2,0\n2,3,1\n3,1,0\n")
    other = start(1)
    _, said = server.communicate(timeout=400)
    assert server.returncode == 2 and said.count("\n") == 1, said
    assert said.startswith("coterie: rank 1 (")
    assert "its data" in said and "differ from those of rank 0: give every rank" in said
    other.communicate(timeout=400)
    assert not Path("run").exists()


# ------------------------------------------------------------------------------ what is refused
@pytest.fixture
def no_launch(monkeypatch):
    """Nothing may be started before these mistakes are found."""
    monkeypatch.setattr("coterie.cli.ranks.launch_ranks", None)


def test_ranks_that_cannot_be_are_one_sentence_and_leave_nothing(
    capfd, tmp_path, monkeypatch, no_launch
):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert "ranks is 0: it must be ≥ 1" in error(capfd, TINY, "--ranks 0")
    assert "only 7 clients train" in error(capfd, TINY, "--ranks 8")
    assert "at most --ranks 7" in error(capfd, TINY, "--ranks 8")
    assert "engine loop is one process" in error(capfd, TINY, "--ranks 2 --engine loop")
    search = TINY.replace("run", "search")
    assert "each run of a search is one" in error(capfd, search, "--over lr=0.1,1 --ranks 2")
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "29999")
    assert "torchrun started 2 processes" in error(capfd, TINY, "--ranks 3")
    assert not list(tmp_path.iterdir())


def test_from_python_ranks_are_refused(fed):
    with pytest.raises(ct.CoterieError, match="ranks is 2, and this trains in one process"):
        ct.run(ct.FedAvg(), fed, "softmax", rounds=1, ranks=2)


def test_a_folder_that_names_ranks_goes_on_with_as_many_or_says_why_not(capfd, no_launch):
    assert status(TINY, "--rounds 2 --quiet --out run") == 0
    config = json.loads(Path("run/config.json").read_text())
    config["options"]["ranks"] = 99
    Path("run/config.json").write_text(json.dumps(config))
    capfd.readouterr()
    assert "ranks is 99, and only 7 clients train" in error(capfd, "resume run --rounds 3 --quiet")
    config["options"]["ranks"] = 2
    Path("run/config.json").write_text(json.dumps(config))
    with pytest.raises(ct.CoterieError, match="was begun with 2 ranks: use `coterie resume run`"):
        ct.resume("run", rounds=3)
    assert ct.load("run").final["round"] == 2, "what a run came to needs no ranks"


def test_a_dry_run_says_how_the_clients_are_divided(capsys):
    assert status(TINY, "--ranks 3 --dry-run") == 0
    assert "on each of 3 ranks, with 2 to 3 clients" in capsys.readouterr().out
