"""Sites that come when a run has begun are assigned to a group and get a model; nothing changes."""

from __future__ import annotations

import json

import pandas
import pytest
import torch
from made_network import NAMES, InProcessNetwork, write_tables
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.cli import main
from coterie.network.certificates import SiteDirectory, make_authority, register_site
from coterie.network.packets import Done, Reply, read_head
from coterie.network.server import resume, serve
from coterie.network.transport import WaitPolicy
from coterie.reporting.live.folder import WatchedFolder
from coterie.reporting.live.page import render_sections
from coterie.runs.late_sites import read_late_sites

FIVE = NAMES[:5]
IFCA = ct.IFCA(clusters=2, local_steps=3)


class Later:
    """oak connects after some rounds."""

    def __init__(self, tmp_path, method, round: int = 1, **how) -> None:
        tables = write_tables(tmp_path / "tables")
        self.network = InProcessNetwork(tmp_path, method, names=FIVE, **how)
        self.table = tables / "oak.csv"
        self.round = round

    def come(self) -> None:
        self.network.transport.sites["oak"] = self.network.site("oak")
        self.network.transport.starts["oak"] = 1

    def after(self, row) -> None:
        if row["round"] == self.round:
            self.come()

    def serve(self):
        self.run = self.network.begin()
        return serve(self.run, self.after)

    def models(self) -> list:
        return list((self.network.base / "states/oak").glob("*/model"))


def test_a_latecomer_has_the_group_that_assign_would_give_it_and_that_groups_model(tmp_path):
    later = Later(tmp_path, IFCA)
    run = later.serve()
    found = read_late_sites(later.network.out)["oak"]
    assert found.fault == "" and found.round == run.round == 3
    result = ct.load(later.network.out)
    assert result.assign(pandas.read_csv(later.table)).group == found.group
    (folder,) = later.models()
    own = ct.load(folder).models["oak"]
    centre = result.centres
    for layer, values in own.items():
        assert torch.allclose(values.double(), centre[layer][found.group].double())
    other = 1 - found.group
    assert any(not torch.allclose(v.double(), centre[n][other].double()) for n, v in own.items())


def test_nothing_of_the_run_depends_on_a_latecomer(tmp_path):
    later = Later(tmp_path / "later", IFCA)
    run = later.serve()
    alone = InProcessNetwork(tmp_path / "alone", IFCA, names=FIVE)
    other = alone.run()
    for mine, theirs in zip(tree_leaves(run.state), tree_leaves(other.state)):
        assert torch.equal(mine, theirs)
    assert run.roster.names == FIVE and "oak" not in (later.network.out / "diary.jsonl").read_text()
    lines = [json.loads(x) for x in (later.network.out / "audit.jsonl").read_text().splitlines()]
    asked = [line["function"] for line in lines if line["site"] == "oak"]
    assert asked == ["agree", "membership", "write_model", "membership", "write_model"]


@pytest.mark.parametrize("stopped", ['"do":"agree"', '"do":"call"', '"do":"write_model"'])
def test_the_run_does_not_wait_for_a_latecomer_that_is_stopped(stopped, tmp_path):
    waiting = WaitPolicy(deadline=100, grace=10)
    later = Later(tmp_path, IFCA, waiting=waiting)
    transport = later.network.transport

    def fate(name, request, reply):
        if name != "oak" or stopped.encode() not in request.head:
            return [(0.0, reply)]
        transport.away.add("oak")
        return []

    transport.fate = fate
    run = later.serve()
    assert run.round == 3 and transport.now < 5
    assert read_late_sites(later.network.out)["oak"].fault == "no longer connected"


def test_a_latecomer_without_the_label_is_told_so(tmp_path, caplog):
    later = Later(tmp_path, IFCA)
    table = pandas.read_csv(later.table)
    table.drop(columns="outcome").to_csv(later.table, index=False)
    later.serve()
    site = later.network.transport.sites["oak"]
    assert "unknown label column of client 'oak'" in str(site.fault), (
        "which ends a node, with this sentence"
    )
    assert "its table cannot be used" in read_late_sites(later.network.out)["oak"].fault


