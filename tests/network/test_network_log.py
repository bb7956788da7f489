"""What the logs of a server and a node name: who does not answer, restarts, connections, wishes."""

from __future__ import annotations

import http.client
from types import SimpleNamespace

import pytest
from made_network import InProcessNetwork

import coterie as ct
from coterie.cli import main

DITTO = ct.Ditto(local_steps=3)


def test_absences_are_named_once_and_so_are_returns(tmp_path, caplog):
    network = InProcessNetwork(tmp_path, DITTO, options={"rounds": 5, "eval_every": 5})
    run = network.begin()
    network.transport.away.add("elm")
    for _ in range(3):
        run.step()
    network.transport.away.clear()
    run.step()
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    lines = [line for line in warned if "elm" in line]
    assert lines == [
        "elm is not connected: continuing without it until it is back.",
        "elm replies again.",
    ]


def test_a_restart_is_in_the_log_of_the_run(tmp_path):
    network = InProcessNetwork(tmp_path, DITTO)
    network.run()
    network.resume()
    sentence = "the server was restarted (start 2 of this run) and continues after round 3."
    assert sentence in (network.out / "log.txt").read_text()


# ------------------------------------------------------------------------------ of a node
def test_a_site_says_what_begins_and_what_its_owner_wants(tmp_path, caplog):
    caplog.set_level("INFO")
    network = InProcessNetwork(tmp_path, DITTO, options={"rounds": 6})
    run = network.begin()
    elm = network.transport.sites["elm"]
    run.step()
    elm.participation.pause()
    run.step()
    run.step()
    elm.participation.unpause()
    run.step()
    network.transport.restart("elm", network.site("elm"))
    run.step()
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("elm: ")]
    calls = [line for line in lines if line.startswith("elm: round ")]
    assert calls[0].startswith("elm: round 0: ran measure on its rows and sent ")
    uploads = [r for n, _, r in network.transport.traffic if n == "elm" and "upload" in r.pieces]
    assert len(calls) == len(uploads)
    assert [line for line in lines if line not in calls] == [
        "elm: sent the server the statistics of 17 training rows (label outcome), exact, without "
        "what fewer than 1 rows have",
        "elm: built the model mlp:4 for the server",
        "elm: a new run begins: ditto with 6 sites for 6 rounds, label outcome, model mlp:4",
        "elm: paused by its owner, until `coterie network unpause`",
        "elm: participates again",
        "elm: resumes a run of ditto from its files",
    ]


def test_a_node_says_when_its_connection_is_lost_and_when_it_is_back(tmp_path, monkeypatch, capsys):
    from coterie.network import https_node
    from coterie.network.certificates import make_authority, register_site

    class Stopped(BaseException):
        """Ends the node."""

    lost = https_node.ConnectionLost("gone")
    events = [ConnectionRefusedError(), None, lost, ConnectionRefusedError(), None]
    events += [http.client.RemoteDisconnected(""), None, Stopped()]

    class Connected:
        def __init__(self, *_) -> None:
            self.receive()

        def receive(self) -> None:
            what = events.pop(0)
            if what is not None:
                raise what

        def close(self) -> None:
            pass

    monkeypatch.setattr(https_node, "ServerConnection", Connected)
    monkeypatch.setattr(https_node, "time", SimpleNamespace(sleep=lambda _: None))
    make_authority(tmp_path, "localhost")
    key = register_site(tmp_path, "elm")
    (tmp_path / "elm.csv").write_text("a,outcome\n1,2\n")
    words = ["--data", tmp_path / "elm.csv", "--key", key, "--state", tmp_path / "state"]
    with pytest.raises(Stopped):
        main(["network", "node", "--server", "there:8443", *map(str, words)])
    lines = [line for line in capsys.readouterr().err.splitlines() if "elm: " in line]
    was_lost = "warning: elm: the connection to there:8443 was lost"
    assert lines == [
        "warning: elm: the server cannot be reached; trying again.",
        "elm: connected to there:8443",
        f"{was_lost}: gone; trying again.",
        "warning: elm: the server cannot be reached; trying again.",
        "elm: connected to there:8443 again",
        f"{was_lost}: the server has closed the connection; trying again.",
        "elm: connected to there:8443 again",
    ]
