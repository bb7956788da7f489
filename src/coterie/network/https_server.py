"""The server's end of the network: HTTPS with a certificate on both sides.

A site is identified by its certificate, so that a stranger fails in the TLS handshake. Sites make
all connections, and use three routes:

    POST /connect   begin a session, which ends the site's earlier one
    GET  /request   wait for the next request of the server
    POST /reply     answer that request; any other answer is refused unread
"""

from __future__ import annotations

import asyncio
import logging
import queue
import resource
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiohttp import web

from coterie.core.errors import CoterieError
from coterie.engines.codec import BadBytes
from coterie.network.certificates import SERVER
from coterie.network.framing import REQUEST, SESSION, from_bytes, to_chunks
from coterie.network.packets import Packet
from coterie.network.ports import check_port
from coterie.network.registry import SiteDirectory

log = logging.getLogger("coterie")
LONG_POLL = 10.0  # seconds after which a site that waits for a request gets an empty answer
MAX_REPLY = 512 * 1024 * 1024  # bytes
MAX_UNKNOWN = 256  # connections that have not shown a registered certificate yet
SPARE_FILES = 100  # open files that this process needs beside its connections
MAX_UNKNOWN_PER_ADDRESS = 64
MAX_PER_SITE = 4  # connections with the certificate of one site
HELLO_TIMEOUT = 10.0  # seconds for the TLS handshake, and again for the first request
RELOAD_PERIOD = 1.0  # seconds between checks of the registered sites
LOG_PERIOD = 60.0  # seconds in which one line is logged about each party that is refused
NOT_REGISTERED = "a certificate that is not registered or is revoked"
NO_HANDSHAKE = "no TLS connection with a certificate of this network"
TOO_MANY = "too many connections"
TOO_SLOW = "no request in time"
TOO_LONG = "a reply that is too long or of unknown length"
NOT_REQUESTED = "a reply to no open request"
MALFORMED = "a request that is not of this protocol"


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


@dataclass
class SiteLink:
    """The state of the connection to one site.

    Attributes:
        session: Number of the site's current session; 0: it has not connected yet.
        connections: Open connections with the site's certificate, from the oldest to the newest.
        packet: The open request; None: the site has answered.
        number: Number of the last request.
        arrived: Wakes a site that waits for a request.
    """

    session: int = 0
    connections: list[Connection] = field(default_factory=list)
    packet: Packet | None = None
    number: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def waits_for(self, number: str) -> bool:
        """Return whether the request of this number is open."""
        return self.packet is not None and number == str(self.number)


