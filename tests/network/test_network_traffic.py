"""What travels between real nodes and a server: nothing of any row, and no text of an error."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from made_network import InProcessNetwork, write_tables

import coterie as ct
from coterie.core.errors import CoterieError
from coterie.network.certificates import SiteDirectory, make_authority, register_site
from coterie.network.connections import LOOPBACK, ServerCertificate, free_port
from coterie.network.https_node import ConnectionLost, ServerConnection, client_context
from coterie.network.https_server import HttpsServer
from coterie.network.local_table import LocalTable
from coterie.network.packets import Packet, Reply, read_head
from coterie.network.site import BUG
from machines import start, wait_for

TWO = ("ash", "elm")
SECRET = "the cell 4711 of row 12"


# ------------------------------------------------------------------------------ fixed words
def test_a_bug_at_a_site_is_told_in_fixed_words(tmp_path, monkeypatch, caplog):
    network = InProcessNetwork(tmp_path, ct.IFCA(clusters=2), names=TWO)
    network.begin()
    hello = next(p for n, p, _ in network.transport.traffic if b'"do":"hello"' in p.head)

    def broken(self, order):
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr(LocalTable, "describe", broken)
    reply = network.transport.sites["ash"].handle(hello)
    assert read_head(reply.head, Reply).body.reason == BUG
    assert SECRET.encode() not in reply.head and SECRET in caplog.text


def test_an_error_while_a_model_is_computed_is_told_by_its_kind_alone(tmp_path, monkeypatch):
    network = InProcessNetwork(tmp_path, ct.IFCA(clusters=2), names=TWO)
    run = network.begin()
    run.step()  # after which the server need not try the function itself

    def broken(*_, **__):
        raise ValueError(SECRET)

    monkeypatch.setattr("coterie.engines.evaluate.sum_over_samples", broken)
    run.step()
    with pytest.raises(CoterieError) as caught:  # as all sites have refused
        run.step()
    assert SECRET not in str(caught.value)
    replies = [reply for n, p, reply in network.transport.traffic if b'"do":"call"' in p.head]
    reasons = [getattr(read_head(r.head, Reply).body, "reason", "") for r in replies]
    assert any("(ValueError)" in reason for reason in reasons)
    assert not any(SECRET.encode() in reply.head for reply in replies)
    assert SECRET not in (network.out / "audit.jsonl").read_text()


def test_an_error_in_the_server_is_told_by_its_status_alone(tmp_path, monkeypatch, caplog):
    make_authority(tmp_path, LOOPBACK)
    register_site(tmp_path, "ash")

    def broken(self, fingerprint):
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr(SiteDirectory, "find", broken)
    with closing(HttpsServer(LOOPBACK, free_port(), tmp_path)) as server:
        context = client_context(tmp_path / "ash.pem")
        with pytest.raises(ConnectionLost, match=r"^the server answers with status 500$"):
            ServerConnection(f"{LOOPBACK}:{server.port}", context)
    assert SECRET in caplog.text


# ------------------------------------------------------------------------------ a whole run
class Recorder:
    """Stands between nodes and their server with the keys of both, and keeps all that passes."""

    def __init__(self, port: int, certs: Path) -> None:
        self.server = port
        self.certs = certs
        self.tls = ServerCertificate(certs / "server.pem").context
        self.bytes = {"up": bytearray(), "down": bytearray()}
        self.listener = socket.create_server((LOOPBACK, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                node = self.tls.wrap_socket(self.listener.accept()[0], server_side=True)
                name = dict(pair[0] for pair in node.getpeercert()["subject"])["commonName"]
                plain = socket.create_connection((LOOPBACK, self.server))
                context = client_context(self.certs / f"{name}.pem")
                server = context.wrap_socket(plain, server_hostname=LOOPBACK)
            except OSError:
                return
            for direction, ends in (("up", (node, server)), ("down", (server, node))):
                threading.Thread(target=self._pass, args=(direction, *ends), daemon=True).start()

    def _pass(self, direction: str, source: ssl.SSLSocket, target: ssl.SSLSocket) -> None:
        try:
            while piece := source.recv(1 << 16):
                self.bytes[direction] += piece
                target.sendall(piece)
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()


def forms_of(numbers: list[float]) -> list[bytes]:
    """Consecutive numbers of a row as a tensor of either precision would hold them."""
    return [struct.pack(f"<{len(numbers)}{kind}", *numbers) for kind in "fd"]


def test_the_search_finds_rows_where_they_are():
    row = [0.125, -3.5]
    for raw in (np.array([1.0, *row], "<f4").tobytes(), np.array([*row, 2.0], "<f8").tobytes()):
        assert any(form in raw for form in forms_of(row))


@pytest.mark.slow
@pytest.mark.network
def test_no_cell_of_any_row_is_in_the_traffic_of_a_run(tmp_path):
    """Bytes of rows, texts of cells, names of files."""
    tables = write_tables(tmp_path / "sites", TWO)
    (tmp_path / "net.toml").write_text(
        'method = "ditto"\nrounds = 3\nlabel = "outcome"\ndata = "folder:sites"\nmodel = "mlp:4"\n'
    )
    certs = tmp_path / "certs"
    make_authority(certs, LOOPBACK)
    for name in TWO:
        register_site(certs, name)
    port = free_port()
    recorder = Recorder(port, certs)
    server = start(
        tmp_path, "server", "net.toml", "--out", "run", "--host", "127.0.0.1", "--port", str(port),
        log="server.log",
    )  # fmt: skip
    wait_for(lambda: "listening" in (tmp_path / "server.log").read_text(), 120, "the server")
    nodes = [
        start(
            tmp_path, "node", "--data", f"sites/{name}.csv", "--state", f"states/{name}",
            "--server", f"127.0.0.1:{recorder.port}", "--key", f"certs/{name}.pem",
            "--label", "outcome", log=f"{name}.log",
        )
        for name in TWO
    ]  # fmt: skip
    try:
        assert server.wait(300) == 0, (tmp_path / "server.log").read_text()
    finally:
        for process in (server, *nodes):
            process.kill()
            process.wait()
        recorder.listener.close()
    up = bytes(recorder.bytes["up"])
    assert len(up) > 10_000 and b'"is":"description"' in up, "the recorder saw the run"
    for name in TWO:
        for line in (tables / f"{name}.csv").read_text().splitlines()[1:]:
            a, b, _, _ = line.split(",")
            assert a.encode() not in up and b.encode() not in up, "a cell as text"
            assert line.encode() not in up
            for form in forms_of([float(a), float(b)]):
                assert form not in up, "a row as numbers"
        (states,) = (tmp_path / "states" / name).glob("*/states")
        assert states.read_bytes()[40:] not in up, "a private state"
        assert str(tmp_path).encode() not in up, "a path of the site"
    heads = re.findall(rb'\{"protocol":\d,.{0,80}', up)
    assert heads and all(b'"body":' in head for head in heads)


def test_a_packet_that_is_no_packet_is_answered_in_fixed_words(tmp_path):
    network = InProcessNetwork(tmp_path, ct.IFCA(clusters=2), names=TWO)
    reply = network.site("ash").handle(Packet(f'{{"protocol":2,"x":"{SECRET}"}}'.encode(), {}))
    assert SECRET.encode() not in reply.head
