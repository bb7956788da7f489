"""What goes wrong in a network: each is named, nobody hangs, and nobody else is harmed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from made_network import NAMES, InProcessNetwork, is_question
from torch.utils._pytree import tree_leaves, tree_map

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.engines.codec import decode, encode, types_of
from coterie.network import site as site_module
from coterie.network.packets import Packet, Reply, read_head
from coterie.network.transport import WaitPolicy
from coterie.reporting.live.folder import WatchedFolder
from coterie.runs.files import write_error
from oracles import private_states

IFCA = ct.IFCA(clusters=2, local_steps=3)


# ------------------------------------------------------------------------------ sites that lie
def lying(change):
    """A network in which what fir uploads is changed on its way."""

    def fate(name, request, reply):
        if name != "fir" or not reply.pieces:
            return [(0.0, reply)]
        return [(0.0, change(reply))]

    return fate


def with_values(change):
    def changed(reply: Packet) -> Packet:
        types = types_of(IFCA)
        up, _ = decode(reply.pieces["upload"], types)
        return reply._replace(pieces={"upload": encode(change(up), types)})

    return changed


def poisoned(up):
    return up._replace(report=tree_map(lambda v: v.double() * torch.nan, up.report))


def swollen(up):
    return up._replace(report={**up.report, "more": torch.zeros(13_000_000, dtype=torch.float64)})


def misshapen(up):
    return up._replace(report=tree_map(lambda v: v[None], up.report))


LIES = {
    "poisoned": with_values(poisoned),
    "swollen": with_values(swollen),
    "misshapen": with_values(misshapen),
    "no tensors": lambda reply: reply._replace(pieces={"upload": b"not tensors"}),
    "no pieces": lambda reply: reply._replace(pieces={}),
    "other pieces": lambda reply: reply._replace(pieces={**reply.pieces, "rows": b"1,2"}),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_cannot_be_is_refused_and_harms_nobody(lie, tmp_path):
    network = InProcessNetwork(tmp_path, IFCA, lying(LIES[lie]), options={"rounds": 1})
    run = network.run()
    assert all(row["rejected"] == ["fir"] for row in run.history)
    others = [s for name, s in zip(NAMES, tree_leaves(run.state)) if name != "fir"]
    assert all(v.isfinite().all() for v in others)
    replayed = network.replayed()
    for mine, again in zip(tree_leaves(run.state), tree_leaves(replayed.state)):
        assert torch.equal(mine, again)


def test_a_reply_that_cannot_be_read_is_no_reply(tmp_path, caplog):
    def fate(name, request, reply):
        if name == "oak" and is_question(request):
            return [(0.0, reply._replace(head=b'{"protocol": 3, "rows": [[1, 2]]}'))]
        return [(0.0, reply)]

    network = InProcessNetwork(tmp_path, IFCA, fate, options={"rounds": 1})
    run = network.run()
    assert run.history[1]["rejected"] == [] and run.history[1]["absent"] == 1
    reasons = {reason for entry in network.diary for reason in entry.absent.values()}
    assert reasons == {"its reply is unreadable: its head is malformed"}


def test_an_unreadable_reply_settles_its_exchange_and_no_other(tmp_path):
    """The round continues at once; in the next exchange the site is silent."""
    questions = []

    def fate(name, request, reply):
        if name != "oak" or not is_question(request):
            return [(0.0, reply)]
        questions.append(request)
        if len(questions) == 1:
            return [(0.0, reply._replace(head=b"{}")), (1.0, reply)]
        return []

    network = InProcessNetwork(tmp_path, IFCA, fate, options={"rounds": 1})
    network.run()
    reasons = [entry.absent["oak"] for entry in network.diary if "oak" in entry.absent]
    first, *others = reasons
    assert first == "its reply is unreadable: its head is malformed"
    assert others and set(others) == {"no answer"}
    assert network.diary[0].seconds == 0.0, "the server did not wait for its deadline"


def test_a_resumed_server_is_not_ended_by_an_unreadable_reply_either(tmp_path):
    def fate(name, request, reply):
        return [(0.0, Packet(b"", {}) if name == "oak" and is_question(request) else reply)]

    network = InProcessNetwork(tmp_path, IFCA, fate, options={"rounds": 4})
    run = network.begin()
    run.step()
    run.step()
    del run  # killed
    resumed = network.resume()
    assert resumed.round == 4
    assert set().union(*(entry.absent for entry in network.diary)) == {"oak"}
    for mine, again in zip(tree_leaves(resumed.state), tree_leaves(network.replayed().state)):
        assert torch.equal(mine, again)


def test_a_node_and_a_server_of_version_0_2_are_refused_in_one_sentence(tmp_path, caplog):
    """Version 0.2 has protocol 1."""
    fate = lambda name, request, reply: [(0.0, old(reply))]
    policy = WaitPolicy(deadline=10, max_deadlines=1)
    network = InProcessNetwork(tmp_path, IFCA, fate, waiting=policy)
    with pytest.raises(ct.CoterieError, match="did not reply within 10 seconds"):
        network.begin()
    assert (
        "ash: its reply is unreadable: it uses protocol 1, and this side protocol 3: install"
        in (caplog.text)
    )
    hello = network.transport.traffic[0][1]
    reason = answer_of(network.transport.sites["ash"], old(hello)).reason
    assert reason.startswith("it uses protocol 1, and this side protocol 3: install the same")


def old(packet: Packet) -> Packet:
    return packet._replace(head=packet.head.replace(b'"protocol":3', b'"protocol":1'))


# ------------------------------------------------------------------------------ old and new packets
def asked_packets(network: InProcessNetwork, name: str) -> list[Packet]:
    return [p for n, p, _ in network.transport.traffic if n == name and is_question(p)]


def answer_of(site, packet: Packet):
    return read_head(site.handle(packet).head, Reply).body


def test_a_site_never_goes_back(tmp_path):
    """An old packet would ask to keep states that the server has gone on from."""
    network = InProcessNetwork(tmp_path, ct.Ditto(local_steps=3))
    run = network.run()
    site = network.transport.sites["elm"]
    states = dict(site.session.site.versions)
    for packet in asked_packets(network, "elm")[:-1]:
        answer = answer_of(site, packet)
        assert answer.reason == "it is older than the last request that this site answered"
    assert site.session.site.versions == states
    again = network.site("elm")  # also after a restart, from its file
    again._open_session(run.engine.messenger.experiment)
    first = asked_packets(network, "elm")[0]
    too_old = "it is older than the last request that this site answered"
    assert answer_of(again, first).reason == too_old


def test_a_packet_that_comes_twice_is_answered_alike_and_counts_once(tmp_path):
    network = InProcessNetwork(tmp_path, ct.Ditto(local_steps=3))
    network.run()
    site = network.transport.sites["elm"]
    last = asked_packets(network, "elm")[-1]
    answered = dict(site.session.site.answered)
    assert [reply for n, p, reply in network.transport.traffic if p == last and n == "elm"] == [
        site.handle(last)
    ]
    assert site.session.site.answered == answered


def test_another_server_under_the_same_experiment_is_refused(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA)
    network.run()
    terms = next(p for n, p, _ in network.transport.traffic if b'"do":"agree"' in p.head)
    head = terms.head.replace(b'"rounds":3', b'"rounds":300')
    site = network.transport.sites["ash"]
    assert "other terms" in answer_of(site, Packet(head, {})).reason
    unknown = terms.head.replace(json.loads(terms.head)["experiment"].encode(), b"f" * 16)
    question = Packet(unknown[: unknown.index(b'"body"')] + b'"body":{"do":"call"}}', {})
    question = question._replace(pieces={"shared": b"", "own": b""})
    assert answer_of(site, question).reason == "this site has not agreed to this experiment"


@pytest.mark.parametrize(
    "head",
    [b"", b"{}", b"[]", b'{"protocol": 3}', b"\xff" * 50, b'{"protocol": 1}', b"9" * 10_000_000],
)
def test_whatever_the_head_a_site_replies(head, tmp_path):
    network = InProcessNetwork(tmp_path, IFCA)
    answer = answer_of(network.site("ash"), Packet(head, {}))
    assert len(answer.reason) < 100


# ------------------------------------------------------------------------------ disks
def test_a_site_whose_disk_is_full_is_absent_and_goes_on_later(tmp_path, monkeypatch):
    network = InProcessNetwork(tmp_path, ct.Ditto(local_steps=3))
    run = network.begin()
    keep = site_module.SiteFolder.write_states
    full = True

    def may_fail(self, kept, types):
        if full and self.client == "fir":
            raise write_error(OSError(28, "No space left on device"), Path("states"))
        keep(self, kept, types)

    monkeypatch.setattr(site_module.SiteFolder, "write_states", may_fail)
    run.step()
    run.step()
    assert run.history[1]["absent"] == 1 and not run.history[1]["rejected"]
    assert set(network.diary[-1].absent.values()) == {site_module.NOT_SAVED}
    full = False
    run.step()
    assert run.history[2]["absent"] == 0


def test_a_server_whose_disk_is_full_says_so_and_can_go_on(tmp_path, monkeypatch):
    network = InProcessNetwork(tmp_path, ct.Ditto(local_steps=3))
    run = network.begin()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("coterie.network.engine.append_record", full)
        with pytest.raises(CoterieError, match="the disk is full, .*diary.jsonl was not written"):
            run.train()
    run = network.resume()
    straight = network.in_the_loop()
    for mine, other in zip(tree_leaves(run.state), tree_leaves(straight.state)):
        assert torch.allclose(mine, other, rtol=1e-9, atol=0)


def test_states_of_another_client_or_damaged_ones_are_refused(tmp_path):
    network = InProcessNetwork(tmp_path, ct.Ditto(local_steps=3))
    run = network.run()
    experiment = run.engine.messenger.experiment
    packet = asked_packets(network, "elm")[-1]
    mine, other = (next((tmp_path / "states" / n).glob("*-run-*")) for n in ("elm", "oak"))
    whole = (mine / "states").read_bytes()
    (mine / "states").write_bytes((other / "states").read_bytes())
    site = network.site("elm")
    assert answer_of(site, packet).reason == site_module.BAD_STATES
    assert "belongs to the client 'oak' in the experiment" in str(site.fault)
    (mine / "states").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    site = network.site("elm")
    assert answer_of(site, packet).reason == site_module.BAD_STATES
    assert "damaged" in str(site.fault)
    (mine / "states").write_bytes(whole)
    assert network.site("elm")._open_session(experiment).site.versions


def test_a_table_that_has_changed_since_the_run_began_is_refused(tmp_path, caplog):
    network = InProcessNetwork(tmp_path, ct.Ditto(local_steps=3))
    network.run()
    file = network.tables / "elm.csv"
    lines = file.read_text().splitlines()
    lines[1] = "0.5" + lines[1][lines[1].index(",") :]
    file.write_text("\n".join(lines) + "\n")
    site = network.site("elm")
    caplog.clear()
    assert answer_of(site, asked_packets(network, "elm")[-1]).reason == site_module.CHANGED
    assert "changed after the run began: restore the file" in caplog.text
    assert site.fault is None, "an old run of a server does not end the node"


# ------------------------------------------------------------------------------ the end
def test_each_site_has_its_own_model_in_the_end_and_the_server_those_of_groups(tmp_path):
    method = ct.Ditto(local_steps=3)
    network = InProcessNetwork(tmp_path, method)
    run = network.run()
    expected = private_states(network.in_the_loop())
    for i, name in enumerate(NAMES):
        folder = next((tmp_path / "states" / name).glob("*-run-*")) / "model"
        exported = ct.load(folder)
        for layer, values in exported.models[name].items():
            assert torch.allclose(values, expected[layer][i], rtol=1e-9)
    with pytest.raises(CoterieError, match="the rows of .* are on the sites of its network"):
        ct.resume(network.out)
    assert ct.load(network.out).trained.round == run.round


def test_a_run_folder_of_a_network_is_read_like_any_other(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA)
    network.run()
    result = ct.load(network.out)
    assert WatchedFolder(network.out).dashboard().chosen.is_of_network
    result.export(tmp_path / "models")
    assert (tmp_path / "models" / "group-1.safetensors").exists()
    said = []
    ct.report([network.out], tmp_path / "page.html", warn=said.append)
    assert said == [
        "ifca is shown without its training data: the rows of the run are on the sites of its "
        "network."
    ]
    assert said[0] in (tmp_path / "page.html").read_text()
    assert (network.out / "groups.csv").exists()


# ------------------------------------------------------------------------------ what leaves
def test_all_traffic_of_a_run_holds_declared_fields_alone(tmp_path):
    """Nothing of any row: no cell, no private state, nothing beside what the methods declare."""
    method = ct.Ditto(local_steps=3)
    network = InProcessNetwork(
        tmp_path, method, data={"min_rows_to_report": 5, "min_category_count": 9}
    )
    run = network.run()
    declared = {"train": {"model"}, "measure": set(), "membership": set()}
    reports = {"train": set(), "measure": {"n", "loss", "brier", "scored", "confusion"}}
    seen = set()
    sent = b""
    for _, request, reply in network.transport.traffic:
        head = read_head(reply.head, Reply)
        assert type(head.body).__name__ in {"SiteDescription", "ModelReport", "Done"}
        assert reply.pieces.keys() <= {"upload"}
        sent += reply.head + b"".join(reply.pieces.values())
        if not reply.pieces:
            continue
        assert reply.pieces.keys() == {"upload"} and is_question(request)
        _, asked = decode(request.pieces["own"], types_of(method))
        up, plain = decode(reply.pieces["upload"], types_of(method))
        assert not plain, "an upload has no plain values beside its tensors"
        assert up.values.keys() == declared[asked["name"]]
        assert up.report.keys() == reports[asked["name"]]
        seen.add(asked["name"])
    assert seen == {"train", "measure"}
    for name in NAMES:
        for line in (network.tables / f"{name}.csv").read_text().splitlines()[1:]:
            assert line.encode() not in sent
            for cell in line.split(",")[:2]:
                assert cell.encode() not in sent
    for table in tree_leaves(network.private_states(run)):
        for row in table:
            assert row.contiguous().numpy().tobytes() not in sent