def test_the_model_is_there_at_once_and_newer_in_the_end(tmp_path):
    later = Later(tmp_path, IFCA)
    written = []

    def fate(name, request, reply):
        if name == "oak" and b'"do":"write_model"' in request.head:
            (folder,) = later.models()
            written.append((later.run.round, ct.load(folder).models["oak"]))
        return [(0.0, reply)]

    later.network.transport.fate = fate
    later.serve()
    assert [round for round, _ in written] == [1, 3]
    first, last = (tree_leaves(model) for _, model in written)
    assert any(not torch.equal(a, b) for a, b in zip(first, last))


@pytest.mark.parametrize("method", [ct.Ditto(local_steps=3), ct.FedAvg(local_steps=3)])
def test_methods_without_groups_give_a_model_by_their_own_join(method, tmp_path):
    later = Later(tmp_path, method)
    later.serve()
    found = read_late_sites(later.network.out)["oak"]
    assert found.group is None and not found.fault and len(later.models()) == 1


def test_a_latecomer_whose_table_does_not_fit_is_named_and_harms_nobody(tmp_path, caplog):
    later = Later(tmp_path, IFCA)
    later.table.write_text(later.table.read_text().replace("colour", "color", 1))
    run = later.serve()
    assert run.round == 3
    assert (
        "oak connected late and cannot join: its table cannot be used for this run" in caplog.text
    )
    assert read_late_sites(later.network.out)["oak"].fault and not later.models()


def test_one_that_lies_has_no_group(tmp_path):
    def fate(name, request, reply):
        if name == "oak" and b'"do":"call"' in request.head:
            return [(0.0, reply._replace(pieces={"upload": b"group 0, please"}))]
        return [(0.0, reply)]

    later = Later(tmp_path, IFCA, fate=fate)
    later.serve()
    found = read_late_sites(later.network.out)["oak"]
    assert found.group is None and found.fault == "it sent no losses"


def test_a_site_refuses_to_send_a_model_of_its_own(tmp_path):
    """What `unseen_model` computes is written at the site; as a question it is refused."""
    later = Later(tmp_path, IFCA)
    later.serve()
    sent = [(p, r) for n, p, r in later.network.transport.traffic if n == "oak"]
    finish = next(p for p, _ in sent if b'"do":"write_model"' in p.head)
    assert all(not r.pieces for p, r in sent if b'"do":"write_model"' in p.head)
    ask = finish._replace(head=finish.head.replace(b'"do":"write_model"', b'"do":"call"'))
    ask = ask._replace(head=ask.head.replace(b'"sequence":', b'"sequence":9999'))
    answer = read_head(later.network.transport.sites["oak"].handle(ask).head, Reply).body
    assert not isinstance(answer, Done) and "does not permit that function" in answer.reason


def test_after_a_restart_a_latecomer_is_still_known(tmp_path):
    later = Later(tmp_path, IFCA)
    network = later.network
    later.run = run = network.begin()

    class Killed(BaseException):
        pass

    def killed(row):
        later.after(row)
        if row["round"] == 2:
            raise Killed

    with pytest.raises(Killed):
        serve(run, killed)
    before = read_late_sites(network.out)["oak"]
    assert before.round == 1
    run = serve(resume(network.out, network.messenger()))
    after = read_late_sites(network.out)["oak"]
    assert after.round == 3 and not after.fault
    agreed = [n for n, p, _ in network.transport.traffic if n == "oak" and b'"agree"' in p.head]
    assert len(agreed) == 1, "it need not agree again"


def test_status_and_page_say_who_came_later(tmp_path, capsys):
    later = Later(tmp_path, IFCA)
    later.serve()
    group = read_late_sites(later.network.out)["oak"].group
    sentence = f"came later: group {group}, with the model of round 3"
    assert main(["network", "status", str(later.network.out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split(maxsplit=1) == ["oak", sentence] and len(lines) == 7
    assert main(["network", "status", str(later.network.out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["latecomers"]["oak"]["group"] == group
    assert (
        f"oak {sentence}."
        in render_sections(WatchedFolder(later.network.out).dashboard())["groups"]
    )


def test_sites_that_are_registered_meanwhile_are_let_in(tmp_path, caplog):
    make_authority(tmp_path, "localhost")
    register_site(tmp_path, "ash")
    directory = SiteDirectory(tmp_path)
    assert directory.names == ["ash"] and not directory.reload()
    register_site(tmp_path, "oak")
    assert directory.reload() and directory.names == ["ash", "oak"] and not directory.reload()
    (tmp_path / "sites.json").write_text("{")
    assert not directory.reload() and directory.names == ["ash", "oak"]
    assert "changes of the registered sites are ignored" in caplog.text
