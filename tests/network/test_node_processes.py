"""A simulation and its nodes: who has ended, what was said, and when nobody is waited for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coterie.network.packets import Packet
from coterie.network.simulation import NodeProcesses, NodesEnded, WatchedTransport, read_error
from coterie.network.states import SiteFolder
from coterie.network.waiting import WaitPolicy

SOON = WaitPolicy(grace=0.0)


class Silence:
    """A transport to sites that say nothing."""

    def __init__(self) -> None:
        self.replies: list[tuple[str, Packet]] = []

    def connections(self) -> dict[str, int]:
        return {"ash": 1, "elm": 1}

    def send(self, packets) -> None:
        pass

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        return self.replies


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """The nodes of ash, which has ended with a sentence, and of elm, which lives."""
    monkeypatch.setattr("coterie.network.simulation.LOG_DELAY", 0.0)
    nodes = NodeProcesses(tmp_path, seed=1)
    for name, code in {"ash": "", "elm": "import time; time.sleep(60)"}.items():
        nodes.processes[name] = subprocess.Popen([sys.executable, "-c", code])
    nodes.log_of("ash").write_text("connected\ncoterie: the column a of client 'ash' is bad.\n")
    nodes.log_of("elm").write_text("connected\n")
    nodes.processes["ash"].wait()
    yield nodes
    nodes.stop()


def test_who_has_ended_and_its_words(nodes):
    assert nodes.ended() == {"ash"}
    assert nodes.ended(seconds=30.0) == set()
    assert nodes.errors() == {"ash": "the column a is bad."}
    nodes.wait_for_end(["ash"], 60)  # at once


def test_a_log_without_a_sentence_at_its_end_has_no_words(tmp_path):
    file = Path(tmp_path / "log")
    for text in ("", "connected\n", "coterie: wrong.\nconnected\n"):
        file.write_text(text)
        assert read_error(file) == ""


def test_a_node_that_ends_before_all_are_connected_ends_the_simulation(nodes):
    transport = WatchedTransport(Silence(), nodes, SOON)
    transport.open_messenger("0" * 16, 0)
    with pytest.raises(NodesEnded, match="the nodes of ash ended before the run did"):
        transport.receive(0.0)


def test_an_exchange_ends_when_all_that_it_waits_for_have_ended(nodes):
    transport = WatchedTransport(Silence(), nodes, SOON)
    messenger = transport.open_messenger("0" * 16, 1)
    messenger.awaited = frozenset({"ash", "elm"})
    assert transport.receive(0.0) == []  # elm may answer
    messenger.awaited = frozenset({"ash"})
    with pytest.raises(NodesEnded, match="the nodes of ash ended"):
        transport.receive(0.0)


def test_an_exchange_that_can_do_without_a_node_has_the_time_to(nodes):
    transport = WatchedTransport(Silence(), nodes, WaitPolicy(grace=60.0))
    transport.open_messenger("0" * 16, 1).awaited = frozenset({"ash"})
    assert transport.receive(0.0) == []


def test_a_node_that_has_ended_is_not_connected(nodes):
    assert WatchedTransport(Silence(), nodes, SOON).connections() == {"elm": 1}


def test_a_reply_of_a_node_that_has_ended_counts(nodes):
    silence = Silence()
    silence.replies = [("ash", Packet(b"", {}))]
    transport = WatchedTransport(silence, nodes, SOON)
    transport.open_messenger("0" * 16, 1).awaited = frozenset({"ash"})
    assert transport.receive(0.0) == silence.replies


def test_a_sites_folder_of_a_run_carries_its_name(tmp_path):
    names = ("Long Beach", "a/b", "a_b", "a:b", "é" * 300, "é" * 301)
    paths = [SiteFolder(tmp_path, "1f2e3d4c5b6a7988", name).path.name for name in names]
    assert paths[0] == "Long Beach-run-1f2e3d4c5b6a7988"
    assert len(set(paths)) == len(paths)
    for path in paths:
        assert "/" not in path and len(path.encode()) < 255
