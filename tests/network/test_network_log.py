"""What the log of a server names: who does not answer, who does so again, restarts."""

from __future__ import annotations

from made_network import InProcessNetwork

import coterie as ct

DITTO = ct.Ditto(local_steps=3)


def test_absences_are_named_once_and_so_are_returns(tmp_path, caplog):
    network = InProcessNetwork(tmp_path, DITTO, options={"rounds": 5, "eval_every": 5})
    run = network.begin()
    network.transport.away.add("elm")
    for _ in range(3):
        run.step()
    network.transport.away.clear()
    run.step()
    lines = [r.getMessage() for r in caplog.records if "elm" in r.getMessage()]
    assert lines == [
        "elm is not connected: going on without it until it is back.",
        "elm answers again.",
    ]


def test_a_restart_is_in_the_log_of_the_run(tmp_path):
    network = InProcessNetwork(tmp_path, DITTO)
    network.run()
    network.resume()
    sentence = "the server was restarted, as start 2 of this run, and goes on after round 3."
    assert sentence in (network.out / "log.txt").read_text()