class HttpsServer:
    """A transport to sites that connect over HTTPS.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        certs: Folder of `coterie network certs`, which is read again when it changes.
        max_reply: Largest reply of a site in bytes.

    Raises:
        CoterieError: The certificates cannot be used, or the address is in use.
    """

    def __init__(self, host: str, port: int, certs: Path, max_reply: int = MAX_REPLY) -> None:
        self.sites = SiteDirectory(certs)
        self.refusals = Refusals()
        self.port = port
        self.max_reply = max_reply
        self.max_unknown = min(MAX_UNKNOWN, raise_file_limit() - SPARE_FILES)
        self.tls = ServerCertificate(certs / SERVER)
        check_port(host, port)
        self._links: dict[str, SiteLink] = {}
        self.unknown: Counter[str] = Counter()  # address → connections of unknown origin
        self.open: dict[asyncio.Protocol, Connection] = {}  # by the protocol that reads requests
        self._replies: queue.SimpleQueue[tuple[str, Packet]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._log_error)
        self._stop = asyncio.Event()
        started = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._serve(host, port, started)),
            daemon=True,
        )
        self._thread.start()
        started.wait()
        if self._failure is not None:
            raise CoterieError(
                f"the server cannot listen on {host}:{port} ({self._failure})", "check the address"
            )

    # -- a transport; called from other threads
    @property
    def names(self) -> list[str]:
        """All sites that may connect."""
        return self.sites.names

    def connections(self) -> Mapping[str, Hashable]:
        """Return the connected sites, each with the number of its session."""
        links = list(self._links.items())
        return {name: link.session for name, link in links if link.session and link.connections}

    def send(self, packets: Mapping[str, Packet]) -> None:
        """Let each of these sites get a request; a request that it has not answered is dropped."""
        self._loop.call_soon_threadsafe(self._send, dict(packets))

    def receive(self, seconds: float) -> list[tuple[str, Packet]]:
        """Return the replies that have arrived; wait at most this long for the first."""
        replies = []
        try:
            replies.append(self._replies.get(timeout=seconds))
            while True:
                replies.append(self._replies.get_nowait())
        except queue.Empty:
            return replies

    def close(self) -> None:
        """Stop listening and close all connections."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    # -- in the thread of the server
    async def _serve(self, host: str, port: int, started: threading.Event) -> None:
        app = web.Application(middlewares=[self._answer_errors])
        app.router.add_post("/connect", self._connect)
        app.router.add_get("/request", self._next_request)
        app.router.add_post("/reply", self._reply)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        assert runner.server is not None
        http = runner.server
        try:
            server = await self._loop.create_server(
                lambda: Connection(self, http()), host, port, backlog=512
            )
        except OSError as e:
            self._failure = e
            return
        finally:
            started.set()
        reloading = self._loop.create_task(self._reload())
        await self._stop.wait()
        reloading.cancel()
        server.close()
        for link in self._links.values():
            link.arrived.set()  # sites that wait get an empty answer
        await runner.cleanup()

    def _send(self, packets: dict[str, Packet]) -> None:
        for name, packet in packets.items():
            link = self._links[name]
            link.packet = packet
            link.number += 1
            link.arrived.set()

    async def _reload(self) -> None:
        """Follow changes of the certificates: new, renewed and revoked sites."""
        while True:
            await asyncio.sleep(RELOAD_PERIOD)
            self.tls.reload()
            if not self.sites.reload():
                continue
            for name, link in self._links.items():
                for connection in list(link.connections):
                    if self.sites.find(connection.fingerprint) != name:
                        connection.refuse(NOT_REGISTERED, name)

    def _log_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of asyncio; it waits and tries again when there are no free files."""
        error = context.get("exception")
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        self.refusals.add(f"this server has a problem ({reason})", "a connection")

    # -- routes
    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answer a failure with a status only; its text may quote what a site sent."""
        try:
            return await handler(request)
        except web.HTTPException as e:
            self.refusals.add(MALFORMED, request.remote or "somebody")
            return web.Response(status=e.status)
        except Exception:
            log.exception("a request failed")
            return web.Response(status=500)

    def _identify(self, request: web.Request) -> tuple[str, SiteLink] | None:
        """Return the site whose certificate the connection has, or refuse the connection."""
        connection = self.open[request.protocol]
        name = self.sites.find(connection.fingerprint)
        if name is None and self.sites.reload():
            name = self.sites.find(connection.fingerprint)
        if name is None:
            self.refusals.add(NOT_REGISTERED, connection.party)
            return None
        link = self._links.setdefault(name, SiteLink())
        connection.assign(name, link)
        return name, link

    async def _connect(self, request: web.Request) -> web.Response:
        site = self._identify(request)
        if site is None:
            return web.Response(status=403)
        name, link = site
        link.session += 1
        if link.session == 1:
            log.info("%s has connected", name)
        else:
            log.info("%s has connected again, now %d times", name, link.session)
        return web.Response(headers={SESSION: str(link.session)})

    async def _next_request(self, request: web.Request) -> web.StreamResponse:
        site = self._identify(request)
        if site is None:
            return web.Response(status=403)
        _, link = site
        if request.headers.get(SESSION) != str(link.session):
            return web.Response(status=410)  # the server or another node has begun a new session
        if link.packet is None and not self._stop.is_set():
            link.arrived.clear()
            try:
                await asyncio.wait_for(link.arrived.wait(), LONG_POLL)
            except TimeoutError:
                return web.Response(status=204)
        if link.packet is None:
            return web.Response(status=204)
        chunks = to_chunks(link.packet)
        response = web.StreamResponse(headers={REQUEST: str(link.number)})
        response.content_length = sum(map(len, chunks))
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    async def _reply(self, request: web.Request) -> web.Response:
        site = self._identify(request)
        if site is None:
            return web.Response(status=403)
        name, link = site
        number = request.headers.get(REQUEST, "")
        if not number.isdecimal() or not 0 < int(number[:20]) <= link.number:
            self.open[request.protocol].refuse(NOT_REQUESTED, name)
            return web.Response(status=409)
        length = request.content_length
        if length is None or length > self.max_reply:
            self.open[request.protocol].refuse(TOO_LONG, name)
            return web.Response(status=413)
        if not link.waits_for(number):
            return web.Response(status=409)  # it comes too late, and is discarded
        try:
            raw = await request.content.readexactly(length) if length else b""
        except asyncio.IncompleteReadError:
            return web.Response(status=400)
        if not link.waits_for(number):  # answered or replaced meanwhile
            return web.Response(status=409)
        link.packet = None
        try:
            packet = from_bytes(raw)
        except BadBytes:
            packet = Packet(b"", {})  # the messenger names the site whose reply is unreadable
        self._replies.put((name, packet))
        return web.Response()


def raise_file_limit() -> int:
    """Let this process open as many files as the system allows it; return their number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


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


