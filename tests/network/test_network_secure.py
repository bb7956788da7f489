"""Secure sums over a network: the bits of a loop, sites that drop out, and what the server sees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from made_network import InProcessNetwork
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.cli import main
from coterie.core.errors import SiteRefusal
from coterie.network.certificates import make_authority, register_site
from coterie.network.packets import Packet
from coterie.privacy.identity import read_identity
from coterie.runs.load import load_trained
from coterie.runs.start import prepare_run
from machines import NAMES, write_tables

SITES = NAMES[:4]
METHODS = {
    "fedavg": ct.FedAvg(local_steps=2),
    "ifca": ct.IFCA(clusters=2, local_steps=2),
    "fedem": ct.FedEM(clusters=2, local_steps=2),
    "fedsoft": ct.FedSoft(clusters=2, local_steps=2),
}


def network(base: Path, method: ct.Algorithm, **how) -> InProcessNetwork:
    """Four sites with certificates."""
    keys = base / "keys"
    made = InProcessNetwork(base, method, names=SITES, options={"secure": True, "rounds": 2}, **how)
    if not keys.exists():
        make_authority(keys, "localhost")
        for name in SITES:
            register_site(keys, name)
    for name, site in made.transport.sites.items():
        site.key = keys / f"{name}.pem"
    return made


def same_bits(a, b) -> bool:
    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("name", METHODS)
def test_the_network_has_the_bits_of_the_loop(name, tmp_path):
    made = network(tmp_path, METHODS[name])
    run = made.run()
    loop = made.in_the_loop()
    assert same_bits(run.state, loop.state)
    assert run.history[-1]["accuracy"] == loop.history[-1]["accuracy"]
    assert run.history[-1].get("sizes") == loop.history[-1].get("sizes")


def dropping(quiet: str, stage: str, rounds_after: int):
    """A fate that loses the replies of one site from a stage on, after some sums."""
    seen = 0

    def fate(name: str, request: Packet, reply: Packet):
        nonlocal seen
        if b'"stage":"reveal"' in request.head and name == quiet:
            seen += 1
        asked = b'"do":"call"' if stage == "call" else f'"stage":"{stage}"'.encode()
        if name == quiet and seen >= rounds_after and asked in request.head:
            return []
        return [(0.0, reply)]

    return fate


@pytest.mark.parametrize("stage", ["call", "shares", "masked", "reveal"])
def test_a_site_that_is_gone_at_a_stage(stage, tmp_path):
    """The others go on; the run without it in these rounds has the same bits."""
    made = network(tmp_path, METHODS["fedavg"], fate=dropping("birch", stage, rounds_after=1))
    run = made.run()
    assert run.round == 2
    last = [record for record in made.diary if record.function == "train"][-1]
    expected = set(SITES) if stage == "reveal" else set(SITES) - {"birch"}
    assert set(last.answered) == expected
    if stage in ("shares", "masked"):
        assert last.absent == {"birch": "it dropped out of the secure sum"}


def test_a_resumed_server_continues(tmp_path):
    made = network(tmp_path / "a", METHODS["ifca"])
    whole = made.run()
    other = network(tmp_path / "b", METHODS["ifca"])
    begun = other.begin()
    begun.step(), begun.folder.append(begun.history[-1]), begun.save(always=True)
    resumed = other.resume()
    assert same_bits(whole.state, resumed.state)


def test_a_site_knows_its_group_and_the_server_does_not(tmp_path):
    made = network(tmp_path, METHODS["ifca"])
    run = made.run()
    files = sorted((tmp_path / "states").rglob("group.json"))
    groups = [json.loads(file.read_text())["group"] for file in files]
    assert len(groups) == 4
    assert np.bincount(groups, minlength=2).tolist() == run.history[-1]["sizes"]
    lines = (made.out / "groups.csv").read_text().splitlines()
    assert lines[0] == "group,clients"
    assert not any(name in line for line in lines for name in SITES)


def test_a_site_without_a_certificate_refuses(tmp_path):
    made = network(tmp_path, METHODS["fedavg"])
    made.transport.sites["ash"].key = None
    with pytest.raises(ct.CoterieError, match="no certificate that could sign"):
        made.run()


def test_certificates_vouch_for_their_own_site_only(tmp_path):
    keys, others = tmp_path / "keys", tmp_path / "others"
    for folder in (keys, others):
        make_authority(folder, "localhost")
        for name in SITES[:2]:
            register_site(folder, name)
    ash, birch = (read_identity(keys / f"{name}.pem") for name in SITES[:2])
    signature = ash.sign(b"keys")
    birch.verify("ash", b"keys", signature)
    with pytest.raises(SiteRefusal, match="signature"):
        birch.verify("ash", b"other keys", signature)
    with pytest.raises(SiteRefusal, match="not its own"):
        birch.verify("birch", b"keys", signature)
    with pytest.raises(SiteRefusal, match="signature"):  # of another authority
        birch.verify("ash", b"keys", read_identity(others / "ash.pem").sign(b"keys"))
    with pytest.raises(SiteRefusal, match="signature"):
        birch.verify("ash", b"keys", b"nonsense")


def test_nothing_in_the_traffic_resembles_an_update(tmp_path):
    """Masked vectors correlate with the plain integers of their site as noise does.

    The same vector without masks is found, so the search works.
    """
    made = network(tmp_path, METHODS["fedavg"])
    run = made.run()
    size = 8 * sum(v.numel() for v in tree_leaves(run.state))
    masked = [
        (name, reply.pieces["upload"])
        for name, request, reply in made.transport.traffic
        if b'"stage":"masked"' in request.head and len(reply.pieces.get("upload", b"")) > size
    ]
    assert len(masked) >= 8
    model = np.concatenate([v.double().numpy().ravel() for v in tree_leaves(run.state)])
    for _, raw in masked:
        numbers = np.frombuffer(raw, dtype="<i8")[: len(model)].astype(np.float64)
        assert abs(np.corrcoef(numbers, model)[0, 1]) < 5 / np.sqrt(len(model))
    integers = np.rint(model * 2.0**24)
    assert np.corrcoef(integers, model)[0, 1] > 0.99


@pytest.mark.slow
@pytest.mark.network
def test_four_real_nodes_have_the_bits_of_the_loop(tmp_path, monkeypatch):
    """Processes of their own, HTTPS, certificates: the same integers."""
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "sites", SITES)
    config = 'method = "ifca"\nclusters = 2\nrounds = 2\nlabel = "outcome"\nmodel = "softmax"\n'
    (tmp_path / "net.toml").write_text(config + 'data = "folder:sites"\nsecure = true\n')
    assert main(["network", "simulate", "net.toml", "--out", "out"]) == 0
    trained = load_trained(tmp_path / "out" / "run")
    fed = ct.data.folder("sites", label="outcome", seed=0)
    loop = prepare_run(trained.method, fed, "softmax", rounds=2, secure=True, engine="loop")
    for _ in loop.rounds():
        pass
    assert same_bits(trained.state, loop.state)
    assert len(list((tmp_path / "out" / "sites").rglob("group.json"))) == 4
