"""The transport over Flower's Grid: which sites are connected, under which names, reconnections."""

from __future__ import annotations

import pytest
from made_network import NAMES

from coterie.network.packets import Cancel
from coterie.network.transport import Messenger, WaitPolicy

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fake_grid import FakeNode
from flwr.app import Error

from coterie.network.flower import FlowerTransport

pytestmark = pytest.mark.network


def transport_of(place, sites=NAMES):
    grid = place.grid
    return FlowerTransport(grid, sites, deadline=10, sleep=grid.sleep, clock=grid.clock)


def all_connections(transport):
    transport.connections()  # which asks for names
    return dict(transport.connections())


def test_of_two_nodes_with_one_name_the_first_is_asked(place, caplog):
    transport = transport_of(place, ("ash",))
    (first,) = all_connections(transport).values()
    place.grid.nodes[5] = FakeNode({"site": "ash", **place.node_config("elm")})
    assert all_connections(transport) == {"ash": first}
    assert "two nodes are called ash" in caplog.text
    assert "elm is connected, and is not one of the run's sites" in caplog.text
    place.grid.nodes[100].online = False
    assert all_connections(transport)["ash"][0] == 5
    place.grid.nodes[100].online = True
    assert all_connections(transport)["ash"][0] == 5, "who came back is the second one"
    place.grid.nodes[200] = FakeNode({}, name="ash")
    assert all_connections(transport)["ash"][0] == 200, "a key counts more than words"


def test_a_node_that_comes_back_under_another_id_or_again_is_another_connection(place):
    transport = transport_of(place)
    before = all_connections(transport)
    place.grid.nodes[100].starts += 1
    place.grid.nodes[600] = place.grid.nodes.pop(101)
    after = all_connections(transport)
    changed = {name for name in NAMES if before[name] != after[name]}
    assert changed == {"ash", "birch"}


def test_a_registered_name_counts_whatever_a_node_says(place):
    for node, name in zip(place.grid.nodes.values(), NAMES):
        node.name = name
        node.config["site"] = "oak"
    connections = transport_of(place).connections()
    assert [connections[name][0] for name in NAMES] == list(place.grid.nodes)
    assert not place.grid.kinds, "nobody was asked"


def test_a_node_that_goes_and_comes_back_is_sent_its_packet_again(place):
    """Flower reports a node that is gone as an error; its site is not failed but away."""
    transport = transport_of(place)
    all_connections(transport)
    oak = place.grid.nodes[105]
    times = iter(range(10))

    def fate(node, message):
        if node == 105 and next(times) == 0:
            oak.online = False
            return Error(5, "Node Unavailable")
        return None

    def sleep(seconds):
        place.grid.now += seconds
        if place.grid.now > 3 and not oak.online:
            oak.online, oak.starts = True, 2

    place.grid.fate = fate
    transport.sleep = sleep
    messenger = Messenger(transport, WaitPolicy(deadline=10), clock=place.grid.clock)
    outcome = messenger.exchange(Cancel("no"), {name: {} for name in NAMES})
    assert not outcome.absent
    assert 3 <= outcome.arrived["oak"].seconds < 10 and outcome.arrived["ash"].seconds == 0


def test_messages_that_flower_does_not_accept_are_logged_and_sent_again(place, caplog):
    """Flower returns no ids if the messages are too large, and None for one that it refuses."""
    transport = transport_of(place, ("ash", "birch"))
    all_connections(transport)
    push = place.grid.push_messages
    refusals = iter([[], [None, None]])
    place.grid.push_messages = lambda messages: (
        refused if (refused := next(refusals, None)) is not None else push(messages)
    )
    messenger = Messenger(transport, WaitPolicy(deadline=10), clock=place.grid.clock)
    result = messenger.exchange(Cancel("no"), {"ash": {}, "birch": {}})
    assert {*result.arrived} == {"ash", "birch"} and result.seconds >= 20
    assert caplog.text.count("Flower did not accept a message to it") == 2
