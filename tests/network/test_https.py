"""The HTTPS transport over real sockets: what works, and attacks of strangers and of sites."""

from __future__ import annotations

import http.client
import logging
import re
import socket
import ssl
import threading
import time
from contextlib import closing, suppress

import pytest

from coterie.core.errors import CoterieError
from coterie.network import connections, https_server
from coterie.network.certificates import (
    AUTHORITY,
    as_pem,
    issue,
    make_authority,
    read_issuer,
    register_site,
    renew,
    revoke,
)
from coterie.network.connections import LOOPBACK, Refusals, free_port
from coterie.network.https_node import (
    ConnectionLost,
    HttpsNode,
    NodeRefused,
    ServerConnection,
    client_context,
)
from coterie.network.https_server import HttpsServer
from coterie.network.packets import Packet
from machines import wait_for

HELLO = Packet(b"a request", {"shared": b"x" * 1000, "own": b""})
ANSWER = Packet(b"a reply", {"upload": b"y" * 2000})


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """Certificates of a network with two sites; tests that change them make their own."""
    return make_certs(tmp_path_factory.mktemp("certs"))


def make_certs(folder):
    make_authority(folder, LOOPBACK)
    for name in ("ash", "elm"):
        register_site(folder, name)
    return folder


@pytest.fixture
def server(certs):
    with closing(HttpsServer(LOOPBACK, free_port(), certs)) as server:
        yield server


@pytest.fixture
def own_server(tmp_path):
    """A server whose certificates a test may change."""
    certs = make_certs(tmp_path / "certs")
    with closing(HttpsServer(LOOPBACK, free_port(), certs)) as server:
        yield server


def address(server: HttpsServer) -> str:
    return f"{LOOPBACK}:{server.port}"


def connect(server: HttpsServer, name: str = "ash") -> ServerConnection:
    certs = server.sites.certs
    return ServerConnection(address(server), client_context(certs / f"{name}.pem"))


def raw_connection(server: HttpsServer, name: str = "ash") -> ssl.SSLSocket:
    context = client_context(server.sites.certs / f"{name}.pem")
    plain = socket.create_connection((LOOPBACK, server.port), 10)
    return context.wrap_socket(plain, server_hostname=LOOPBACK)


def exchange(server: HttpsServer, site: ServerConnection, name: str = "ash") -> None:
    """A request reaches the site, and its reply the server."""
    server.send({name: HELLO})
    request = site.receive()
    assert request.packet == HELLO
    assert site.reply(request.number, ANSWER)
    assert server.receive(5) == [(name, ANSWER)]


# ------------------------------------------------------------------------------ what works
def test_a_request_and_its_reply(server):
    assert server.names == ["ash", "elm"] and server.connections() == {}
    ash, elm = connect(server), connect(server, "elm")
    assert server.connections() == {"ash": 1, "elm": 1}
    for _ in range(3):
        exchange(server, elm, "elm")
        exchange(server, ash)
    assert server.receive(0.01) == []
    assert not server.refusals.counts


def test_a_request_that_was_not_answered_is_delivered_again(server):
    """The node lost its connection after it got the request; the request is not lost."""
    first = connect(server)
    server.send({"ash": HELLO})
    assert first.receive().packet == HELLO
    first.close()
    second = connect(server)
    assert server.connections() == {"ash": 2}
    request = second.receive()
    assert second.reply(request.number, ANSWER) and server.receive(5) == [("ash", ANSWER)]


def test_a_closed_connection_is_noticed_at_once_even_while_the_site_computes(server):
    site = connect(server)
    server.send({"ash": HELLO})
    site.receive()
    assert server.connections() == {"ash": 1}
    site.close()
    wait_for(lambda: not server.connections(), 2, "the end of the connection")


def test_a_new_node_of_a_site_ends_the_session_of_the_old_one(server):
    old, new = connect(server), connect(server)
    with pytest.raises(ConnectionLost, match="another node"):
        old.receive()
    exchange(server, new)


def test_a_server_that_ends_does_not_wait_for_sites(certs):
    server = HttpsServer(LOOPBACK, free_port(), certs)
    site = connect(server)
    answers = []

    def poll() -> None:
        with suppress(OSError, http.client.HTTPException, ConnectionLost):
            while True:
                answers.append(site.receive())

    waiting = threading.Thread(target=poll)
    waiting.start()
    time.sleep(0.2)
    begin = time.monotonic()
    server.close()
    waiting.join(5)
    assert time.monotonic() - begin < 5 and not waiting.is_alive() and set(answers) <= {None}


