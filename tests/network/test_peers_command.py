"""Who is gone among peers, and `coterie network peers` on the command line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.network.peers import group, rendezvous
from coterie.network.peers.rendezvous import Rendezvous
from coterie.network.ports import free_port
from machines import environment, write_tables


# ------------------------------------------------------------------------------ who is gone
class DictStore:
    """A store in this process; `living` ranks give another sign whenever somebody looks."""

    def __init__(self, exchanges: dict[int, int], living: set[int]) -> None:
        self.words = {f"heartbeat/{r}": f"[1, {exchange}]" for r, exchange in exchanges.items()}
        self.living = living

    def check(self, keys):
        return all(key in self.words for key in keys)

    def get(self, key):
        beat, exchange = (
            json.loads(self.words[key]) if key.startswith("heartbeat") else (None, None)
        )
        if beat is None:
            return self.words[key].encode()
        if int(key.removeprefix("heartbeat/")) in self.living:
            beat += 1
        self.words[key] = json.dumps([beat, exchange])
        return self.words[key].encode()

    def set(self, key, value):
        self.words[key] = value

    def compare_set(self, key, expected, value):
        self.words.setdefault(key, value)


@pytest.mark.parametrize(
    "exchanges, living, verdict",
    [
        ({0: 5, 1: 5, 2: 4, 3: 5}, {0, 1, 3}, ([2], [])),
        ({0: 5, 1: 5, 2: 4, 3: 5}, {0, 1, 2, 3}, ([], [2])),
        ({0: 5, 1: 5, 3: 5}, {0, 1, 3}, ([2], [])),
        ({0: 5, 1: 5, 2: 5, 3: 5}, {0, 1, 2, 3}, ([], [])),
    ],
)
def test_who_is_gone_is_told_from_who_is_slow(exchanges, living, verdict, monkeypatch):
    monkeypatch.setattr(group, "OBSERVATION", 0.0)
    place = Rendezvous(rank=1, world=4, host="127.0.0.1", port=1)
    store = DictStore(exchanges, living)
    assert group.agree_on_diagnosis(store, place, 5) == group.Diagnosis(*verdict)
    store.living = {1}
    assert group.agree_on_diagnosis(store, place, 5) == group.Diagnosis(*verdict), (
        "the first one counts"
    )


# ------------------------------------------------------------------------------ the command
PEER = "--data tables/ash.csv --rank 0 --world 2 --master 127.0.0.1:29500"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "tables", ("ash", "birch", "cedar", "elm"))
    return tmp_path


def write_config(place: Path, method: str) -> None:
    config = f'method = "{method}"\nclusters = 2\ndata = "folder:tables"\nlabel = "outcome"\n'
    (place / "net.toml").write_text(config)


def says(flags: str, capsys) -> str:
    """The one sentence with which the command ends."""
    assert main(["network", "peers", "net.toml", *flags.split()]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "waiting for" not in line]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    "method, flags, sentence",
    [
        ("pdl-tc", "", "a peer needs --data, --rank, --world, --master: or start all on this"),
        ("pdl-tc", "--rank 0 --world 2 --data x.csv", "a peer needs --master"),
        ("pdl-tc", PEER.replace(":29500", ""), "--master is '127.0.0.1': write HOST:PORT"),
        ("pdl-tc", PEER.replace("29500", "99999"), "--master is '127.0.0.1:99999'"),
        ("pdl-tc", PEER.replace("rank 0", "rank 2"), "the rank is 2: with 2 peers it must lie"),
        ("pdl-tc", PEER.replace("ash", "yew"), "there is no file tables/yew.csv"),
        ("pdl-tc", "--local 9", "{place}/tables has 4 files for 9 peers: ask for fewer"),
        ("ifca", PEER, "ifca has a server, and peers have none"),
        ("ifca", "--local 2", "ifca has a server, and peers have none"),
    ],
)
def test_mistakes_are_one_sentence(method, flags, sentence, place, capsys):
    write_config(place, method)
    assert says(flags, capsys).startswith(f"coterie: {sentence.format(place=place)}")


def test_a_port_in_use_is_one_sentence(place, capsys, monkeypatch):
    monkeypatch.setattr(rendezvous, "LEFTOVER", 0.0)
    write_config(place, "pdl-tc")
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        master = f"127.0.0.1:{taken.getsockname()[1]}"
        sentence = says(PEER.replace("127.0.0.1:29500", master), capsys)
    assert sentence.startswith(f"coterie: rank 0 cannot listen on {master}: give an address of")


def test_a_peer_whom_nobody_meets_gives_up(place, capsys):
    write_config(place, "pdl-tc")
    master = f"127.0.0.1:{free_port()}"
    alone = PEER.replace("127.0.0.1:29500", master) + " --wait 1"
    assert says(alone, capsys).startswith(
        "coterie: the peer of rank 1 did not connect within 1 sec"
    )
    other = alone.replace("rank 0", "rank 1")
    assert says(other, capsys).startswith(f"coterie: nobody listens at {master}: start the peer")


ABORTING = """
import atexit, os, sys
from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.network.peers import group

class Broken:
    def __init__(self, place):
        atexit.register(os.abort)  # as threads of gloo may do
        raise CoterieError("cedar no longer answers", "start it again")

group.PeerGroup = Broken
sys.argv = ["coterie", *sys.argv[1:]]
sys.exit(main())
"""


def test_a_peer_ends_with_its_sentence_whatever_threads_do_in_the_end(place):
    write_config(place, "pdl-tc")
    ended = subprocess.run(
        [sys.executable, "-c", ABORTING, "network", "peers", "net.toml", *PEER.split()],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.splitlines()[-1] == "coterie: cedar no longer answers: start it again."