class Connection(asyncio.Protocol):
    """One TCP connection: limits, TLS handshake, then HTTP.

    asyncio's own TLS servers cannot count connections before the handshake, and do not report
    failed handshakes.

    Args:
        server: Counts connections and knows the sites.
        http: Reads requests after the handshake.
    """

    def __init__(self, server: HttpsServer, http: asyncio.Protocol) -> None:
        self.server = server
        self.http = http
        self.address = ""
        self.fingerprint = ""  # of the certificate; empty: before the end of the handshake
        self.link: SiteLink | None = None  # None: no request has shown whose connection it is
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
        unknown = self.server.unknown
        unknown[self.address] += 1
        too_many = unknown[self.address] > MAX_UNKNOWN_PER_ADDRESS
        if too_many or unknown.total() > self.server.max_unknown:
            self.refuse(TOO_MANY, self.party)
            return
        transport.pause_reading()  # until TLS reads
        self._handshake = asyncio.ensure_future(self._start_tls(transport))

    async def _start_tls(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        context = self.server.tls.context
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
        self.server.open[self.http] = self
        self.http.connection_made(secure)
        if self._early:
            self.http.data_received(self._early)

    def assign(self, name: str, link: SiteLink) -> None:
        """Note whose connection this is; a site's oldest connection makes room for a new one."""
        if self.link is link:
            return
        self._leave_unknown()
        self.link = link
        link.connections.append(self)
        if len(link.connections) > MAX_PER_SITE:
            link.connections[0].refuse(TOO_MANY, name)

    def refuse(self, reason: str, party: str) -> None:
        """Close the connection at once."""
        self.server.refusals.add(reason, party)
        if self._transport is not None:
            self._transport.abort()

    def _leave_unknown(self) -> None:
        """Stop counting the connection as one of unknown origin."""
        if self._timer is not None:
            self._timer.cancel()
        unknown = self.server.unknown
        unknown[self.address] -= 1
        if not unknown[self.address]:
            del unknown[self.address]

    # -- a protocol of asyncio
    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the connection holds."""
        if not self._is_open:
            return
        self._is_open = False
        if self.link is None:
            self._leave_unknown()
        else:
            self.link.connections.remove(self)
        if self.server.open.pop(self.http, None) is not None:
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