def test_a_port_in_use_is_one_sentence(server, certs):
    with pytest.raises(CoterieError, match=r"cannot listen on .* \(Address already in use\)"):
        HttpsServer(LOOPBACK, server.port, certs)


# ------------------------------------------------------------------------------ certificates
def refused(server: HttpsServer, pem: bytes, tmp_path) -> str:
    """Connect with a file; return why the node is refused."""
    file = tmp_path / "site.pem"
    file.write_bytes(pem)
    node = HttpsNode.__new__(HttpsNode)  # no site: it never gets a request
    node.context, node.server, node.connection = client_context(file), address(server), None
    node.site = type("Nobody", (), {"client": "ash"})()
    with pytest.raises(CoterieError) as caught:
        node.run()
    return str(caught.value)


def test_a_certificate_of_another_network_is_refused_by_both_sides(server, tmp_path, caplog):
    other = make_certs(tmp_path / "other")
    said = refused(server, (other / "ash.pem").read_bytes(), tmp_path)
    assert "the server's certificate is not signed by the authority that this site accepts" in said
    # a stranger who trusts this server, with a certificate of its own authority
    authority = (server.sites.certs / "ash.pem").read_bytes()
    trusting = (other / "ash.pem").read_bytes() + authority[authority.rindex(b"-----BEGIN CERT") :]
    (tmp_path / "site.pem").write_bytes(trusting)
    with pytest.raises(ConnectionLost, match="the server closed the connection at once"):
        ServerConnection(address(server), client_context(tmp_path / "site.pem"))
    assert re.search(r"somebody at 127.0.0.1 was refused: .*certificate", caplog.text)
    assert server.connections() == {}


def test_a_certificate_of_the_authority_that_is_not_registered_is_refused(server, tmp_path, caplog):
    """To be signed is not enough."""
    authority = read_issuer(server.sites.certs / AUTHORITY)
    said = refused(server, as_pem(issue("ash", authority), authority), tmp_path)
    assert "the server does not accept this site's certificate" in said
    assert "somebody at 127.0.0.1 was refused: a certificate that is not registered" in caplog.text


def test_an_expired_certificate_is_refused_by_both_sides(server, tmp_path, caplog):
    authority = read_issuer(server.sites.certs / AUTHORITY)
    expired = tmp_path / "ash.pem"
    expired.write_bytes(as_pem(issue("ash", authority, days=0), authority))
    time.sleep(1.1)
    with pytest.raises(
        CoterieError, match=r"is valid from .* to .*, and the clock of this machine"
    ):
        client_context(expired)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # of a node without that check
    context.load_verify_locations(expired)
    context.load_cert_chain(expired)
    with pytest.raises((OSError, ConnectionLost)):
        ServerConnection(address(server), context)
    wait_for(lambda: "certificate has expired" in caplog.text, 5, "the server's reason")


def test_a_client_without_certificate_is_refused_before_it_can_send_a_byte(server):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(server.sites.certs / "ash.pem")
    with pytest.raises((OSError, ConnectionLost)):
        ServerConnection(address(server), context)
    assert server.connections() == {}


def test_renewal_and_revocation_take_effect_while_the_server_runs(own_server, caplog):
    server, certs = own_server, own_server.sites.certs
    old = connect(server)
    exchange(server, old)
    renew(certs, "ash")
    exchange(server, old)  # the earlier certificate is valid until the new one is used
    new = connect(server)
    exchange(server, new)
    wait_for(lambda: old.http.sock is None or is_closed(old), 5, "the end of the earlier one")
    revoke(certs, "ash")
    wait_for(lambda: not server.connections(), 5, "the end of the connection")
    with pytest.raises((NodeRefused, OSError)):
        connect(server)
    assert "ash was refused: a certificate that is not registered or is revoked" in caplog.text
    renew(certs, "ash")
    exchange(server, connect(server))
    register_site(certs, "fir")
    connect(server, "fir")
    assert "fir" in server.connections()


def test_a_renewed_certificate_replaces_the_earlier_one_for_good(own_server, tmp_path):
    """Also if the list of sites changes while the site is away."""
    server, certs = own_server, own_server.sites.certs
    stolen = tmp_path / "stolen.pem"
    stolen.write_bytes((certs / "ash.pem").read_bytes())
    renew(certs, "ash")
    connect(server).close()
    wait_for(lambda: not server.connections(), 5, "the end of the connection")
    register_site(certs, "fir")
    wait_for(lambda: "fir" in server.names, 5, "the new site")
    with pytest.raises(NodeRefused):
        ServerConnection(address(server), client_context(stolen))


