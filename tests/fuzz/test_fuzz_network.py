"""Damaged requests to a site, and damaged replies to a server, in one process.

A site answers or refuses each request in one sentence, and a refusal changes neither its files nor
its memory. A server refuses and names a site whose reply is damaged, and goes on as if the site
were absent.

The cases are cheap, so that there can be thousands of them: a site is reused until it has answered
a damaged request, and a true reply is computed once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from harness import case, cases, fuzz, said, time_is_over
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes, damaged_json
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError, SiteRefusal
from coterie.data.table_options import TableOptions
from coterie.engines.codec import encode
from coterie.network.handshake import RunSpec
from coterie.network.local_table import BUG
from coterie.network.owner import DISCLOSURE_FILE
from coterie.network.packets import Failed, Packet, Refused, Reply, read_head
from coterie.network.policy import OwnerPolicy
from coterie.network.server import begin, serve
from coterie.network.site import NetworkSite
from coterie.network.transport import Messenger, WaitPolicy
from coterie.runs.options import Options
from in_process import InProcessTransport
from machines import write_tables

pytestmark = pytest.mark.fuzz
REQUESTS, REPLIES = "requests", "replies"
SITES = ("ash", "elm", "oak")
IFCA = ct.IFCA(clusters=2, lr=0.1, local_steps=1)
DITTO = ct.Ditto(lr=0.1, local_steps=1)  # its sites have private states
AGAIN = 10  # after one refusal in this many, the true request is sent and gets the true reply


class Sent(NamedTuple):
    """A request to a site, the site's folder before it, and the reply."""

    folder: Path
    request: Packet
    reply: Packet


def make_site(base: Path, name: str, folder: Path) -> NetworkSite:
    return NetworkSite(name, base / f"tables/{name}.csv", folder, OwnerPolicy(exact=1))


