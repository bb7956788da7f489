"""What people do wrong with a server and its nodes: one sentence and exit status 2 each."""

from __future__ import annotations

import datetime
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_network import InProcessNetwork, write_tables

import coterie as ct
from coterie.cli import main
from coterie.network import https_node
from coterie.network.certificates import make_authority, register_site, revoke
from coterie.network.connections import LOOPBACK, free_port
from coterie.network.https_server import HttpsServer
from coterie.network.packets import Packet, Reply, read_head

TWO = ("ash", "elm")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with two tables, and keys and certificates of two servers."""
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "sites", TWO)
    for folder in ("certs", "other"):
        make_authority(tmp_path / folder, "127.0.0.1")
        for name in TWO:
            register_site(tmp_path / folder, name)
    return tmp_path


@pytest.fixture
def served(place):
    """A server of two sites."""
    with closing(HttpsServer(LOOPBACK, free_port(), place / "certs")) as server:
        yield server


def sentence_of(capsys, *words: str) -> str:
    """The one sentence with which a node ends, and status 2."""
    assert main(["network", "node", "--data", "sites/ash.csv", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("coterie: ")
    return lines[-1]


# ------------------------------------------------------------------------------ strangers
def test_a_certificate_of_another_network_is_one_sentence(served, capsys):
    words = ("--server", f"127.0.0.1:{served.port}", "--key", "other/ash.pem")
    assert "is not signed by the authority that this site accepts" in sentence_of(capsys, *words)


def test_a_revoked_certificate_is_one_sentence_on_both_sides(served, capsys, caplog):
    revoke(served.sites.certs, "ash")
    words = ("--server", f"127.0.0.1:{served.port}", "--key", "certs/ash.pem")
    said = sentence_of(capsys, *words)
    assert "the server does not accept this site's certificate: check the cert" in said
    assert "somebody at 127.0.0.1 was refused: a certificate that is not reg" in caplog.text


def test_a_server_under_another_name_is_not_trusted(served, capsys):
    words = ("--server", f"localhost:{served.port}", "--key", "certs/ash.pem")
    assert "is for another host than the one in --server" in sentence_of(capsys, *words)


@pytest.mark.parametrize("days", [-800, 800])
def test_a_clock_that_is_wrong_is_one_sentence(days, served, capsys, monkeypatch):
    """Certificates are compared with the clock of this machine."""
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    parse = datetime.datetime.fromisoformat
    clock = SimpleNamespace(now=lambda tz: now, fromisoformat=parse)
    module = SimpleNamespace(datetime=clock, UTC=datetime.UTC)
    monkeypatch.setattr("coterie.network.https_node.datetime", module)
    words = ("--server", f"127.0.0.1:{served.port}", "--key", "certs/ash.pem")
    said = sentence_of(capsys, *words)
    assert f"and the clock of this machine says {now:%Y-%m-%d}: set the clock, or" in said


@pytest.mark.parametrize("server", ["127.0.0.1", "https://host:8443", "host:port", ":8443", "h:0"])
def test_a_server_is_a_host_and_a_port(server, place, capsys):
    words = ("--server", server, "--key", "certs/ash.pem")
    assert "give its host and port" in sentence_of(capsys, *words)


# ------------------------------------------------------------------------------ tables and states
class Delivered(BaseException):
    """Ends a node when it has answered all packets of a test."""


@pytest.fixture
def delivers(monkeypatch):
    """Connects nodes to nobody, and delivers them these packets; the replies are in the list."""

    def connect(packets: list[Packet]) -> list[Packet]:
        replies: list[Packet] = []

        class Connected:
            def __init__(self, *_) -> None:
                pass

            def receive(self):
                if not packets:
                    raise Delivered
                return https_node.NumberedRequest("1", packets.pop(0))

            def reply(self, number, packet) -> bool:
                replies.append(packet)
                return True

            def close(self) -> None:
                pass

        monkeypatch.setattr(https_node, "ServerConnection", Connected)
        return replies

    return connect


def packets_for(network: InProcessNetwork, name: str, kind: bytes) -> list[Packet]:
    """What a site was sent, of a kind."""
    sent = network.transport.traffic
    return [packet for n, packet, _ in sent if n == name and b'"do":"' + kind in packet.head]


# as the sites in process
NODE = ("--server", "localhost:1", "--key", "certs/ash.pem", "--exact", "1")


def test_a_table_without_the_label_ends_its_node(place, capsys, delivers):
    network = InProcessNetwork(place / "made", ct.IFCA(clusters=2), names=TWO)
    network.begin()
    replies = delivers(packets_for(network, "ash", b"hello"))
    file = place / "sites/ash.csv"
    file.write_text(file.read_text().replace("outcome", "result", 1))
    said = sentence_of(capsys, *NODE)
    assert "unknown label column of client 'ash': 'outcome': there are: a, b, colour," in said
    told = read_head(replies[0].head, Reply).body.reason
    assert told == "its table cannot be used for this run; see the log of the site"


def test_a_table_that_was_mended_is_read_again(place):
    """Its node need not be started anew."""
    network = InProcessNetwork(place / "made", ct.IFCA(clusters=2), names=TWO)
    network.begin()
    file = network.tables / "ash.csv"
    file.write_text(file.read_text().replace("colour", "shade", 1))
    (hello,) = packets_for(network, "ash", b"hello")
    answer = read_head(network.transport.sites["ash"].handle(hello).head, Reply).body
    assert set(answer.description["columns"]) == {"a", "b", "shade"}


@pytest.mark.parametrize("file", ["terms.json", "states"])
def test_files_of_another_experiment_end_the_node(file, place, capsys, delivers):
    method = ct.Ditto(local_steps=2)
    runs = [InProcessNetwork(place / base, method, names=TWO) for base in ("first", "second")]
    for network in runs:
        network.run()
    mine, theirs = (next((n.base / "states/ash").glob("*-run-*")) for n in runs)
    (mine / file).write_bytes((theirs / file).read_bytes())
    replies = delivers(packets_for(runs[0], "ash", b"call")[-1:])
    said = sentence_of(capsys, *NODE, "--state", "first/states/ash")
    experiment = theirs.name.removeprefix("ash-run-")
    assert f"belongs to the client 'ash' in the experiment {experiment}, not to" in said
    assert "give each site its own state folder" in said
    told = read_head(replies[0].head, Reply).body.reason
    assert told == "its files of this run cannot be used; see the log of the site"


def test_a_full_disk_does_not_end_a_node(place, capsys, delivers, monkeypatch):
    """It is absent from this exchange, and takes part when there is room again."""
    from coterie.network import site as site_module
    from coterie.runs.files import write_error

    network = InProcessNetwork(place / "made", ct.Ditto(local_steps=2), names=TWO)
    network.run()
    asked = [packets_for(network, "ash", kind)[0] for kind in (b"agree", b"call")]

    def full(self, kept, types):
        raise write_error(OSError(28, "No space left on device"), Path("states"))

    monkeypatch.setattr(site_module.SiteFolder, "write_states", full)
    replies = delivers(asked)
    with pytest.raises(Delivered):
        main(["network", "node", "--data", str(network.tables / "ash.csv"), *NODE])
    assert read_head(replies[1].head, Reply).body.reason == site_module.NOT_SAVED


# ------------------------------------------------------------------------------ leaving
def test_a_node_whose_owner_leaves_tells_the_server_and_ends(place, capsys, delivers, monkeypatch):
    from coterie.network.owner import Participation

    network = InProcessNetwork(place / "made", ct.IFCA(clusters=2), names=TWO)
    network.begin()
    hello = packets_for(network, "ash", b"hello")
    replies = delivers([*hello, *hello, *hello])
    receive = https_node.ServerConnection.receive

    def leaving(connection):
        if len(replies) == 1:
            Participation(Path("coterie-site")).leave()
        return receive(connection)

    monkeypatch.setattr(https_node.ServerConnection, "receive", leaving)
    node = ["network", "node", "--data", str(network.tables / "ash.csv"), *NODE]
    assert main(node) == 0
    answers = [read_head(reply.head, Reply).body for reply in replies]
    assert [type(answer).__name__ for answer in answers] == ["SiteDescription", "NotParticipating"]
    assert answers[1].status == "left"
    capsys.readouterr()
    assert main(node) == 0
    assert "the site in coterie-site has left" in capsys.readouterr().out
    assert len(replies) == 2
