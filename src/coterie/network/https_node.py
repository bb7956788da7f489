"""A site's end of the network: a process that connects to a server and answers its requests.

The node makes all connections and opens no port. It runs functions of the installed library only,
never code that it receives.
"""

from __future__ import annotations

import ctypes
import datetime
import http.client
import logging
import re
import socket
import ssl
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import CoterieError
from coterie.engines.codec import BadBytes
from coterie.network.owner import max_message_bytes
from coterie.network.packets import REQUEST, SESSION, Packet, from_bytes, to_chunks
from coterie.network.site import NetworkSite

log = logging.getLogger("coterie")
TIMEOUT = 60.0  # seconds without a byte after which a connection is lost; polls take 10
MAX_PAUSE = 30.0  # seconds between attempts to connect
LEAVE_TIMEOUT = 30.0  # seconds in which a server may be informed that the owner left
DATES = re.compile(rb"valid from (\S{25}) to (\S{25})\n")  # of a certificate, in its file
WARN_DAYS = 30  # before the end of a certificate
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # seconds, seconds, probes
# asyncio does not send the TLS alert with which OpenSSL refuses a certificate. A server of another
# network fails in this node's own check, and a certificate that is not registered gets an answer.
CLOSED_AT_ONCE = (
    "the server closed the connection at once: by its clock this site's certificate is not valid, "
    "or it has too many connections; its log has the reason"
)
M_MMAP_THRESHOLD = -3  # of mallopt(3)
LARGE_BLOCK = 2**20  # bytes
MAKE_CERTIFICATE = "make one with `coterie network certs` on the server"


class ConnectionLost(Exception):
    """The connection to the server is lost; the node connects again."""


class NodeRefused(Exception):
    """The server does not accept this node, or the node does not accept the server."""


class NumberedRequest(NamedTuple):
    """A packet of the server, and the number under which it expects the reply."""

    number: str
    packet: Packet


# ------------------------------------------------------------------------------ connection
def split_address(server: str) -> tuple[str, int]:
    """Split HOST:PORT."""
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in server:
        raise CoterieError(
            f"the server is {server!r}", "give its host and port, such as server.example.org:8443"
        )
    return host.strip("[]"), int(port)