def train(base: Path, method: Algorithm, sites: Mapping[str, Any], fate: Any = None) -> Any:
    """A run of one round with sites in this process, whose replies `fate` may change."""
    folder = Path(tempfile.mkdtemp(dir=base))
    transport = InProcessTransport(sites)
    if fate is not None:
        transport.fate = fate
    policy = WaitPolicy(deadline=10, quorum=0.5, max_deadlines=1)
    spec = RunSpec(
        method=method,
        data=TableOptions(label="outcome", seed=1),
        options=Options(rounds=1, seed=1, dtype="float64"),
        model="softmax",
    )
    try:
        messenger = Messenger(transport, policy, clock=transport.clock)
        return serve(begin(spec, list(SITES), messenger, folder / "run", experiment="1" * 16))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the tables; in memory if possible, because every case writes files."""
    memory = Path("/dev/shm")
    folder = tmp_path_factory.mktemp("packets")
    if memory.is_dir():
        folder = Path(tempfile.mkdtemp(dir=memory))
    write_tables(folder / "tables", SITES)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@st.composite
def damaged_packet(draw: st.DrawFn, packet: Packet) -> Packet:
    """A packet with damage to its head, as bytes or as a document, or to its pieces."""
    change = draw(st.sampled_from(("bytes", "document", "document", "piece", "drop", "extra")))
    if change == "document":
        return packet._replace(head=draw(damaged_json(json.loads(packet.head))).encode("utf-8"))
    if change == "bytes" or not packet.pieces:
        return packet._replace(head=draw(damaged_bytes(packet.head)))
    name = draw(st.sampled_from(sorted(packet.pieces)))
    pieces = dict(packet.pieces)
    if change == "drop":
        del pieces[name]
    elif change == "extra":
        pieces[draw(st.text(max_size=5))] = pieces[name]
    else:
        pieces[name] = draw(damaged_bytes(pieces[name]))
    return packet._replace(pieces=pieces)


# ------------------------------------------------------------------------------ requests
class RecordingSite(NetworkSite):
    """A site that records its requests, with a copy of its folder before each."""

    sent: list[Sent]

    def handle(self, packet: Packet) -> Packet:
        copied = self.folder.parent / f"before{len(self.sent)}"
        shutil.copytree(self.folder, copied)
        reply = super().handle(packet)
        self.sent.append(Sent(copied, packet, reply))
        return reply


class ReusedSite:
    """The site as it was before a request."""

    def __init__(self, base: Path, sent: Sent) -> None:
        self.base = base
        self.sent = sent
        self.folder = base / f"reused-{sent.folder.name}"
        self.renew()

    def renew(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.sent.folder, self.folder)
        self.site = make_site(self.base, "ash", self.folder)
        with suppress(SiteRefusal):  # it has not agreed to the run yet
            self.site._open_session("1" * 16)  # as at its first request

    def state(self) -> str:
        """A hash of the files and of the memory, without the counts of answers."""
        digest = hashlib.sha256()
        for file in sorted(self.folder.rglob("*")):
            if file.is_file() and file.name != DISCLOSURE_FILE:
                digest.update(str(file).encode() + file.read_bytes())
        session = self.site.session
        if session is not None:
            site = session.site
            digest.update(encode(tuple(site.versions.values()), site.types))
            digest.update(repr((session.last, list(site.versions), site.answered)).encode())
        return digest.hexdigest()


@pytest.fixture(scope="module")
def reused(base: Path) -> list[ReusedSite]:
    """The site before each of the requests of a run."""
    (base / "ash").mkdir()
    ash = RecordingSite("ash", base / "tables/ash.csv", base / "ash", OwnerPolicy(exact=1))
    ash.sent = []
    others = {name: make_site(base, name, base / name) for name in SITES[1:]}
    train(base, DITTO, {"ash": ash, **others})
    return [ReusedSite(base, sent) for sent in ash.sent]


@fuzz(3000)
@given(st.data())
def test_damaged_requests(reused: list[ReusedSite], data: st.DataObject) -> None:
    if time_is_over(REQUESTS):
        return
    chosen = reused[data.draw(st.integers(0, len(reused) - 1))]
    packet = data.draw(damaged_packet(chosen.sent.request))
    before = chosen.state()
    with case(REQUESTS):
        body = read_head(chosen.site.handle(packet).head, Reply).body
    if not isinstance(body, Refused | Failed):
        chosen.renew()
        return
    assert body.reason != BUG and "\n" not in body.reason and len(body.reason) < 400
    assert chosen.state() == before, "a refused request left a trace"
    if cases[REQUESTS] % AGAIN == 0:
        again = chosen.site.handle(chosen.sent.request)
        chosen.renew()
        assert again == chosen.sent.reply


# ------------------------------------------------------------------------------ replies
class RememberedSite:
    """A site whose replies are computed once; a true site answers what nobody asked before.

    With IFCA, whose sites have no private values, a reply depends on the request alone.
    """

    known: ClassVar[dict[tuple[str, bytes], Packet]] = {}

    def __init__(self, base: Path, name: str) -> None:
        self.base = base
        self.name = name
        self.asked: list[Packet] = []

    def handle(self, packet: Packet) -> Packet:
        raw = repr((packet.head, sorted(packet.pieces.items()))).encode()
        key = self.name, hashlib.sha256(raw).digest()
        if key not in self.known:
            folder = Path(tempfile.mkdtemp(dir=self.base))
            site = make_site(self.base, self.name, folder)
            for earlier in self.asked:
                site.handle(earlier)
            self.known[key] = site.handle(packet)
            shutil.rmtree(folder)
        self.asked.append(packet)
        return self.known[key]


class Change:
    """Changes one reply of the site elm, by its number; None: the reply is lost."""

    def __init__(self, number: int, change: Any) -> None:
        self.number = number
        self.change = change
        self.seen = 0

    def __call__(self, name: str, request: Packet, reply: Packet) -> list[tuple[float, Packet]]:
        if name == "elm":
            self.seen += 1
            if self.seen - 1 == self.number:
                changed = self.change(reply)
                return [] if changed is None else [(0.0, changed)]
        return [(0.0, reply)]


def train_with(base: Path, change: Change) -> Any:
    return train(base, IFCA, {name: RememberedSite(base, name) for name in SITES}, change)


@functools.cache
def state_without(base: Path, number: int) -> list[torch.Tensor] | None:
    """The state after a run in which one reply of elm is lost; None if it does not start."""
    try:
        return tree_leaves(train_with(base, Change(number, lambda reply: None)).state)
    except CoterieError:
        return None


@fuzz(3000)
@given(st.integers(0, 8), st.data())
def test_damaged_replies(base: Path, number: int, data: st.DataObject) -> None:
    if time_is_over(REPLIES):
        return
    absent = state_without(base, number)
    change = Change(number, lambda reply: data.draw(damaged_packet(reply)))
    with case(REPLIES):
        run = said(lambda: train_with(base, change))
    if isinstance(run, CoterieError):
        assert "elm" in str(run) and absent is None, "only a handshake may end, and names the site"
        return
    assert all(v.isfinite().all() for v in tree_leaves(run.state) if v.is_floating_point())
    answers = run.engine.messenger.audit.totals.answers
    refused = answers["refused"] + answers["absent"]
    if refused and absent is not None:
        for mine, other in zip(tree_leaves(run.state), absent, strict=True):
            assert torch.equal(mine, other), "a refused reply left a trace"
