"""What people do wrong with a server and its nodes: one sentence and exit status 2 each."""

from __future__ import annotations

import importlib.util
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_network import InProcessNetwork, write_tables

import coterie as ct
from coterie.cli import main
from coterie.network import listening
from coterie.network.packets import Packet, Reply, read_head
from machines import wait_for

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="needs the extra `network`"
)
TWO = ("ash", "elm")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with two tables, and keys and certificates of two servers."""
    from coterie.network.certificates import make_authority, register_site

    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "sites", TWO)
    for folder in ("certs", "other"):
        make_authority(tmp_path / folder, "127.0.0.1")
        for name in TWO:
            register_site(tmp_path / folder, name)
    return tmp_path


@pytest.fixture
def served(place):
    """A server of two sites with TLS; its port."""
    from coterie.network.certificates import read_registry
    from coterie.network.flower_server import FlowerServer
    from coterie.network.simulation import free_port

    address = listening.Address(
        host="127.0.0.1",
        port=free_port(),
        certificate=place / "certs/server.crt",
        key=place / "certs/server.key",
    )
    server = FlowerServer(address, read_registry(place / "certs"))
    yield server, address.port
    server.close()


def sentence_of(capsys, *words: str) -> str:
    """The one sentence with which a node ends, and status 2."""
    assert main(["network", "node", "--data", "sites/ash.csv", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("coterie: ")
    return lines[-1]


# ------------------------------------------------------------------------------ strangers
def test_an_unknown_key_is_refused_and_both_sides_say_so(served, capsys, caplog):
    server, port = served
    words = ("--server", f"127.0.0.1:{port}", "--ca", "certs/ca.crt")
    said = sentence_of(capsys, *words, "--key", "other/ash.key")
    assert "the server does not accept this node's key: see to keys" in said
    assert "somebody at 127.0.0.1 was refused: a key that is not registered." in caplog.text
    assert server.refusals.counts == {listening.UNKNOWN_KEY: 1}
    assert "BEGIN PUBLIC KEY" not in caplog.text


def test_another_authority_is_not_trusted(served, capsys):
    _, port = served
    words = ("--server", f"127.0.0.1:{port}", "--key", "certs/ash.key")
    said = sentence_of(capsys, *words, "--ca", "other/ca.crt")
    assert "is not signed by the authority that this node trusts" in said
    said = sentence_of(capsys, *words, "--ca", "sites/ash.csv")
    assert "sites/ash.csv is not a certificate: give the server's ca.crt." in said


def test_a_server_under_another_name_is_not_trusted(served, capsys):
    _, port = served
    words = ("--server", f"localhost:{port}", "--key", "certs/ash.key", "--ca", "certs/ca.crt")
    assert "is for another host than the one that --server names" in sentence_of(capsys, *words)


def test_a_clock_that_is_off_is_named_on_both_sides(served, capsys, caplog, monkeypatch):
    """The node's clock is 100 seconds ahead: it signs with it, and compares with it."""
    import datetime

    from coterie.network import flower_node

    ahead = datetime.timedelta(seconds=100)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + ahead

    later = SimpleNamespace(datetime=Clock, UTC=datetime.UTC)
    monkeypatch.setattr(flower_node, "datetime", later)
    monkeypatch.setattr(flower_node, "now", lambda: Clock.now(datetime.UTC))
    _, port = served
    words = ("--server", f"127.0.0.1:{port}", "--key", "certs/ash.key", "--ca", "certs/ca.crt")
    said = sentence_of(capsys, *words)
    assert "the server refuses this node, whose clock is off by 10" in said
    assert "ash was refused: a clock that is off by 10" in caplog.text


@pytest.mark.parametrize("server", ["127.0.0.1", "https://host:8443", "host:port", ":8443", "h:0"])
def test_a_server_is_a_host_and_a_port(server, place, capsys):
    words = ("--server", server, "--key", "certs/ash.key", "--ca", "certs/ca.crt")
    assert "give its host and port" in sentence_of(capsys, *words)


# ------------------------------------------------------------------------------ tables and states
class Delivered(BaseException):
    """Ends a node when it has answered all packets of a test."""