def is_closed(site: ServerConnection) -> bool:
    try:
        site.receive()
    except (OSError, ConnectionLost, NodeRefused, http.client.HTTPException):
        return True
    return False


def test_the_server_uses_its_renewed_certificate_without_a_restart(own_server):
    def serial() -> bytes:
        with raw_connection(own_server) as secure:
            return secure.getpeercert(binary_form=True)

    before = serial()
    renew(own_server.sites.certs, "server")
    wait_for(lambda: serial() != before, 5, "the renewed certificate")


def test_files_of_version_0_2_are_one_sentence(tmp_path):
    (tmp_path / "ash.key").write_text(
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    )
    with pytest.raises(CoterieError, match=r"is a key of version 0\.2, without a certificate"):
        client_context(tmp_path / "ash.key")
    (tmp_path / "sites.json").write_text('{"ash": "-----BEGIN PUBLIC KEY-----"}')
    with pytest.raises(CoterieError, match=r"has keys of version 0\.2"):
        HttpsServer(LOOPBACK, free_port(), tmp_path)


def test_private_files_are_private(certs):
    for file in certs.glob("*.pem"):
        assert file.stat().st_mode & 0o777 == 0o600, file


# ------------------------------------------------------------------------------ attacks of a site
def status_of(site: ServerConnection, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    site.http.request("POST", path, body, headers)
    response = site.http.getresponse()
    response.read()
    return response.status


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"\xff" * 100, b"\0\0\0\2[]", b'\0\0\0\x0c[["head",9]]x', b"\0\0\0\4null"],
)
def test_a_malformed_reply_is_named_and_ends_nothing(body, server):
    site = connect(server)
    server.send({"ash": HELLO})
    number = site.receive().number
    assert status_of(site, "/reply", {"Coterie-Request": number}, body) == 200
    assert server.receive(5) == [("ash", Packet(b"", {}))], "which the messenger cannot read"
    exchange(server, site)


def test_only_the_reply_to_the_open_request_of_that_certificate_is_taken(server, caplog):
    ash, elm = connect(server), connect(server, "elm")
    with pytest.raises(OSError):  # nobody asked
        status_of(ash, "/reply", {"Coterie-Request": "1"}, b"x")
    ash = connect(server)
    server.send({"elm": HELLO})
    number = elm.receive().number
    with pytest.raises(OSError):  # another was asked
        status_of(ash, "/reply", {"Coterie-Request": number}, b"x")
    assert elm.reply(number, ANSWER) and server.receive(5) == [("elm", ANSWER)]
    assert not elm.reply(number, ANSWER), "a second time"
    assert server.receive(0.05) == []
    assert "ash was refused: a reply to no open request" in caplog.text
    assert "elm" in server.connections()


def test_an_unrequested_reply_of_600_megabytes_is_not_read(server):
    with raw_connection(server) as site:
        head = "POST /reply HTTP/1.1\r\nHost: x\r\nCoterie-Request: 7\r\n"
        site.sendall(f"{head}Content-Length: 600000000\r\n\r\n".encode())
        sent = 0
        with suppress(OSError):
            while sent < 50_000_000:
                sent += site.send(b"x" * 65536)
        assert sent < 50_000_000, "the connection was closed"


def test_a_reply_that_is_too_long_or_of_unknown_length_is_not_read(certs, caplog):
    with closing(HttpsServer(LOOPBACK, free_port(), certs, max_reply=1000)) as server:
        site = connect(server)
        server.send({"ash": HELLO})
        number = site.receive().number
        with pytest.raises(OSError):
            status_of(site, "/reply", {"Coterie-Request": number}, b"x" * 1001)
        with raw_connection(server) as site:
            head = f"POST /reply HTTP/1.1\r\nHost: x\r\nCoterie-Request: {number}\r\n"
            site.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            with suppress(OSError):
                assert site.recv(1000) == b""
    assert server.refusals.counts == {https_server.TOO_LONG: 2}


