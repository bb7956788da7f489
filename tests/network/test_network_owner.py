"""A site's owner may pause it, and leave; the others go on, and nobody waits for who has left."""

from __future__ import annotations

import msgspec
import pytest
from made_network import NAMES, InProcessNetwork

import coterie as ct
from coterie.cli import main
from coterie.core.errors import CoterieError, SiteRefusal
from coterie.network.monitoring import report_site
from coterie.network.owner import OWNER_REASONS
from coterie.network.packets import Packet, Refused, Reply, Request, Terms, read_head, write_head
from coterie.network.transport import WaitPolicy

CFL = ct.CFL(local_steps=3)


def wishes(network: InProcessNetwork, name: str):
    (network.base / "states" / name).mkdir(parents=True, exist_ok=True)
    return network.transport.sites[name].participation


def test_a_paused_site_is_absent_at_once_keeps_its_group_and_goes_on(tmp_path):
    network = InProcessNetwork(tmp_path, CFL)
    run = network.begin()
    run.step()
    run.step()
    before = run.groups()
    wishes(network, "oak").pause()
    began = network.transport.now
    run.step()
    assert network.transport.now == began, "nobody waits for a deadline"
    assert run.history[-1]["absent"] == 1 and not run.history[-1]["rejected"]
    assert set(network.diary[-1].absent.items()) == {("oak", OWNER_REASONS["paused"])}
    at = run.roster.names.index("oak")
    assert run.groups()[at] == before[at]
    seen = run.engine.messenger.audit.by_site()["oak"]
    assert report_site(seen, is_connected=True, is_awaited=False).state == "paused"
    wishes(network, "oak").unpause()
    run.step()
    assert run.history[-1]["absent"] == 0


def test_the_server_waits_where_too_many_are_paused(tmp_path, caplog):
    """A paused site is no answer: a quorum of answers is needed."""
    network = InProcessNetwork(
        tmp_path, CFL, waiting=WaitPolicy(deadline=10, quorum=0.5, max_deadlines=2)
    )
    run = network.begin()
    run.step()
    for name in NAMES[:4]:
        wishes(network, name).pause()
    with pytest.raises(CoterieError, match="ash, birch, cedar, elm did not reply within 20"):
        run.step()
    assert "2 sites have replied and 3 are needed" in caplog.text
    wishes(network, "ash").unpause()
    assert run.step()["absent"] == 3, "the three that are needed are there again"


def test_a_site_that_is_paused_meanwhile_is_asked_again_at_the_deadline(tmp_path):
    network = InProcessNetwork(tmp_path, CFL, waiting=WaitPolicy(deadline=10, quorum=1.0))
    run = network.begin()
    wishes(network, "elm").pause()
    receive = network.transport.receive

    def unpausing(seconds):
        if network.transport.now >= 5:
            wishes(network, "elm").unpause()
        return receive(seconds)

    network.transport.receive = unpausing
    assert run.step()["absent"] == 0
    assert 10 <= network.transport.now < 20


def test_who_has_left_is_not_asked_any_more_also_after_a_restart(tmp_path):
    waiting = WaitPolicy(deadline=10, quorum=1.0, max_deadlines=2)
    network = InProcessNetwork(tmp_path, CFL, waiting=waiting)
    run = network.begin()
    run.folder.append(run.step())
    wishes(network, "elm").leave()
    run.folder.append(run.step())
    run.save()
    assert network.diary[-1].absent == {"elm": OWNER_REASONS["left"]}
    network.transport.away.add("elm")  # its node has ended
    asked = len([n for n, _, _ in network.transport.traffic if n == "elm"])
    began = network.transport.now
    run = network.resume()
    assert network.transport.now == began, "all five answered, and no deadline passed"
    assert all(row["absent"] == 1 for row in run.history[2:])
    assert len([n for n, _, _ in network.transport.traffic if n == "elm"]) == asked


def test_who_comes_back_takes_part_again(tmp_path):
    network = InProcessNetwork(tmp_path, CFL)
    run = network.begin()
    run.step()
    wishes(network, "elm").leave()
    assert run.step()["absent"] == 1
    wishes(network, "elm").unpause()
    assert run.step()["absent"] == 1, "the same connection has said that it leaves"
    network.transport.restart("elm", network.site("elm"))
    assert run.step()["absent"] == 0


def test_when_all_have_left_the_server_does_not_go_on_with_nobody(tmp_path):
    network = InProcessNetwork(tmp_path, CFL, waiting=WaitPolicy(deadline=10, max_deadlines=1))
    run = network.begin()
    for name in NAMES:
        wishes(network, name).leave()
    with pytest.raises(CoterieError, match="all sites have left the run"):
        run.step()


def test_a_run_does_not_begin_with_a_site_whose_owner_has_left(tmp_path):
    network = InProcessNetwork(tmp_path, CFL)
    wishes(network, "fir").leave()
    with pytest.raises(CoterieError, match=r"fir \(its owner left the run\)"):
        network.begin()


# ------------------------------------------------------------------------------ commands
def test_the_commands_of_an_owner(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    network = InProcessNetwork(tmp_path, CFL)
    participation = wishes(network, "ash")
    for command, wish in (("pause", "paused"), ("unpause", None), ("leave", "left")):
        assert main(["network", command, "--state", "states/ash"]) == 0
        assert participation.status == wish
        assert "states/ash" in capsys.readouterr().out
    assert main(["network", "unpause", "--state", "states/ash"]) == 0
    assert "start its node" in capsys.readouterr().out and participation.status is None
    assert main(["network", "pause"]) == 2
    assert "coterie-site is not the state folder of a site: give --state" in capsys.readouterr().err
    assert main(["network", "leave", "states/ash"]) == 2
    assert "give the folder of the site as --state" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"fingerprint": "0"}, "the model mlp:4 differs at this site"),
        ({"method": "unknown"}, "its method is not in this site's library"),
    ],
)
def test_terms_that_a_site_refuses_are_no_failure_of_its_table(change, reason, tmp_path):
    """The server gets the reason, and the node continues."""
    network = InProcessNetwork(tmp_path, CFL)
    network.begin()
    site = network.transport.sites["oak"]
    terms = msgspec.structs.replace(site.session.terms, **change)
    request = Request(experiment="1" * 16, epoch=1, sequence=1, body=terms)
    reply = read_head(site.handle(Packet(write_head(request), {})).head, Reply)
    assert reply.body == Refused(reason)
    assert site.fault is None


def test_a_schema_with_another_label_than_the_terms_is_refused(tmp_path):
    """Otherwise a server could train on a column that the owner's --label does not allow."""
    network = InProcessNetwork(tmp_path, CFL)
    network.begin()
    requests = [read_head(packet.head, Request) for _, packet, _ in network.transport.traffic]
    terms = next(r.body for r in requests if isinstance(r.body, Terms))
    changed = msgspec.structs.replace(terms, schema={**terms.schema, "label": "other"})
    local = network.transport.sites["oak"].local
    assert local.build_run(terms)
    with pytest.raises(SiteRefusal, match="the label of its schema is not the one that it names"):
        local.build_run(changed)
