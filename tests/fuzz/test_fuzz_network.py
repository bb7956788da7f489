"""Damaged requests to a site, and damaged replies to a server, in one process.

A site answers or refuses each request in one sentence, and a refusal changes none of its files. A
server refuses and names a site whose reply is damaged, and goes on as if the site were absent.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from harness import case, fuzz, said, time_is_over
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes, damaged_json
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.data.table_options import TableOptions
from coterie.network.disclosure import FILE
from coterie.network.handshake import RunSpec
from coterie.network.local_table import BUG
from coterie.network.owner import OwnerPolicy
from coterie.network.packets import Failed, Packet, Refused, Reply, read_head
from coterie.network.server import begin, messenger_factory, serve
from coterie.network.site import NetworkSite
from coterie.network.transport import InProcessTransport
from coterie.network.waiting import WaitPolicy
from coterie.runs.options import Options
from machines import write_tables

pytestmark = pytest.mark.fuzz
KIND = "packets"
SITES = ("ash", "elm", "oak")
METHOD = ct.IFCA(clusters=2, lr=0.1, local_steps=1)


class Sent(NamedTuple):
    """A request to a site, the site's folder before it, and the reply."""

    folder: Path
    request: Packet
    reply: Packet

    def __repr__(self) -> str:
        return "Sent(…)"


def make_site(tables: Path, name: str, folder: Path) -> NetworkSite:
    return NetworkSite(name, tables / f"{name}.csv", folder, OwnerPolicy(exact=1))


def train(base: Path, fate: Any = None, on_send: Any = None) -> Any:
    """A run of one round with sites in this process, whose replies `fate` may change."""
    tables = base / "tables"
    if not tables.exists():
        write_tables(tables, SITES)
    folder = Path(tempfile.mkdtemp(dir=base))
    sites = {name: make_site(tables, name, folder / name) for name in SITES}
    transport = InProcessTransport(sites)
    if fate is not None:
        transport.fate = fate
    if on_send is not None:
        on_send(folder, transport)
    policy = WaitPolicy(deadline=10, quorum=0.5, max_deadlines=1)
    spec = RunSpec(
        method=METHOD,
        data=TableOptions(label="outcome", seed=1),
        options=Options(rounds=1, seed=1, dtype="float64"),
        model="softmax",
    )
    try:
        messenger = messenger_factory(transport, policy, clock=transport.clock)
        return serve(begin(spec, list(SITES), messenger, folder / "run", experiment="1" * 16))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packets")


# ------------------------------------------------------------------------------ requests
@pytest.fixture(scope="module")
def requests(base: Path) -> list[Sent]:
    """All requests to one site, each with the site's folder as it was."""
    sent: list[Sent] = []

    def keep(folder: Path, transport: InProcessTransport) -> None:
        site = transport.sites["ash"]
        handle = site.handle

        def record(packet: Packet) -> Packet:
            copied = base / f"before{len(sent)}"
            (folder / "ash").mkdir(exist_ok=True)
            shutil.copytree(folder / "ash", copied)
            reply = handle(packet)
            sent.append(Sent(copied, packet, reply))
            return reply

        site.handle = record  # type: ignore[method-assign]

    train(base, on_send=keep)
    return sent


def files_in(folder: Path) -> dict[str, bytes]:
    """The files of a site, without the counts of its answers."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != FILE]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@fuzz(3000)
@given(st.data())
def test_damaged_requests(base: Path, requests: list[Sent], data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    sent = data.draw(st.sampled_from(requests))
    packet = data.draw(damaged_packet(sent.request))
    folder = base / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sent.folder, folder)
    before = files_in(folder)
    site = make_site(base / "tables", "ash", folder)
    with case(KIND):
        body = read_head(site.handle(packet).head, Reply).body
    if not isinstance(body, Refused | Failed):
        return
    assert body.reason != BUG and "\n" not in body.reason and len(body.reason) < 400
    assert files_in(folder) == before, "a refused request changed a file"
    again = site.handle(sent.request)
    assert again.pieces == sent.reply.pieces and again.head == sent.reply.head


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


# ------------------------------------------------------------------------------ replies
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


@functools.cache
def state_without(base: Path, number: int) -> list[torch.Tensor] | None:
    """The state after a run in which one reply of elm is lost; None if it does not start."""
    try:
        return tree_leaves(train(base, Change(number, lambda reply: None)).state)
    except CoterieError:
        return None


@pytest.mark.slow
@fuzz(3000)
@given(st.integers(0, 8), st.data())
def test_damaged_replies(base: Path, number: int, data: st.DataObject) -> None:
    if time_is_over(KIND):
        return
    absent = state_without(base, number)
    with case(KIND):
        run = said(
            lambda: train(base, Change(number, lambda reply: data.draw(damaged_packet(reply))))
        )
    if isinstance(run, CoterieError):
        assert "elm" in str(run) and absent is None, "only a handshake may end, and names the site"
        return
    assert all(v.isfinite().all() for v in tree_leaves(run.state) if v.is_floating_point())
    answers = run.engine.messenger.audit.totals.answers
    refused = answers["refused"] + answers["absent"]
    if refused and absent is not None:
        for mine, other in zip(tree_leaves(run.state), absent, strict=True):
            assert torch.equal(mine, other), "a refused reply left a trace"
