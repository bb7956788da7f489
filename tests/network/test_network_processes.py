"""Real processes over Flower's Fleet, with TLS and keys."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_network import write_tables
from torch.utils._pytree import tree_leaves

import coterie as ct
from oracles import private_states

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs flwr"),
]
NAMES = ("ash", "birch", "cedar", "elm")
CONFIG = """
method = "{method}"
rounds = {rounds}
seed = 1
participation = 0.75
label = "outcome"
data = "folder:sites"
model = "mlp:4"
dtype = "float64"
"""


def environment() -> dict[str, str]:
    source = str(Path(ct.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


def start(place: Path, *words: str, log: str) -> subprocess.Popen:
    """A command in a process of its own."""
    with open(place / log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "coterie.cli", "network", *words],
            cwd=place, env=environment(), stdout=output, stderr=output, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def wait_for(condition, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {seconds} seconds"
        time.sleep(0.05)


def diary_lines(place: Path) -> int:
    file = place / "run/diary.jsonl"
    return len(file.read_bytes().splitlines()) if file.exists() else 0


@pytest.fixture
def place(tmp_path):
    write_tables(tmp_path / "sites", NAMES)
    return tmp_path


def distance(a, b) -> float:
    """Largest difference, relative to the largest number of each leaf."""
    gaps = []
    for u, v in zip(tree_leaves(a), tree_leaves(b), strict=True):
        difference = (u.double() - v.double()).abs().max()
        gaps.append(float(difference / (v.double().abs().max() + 1e-9)))
    return max(gaps)


@pytest.mark.parametrize("name", ["ifca", "fedsoft", "cgpfl"])
def test_simulate_is_the_loop_and_leaves_models_a_report_and_no_process(name, place):
    (place / "net.toml").write_text(CONFIG.format(method=name, rounds=3) + "clusters = 2\n")
    words = ("simulate", "net.toml", "--nodes", "4", "--out", "out")
    command = start(place, *words, log="simulate.log")
    assert command.wait(240) == 0, (place / "simulate.log").read_text()
    result = ct.load(place / "out/run")
    loop = ct.run(
        {"ifca": ct.IFCA, "fedsoft": ct.FedSoft, "cgpfl": ct.CGPFL}[name](clusters=2),
        ct.data.folder(str(place / "sites"), label="outcome", seed=1),
        "mlp:4",
        rounds=3, seed=1, participation=0.75, dtype="float64", engine="loop",
    )  # fmt: skip
    assert distance(result.trained.state, loop.state) <= 1e-5
    assert (place / "out/report.html").exists()
    assert ct.load(place / "out/models").card.per == "cluster"
    own = list((place / "out/sites").glob("*/*/model/card.json"))
    assert len(own) == len(NAMES)
    assert not nodes_of(place)


def nodes_of(place: Path) -> list[int]:
    """Processes whose command names this test's folder, or that run in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            folder = os.readlink(entry / "cwd")
        except OSError:
            continue
        if b"node" in words and folder == str(place):
            found.append(int(entry.name))
    return found


def test_nodes_end_when_the_simulation_is_killed(place):
    (place / "net.toml").write_text(CONFIG.format(method="fedavg", rounds=500))
    command = start(place, "simulate", "net.toml", "--out", "out", log="simulate.log")
    wait_for(lambda: len(nodes_of(place)) == 4, 60, "the start of four nodes")
    command.kill()
    command.wait()
    wait_for(lambda: not nodes_of(place), 30, "the end of the nodes")


def free_port() -> int:
    from coterie.network.simulation import free_port

    return free_port()


class Machines:
    """A server and four nodes as processes, with keys and certificates."""

    def __init__(self, place: Path, config: str, deadline: float) -> None:
        self.place = place
        (place / "net.toml").write_text(config)
        words = ("certs", "certs", "--host", "127.0.0.1", "--sites", ",".join(NAMES))
        assert start(place, *words, log="certs.log").wait(60) == 0
        self.port = str(free_port())
        self.deadline = str(deadline)
        self.server = self.start_server()
        self.nodes = {name: self.start_node(name) for name in NAMES}

    def start_server(self, *more: str) -> subprocess.Popen:
        return start(
            self.place, "server", "net.toml", "--out", "run", "--host", "127.0.0.1",
            "--port", self.port, "--deadline", self.deadline, *more, log="server.log",
        )  # fmt: skip

    def start_node(self, name: str) -> subprocess.Popen:
        return start(
            self.place, "node", "--data", f"sites/{name}.csv",
            "--server", f"127.0.0.1:{self.port}", "--key", f"certs/{name}.key",
            "--ca", "certs/ca.crt", "--state", f"states/{name}", log=f"{name}.log",
        )  # fmt: skip

    def kill_server(self) -> None:
        """Kill it, and go on with the run."""
        self.server.kill()
        self.server.wait()
        self.server = self.start_server("--resume")

    def kill_node(self, name: str) -> None:
        """Kill it, and start it again."""
        self.nodes[name].kill()
        self.nodes[name].wait()
        self.nodes[name] = self.start_node(name)

    @property
    def log(self) -> str:
        return (self.place / "server.log").read_text()

    def wait_for_exchanges(self, number: int) -> None:
        until = diary_lines(self.place) + number
        wait_for(lambda: diary_lines(self.place) >= until, 120, f"{number} exchanges")

    def ends_well(self) -> None:
        assert self.server.wait(240) == 0, self.log

    def stop(self) -> None:
        for process in (self.server, *self.nodes.values()):
            process.kill()
            process.wait()