def client_context(file: Path) -> ssl.SSLContext:
    """Return the TLS settings of a node.

    Args:
        file: The site's file of `coterie network certs`: key, certificate and authority.

    Raises:
        CoterieError: The file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        raw = file.read_bytes()
        context.load_cert_chain(file)
        context.load_verify_locations(file)
        check_dates(file, raw)
    except ssl.SSLError as e:
        if b"PRIVATE KEY" in raw and b"CERTIFICATE" not in raw:
            what = f"{file} is a key of version 0.2, without a certificate"
            raise CoterieError(what, MAKE_CERTIFICATE) from e
        what = f"{file} is not a site's file of `coterie network certs`"
        raise CoterieError(what, MAKE_CERTIFICATE) from e
    except OSError as e:
        raise CoterieError(f"{file} cannot be read ({e.strerror})", MAKE_CERTIFICATE) from e
    return context


def check_dates(file: Path, raw: bytes) -> None:
    """Refuse a certificate that is not valid today; warn before it expires.

    The dates are those in the first line of the file. cryptography, which could read them from the
    certificate itself, would take 8 MB of every node.
    """
    dates = DATES.match(raw)
    if dates is None:
        return
    begins, expires = (datetime.datetime.fromisoformat(date.decode()) for date in dates.groups())
    now = datetime.datetime.now(datetime.UTC)
    if not begins <= now <= expires:
        raise CoterieError(
            f"the certificate in {file} is valid from {begins:%Y-%m-%d} to {expires:%Y-%m-%d}, and "
            f"the clock of this machine says {now:%Y-%m-%d}",
            "set the clock, or ask for a certificate renewed by `coterie network certs --renew`",
        )
    if (expires - now).days < WARN_DAYS:
        log.warning("the certificate in %s expires on %s: renew it.", file, f"{expires:%Y-%m-%d}")


class ServerConnection:
    """A session with a server over one connection, which stays open.

    Args:
        server: HOST:PORT.
        context: TLS settings.

    Raises:
        OSError: The server cannot be reached.
        NodeRefused: The server does not accept the site's certificate.
        ConnectionLost: The server closes the connection.
    """

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        host, port = split_address(server)
        self.http = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=context)
        self.http.connect()
        self.http.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                self.http.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        try:
            response = self._request("POST", "/connect", {})
        except (ConnectionResetError, http.client.RemoteDisconnected) as e:
            raise ConnectionLost(CLOSED_AT_ONCE) from e
        response.read()
        self.session = response.headers.get(SESSION, "")

    def receive(self) -> NumberedRequest | None:
        """Return the next request of the server; None: there was none for some seconds.

        Raises:
            ConnectionLost: Another node of this site has connected, or the request is malformed.
        """
        response = self._request("GET", "/request", {SESSION: self.session})
        if response.status == 204:
            response.read()
            return None
        length = response.length
        if length is None or length > max_message_bytes():
            raise ConnectionLost("a request of the server is too long")
        raw = response.read()
        if len(raw) != length:
            raise ConnectionLost("the server has closed the connection")
        number = response.headers.get(REQUEST, "")
        try:
            return NumberedRequest(number, from_bytes(raw))
        except BadBytes:
            return NumberedRequest(number, Packet(b"", {}))  # the site refuses it

    def reply(self, number: str, packet: Packet) -> bool:
        """Send the reply to a request; return whether the server still waited for it."""
        chunks = to_chunks(packet)
        length = str(sum(map(len, chunks)))
        headers = {REQUEST: number, "Content-Length": length}
        response = self._request("POST", "/reply", headers, chunks)
        response.read()
        return response.status == 200

    def close(self) -> None:
        """Close the connection."""
        self.http.close()

    def _request(
        self, method: str, path: str, headers: dict[str, str], body: list[bytes] | None = None
    ) -> http.client.HTTPResponse:
        with suppress(BrokenPipeError, ConnectionResetError):  # the server's answer has the reason
            self.http.request(method, path, body, headers)
        response = self.http.getresponse()
        if response.status == 403:
            raise NodeRefused("the server does not accept this site's certificate")
        if response.status == 410:
            raise ConnectionLost("the server was restarted, or another node has this certificate")
        if response.status >= 400 and response.status != 409:
            raise ConnectionLost(f"the server answers with status {response.status}")
        return response


# ------------------------------------------------------------------------------ node
class HttpsNode:
    """The process of a site: connects, answers, and connects again after every failure.

    Args:
        site: Answers the packets.
        server: HOST:PORT.
        identity: The site's file of `coterie network certs`.

    Raises:
        CoterieError: The address or the file cannot be used.
    """

    def __init__(self, site: NetworkSite, server: str, identity: Path) -> None:
        split_address(server)
        self.site = site
        self.server = server
        self.context = client_context(identity)
        self.memory = HeapMemory()
        self.connection: ServerConnection | None = None
        self.left_at: float | None = None  # time at which the node saw that its owner left
        self.has_reported_leaving = False

    def run(self) -> None:
        """Answer requests until the owner leaves.

        Raises:
            CoterieError: The owner of this machine must fix something.
        """
        pause, logged = 0.2, ""
        while True:
            is_connected = False
            try:
                self._connect()
                is_connected = True
                pause, logged = 0.2, ""
                while not self._may_end():
                    self._answer()
                return
            except (OSError, http.client.HTTPException, ConnectionLost, NodeRefused) as e:
                if is_refusal(e):
                    raise CoterieError(explain(e), "check the certificates and the clocks") from e
                reason = explain(e)
                if is_connected:
                    reason = f"the connection to {self.server} was lost: {reason}"
                if reason != logged:
                    log.warning("%s: %s; trying again.", self.site.client, reason)
                    logged = reason
                self.close()
                time.sleep(pause)
                pause = min(MAX_PAUSE, 2 * pause)
                if self._may_end():
                    return

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()

    def _connect(self) -> None:
        again = "" if self.connection is None else " again"
        self.connection = ServerConnection(self.server, self.context)
        log.info("%s: connected to %s%s", self.site.client, self.server, again)

    def _may_end(self) -> bool:
        """Return whether the owner left, and the server knows or does not ask."""
        if self.site.owner_status() != "left":
            return False
        if self.left_at is None:
            self.left_at = time.monotonic()
        return self.has_reported_leaving or time.monotonic() - self.left_at > LEAVE_TIMEOUT

    def _answer(self) -> None:
        assert self.connection is not None
        request = self.connection.receive()
        if request is None:
            return
        has_left = self.site.participation.status == "left"
        reply = self.site.handle(request.packet)
        if not self.connection.reply(request.number, reply):
            log.info("%s: the server no longer waits for a reply", self.site.client)
        self.has_reported_leaving = has_left
        self.memory.release()
        if self.site.fault is not None:
            raise self.site.fault


def is_refusal(error: Exception) -> bool:
    """Return whether server and node do not accept each other, so that trying again is useless."""
    return isinstance(error, (NodeRefused, ssl.SSLCertVerificationError))


def explain(error: Exception) -> str:
    """Return why there is no connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return explain_certificate(error)
    if isinstance(error, ssl.SSLError):
        return "the server does not speak TLS"
    if isinstance(error, (ConnectionLost, NodeRefused)):
        return str(error)
    if isinstance(error, socket.gaierror):
        return "the host of the server is unknown"
    if isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
        return "the server has closed the connection"
    if isinstance(error, http.client.HTTPException):
        return "the server does not speak HTTP"
    return "the server cannot be reached"


def explain_certificate(error: ssl.SSLCertVerificationError) -> str:
    """Return why this node does not accept the server's certificate."""
    reason = error.verify_message
    if "mismatch" in reason:
        return "the server's certificate is for another host than the one in --server"
    if "expired" in reason:
        return "the server's certificate has expired, or the clock of this machine is wrong"
    if "not yet valid" in reason:
        return "the server's certificate is not yet valid, or the clock of this machine is wrong"
    return "the server's certificate is not signed by the authority that this site accepts"


class HeapMemory:
    """Returns free memory of this process to the system, where glibc would keep it.

    A large message or model is returned as soon as it is freed: glibc would otherwise raise the
    size from which it does so to 32 MB.
    """

    def __init__(self) -> None:
        self.libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
        if self.libc is not None and hasattr(self.libc, "mallopt"):  # not in every C library
            self.libc.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)

    def release(self) -> None:
        """Return what is free between blocks in use."""
        if hasattr(self.libc, "malloc_trim"):
            self.libc.malloc_trim(0)