@pytest.mark.parametrize(
    "header", ["X: " + "y" * 10_000, "\r\n".join(f"X{i}: y" for i in range(500))]
)
def test_long_headers_end_the_connection(header, server):
    with raw_connection(server) as site:
        site.sendall(f"GET /request HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
        assert b" 400 " in site.recv(1000)
    exchange(server, connect(server))


def test_headers_without_end_are_cut_off(server):
    """300 MB of headers on one connection were accepted."""
    sent = 0
    with raw_connection(server) as site:
        site.sendall(b"GET /request HTTP/1.1\r\nHost: x\r\n")
        with suppress(OSError):
            while sent < 20_000_000:
                sent += site.send(b"X-Header: " + b"y" * 4000 + b"\r\n")
    assert sent < 20_000_000
    exchange(server, connect(server))


@pytest.mark.parametrize("path", ["/", "/docs", "/v1/fleet/pull-messages", "/../server.pem"])
def test_there_are_three_routes_and_no_more(path, server):
    site = connect(server)
    assert status_of(site, path, {}) in (400, 404)


def test_a_site_has_few_connections_and_its_newest_counts(server):
    sites = [connect(server) for _ in range(connections.MAX_PER_SITE + 3)]
    wait_for(
        lambda: len(server._links["ash"].connections) == connections.MAX_PER_SITE, 5, "the limit"
    )
    exchange(server, sites[-1])


def test_a_site_that_hangs_up_while_it_gets_a_request_leaves_no_traceback(server, caplog):
    for _ in range(3):
        connect(server).close()
        server.send({"ash": HELLO._replace(pieces={"shared": bytes(30_000_000)})})
        session = str(server._links["ash"].session)
        with raw_connection(server) as site:
            head = f"GET /request HTTP/1.1\r\nHost: x\r\nCoterie-Session: {session}\r\n\r\n"
            site.sendall(head.encode())
            assert b" 200 " in site.recv(1000)
    time.sleep(0.3)
    assert not [r.getMessage() for r in caplog.records if r.exc_info]
    exchange(server, connect(server))


def test_a_site_that_begins_sessions_without_end_is_refused_and_does_not_fill_the_log(
    server, caplog
):
    caplog.set_level(logging.INFO, "coterie")
    for _ in range(100):
        with suppress(ConnectionLost):
            connect(server).close()
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("ash")]
    assert len(lines) == https_server.MAX_SESSIONS + 1
    assert lines[-1] == f"ash was refused: {https_server.TOO_OFTEN}."
    exchange(server, connect(server, "elm"), "elm")


# ------------------------------------------------------------------------------ strangers
def test_silent_connections_are_limited_and_end_by_themselves(certs, monkeypatch, caplog):
    monkeypatch.setattr(connections, "HELLO_TIMEOUT", 1.0)
    with closing(HttpsServer(LOOPBACK, free_port(), certs)) as server:
        site = connect(server)
        strangers = [socket.create_connection((LOOPBACK, server.port), 10) for _ in range(300)]
        limit = connections.MAX_UNKNOWN_PER_ADDRESS
        wait_for(lambda: server.gate.unknown.total() <= limit, 5, "the limit")
        exchange(server, site)
        wait_for(lambda: not server.gate.unknown, 5, "the end of the strangers")
        for stranger in strangers:
            stranger.close()
        exchange(server, connect(server))
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert lines == ["somebody at 127.0.0.1 was refused: too many connections."]
    assert server.refusals.counts[connections.TOO_MANY] == 300 - limit


def test_a_connection_that_sends_no_request_after_the_handshake_ends(certs, monkeypatch):
    monkeypatch.setattr(connections, "HELLO_TIMEOUT", 0.5)
    with (
        closing(HttpsServer(LOOPBACK, free_port(), certs)) as server,
        raw_connection(server) as slow,
    ):
        slow.sendall(b"GET /request HT")
        with suppress(OSError):
            assert slow.recv(100) == b""
        assert server.refusals.counts == {connections.TOO_SLOW: 1}


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"\0" * 5000])
def test_noise_instead_of_tls_is_refused(noise, server):
    with socket.create_connection((LOOPBACK, server.port), 10) as stranger:
        stranger.sendall(noise)
        stranger.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while stranger.recv(1000):
                pass
    exchange(server, connect(server))


def test_one_line_is_logged_per_party_and_minute(caplog):
    now = 0.0
    refusals = Refusals(lambda: now)
    for _ in range(1000):
        refusals.add("a", "somebody at x")
        refusals.add("b", "somebody at y")
    now = 61.0
    refusals.add("b", "somebody at x")
    assert refusals.counts == {"a": 1000, "b": 1001}
    assert [r.getMessage() for r in caplog.records] == [
        "somebody at x was refused: a.",
        "somebody at y was refused: b.",
        "somebody at x was refused: b (999 more since the last message).",
    ]
