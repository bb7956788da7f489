"""Peers as real processes, over HTTPS on this machine."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

import coterie as ct
from coterie.network.certificates import make_authority, register_site
from coterie.network.connections import LOOPBACK, free_port
from machines import NAMES as ALL_NAMES
from machines import distance, processes_of, small_config, start, wait_for, write_tables
from oracles import private_states

pytestmark = [pytest.mark.slow, pytest.mark.network]
NAMES = ALL_NAMES[:3]


def config(rounds: int) -> str:
    return small_config("pdl-tc", rounds, "clusters = 2")


@pytest.fixture
def place(tmp_path):
    write_tables(tmp_path / "sites", NAMES)
    return tmp_path


class Processes:
    """Three peers."""

    def __init__(self, place: Path, rounds: int, deadline: float = 200) -> None:
        self.place = place
        self.deadline = str(deadline)
        (place / "net.toml").write_text(config(rounds))
        make_authority(place / "certs", LOOPBACK)
        for name in NAMES:
            register_site(place / "certs", name)
        self.peers: dict[str, subprocess.Popen] = {}

    def start(self) -> None:
        self.address = f"{LOOPBACK}:{free_port()}"
        for name in NAMES:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        certs = ("--certs", "certs") if name == NAMES[0] else ()
        self.peers[name] = start(
            self.place, "peers", "net.toml", "--data", f"sites/{name}.csv",
            "--key", f"certs/{name}.pem", "--first", self.address, *certs,
            "--state", f"states/{name}", "--deadline", self.deadline, log=f"{name}.log",
        )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.place / f"{name}.log").read_text()

    def rounds_of(self, name: str) -> int:
        file = self.place / f"states/{name}/run/metrics.jsonl"
        return len(file.read_bytes().splitlines()) if file.exists() else 0

    def wait_for_rounds(self, number: int) -> None:
        until = self.rounds_of("ash") + number
        wait_for(lambda: self.rounds_of("ash") >= until, 300, f"{number} rounds")

    def end_well(self) -> None:
        for name, peer in self.peers.items():
            assert peer.wait(400) == 0, self.log(name)

    def say(self, sentence: str, killed: str, seconds: float) -> None:
        """All but one end with the sentence as their last line, and status 2."""
        end = time.monotonic() + seconds
        for name, peer in self.peers.items():
            if name != killed:
                assert peer.wait(max(end - time.monotonic(), 0.1)) == 2, self.log(name)
                assert self.log(name).splitlines()[-1] == f"coterie: {sentence}", self.log(name)

    def stop(self) -> None:
        for peer in self.peers.values():
            peer.kill()
            peer.wait()


def are_the_loop(place: Path, rounds: int) -> None:
    """Every peer's own model is that of its client in the loop."""
    loop = ct.run(
        ct.PDLTC(clusters=2),
        ct.data.folder(str(place / "sites"), label="outcome", seed=1),
        "mlp:4",
        rounds=rounds, seed=1, dtype="float64", engine="loop",
    )  # fmt: skip
    models = private_states(loop._run).model
    for i, name in enumerate(loop._run.roster.names):
        (folder,) = (place / "states" / name).glob("*/model")
        own = ct.load(folder).models[name]
        expected = {layer: values[i] for layer, values in models.items()}
        assert own.keys() == expected.keys()
        assert distance(own, expected) <= 1e-9


@pytest.mark.parametrize("killed", ["ash", "cedar"])
def test_a_killed_peer_is_named_by_all_others_and_all_go_on(killed, place):
    """ash is the first peer, to which all others connect."""
    peers = Processes(place, rounds=20)
    sentence = (
        f"{killed} no longer answers: start all peers again: each continues from its own files."
    )
    try:
        peers.start()
        peers.wait_for_rounds(3)
        peers.peers[killed].kill()
        peers.peers[killed].wait()
        peers.say(sentence, killed, 60)
        peers.start()
        peers.end_well()
    finally:
        peers.stop()
    are_the_loop(place, 20)


@pytest.mark.parametrize("stopped", ["ash", "cedar"])
def test_a_peer_that_stands_still_is_named_after_the_deadline(stopped, place):
    peers = Processes(place, rounds=500, deadline=5)
    reason = "no longer answers" if stopped == "ash" else "did not answer within 5 seconds"
    try:
        peers.start()
        peers.wait_for_rounds(3)
        peers.peers[stopped].send_signal(signal.SIGSTOP)
        sentence = f"{stopped} {reason}: start all peers again: each continues from its own files."
        peers.say(sentence, stopped, 80)
        peers.peers[stopped].send_signal(signal.SIGCONT)
        assert peers.peers[stopped].wait(60) == 2, "it ends, too, when it wakes up"
    finally:
        peers.stop()


def test_local_starts_all_peers_and_leaves_no_process(place):
    (place / "net.toml").write_text(config(3))
    words = ("peers", "net.toml", "--local", "3", "--state", "states")
    command = start(place, *words, log="local.log")
    assert command.wait(400) == 0, (place / "local.log").read_text()
    assert "round 3/3" in (place / "local.log").read_text()
    assert not processes_of(place, "peers")
    are_the_loop(place, 3)


def test_peers_end_when_the_command_that_started_them_is_killed(place):
    (place / "net.toml").write_text(config(5000))
    command = start(
        place, "peers", "net.toml", "--local", "3", "--state", "states", log="local.log"
    )
    wait_for(lambda: (place / "states/cedar/run").exists(), 120, "the first round")
    assert len(processes_of(place, "peers")) == 4
    command.kill()
    command.wait()
    wait_for(lambda: not processes_of(place, "peers"), 30, "the end of the peers")


def test_peers_equal_the_loop_also_if_one_is_started_again_while_others_wait(place):
    peers = Processes(place, rounds=3)
    try:
        peers.address = f"{LOOPBACK}:{free_port()}"
        peers.start_one("ash")
        peers.start_one("birch")
        wait_for(lambda: "waiting for cedar to connect" in peers.log("ash"), 60, "birch")
        peers.peers["birch"].kill()
        peers.peers["birch"].wait()
        peers.start_one("birch")
        wait_for(lambda: peers.log("ash").count("birch has connected") == 2, 60, "birch again")
        peers.start_one("cedar")
        peers.end_well()
    finally:
        peers.stop()
    are_the_loop(place, 3)
