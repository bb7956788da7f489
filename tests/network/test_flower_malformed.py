"""Malformed records over Flower: the site or the server that sent them is refused, no app ends."""

from __future__ import annotations

import json
from itertools import cycle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_network import NAMES, InProcessNetwork
from torch.utils._pytree import tree_leaves

pytest.importorskip("flwr", reason="needs the extra `flower`")

from fake_grid import METHODS
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from coterie.engines.codec import BadBytes
from coterie.network.flower import FlowerTransport, encode_packets, read_packet
from coterie.network.packets import (
    Cancel,
    Done,
    Failed,
    Packet,
    Refused,
    Reply,
    Request,
    read_head,
    write_head,
)
from coterie.network.transport import Messenger, WaitPolicy

pytestmark = pytest.mark.network
OAK = 105
QUICK = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
REQUEST = Request(experiment="0" * 16, epoch=1, sequence=1, body=Cancel("no"))


def bytes_record(raw: bytes) -> ConfigRecord:
    return ConfigRecord({"bytes": raw})


# ------------------------------------------------------------------------------ what is sent
RECORDS = st.one_of(
    st.binary(max_size=40).map(bytes_record),
    st.sampled_from([{}, {"bytes": "text"}, {"bytes": 1}, {"bytes": [b"a"]}]).map(ConfigRecord),
    st.sampled_from([{}, {"bytes": 1.0}, {"bytes": [1, 2]}]).map(MetricRecord),
    st.just(ArrayRecord({"bytes": Array(np.zeros(2))})),
)
NAMES_OF_RECORDS = st.sampled_from(["head", "piece-own", "piece-upload", "piece-", "rows", ""])


@st.composite
def mutations(draw: st.DrawFn):
    """A function from a content to a malformed or damaged one."""
    kind = draw(st.sampled_from(["other", "replace", "add", "drop", "damage"]))
    other = draw(st.dictionaries(NAMES_OF_RECORDS, RECORDS, max_size=3))
    name, record = draw(NAMES_OF_RECORDS), draw(RECORDS)
    at, byte = draw(st.integers(0, 400)), draw(st.integers(0, 255))
    cut = draw(st.booleans())

    def mutate(content: RecordDict) -> RecordDict:
        records = dict(content)
        if kind == "other":
            return RecordDict(other)
        if kind in ("replace", "add"):
            return RecordDict({**records, ("head" if kind == "replace" else name): record})
        if kind == "drop":
            return RecordDict({key: r for key, r in records.items() if key != "head"})
        raw = records["head"]["bytes"]
        at_ = at % len(raw)
        raw = raw[:at_] if cut else raw[:at_] + bytes([byte]) + raw[at_ + 1 :]
        return RecordDict({**records, "head": bytes_record(raw)})

    return mutate


def replaced(reply: Message, content: RecordDict) -> Message:
    reply.content = content
    return reply


def without_message(reply: Message) -> Message:
    """What Flower's Grid does when the root of a reply is another object than a Message."""
    return RecordDict().metadata


def truncated(reply: Message) -> Message:
    """What Flower's Grid does with a reply whose bytes end early."""
    return Message.inflate(reply.deflate()[:-9], children=reply.children)


ATTACKS = {
    "no records": lambda reply: replaced(reply, RecordDict()),
    "a record of another kind": lambda reply: replaced(
        reply, RecordDict({"head": MetricRecord({"bytes": 1})})
    ),
    "a value of another type": lambda reply: replaced(
        reply, RecordDict({"head": ConfigRecord({"bytes": "{}"})})
    ),
    "no head": lambda reply: replaced(reply, RecordDict({"piece-upload": bytes_record(b"x")})),
    "another name": lambda reply: replaced(
        reply, RecordDict({**reply.content, "rows": bytes_record(b"1,2")})
    ),
    "broken head": lambda reply: replaced(reply, RecordDict({"head": bytes_record(b"{")})),
    "broken bytes": truncated,
    "wrong root": without_message,
}


