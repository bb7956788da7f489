"""`coterie network peers` on the command line, and peers that do not find each other."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.core.errors import CoterieError
from coterie.network.certificates import make_authority, register_site
from coterie.network.connections import LOOPBACK, free_port
from coterie.network.https_server import HttpsServer
from coterie.network.peer_group import FirstPeer, OtherPeer
from machines import write_tables

PEER = "--data tables/ash.csv --key certs/ash.pem --first 127.0.0.1:29500"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "tables", ("ash", "birch", "cedar", "elm"))
    make_authority(tmp_path / "certs", LOOPBACK)
    for name in ("ash", "birch", "cedar"):
        register_site(tmp_path / "certs", name)
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
        ("pdl-tc", "", "a peer needs --data, --key, --first: or start all on this machine"),
        ("pdl-tc", "--data x.csv --key y.pem", "a peer needs --first"),
        ("pdl-tc", PEER.replace(":29500", ""), "the server is '127.0.0.1': give its host and port"),
        ("pdl-tc", PEER.replace("29500", "99999"), "the server is '127.0.0.1:99999'"),
        ("pdl-tc", PEER.replace("ash.csv", "yew.csv"), "there is no file tables/yew.csv"),
        ("pdl-tc", PEER.replace("ash.pem", "yew.pem"), "there is no file certs/yew.pem"),
        ("pdl-tc", f"{PEER} --certs nowhere", "nowhere/sites.json cannot be read"),
        ("pdl-tc", "--local 9", "{place}/tables has 4 files for 9 peers: ask for fewer"),
        ("ifca", PEER, "ifca has a server, and peers have none"),
        ("ifca", "--local 2", "ifca has a server, and peers have none"),
    ],
)
def test_mistakes_are_one_sentence(method, flags, sentence, place, capsys):
    write_config(place, method)
    assert says(flags, capsys).startswith(f"coterie: {sentence.format(place=place)}")


def test_a_port_in_use_is_one_sentence(place, capsys):
    write_config(place, "pdl-tc")
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        address = f"{LOOPBACK}:{taken.getsockname()[1]}"
        sentence = says(f"{PEER.replace('127.0.0.1:29500', address)} --certs certs", capsys)
    assert sentence.startswith(f"coterie: the first peer cannot listen on {address} (")
    assert sentence.endswith(": give --first an address and a free port of this machine.")


def test_a_peer_that_finds_no_other_gives_up(place, capsys):
    write_config(place, "pdl-tc")
    address = f"{LOOPBACK}:{free_port()}"
    alone = PEER.replace("127.0.0.1:29500", address) + " --wait 1"
    sentence = says(f"{alone} --certs certs", capsys)
    assert sentence == "coterie: birch, cedar did not connect within 1 seconds: start all peers."
    assert says(alone, capsys).startswith(
        f"coterie: the first peer at {address} cannot be joined (the server cannot be reached): "
    )


# ------------------------------------------------------------------------------ the group
class Group:
    """The first peer ash and its others, in threads; each gathers its own name."""

    def __init__(self, place: Path, deadline: float = 60) -> None:
        self.place = place
        self.server = HttpsServer(LOOPBACK, free_port(), place / "certs")
        self.deadline = deadline
        self.outcomes: dict[str, list] = {}

    def other(self, name: str) -> OtherPeer:
        address = f"{LOOPBACK}:{self.server.port}"
        return OtherPeer(address, self.place / f"certs/{name}.pem", wait=30)

    def take_part(self, name: str, exchanges: int) -> None:
        self.outcomes[name] = []
        if name == "ash":
            group = FirstPeer("ash", self.server, 30, self.deadline)
        else:
            group = self.other(name)
        try:
            for number in range(exchanges):
                self.outcomes[name].append(group.all_gather(f"{name}{number}".encode()))
            if exchanges == 3:
                group.leave()
        except CoterieError as e:
            self.outcomes[name].append(str(e))
        group.close()

    def run(self, **exchanges: int) -> dict[str, list]:
        threads = [threading.Thread(target=self.take_part, args=i) for i in exchanges.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return self.outcomes


def test_all_peers_gather_the_same_bytes(place):
    outcomes = Group(place).run(ash=3, birch=3, cedar=3)
    expected = [{n: f"{n}{i}".encode() for n in ("ash", "birch", "cedar")} for i in range(3)]
    assert outcomes == {"ash": expected, "birch": expected, "cedar": expected}


@pytest.mark.parametrize("gone", ["ash", "birch"])
def test_all_peers_name_the_one_that_ends_first(gone, place):
    outcomes = Group(place).run(**{"ash": 3, "birch": 3, "cedar": 3, gone: 1})
    sentence = (
        f"{gone} no longer answers: start all peers again: each continues from its own files."
    )
    for name, outcome in outcomes.items():
        assert len(outcome) == 1 if name == gone else outcome[-1] == sentence


def test_a_slow_peer_is_named_after_the_deadline(place):
    group = Group(place, deadline=0.5)
    stuck = threading.Thread(target=lambda: setattr(group, "stuck", group.other("birch")))
    stuck.start()
    outcomes = group.run(ash=1, cedar=1)
    stuck.join()
    group.stuck.close()
    sentence = "birch did not answer within 0.5 seconds: start all peers again: each continues "
    assert outcomes["ash"] == outcomes["cedar"] == [sentence + "from its own files."]


def test_a_first_peer_without_a_certificate_is_refused(place):
    group = Group(place)
    with pytest.raises(CoterieError, match="the peer yew has no certificate in this network"):
        FirstPeer("yew", group.server, 1, 1)
    group.server.close()
