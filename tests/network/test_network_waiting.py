"""How long a server waits for sites that are slow or away."""

from __future__ import annotations

import pytest
import torch
from made_network import NAMES, InProcessNetwork, is_question
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.network.transport import WaitPolicy

IFCA = ct.IFCA(clusters=2, local_steps=3)


def test_below_the_quorum_it_waits_and_says_for_whom(tmp_path, caplog):
    network = InProcessNetwork(tmp_path, IFCA, options={"rounds": 1})
    waits = []

    def connections():
        waits.append(network.transport.now)
        if network.transport.now > 35 and network.transport.away:
            network.transport.away.clear()
        return {n: 0 for n in NAMES if n not in network.transport.away}

    run = network.begin()
    network.transport.connections = connections
    network.transport.away.update(NAMES[:4])
    run.train()
    assert "2 sites have replied and 3 are needed" in caplog.text
    assert "still waiting for ash, birch, cedar, elm." in caplog.text
    assert run.history[0]["absent"] == 0, "all came in the end"
    assert 35 < network.transport.now < 60


def test_a_server_may_give_up_after_some_deadlines(tmp_path):
    waiting = WaitPolicy(deadline=10, quorum=1.0, max_deadlines=3)
    network = InProcessNetwork(tmp_path, IFCA, waiting=waiting)
    run = network.begin()
    network.transport.away.add("elm")
    with pytest.raises(CoterieError, match="elm did not reply within 30 seconds"):
        run.train()


def test_absent_clients_keep_their_group(tmp_path):
    method = ct.CFL(local_steps=3)
    network = InProcessNetwork(tmp_path, method)
    run = network.begin()
    run.step()
    run.step()
    before = run.groups()
    network.transport.away.add("oak")
    run.step()
    at = run.roster.names.index("oak")
    assert run.history[-1]["absent"] == 1 and run.groups()[at] == before[at]


def test_a_site_that_connects_again_is_asked_again_before_the_deadline(tmp_path, caplog):
    caplog.set_level("INFO")
    network = InProcessNetwork(tmp_path, IFCA, options={"rounds": 1})
    dead = {"birch"}

    def fate(name, request, reply):
        if is_question(request) and name in dead:  # killed after its work, before it replied
            dead.clear()
            network.transport.restart(name, network.site(name))
            return []
        return [(0.0, reply)]

    network.transport.fate = fate
    run = network.run()
    assert "birch has reconnected; its request is sent again" in caplog.text
    assert sum(row["absent"] for row in run.history) == 0
    assert network.transport.now < network.waiting.deadline


# ------------------------------------------------------------------------------ away
LONG = WaitPolicy(deadline=100, grace=10, quorum=0.5)


def test_a_site_that_is_away_costs_one_grace_and_no_deadline(tmp_path, caplog):
    network = InProcessNetwork(tmp_path, IFCA, waiting=LONG, options={"rounds": 4})
    run = network.begin()
    network.transport.away.add("elm")
    run.step()
    assert 10 <= network.transport.now < 11
    for _ in range(3):
        run.step()
    assert network.transport.now < 11, "it was known to be away"
    assert [row["absent"] for row in run.history] == [1] * 4
    assert caplog.text.count("elm is not connected: continuing without it until it is back.") == 1
    network.transport.away.clear()
    run.step()
    assert run.history[-1]["absent"] == 0 and "elm replies again." in caplog.text
    for mine, again in zip(tree_leaves(run.state), tree_leaves(network.replayed().state)):
        assert torch.equal(mine, again)


def test_a_site_that_is_connected_and_slow_is_waited_for(tmp_path):
    def slow(name, request, reply):
        return [(60.0 if name == "elm" and is_question(request) else 0.0, reply)]

    network = InProcessNetwork(tmp_path, IFCA, slow, waiting=LONG, options={"rounds": 1})
    run = network.begin()
    run.step()
    assert run.history[-1]["absent"] == 0 and network.transport.now >= 60


def test_who_is_away_is_waited_for_below_the_quorum(tmp_path, caplog):
    waiting = WaitPolicy(deadline=100, grace=10, quorum=1.0, max_deadlines=1)
    network = InProcessNetwork(tmp_path, IFCA, waiting=waiting)
    run = network.begin()
    network.transport.away.add("elm")
    with pytest.raises(CoterieError, match="elm did not reply within 100 seconds"):
        run.step()


def test_a_site_that_loses_its_connection_has_the_grace_to_come_back(tmp_path, caplog):
    """Its process is restarted: within the grace it is asked again, later it is absent."""
    network = InProcessNetwork(tmp_path, IFCA, waiting=LONG, options={"rounds": 2})
    run = network.begin()
    transport = network.transport
    lost = {"birch": 8.0, "elm": 30.0}  # seconds after which each is back
    back = {}

    def fate(name, request, reply):
        if not is_question(request) or name not in lost:
            return [(0.0, reply)]
        back[name] = transport.now + lost.pop(name)
        transport.away.add(name)
        return []

    def connections():
        for name in [n for n, when in back.items() if transport.now >= when]:
            del back[name]
            transport.away.discard(name)
            transport.restart(name, network.site(name))
        return {n: transport.starts[n] for n in NAMES if n not in transport.away}

    transport.fate = fate
    transport.connections = connections
    run.step()
    assert 8 <= transport.now < 30
    assert network.diary[0].absent == {"elm": "no longer connected"}
    assert "elm is no longer connected: continuing without it until it is back." in caplog.text


def test_in_the_end_sites_that_are_away_have_the_whole_deadline(tmp_path):
    """It is the last time that they are asked, and nobody waits for it afterwards."""
    network = InProcessNetwork(tmp_path, IFCA, waiting=LONG, options={"rounds": 1})
    run = network.begin()
    run.train()
    began = network.transport.now
    network.transport.away.add("elm")
    assert run.engine.finish(run) == {"elm": "not connected"}
    assert network.transport.now - began >= 100