@pytest.fixture
def ended_silently() -> list[bool]:
    """Of each node that has ended: whether it did so without a goodbye."""
    return []


@pytest.fixture
def delivers(monkeypatch, ended_silently):
    """Connects nodes to nobody, and delivers them these packets; the replies are in the list."""
    from coterie.network import flower_node
    from coterie.network.records import RecordEncoder

    def connect(packets: list[Packet]) -> list[Packet]:
        replies: list[Packet] = []

        class Connected:
            def __init__(self, *_) -> None:
                pass

            def receive(self):
                if not packets:
                    raise Delivered
                return SimpleNamespace(content=RecordEncoder().wrap(packets.pop(0)))

            def reply(self, message, packet, seconds) -> None:
                replies.append(packet)

            def close(self, *, silently: bool) -> None:
                ended_silently.append(silently)

        monkeypatch.setattr(flower_node, "NodeConnection", Connected)
        return replies

    return connect


def packets_for(network: InProcessNetwork, name: str, kind: bytes) -> list[Packet]:
    """What a site was sent, of a kind."""
    sent = network.transport.traffic
    return [packet for n, packet, _ in sent if n == name and b'"do":"' + kind in packet.head]


NODE = ("--server", "localhost:1", "--key", "certs/ash.key", "--ca", "certs/ca.crt")


def test_a_table_without_the_label_ends_its_node(place, capsys, delivers, ended_silently):
    network = InProcessNetwork(place / "made", ct.IFCA(clusters=2), names=TWO)
    network.begin()
    replies = delivers(packets_for(network, "ash", b"hello"))
    file = place / "sites/ash.csv"
    file.write_text(file.read_text().replace("outcome", "result", 1))
    said = sentence_of(capsys, *NODE)
    assert "unknown label column of client 'ash': 'outcome': there are: a, b, colour," in said
    told = read_head(replies[0].head, Reply).body.reason
    assert told == "its table cannot be used for this run; see the log of the site"
    assert ended_silently == [True]


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
    mine, theirs = (next((n.base / "states/ash").iterdir()) for n in runs)
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
def test_a_server_that_ends_holds_no_question_open(served, place):
    """Nodes' questions for messages are held open for ten seconds otherwise."""
    import httpx

    from coterie.network.flower_node import NodeConnection, read_authority, read_key

    server, port = served
    key, authority = read_key(place / "certs/ash.key"), read_authority(place / "certs/ca.crt")
    connection = NodeConnection(f"127.0.0.1:{port}", key, authority)
    messages: list[object] = []

    def ask() -> None:
        with suppress(httpx.TransportError):
            while True:  # as a node does
                messages.append(connection.receive())

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    wait_for(lambda: server.waiting, 10, "a node's question")
    server.close()
    assert not server.thread.is_alive()
    asking.join(5)
    assert messages and set(messages) == {None}
    connection.gone.set()


def test_a_node_whose_owner_leaves_tells_the_server_and_ends(
    place, capsys, delivers, ended_silently, monkeypatch
):
    from coterie.network import flower_node
    from coterie.network.participation import Participation

    network = InProcessNetwork(place / "made", ct.IFCA(clusters=2), names=TWO)
    network.begin()
    hello = packets_for(network, "ash", b"hello")
    replies = delivers([*hello, *hello, *hello])
    receive = flower_node.NodeConnection.receive

    def leaving(connection):
        if len(replies) == 1:
            Participation(Path("coterie-site")).leave()
        return receive(connection)

    monkeypatch.setattr(flower_node.NodeConnection, "receive", leaving)
    node = ["network", "node", "--data", str(network.tables / "ash.csv"), *NODE]
    assert main(node) == 0
    answers = [read_head(reply.head, Reply).body for reply in replies]
    assert [type(answer).__name__ for answer in answers] == ["SiteDescription", "NotParticipating"]
    assert answers[1].status == "left" and ended_silently == [True]
    capsys.readouterr()
    assert main(node) == 0
    assert "the site in coterie-site has left" in capsys.readouterr().out
    assert len(replies) == 2