# ------------------------------------------------------------------------------ to the server
def messenger_of(place) -> Messenger:
    grid = place.grid
    transport = FlowerTransport(grid, NAMES, deadline=10, sleep=grid.sleep, clock=grid.clock)
    transport.connections()  # requests the names
    transport.connections()  # receives them
    return Messenger(transport, WaitPolicy(deadline=10), clock=grid.clock)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_malformed_reply_is_refused_at_once_and_names_its_site(attack, place, caplog):
    messenger = messenger_of(place)
    place.grid.forge = lambda node, reply: ATTACKS[attack](reply) if node == OAK else reply
    result = messenger.exchange(Cancel("no"), {name: {} for name in NAMES})
    assert [*result.failures()] == ["oak"] and result.seconds < 1
    assert isinstance(result.arrived["oak"].reply.body, Failed)
    assert "oak: its reply is malformed" in caplog.text


def test_no_site_can_answer_for_another(place, caplog):
    """The metadata of a reply are what its sender says."""
    messenger = messenger_of(place)
    identifiers: list[str] = []

    def forge(node, reply):
        if node == OAK:
            reply.metadata.__dict__["_reply_to_message_id"] = identifiers[0]
        else:
            identifiers.append(reply.metadata.reply_to_message_id)
        return reply

    place.grid.forge = forge
    result = messenger.exchange(Cancel("no"), {name: {} for name in NAMES})
    assert {*result.arrived} == {*NAMES} - {"oak"} and result.absent == {"oak": "no answer"}
    assert "a node sent a message that does not answer this request" in caplog.text


@given(mutate=mutations())
@QUICK
def test_no_reply_ends_the_server_or_harms_the_others(mutate, place):
    place.grid.forge = lambda node, reply: reply
    messenger = messenger_of(place)
    place.grid.forge = lambda node, reply: (
        replaced(reply, mutate(reply.content)) if node == OAK else reply
    )
    result = messenger.exchange(Cancel("no"), {name: {} for name in NAMES})
    others = [name for name in NAMES if name != "oak"]
    assert all(isinstance(result.arrived[name].reply.body, Done) for name in others)
    assert "oak" in result.arrived and result.seconds < 1


def test_a_run_with_a_site_that_sends_only_malformed_replies_is_the_run_without_it(place):
    attacks = cycle(reversed(ATTACKS.values()))

    def forge(node, reply):
        is_upload = reply.has_content() and "piece-upload" in reply.content
        return next(attacks)(reply) if node == OAK and is_upload else reply

    place.grid.forge = forge
    result = place.run(deadline=2.0)
    diary = [json.loads(line) for line in (place.base / "run/diary.jsonl").open()]
    assert all("oak" not in entry["answered"] for entry in diary)
    reasons = {entry["absent"]["oak"] for entry in diary if "oak" in entry["absent"]}
    assert reasons and all(reason.startswith("its reply is malformed: ") for reason in reasons)
    replayed = InProcessNetwork(place.base, METHODS["ifca"](clusters=2)).in_the_loop(
        participation=0.7, replay=str(place.base / "run/diary.jsonl")
    )
    for mine, again in zip(tree_leaves(result.trained.state), tree_leaves(replayed.state)):
        assert torch.equal(mine, again)


def test_malformed_names_are_refused_and_no_node_is_blamed_for_a_broken_superlink(place, caplog):
    place.grid.forge = lambda node, reply: ATTACKS["wrong root"](reply) if node == OAK else reply
    messenger = messenger_of(place)
    connected = messenger.transport.connections()
    assert {*connected} == {*NAMES} - {"oak"}
    assert "a node did not send its name" in caplog.text
    messenger.transport.send({"ash": Packet(write_head(REQUEST), {})})
    place.grid.fault = ConnectionError("the SuperLink is gone")
    with pytest.raises(ConnectionError):
        messenger.transport.receive(0)


# ------------------------------------------------------------------------------ to a site
@given(mutate=mutations())
@QUICK
def test_a_site_refuses_any_malformed_request(mutate, place):
    (content,) = encode_packets([Packet(write_head(REQUEST), {})])
    message = Message(mutate(content), dst_node_id=OAK, message_type="query")
    try:
        read_head(read_packet(message).head, Request)
        readable = True
    except BadBytes:
        readable = False
    context = Context(7, OAK, place.grid.nodes[OAK].config, RecordDict(), {})
    reply = place.grid.client_app(message=message, context=context)
    body = read_head(read_packet(reply).head, Reply).body
    assert isinstance(body, Done | Refused) if readable else isinstance(body, Refused)
