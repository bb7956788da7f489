"""Real processes over HTTPS with a certificate on both sides."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from made_network import InProcessNetwork

import coterie as ct
from coterie.network.certificates import make_authority, register_site
from coterie.network.connections import LOOPBACK, free_port
from coterie.network.https_server import HttpsServer
from coterie.network.packets import Reply, read_head
from machines import NAMES as ALL_NAMES
from machines import (
    Machines,
    distance,
    processes_of,
    small_config,
    start,
    wait_for,
    write_tables,
)
from oracles import private_states

pytestmark = [pytest.mark.slow, pytest.mark.network]
NAMES = ALL_NAMES[:4]
SOME = "participation = 0.75"


@pytest.fixture
def place(tmp_path):
    write_tables(tmp_path / "sites", NAMES)
    return tmp_path


@pytest.mark.parametrize("name", ["ifca", "fedsoft", "cgpfl"])
def test_simulate_is_the_loop_and_leaves_models_a_report_and_no_process(name, place):
    (place / "net.toml").write_text(small_config(name, 3, SOME, "clusters = 2"))
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
    return processes_of(place, "node")


def test_nodes_end_when_the_simulation_is_killed(place):
    (place / "net.toml").write_text(small_config("fedavg", 500, SOME))
    command = start(place, "simulate", "net.toml", "--out", "out", log="simulate.log")
    wait_for(lambda: len(nodes_of(place)) == 4, 60, "the start of four nodes")
    command.kill()
    command.wait()
    wait_for(lambda: not nodes_of(place), 30, "the end of the nodes")


def test_a_simulation_says_what_is_wrong_with_a_table(place):
    """Its server is told fixed words; a site's own log is on this machine, too."""
    table = place / "sites/elm.csv"
    table.write_text(table.read_text().replace("outcome", "result", 1))
    (place / "net.toml").write_text(small_config("fedavg", 5))
    command = start(place, "simulate", "net.toml", "--out", "out", log="simulate.log")
    assert command.wait(120) == 2
    last = (place / "simulate.log").read_text().splitlines()[-1]
    begins = "coterie: not all sites can join the run: elm says: unknown label column: 'outcome': "
    assert last.startswith(begins)
    assert not nodes_of(place)


def test_a_simulation_whose_tables_all_have_empty_cells_names_every_site(place):
    """All nodes end at the moment in which the server looks for their replies."""
    for i, name in enumerate(NAMES):
        table = place / f"sites/{name}.csv"
        head, *rows = table.read_text().splitlines()
        for row in range(i % 3 + 1):
            rows[row] = "," + rows[row].partition(",")[2]
        table.write_text("\n".join([head, *rows]) + "\n")
    (place / "net.toml").write_text(small_config("fedavg", 5))
    command = start(place, "simulate", "net.toml", "--out", "out", log="simulate.log")
    assert command.wait(120) == 2
    *lines, last = (place / "simulate.log").read_text().splitlines()
    for line, name, gaps in zip(lines[-4:], NAMES, (1, 2, 3, 1), strict=True):
        assert line.startswith(f"warning: {name}: the column a has {gaps} missing values in ")
        assert ': fill them with `fill = "median"`, or drop the column with ' in line
    assert last.startswith("coterie: not all sites can join the run: ash, birch, cedar, elm (its")
    assert last.endswith("): see the messages above, or out/sites/*.log.")
    assert not nodes_of(place)


def test_the_last_reply_of_a_node_arrives_though_the_node_has_ended(place):
    keys = place / "certs"
    make_authority(keys, LOOPBACK)
    register_site(keys, "ash")
    table = place / "sites/ash.csv"
    table.write_text(table.read_text().replace("outcome", "result", 1))
    network = InProcessNetwork(place / "made", ct.FedAvg(), names=("elm",))
    network.begin()
    hello = network.transport.traffic[0][1]
    server = HttpsServer(LOOPBACK, free_port(), keys)
    words = ("--data", "sites/ash.csv", "--server", f"{LOOPBACK}:{server.port}")
    node = start(place, "node", *words, "--key", "certs/ash.pem", log="ash.log")
    try:
        wait_for(lambda: "ash" in server.connections(), 60, "the node")
        server.send({"ash": hello})
        assert node.wait(60) == 2
        ((name, reply),) = server.receive(10)
    finally:
        node.kill()
        server.close()
    reason = read_head(reply.head, Reply).body.reason
    assert name == "ash" and reason.startswith("its table cannot be used")


def test_a_simulation_ends_when_a_node_does_before_it_connects(place):
    (place / "net.toml").write_text(small_config("fedavg", 5))
    command = start(place, "simulate", "net.toml", "--out", "out", log="simulate.log")
    wait_for(lambda: nodes_of(place), 60, "the start of a node")
    os.kill(nodes_of(place)[0], signal.SIGKILL)
    assert command.wait(120) == 2
    last = (place / "simulate.log").read_text().splitlines()[-1]
    assert re.match(r"coterie: the nodes of \w+ ended before the run did: see ", last)
    assert not nodes_of(place)


def test_a_node_that_is_told_twice_to_end_does_so_quietly(place):
    make_keys = start(place, "certs", "certs", "--host", "localhost", "--sites", "ash", log="keys")
    assert make_keys.wait(60) == 0
    words = ("--data", "sites/ash.csv", "--server", "localhost:1", "--key", "certs/ash.pem")
    node = start(place, "node", *words, log="ash.log")
    wait_for(lambda: "trying again" in (place / "ash.log").read_text(), 60, "a node's start")
    for _ in range(20):
        node.terminate()
        time.sleep(0.02)
    assert node.wait(30) == 0
    assert "Traceback" not in (place / "ash.log").read_text()


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
    return small_config("ditto", rounds)


def test_kills_of_server_and_nodes_are_survived_and_equal_a_replay(place):
    machines = Machines(place, ditto(rounds=12), deadline=20, names=NAMES)
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
    machines = Machines(place, ditto(rounds=8), deadline=4, names=NAMES)
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
    """A certificate of another network, or a revoked one: the node ends with status 2."""
    (place / "net.toml").write_text(small_config("fedavg", 1, SOME))
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
        stranger = start(place, *common, "--key", "other/ash.pem", log="stranger.log")
        assert stranger.wait(60) == 2
        assert "is not signed by the authority" in (place / "stranger.log").read_text()
        words = ("certs", "certs", "--revoke", "ash")
        assert start(place, *words, log="certs.log").wait(60) == 0
        revoked = start(place, *common, "--key", "certs/ash.pem", log="revoked.log")
        assert revoked.wait(60) == 2
        assert "does not accept this site's certificate" in (place / "revoked.log").read_text()
    finally:
        server.kill()
        server.wait()