def is_its_replay(place: Path, rounds: int) -> None:
    """Models are those of a replay of the diary, and so is every site's own model."""
    result = ct.load(place / "run")
    assert result.trained.round == rounds
    replay = ct.run(
        ct.Ditto(),
        ct.data.folder(str(place / "sites"), label="outcome", seed=1),
        "mlp:4",
        rounds=rounds, seed=1, dtype="float64", replay=str(place / "run/diary.jsonl"),
    )  # fmt: skip
    assert distance(result.trained.state, replay.state) <= 1e-9
    states = private_states(replay._run)
    for i, name in enumerate(replay._run.roster.names):
        (folder,) = (place / "states" / name).glob("*/model")
        own = ct.load(folder).models[name]
        assert distance(own, {layer: values[i] for layer, values in states.items()}) <= 1e-9


def ditto(rounds: int) -> str:
    return CONFIG.format(method="ditto", rounds=rounds).replace("participation = 0.75", "")


def test_kills_of_server_and_nodes_are_survived_and_equal_a_replay(place):
    machines = Machines(place, ditto(rounds=12), deadline=20)
    try:
        for name in ("elm", "server", "ash", "server"):
            machines.wait_for_exchanges(2)
            if name == "server":
                machines.kill_server()
            else:
                machines.kill_node(name)
        machines.ends_well()
    finally:
        machines.stop()
    is_its_replay(place, rounds=12)
    assert "no private state" not in machines.log and "ash has connected" in machines.log


def test_slow_nodes_are_absent_or_waited_for_and_go_on(place):
    """A node that stands still is a slow one; three of four are too many to go on without."""
    machines = Machines(place, ditto(rounds=8), deadline=4)
    try:
        machines.wait_for_exchanges(2)
        machines.nodes["elm"].send_signal(signal.SIGSTOP)
        machines.wait_for_exchanges(2)
        machines.nodes["elm"].send_signal(signal.SIGCONT)
        machines.wait_for_exchanges(1)
        for name in NAMES[:3]:
            machines.nodes[name].send_signal(signal.SIGSTOP)
        wait_for(lambda: "still waiting for ash, birch, cedar" in machines.log, 60, "a sentence")
        for name in NAMES[:3]:
            machines.nodes[name].send_signal(signal.SIGCONT)
        machines.ends_well()
    finally:
        machines.stop()
    is_its_replay(place, rounds=8)
    assert '"absent":{"elm":"no answer"}' in (place / "run/diary.jsonl").read_text()


def test_strangers_are_refused_in_one_sentence(place):
    """Another authority, a key that is not registered: the node ends with status 2."""
    (place / "net.toml").write_text(CONFIG.format(method="fedavg", rounds=1))
    for folder in ("certs", "other"):
        made = start(
            place, "certs", folder, "--host", "127.0.0.1", "--sites", "ash", log="certs.log"
        )
        assert made.wait(60) == 0
    port = str(free_port())
    server = start(
        place, "server", "net.toml", "--out", "run", "--host", "127.0.0.1", "--port", port,
        log="server.log",
    )  # fmt: skip
    try:
        wait_for(lambda: "listening" in (place / "server.log").read_text(), 60, "the server")
        common = ("node", "--data", "sites/ash.csv", "--server", f"127.0.0.1:{port}")
        stranger = start(
            place, *common, "--key", "other/ash.key", "--ca", "certs/ca.crt", log="stranger.log"
        )
        assert stranger.wait(60) == 2
        assert "does not accept this node's key" in (place / "stranger.log").read_text()
        trusting = start(
            place, *common, "--key", "certs/ash.key", "--ca", "other/ca.crt", log="trusting.log"
        )
        assert trusting.wait(60) == 2
        assert "is not signed by the authority" in (place / "trusting.log").read_text()
        plain = start(place, *common, "--key", "certs/ash.key", "--insecure", log="plain.log")
        wait_for(lambda: "trying again" in (place / "plain.log").read_text(), 60, "a refusal")
        assert "WITHOUT TLS" in (place / "plain.log").read_text()
        plain.kill()
        plain.wait()
    finally:
        server.kill()
        server.wait()


def test_only_the_fleet_is_served_and_long_requests_are_refused_unread(place):
    import httpx

    from coterie.network.certificates import make_authority, read_registry, register_site
    from coterie.network.flower_server import FlowerServer
    from coterie.network.listening import Address

    make_authority(place / "certs", "127.0.0.1")
    register_site(place / "certs", "ash")
    port = free_port()
    server = FlowerServer(Address(host="127.0.0.1", port=port), read_registry(place / "certs"))
    try:
        base = f"http://127.0.0.1:{port}"
        others = ("/v1/control/start-run", "/v1/runtime/pull-task", "/docs", "/openapi.json", "/")
        protobuf = {"content-type": "application/protobuf"}
        for path in others:
            answer = httpx.post(base + path, content=b"", headers=protobuf)
            assert answer.status_code == 404, path
        with socket.create_connection(("127.0.0.1", port), 10) as raw:
            long = (
                "POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999999\r\n"
            )
            raw.sendall(f"{long}\r\n".encode())
            assert b" 413 " in raw.recv(1000), "answered before anything was sent"
        url = f"{base}/v1/fleet/pull-messages"
        assert httpx.post(url, content=b"", headers=protobuf).status_code == 401, "no key"
    finally:
        server.close()
