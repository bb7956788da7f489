"""Peers without a server are the loop; threads stand for machines here."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from made_network import MODEL
from torch.utils._pytree import tree_leaves

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.data.table_options import TableOptions
from coterie.engines.codec import decode
from coterie.network.handshake import RunSpec
from coterie.network.peers import Peer
from coterie.network.states import SiteFolder
from coterie.network.transport import WaitPolicy
from coterie.runs.files import write_error
from coterie.runs.options import Options
from coterie.runs.run import Run
from coterie.runs.start import prepare_run
from machines import write_tables
from oracles import private_states

NAMES = ("ash", "birch", "cedar", "elm")
OPTIONS = {"rounds": 3, "seed": 1, "dtype": "float64"}
METHOD = ct.PDLTC(clusters=2, lr=0.1)


class Killed(BaseException):
    """Stands for a kill: nothing in the library catches it."""


class Threads:
    """What connects threads; a peer that is killed takes the others' exchange with it.

    One thread works at a time, as models are drawn by the one random generator of this process.
    """

    def __init__(self, world: int) -> None:
        self.given: list[bytes] = [b""] * world
        self.working = threading.Lock()
        self.meet = threading.Barrier(world, timeout=300)
        self.leave = threading.Barrier(world, timeout=300)

    def exchange(self, rank: int, mine: bytes) -> list[bytes]:
        self.given[rank] = mine
        self.working.release()
        try:
            self.meet.wait()
            everything = list(self.given)
            self.leave.wait()
            return everything
        finally:
            self.working.acquire()

    def abort(self) -> None:
        self.meet.abort()
        self.leave.abort()


class ThreadGather:
    """One thread's end; it is killed before the exchange of this number, or after it."""

    def __init__(self, threads: Threads, rank: int) -> None:
        self.threads = threads
        self.rank = rank
        self.killed_before: int | None = None
        self.killed_after: int | None = None
        self.sent: list[bytes] = []

    def close(self) -> None:
        pass

    def all_gather(self, mine: bytes) -> dict[str, bytes]:
        self.sent.append(mine)
        if len(self.sent) == self.killed_before:
            raise Killed
        try:
            everything = self.threads.exchange(self.rank, mine)
        except threading.BrokenBarrierError as e:
            raise CoterieError("a peer no longer answers", "start all again") from e
        if len(self.sent) == self.killed_after:
            raise Killed
        return dict(zip(NAMES, everything))


class Peers:
    """Four peers in threads, with a folder each below `base`."""

    def __init__(self, base: Path, **options: Any) -> None:
        self.base = base
        self.options = {**OPTIONS, **options}
        self.tables = base / "tables"
        if not self.tables.exists():
            write_tables(self.tables, NAMES)

    def peer(self, name: str, method: ct.PDLTC = METHOD) -> Peer:
        asked = RunSpec(
            method=method,
            data=TableOptions(label="outcome", seed=self.options["seed"]),
            options=Options(**self.options),
            model=MODEL,
        )
        return Peer(asked, name, self.tables / f"{name}.csv", self.base / name)

    def run(self, killed: dict[str, int] | None = None, **peers: Peer) -> dict[str, Any]:
        """What each peer came to: a run, or an error; killed: when birch is."""
        threads = Threads(len(NAMES))
        self.gathers = {name: ThreadGather(threads, rank) for rank, name in enumerate(NAMES)}
        vars(self.gathers["birch"]).update(killed or {})
        outcomes: dict[str, Any] = {}

        def live(name: str) -> None:
            with threads.working:
                try:
                    peer = peers.get(name) or self.peer(name)
                    waiting = WaitPolicy(deadline=60, quorum=1.0)
                    outcomes[name] = peer.train(self.gathers[name], waiting)
                except BaseException as e:
                    outcomes[name] = e
                    threads.abort()

        running = [threading.Thread(target=live, args=[name]) for name in NAMES]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(600)
        return outcomes

    def in_the_loop(self) -> Run:
        fed = ct.data.folder(str(self.tables), label="outcome", seed=self.options["seed"])
        run = prepare_run(METHOD, fed, MODEL, **self.options, engine="loop")
        for _ in run.rounds():
            pass
        return run


def own_state(name: str, run: Run) -> Any:
    """The private state that counts of a peer, from its file."""
    engine = run.engine
    site = engine.messenger.transport.site
    kept = site.session.folder.read_states(site.session.site.types)
    return kept.versions[engine.accepted[run.roster.names.index(name)]]


def same_as_the_loop(outcomes: dict[str, Any], loop: Run) -> None:
    states = private_states(loop)
    for i, name in enumerate(loop.roster.names):
        run = outcomes[name]
        assert isinstance(run, Run), run
        for mine, of_all in zip(tree_leaves(own_state(name, run)), tree_leaves(states)):
            assert torch.allclose(mine.double(), of_all[i].double(), rtol=1e-9, atol=1e-12)
        last = run.client_scores["accuracy"]
        assert last[i] == pytest.approx(loop.client_scores["accuracy"][i])
        assert [j for j in range(len(NAMES)) if last[j] == last[j]] == [i], "its own scores alone"


def test_peers_are_the_loop(tmp_path):
    peers = Peers(tmp_path)
    outcomes = peers.run()
    loop = peers.in_the_loop()
    same_as_the_loop(outcomes, loop)
    own = ct.load(next((tmp_path / "elm").glob("*/model"))).models["elm"]
    assert tree_leaves(own)[0].isfinite().all()
    start_of_all, _ = METHOD.start(loop.task, 4, 1)
    moved = private_states(loop).model
    assert all((moved[k][0] - v).abs().max() > 1e-3 for k, v in start_of_all.items())


