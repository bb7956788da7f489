"""The connections of a server: its port, limits, the TLS handshake, and a log of refusals."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from coterie.core.errors import CoterieError, Option

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

log = logging.getLogger("coterie")
LOOPBACK = "127.0.0.1"
BACKLOG = 512  # connections that may wait to be accepted
MAX_ACCEPTED = 16  # connections at once, all of which need a file until they are refused
MAX_UNKNOWN = 256  # connections that have not shown a registered certificate yet
MAX_FILES = 4096  # that a server may have open
SPARE_FILES = 100  # open files that this process needs beside its connections
MAX_UNKNOWN_PER_ADDRESS = 64
MAX_PER_SITE = 4  # connections with the certificate of one site
HELLO_TIMEOUT = 10.0  # seconds for the TLS handshake, and again for the first request
LOG_PERIOD = 60.0  # seconds in which one line is logged about each party that is refused
NO_HANDSHAKE = "no TLS connection with a certificate of this network"
TOO_MANY = "too many connections"
TOO_SLOW = "no request in time"


# ------------------------------------------------------------------------------ ports
def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def listen(
    host: str,
    port: int,
    listener: str = "the server",
    port_option: str = "port",
    host_option: str = "host",
) -> socket.socket:
    """Return a socket that listens on an address.

    Args:
        host: Name or address of an interface of this machine.
        port: Port number.
        listener: Who is to listen there, for the message.
        port_option: Option that sets the port.
        host_option: Option that sets the host.

    Raises:
        CoterieError: Another process listens there, or the address is not one of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as e:
        number = e.errno if isinstance(e, OSError) else None
        reason = e if number is None or number < 0 else os.strerror(number)
        taken = number in (errno.EADDRINUSE, errno.EACCES)
        raise CoterieError(
            f"{listener} cannot listen on {host}:{port} ({reason})",
            "choose another {}",
            options=[Option(port_option if taken else host_option)],
        ) from e


# ------------------------------------------------------------------------------ connections
class Refusals:
    """Counts what a server refuses, and logs one line per party and minute.

    Args:
        clock: Current time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()  # by reason
        self._clock = clock
        self._recent: dict[str, tuple[float, int]] = {}  # party → last line, refusals since then

    def add(self, reason: str, party: str) -> None:
        """Count a refusal."""
        self.counts[reason] += 1
        now = self._clock()
        logged, since = self._recent.get(party, (-LOG_PERIOD, 0))
        if now - logged < LOG_PERIOD:
            self._recent[party] = logged, since + 1
            return
        if len(self._recent) > 1000:  # strangers may come from many addresses
            self._recent.clear()
        self._recent[party] = now, 0
        more = f" ({since} more since the last message)" if since else ""
        log.warning("%s was refused: %s%s.", party, reason, more)


class ServerCertificate:
    """The server's key and certificate, read again when the file changes.

    Args:
        file: server.pem.

    Raises:
        CoterieError: The file cannot be used.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.verify_mode = ssl.CERT_REQUIRED
        try:
            self._changed = file.stat().st_mtime_ns
            self.context.load_verify_locations(file)
            self.context.load_cert_chain(file)
        except OSError as e:
            raise CoterieError(
                f"{file} cannot be used ({e.strerror or e})",
                f"make it with `coterie network certs {file.parent} --host HOST`",
            ) from e

    def reload(self) -> None:
        """Use a renewed certificate for new connections."""
        try:
            changed = self.file.stat().st_mtime_ns
            if changed != self._changed:
                self._changed = changed
                self.context.load_cert_chain(self.file)
        except OSError as e:
            log.warning("%s cannot be used (%s); the earlier certificate stays.", self.file, e)


class ConnectionGate:
    """Decides which connections a server keeps; the state of all of them.

    Args:
        certificate: The server's own.
        refusals: Counts refused connections.

    Attributes:
        unknown: Address → connections that have not shown a registered certificate yet.
        open: Connections after the handshake, by the protocol that reads their requests.
    """

    def __init__(self, certificate: ServerCertificate, refusals: Refusals) -> None:
        self.certificate = certificate
        self.refusals = refusals
        self.unknown: Counter[str] = Counter()
        self.open: dict[asyncio.Protocol, Connection] = {}
        self.max_unknown = min(MAX_UNKNOWN, raise_file_limit() - SPARE_FILES)


