"""Secure sums over a network: the bits of a loop, sites that drop out, and what the server sees."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from made_network import InProcessNetwork
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.cli import main
from coterie.core.errors import SiteRefusal
from coterie.engines.site import Site
from coterie.network.certificates import make_authority, register_site
from coterie.network.packets import Packet
from coterie.privacy.identity import read_identity
from coterie.runs.load import load_trained
from coterie.runs.start import prepare_run
from machines import NAMES, Machines, environment, small_config, write_tables

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
    how = {"options": {"secure": True, "rounds": 2}, **how}
    made = InProcessNetwork(base, method, names=SITES, **how)
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


def strongest_correlation(raw: bytes, vector: np.ndarray) -> float:
    """The largest |r| of the vector with any stretch of the bytes, read as any kind of number."""
    centred = vector - vector.mean()
    centred /= np.linalg.norm(centred)
    found = 0.0
    for kind in ("<i8", "<f8", "<f4"):
        for offset in range(np.dtype(kind).itemsize):
            count = (len(raw) - offset) // np.dtype(kind).itemsize
            if count < len(vector):
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                numbers = np.frombuffer(raw, kind, count, offset).astype(np.float64)
            numbers = np.where(np.abs(numbers) < 1e100, numbers, 0)  # also NaN
            stretches = np.lib.stride_tricks.sliding_window_view(numbers, len(vector))
            stretches = stretches - stretches.mean(1, keepdims=True)
            norms = np.linalg.norm(stretches, axis=1)
            found = max(found, float(np.abs(stretches @ centred / (norms + 1e-300)).max()))
    return found


def record_updates(made: InProcessNetwork, monkeypatch) -> dict[str, list[np.ndarray]]:
    """Collect the plain models that each site would send, as they are computed."""
    updates: dict[str, list[np.ndarray]] = {name: [] for name in SITES}
    run = Site.run

    def watched(self: Site, message, finish):
        def record(upload, fn, head):
            if "model" in upload.values:
                flat = torch.cat([v.double().ravel() for v in upload.values["model"].values()])
                (name,) = [n for n, s in made.transport.sites.items() if s.session.site is self]
                updates[name].append(flat.numpy())
            return finish(upload, fn, head)

        return run(self, message, record)

    monkeypatch.setattr(Site, "run", watched)
    return updates


@pytest.mark.parametrize("secure", [True, False])
def test_nothing_that_leaves_a_site_correlates_with_its_update(secure, tmp_path, monkeypatch):
    """All bytes that sites send are searched; in a run without secure sums the updates are found.

    A random stretch has |r| around √(2 ln N / d): .35 for 10⁴ stretches and d = 151 numbers.
    """
    options = {"secure": secure, "rounds": 2, "dtype": "float32"}
    made = network(tmp_path, METHODS["fedavg"], model="mlp:16", options=options)
    updates = record_updates(made, monkeypatch)
    made.run()
    searched = 0
    for name, _, reply in made.transport.traffic:
        raw = b"".join([reply.head, *reply.pieces.values()])
        if len(raw) < 600:
            continue
        strongest = [strongest_correlation(raw, update) for update in updates[name]]
        searched += len(strongest)
        if secure:
            assert max(strongest) < 0.6
        elif "upload" in reply.pieces and len(updates[name][0]) * 4 < len(raw):
            assert max(strongest) > 0.999
    assert searched >= 2 * 2 * len(SITES)


def test_masked_uploads_of_a_run_are_uniform(tmp_path):
    """χ² of the bytes of all masked vectors of a run, which are small numbers without masks."""
    made = network(tmp_path, METHODS["ifca"], model="mlp:64")
    made.run()
    masked = b"".join(
        reply.pieces["upload"]
        for _, request, reply in made.transport.traffic
        if b'"stage":"masked"' in request.head
    )
    counts = np.bincount(np.frombuffer(masked, dtype=np.uint8), minlength=256)
    chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert len(masked) > 20_000 and 150 < chi2 < 370  # 255 degrees of freedom: 4.6 deviations


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


class KilledMachines(Machines):
    """Four nodes, one of which is killed when a stage of its second secure sum reaches it."""

    def __init__(self, place: Path, stage: str) -> None:
        self.stage = stage
        config = small_config("fedavg", 1, "secure = true", "local_steps = 2")
        super().__init__(place, config, deadline=15, names=SITES)

    def start_server(self, *more: str) -> subprocess.Popen:
        return super().start_server("--grace", "0", "--quorum", "0.75", *more)

    def start_node(self, name: str) -> subprocess.Popen:
        if name != "birch":
            return super().start_node(name)
        script = Path(__file__).with_name("killed_node.py")
        with open(self.place / "birch.log", "ab") as output:
            return subprocess.Popen(
                [sys.executable, str(script), self.stage, "2", *self.node_words(name)],
                cwd=self.place, env=environment(), stdout=output, stderr=output,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("stage", ["call", "shares", "masked", "reveal"])
def test_a_node_is_killed_at_a_stage(stage, tmp_path):
    """The second sum of each site is that of the first round; the others have the loop's bits."""
    write_tables(tmp_path / "sites", SITES)
    machines = KilledMachines(tmp_path, stage)
    try:
        machines.ends_well()
        assert machines.nodes["birch"].wait(10) == -signal.SIGKILL
        assert all(machines.nodes[name].poll() is None for name in SITES if name != "birch")
    finally:
        machines.stop()
    trained = load_trained(tmp_path / "run")
    fed = ct.data.folder(str(tmp_path / "sites"), label="outcome", seed=1)
    options = {"rounds": 1, "seed": 1, "dtype": "float64", "secure": True, "engine": "loop"}
    loop = prepare_run(trained.method, fed, "mlp:4", **options)
    loop.step()
    survived = torch.tensor([i for i, n in enumerate(SITES) if n != "birch" or stage == "reveal"])
    ask = loop.round_context(1)
    sums = ask(loop.method.train, survived, shared=loop.state, stream="train")
    assert same_bits(trained.state, sums.mean("model", empty=loop.state))
    assert not same_bits(trained.state, loop.state)
