"""What keeps a run with real sites from beginning: each is one sentence, on both sides."""

from __future__ import annotations

import re
import secrets

import pytest
from made_network import NAMES, InProcessNetwork

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.core.task import Task
from coterie.network import site as site_module
from coterie.network.policy import OwnerPolicy
from coterie.network.transport import WaitPolicy

IFCA = ct.IFCA(clusters=2, local_steps=3)


def begins(network: InProcessNetwork, sentence: str) -> str:
    """The run does not begin, and its folder is not made; what the sites' logs say."""
    with pytest.raises(CoterieError, match=sentence):
        network.begin()
    assert not network.out.exists()
    return sentence


def test_a_site_whose_columns_differ_is_named_on_both_sides(tmp_path, caplog):
    network = InProcessNetwork(tmp_path, IFCA)
    file = network.tables / "elm.csv"
    file.write_text(file.read_text().replace("colour", "color", 1))
    sentence = "the columns of client 'elm' differ .* lacks colour and adds color"
    begins(network, sentence)
    said = [r.getMessage() for r in caplog.records if "message of the server" in r.getMessage()]
    assert len(said) == 6 and all(re.search(sentence, line) for line in said)


def test_a_table_that_cannot_be_used_is_told_to_its_owner_alone(tmp_path, caplog):
    network = InProcessNetwork(tmp_path, IFCA)
    file = network.tables / "elm.csv"
    lines = file.read_text().splitlines()
    lines[3] = "secret-cell," + lines[3].split(",", 1)[1]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(CoterieError, match="elm"):
        network.begin()
    assert b"secret-cell" not in b"".join(r.head for _, _, r in network.transport.traffic)
    file.write_text("a,b,colour,result\n1,2,red,low\n")
    site = network.site("elm")
    network.transport.sites["elm"] = site
    begins(network, r"elm \(its table cannot be used for this run; see the log of the site\)")
    assert "'outcome'" in str(site.fault) and "label column of client 'elm'" in str(site.fault)


def test_another_version_of_the_library_is_refused(tmp_path, monkeypatch):
    network = InProcessNetwork(tmp_path, IFCA)
    monkeypatch.setattr(site_module, "__version__", "0.9.9")
    begins(network, r"it has coterie 0.9.9, and the server has \d")


def test_another_model_of_the_same_name_is_refused(tmp_path, monkeypatch):
    network = InProcessNetwork(tmp_path, IFCA)
    monkeypatch.setattr(Task, "fingerprint", lambda task: secrets.token_hex(4))
    begins(network, "its model mlp:4 differs")


@pytest.mark.parametrize(
    "owner, sentence",
    [
        (OwnerPolicy(label="income"), "its owner allows only the label income"),
        (OwnerPolicy(max_sites=5), "the run has 6 sites, and its owner allows 5"),
        (
            OwnerPolicy(max_parameters=10),
            "its model has 43 parameters, and the owner of this site allows 10",
        ),
    ],
)
def test_what_an_owner_insists_on_counts(owner, sentence, tmp_path):
    network = InProcessNetwork(tmp_path, IFCA)
    network.transport.sites["oak"] = network.site("oak", owner=owner)
    begins(network, rf"oak \({sentence}")


def test_a_site_that_is_not_there_is_waited_for_and_named(tmp_path):
    network = InProcessNetwork(tmp_path, IFCA, waiting=WaitPolicy(deadline=10, max_deadlines=2))
    network.transport.away.add("cedar")
    begins(network, "cedar did not reply within 20 seconds")
    messenger = network.messenger()
    assert messenger.wait_for(list(NAMES), 7.0) == ["cedar"]


@pytest.mark.parametrize("name, value", [("dropout", 0.5), ("attack", "flip")])
def test_what_is_for_simulations_alone_is_refused(name, value, tmp_path):
    network = InProcessNetwork(tmp_path, IFCA, options={name: value})
    begins(network, f"{name} is for simulations")


def test_nobody_goes_on_without_a_site_when_the_run_does_not_begin(tmp_path, caplog):
    """The site whose table is bad ends, and so does not hear why."""
    network = InProcessNetwork(tmp_path, IFCA)
    (network.tables / "elm.csv").write_text("a,b,colour,result\n1,2,red,low\n")
    handle = network.transport.sites["elm"].handle

    def handle_and_end(packet):
        network.transport.away.add("elm")
        return handle(packet)

    network.transport.sites["elm"].handle = handle_and_end
    begins(network, r"elm \(its table cannot be used")
    assert network.transport.now < 1.0, "nobody waits for a site that has ended"
    assert "going on" not in caplog.text