EXCHANGES = 12  # cards, three of the handshake, the start, two in each of three rounds, the end
QUICK = (4, 9)  # where folders are made, and the end of the second round
ALL = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in range(1, 13)]


@pytest.mark.parametrize("when", ["killed_before", "killed_after"])
@pytest.mark.parametrize("number", ALL)
def test_after_a_kill_of_one_peer_all_go_on_from_their_own_files(number, when, tmp_path):
    """Where it is killed after the last exchange of a round, the others have finished the round."""
    peers = Peers(tmp_path)
    outcomes = peers.run({when: number})
    assert isinstance(outcomes.pop("birch"), Killed)
    if (number, when) != (EXCHANGES, "killed_after"):
        for outcome in outcomes.values():
            assert str(outcome) == "a peer no longer answers: start all again."
    loop = peers.in_the_loop()
    same_as_the_loop(peers.run(), loop)
    same_as_the_loop(peers.run(), loop)  # a run that has ended stays as it is


@pytest.mark.slow
def test_a_peer_may_be_killed_again_and_again(tmp_path):
    peers = Peers(tmp_path)
    for when in ("killed_before", "killed_after") * 4:
        outcomes = peers.run({when: 8})  # in the second round, then in the first one after it
        if not isinstance(outcomes["birch"], Killed):
            break
    same_as_the_loop(outcomes, peers.in_the_loop())


def test_only_momenta_leave_a_peer_after_the_handshake(tmp_path):
    peers = Peers(tmp_path)
    outcomes = peers.run()
    types = outcomes["ash"].engine.types
    for gather in peers.gathers.values():
        assert len(gather.sent) == EXCHANGES
        uploads = []
        for sent in gather.sent[5:]:
            head, pieces = msgspec.msgpack.decode(sent, type=tuple[bytes, dict[str, bytes]])
            assert b'"is":"done"' in head
            uploads += [decode(raw, types) for raw in pieces.values()]
        names = [sorted(upload.values) for upload, _ in uploads]
        assert names == [["momentum"], []] * 3
        assert all(not upload.report and not plain for upload, plain in uploads)


# ------------------------------------------------------------------------------ who cannot begin
def all_say(outcomes: dict[str, Any], sentence: str) -> None:
    for outcome in outcomes.values():
        assert isinstance(outcome, CoterieError), outcome
        assert re.search(sentence, str(outcome)) or "no longer answers" in str(outcome)
    assert any(re.search(sentence, str(outcome)) for outcome in outcomes.values()), outcomes


def test_peers_with_other_settings_are_named(tmp_path):
    peers = Peers(tmp_path)
    other = peers.peer("elm", ct.PDLTC(clusters=2, lr=0.2))
    all_say(peers.run(elm=other), "the configs of elm and ash differ in lr: give all peers the")
    assert not (tmp_path / "ash/run").exists()


def test_a_peer_with_the_certificate_of_another_is_refused(tmp_path):
    peers = Peers(tmp_path)
    sentence = "the peer cedar has the certificate of elm: call its file elm.pem"
    all_say(peers.run(elm=peers.peer("cedar")), sentence)


def test_a_peer_whose_table_does_not_fit_is_named_everywhere(tmp_path, caplog):
    peers = Peers(tmp_path)
    file = peers.tables / "cedar.csv"
    file.write_text(file.read_text().replace("outcome", "result", 1))
    all_say(
        peers.run(), r"cedar \(its table cannot be used for this run; see the log of the site\)"
    )
    assert "unknown label column of client 'cedar'" in caplog.text
    file.write_text(file.read_text().replace("result", "outcome", 1))
    same_as_the_loop(peers.run(), peers.in_the_loop())


def test_a_changed_config_or_folder_is_refused_after_the_start(tmp_path):
    peers = Peers(tmp_path)
    peers.run({"killed_before": 9})
    changed = Peers(tmp_path, rounds=5).peer("elm")
    sentence = "the config has changed since the run began: rounds was 3, and is 5: restore it"
    with pytest.raises(CoterieError, match=sentence):
        changed.describe()
    with pytest.raises(CoterieError, match="elm belongs to the peer elm, not to oak"):
        Peer(changed.spec, "oak", changed.site.table, tmp_path / "elm").describe()
    shutil.move(tmp_path / "elm", tmp_path / "lost")
    all_say(peers.run(), "elm has no files of the run that the other peers have")


def test_a_full_disk_of_one_peer_ends_the_round_on_all_and_is_mended(tmp_path, monkeypatch):
    peers = Peers(tmp_path)
    keep = SiteFolder.write_states

    def full(self, kept, types):
        if self.client == "cedar" and len(kept.versions) > 3:
            raise write_error(OSError(28, "No space left on device"), Path("states"))
        keep(self, kept, types)

    with monkeypatch.context() as patch:
        patch.setattr(SiteFolder, "write_states", full)
        all_say(peers.run(), "cedar cannot continue: it could not save its private state")
    same_as_the_loop(peers.run(), peers.in_the_loop())


def test_methods_with_a_server_are_refused(tmp_path):
    with pytest.raises(CoterieError, match="ifca has a server, and peers have none.*: pdl-tc"):
        Peers(tmp_path).peer("ash", ct.IFCA(clusters=2))
    with pytest.raises(CoterieError, match="stop_after needs the scores of all"):
        Peers(tmp_path, stop_after=2, valid=0.2).peer("ash")
