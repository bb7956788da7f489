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
import socket
import threading
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from coterie.engines.codec import BadBytes
from coterie.network.certificates import SERVER, SiteDirectory
from coterie.network.connections import (
    BACKLOG,
    MAX_ACCEPTED,
    Connection,
    ConnectionGate,
    Refusals,
    ServerCertificate,
    listen,
)
from coterie.network.packets import REQUEST, SESSION, Packet, from_bytes, to_chunks

log = logging.getLogger("coterie")
LONG_POLL = 10.0  # seconds after which a site that waits for a request gets an empty answer
MAX_REPLY = 512 * 1024 * 1024  # bytes
SESSION_PERIOD = 60.0  # seconds
MAX_SESSIONS = 20  # that a site may begin in this time
RELOAD_PERIOD = 1.0  # seconds between checks of the registered sites
NOT_REGISTERED = "a certificate that is not registered or is revoked"
TOO_LONG = "a reply that is too long or of unknown length"
TOO_OFTEN = "too many new sessions"
NOT_REQUESTED = "a reply to no open request"
MALFORMED = "a request that is not of this protocol"


@dataclass
class SiteLink:
    """The state of the connection to one site.

    Attributes:
        session: Number of the site's current session; 0: it has not connected yet.
        begun: Times of its sessions of the last minute.
        connections: Open connections with the site's certificate, from the oldest to the newest.
        packet: The open request; None: the site has answered.
        number: Number of the last request.
        arrived: Wakes a site that waits for a request.
    """

    session: int = 0
    begun: list[float] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    packet: Packet | None = None
    number: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def waits_for(self, number: str) -> bool:
        """Return whether the request of this number is open."""
        return self.packet is not None and number == str(self.number)


class NoAnswer(Exception):
    """A site gets only a status.

    Args:
        status: The HTTP status.
    """

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


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
        self.gate = ConnectionGate(ServerCertificate(certs / SERVER), self.refusals)
        listening = listen(host, port)
        self._links: dict[str, SiteLink] = {}
        self._replies: queue.SimpleQueue[tuple[str, Packet]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._log_error)
        self._stop = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: self._loop.run_until_complete(self._serve(listening)), daemon=True
        )
        self._thread.start()

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
    async def _serve(self, listening: socket.socket) -> None:
        app = web.Application(middlewares=[self._answer_errors])
        app.router.add_post("/connect", self._connect)
        app.router.add_get("/request", self._next_request)
        app.router.add_post("/reply", self._reply)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        assert runner.server is not None
        http = runner.server
        # asyncio accepts as many connections at once as its backlog, before any can be refused
        server = await self._loop.create_server(
            lambda: Connection(self.gate, http()), sock=listening, backlog=MAX_ACCEPTED
        )
        listening.listen(BACKLOG)
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
            self.gate.certificate.reload()
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
        except NoAnswer as e:
            return web.Response(status=e.status)
        except web.HTTPException as e:
            self.refusals.add(MALFORMED, request.remote or "somebody")
            return web.Response(status=e.status)
        except Exception:
            log.exception("a request failed")
            return web.Response(status=500)

    def _identify(self, request: web.Request) -> tuple[str, SiteLink]:
        """Return the site whose certificate the connection has."""
        connection = self.gate.open[request.protocol]
        name = self.sites.find(connection.fingerprint)
        if name is None and self.sites.reload():
            name = self.sites.find(connection.fingerprint)
        if name is None:
            self.refusals.add(NOT_REGISTERED, connection.party)
            raise NoAnswer(403)
        link = self._links.setdefault(name, SiteLink())
        connection.assign(name, link.connections)
        return name, link

    async def _connect(self, request: web.Request) -> web.Response:
        name, link = self._identify(request)
        now = self._loop.time()
        link.begun = [when for when in link.begun if now - when < SESSION_PERIOD]
        if len(link.begun) >= MAX_SESSIONS:
            self.refusals.add(TOO_OFTEN, name)
            raise NoAnswer(429)
        link.begun.append(now)
        link.session += 1
        if link.session == 1:
            log.info("%s has connected", name)
        else:
            log.info("%s has connected again, now %d times", name, link.session)
        return web.Response(headers={SESSION: str(link.session)})

    async def _next_request(self, request: web.Request) -> web.StreamResponse:
        _, link = self._identify(request)
        if request.headers.get(SESSION) != str(link.session):
            raise NoAnswer(410)  # the server or another node has begun a new session
        if link.packet is None and not self._stop.is_set():
            link.arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(link.arrived.wait(), LONG_POLL)
        if link.packet is None:
            raise NoAnswer(204)
        chunks = to_chunks(link.packet)
        response = web.StreamResponse(headers={REQUEST: str(link.number)})
        response.content_length = sum(map(len, chunks))
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    async def _reply(self, request: web.Request) -> web.Response:
        name, link = self._identify(request)
        number = request.headers.get(REQUEST, "")
        if not number.isdecimal() or not 0 < int(number[:20]) <= link.number:
            self.gate.open[request.protocol].refuse(NOT_REQUESTED, name)
            raise NoAnswer(409)
        length = request.content_length
        if length is None or length > self.max_reply:
            self.gate.open[request.protocol].refuse(TOO_LONG, name)
            raise NoAnswer(413)
        if not link.waits_for(number):  # it comes too late, and is discarded
            raise NoAnswer(409)
        try:
            raw = await request.content.readexactly(length) if length else b""
        except asyncio.IncompleteReadError:
            raise NoAnswer(400) from None
        if not link.waits_for(number):  # answered or replaced meanwhile
            raise NoAnswer(409)
        link.packet = None
        try:
            packet = from_bytes(raw)
        except BadBytes:
            packet = Packet(b"", {})  # the messenger names the site whose reply is unreadable
        self._replies.put((name, packet))
        return web.Response()