def raise_file_limit() -> int:
    """Let this process open up to 4,096 files, if the system allows it; return the limit."""
    if resource is None:  # Windows
        return MAX_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(soft, limit)


class Connection(asyncio.Protocol):
    """One TCP connection: limits, TLS handshake, then HTTP.

    asyncio's own TLS servers cannot count connections before the handshake, and do not report
    failed handshakes.

    Args:
        gate: Knows all other connections.
        http: Reads requests after the handshake.
    """

    def __init__(self, gate: ConnectionGate, http: asyncio.Protocol) -> None:
        self.gate = gate
        self.http = http
        self.address = ""
        self.fingerprint = ""  # of the certificate; empty: before the end of the handshake
        self.of_site: list[Connection] | None = None  # all of its site; None: not identified yet
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._early = b""  # bytes that came with the end of the handshake
        self._is_open = False

    @property
    def party(self) -> str:
        """Who is connected, for the log."""
        return f"somebody at {self.address}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake unless there are too many connections."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else "an unknown address"
        self._is_open = True
        unknown = self.gate.unknown
        unknown[self.address] += 1
        too_many = unknown[self.address] > MAX_UNKNOWN_PER_ADDRESS
        if too_many or unknown.total() > self.gate.max_unknown:
            self.refuse(TOO_MANY, self.party)
            return
        transport.pause_reading()  # until TLS reads
        self._handshake = asyncio.ensure_future(self._start_tls(transport))

    async def _start_tls(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        context = self.gate.certificate.context
        try:
            secure = await loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=HELLO_TIMEOUT
            )
        except OSError as e:
            self.refuse(explain_handshake(e), self.party)
            self.connection_lost(e)
            return
        if secure is None or not self._is_open:  # closed by the other side
            self.connection_lost(None)
            return
        self._transport = secure
        certificate = secure.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.fingerprint = sha256(certificate).hexdigest()
        self._timer = loop.call_later(HELLO_TIMEOUT, self.refuse, TOO_SLOW, self.party)
        self.gate.open[self.http] = self
        self.http.connection_made(secure)
        if self._early:
            self.http.data_received(self._early)

    def assign(self, name: str, of_site: list[Connection]) -> None:
        """Note whose connection this is; a site's oldest connection makes room for a new one."""
        if self.of_site is of_site:
            return
        self._leave_unknown()
        self.of_site = of_site
        of_site.append(self)
        if len(of_site) > MAX_PER_SITE:
            of_site[0].refuse(TOO_MANY, name)

    def refuse(self, reason: str, party: str) -> None:
        """Close the connection at once."""
        self.gate.refusals.add(reason, party)
        if self._transport is not None:
            self._transport.abort()

    def _leave_unknown(self) -> None:
        """Stop counting the connection as one of unknown origin."""
        if self._timer is not None:
            self._timer.cancel()
        unknown = self.gate.unknown
        unknown[self.address] -= 1
        if not unknown[self.address]:
            del unknown[self.address]

    # -- a protocol of asyncio
    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the connection holds."""
        if not self._is_open:
            return
        self._is_open = False
        if self.of_site is None:
            self._leave_unknown()
        else:
            self.of_site.remove(self)
        if self.gate.open.pop(self.http, None) is not None:
            self.http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass bytes to HTTP, once the handshake is complete."""
        if self.fingerprint:
            self.http.data_received(data)
        else:
            self._early += data

    def eof_received(self) -> bool | None:
        """Pass the end of the bytes to HTTP."""
        return self.http.eof_received() if self.fingerprint else None

    def pause_writing(self) -> None:
        """Tell HTTP that the send buffer is full."""
        self.http.pause_writing()

    def resume_writing(self) -> None:
        """Tell HTTP that the send buffer has room again."""
        self.http.resume_writing()


def explain_handshake(error: OSError) -> str:
    """Return why a TLS handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"a certificate that cannot be used ({error.verify_message})"
    if isinstance(error, ConnectionAbortedError):
        return "a TLS handshake that took too long"
    return NO_HANDSHAKE
