"""Serves the live page: read-only, behind a token.

/           the page
/events     server-sent events with the sections that changed
/page.css   style and script; the Content-Security-Policy allows none inside the page
/page.js
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import re
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.typedefs import Handler

from coterie.core.errors import CoterieError, Option
from coterie.reporting.live.feed import Feed, Watched
from coterie.reporting.live.page import script, style

MIN_TOKEN_LENGTH = 8
TOKEN = re.compile(r"[A-Za-z0-9_.~-]+")  # needs no escaping in addresses and cookies
MAX_STREAMS = 100  # open pages
MAX_CONNECTIONS = 400  # further ones are closed at once
MAX_IDLE = 30.0  # seconds until a connection without a request is closed
MAX_KEY_LENGTH = 500  # of the name of a run in an address
GRACE = 2.0  # seconds until open connections are cut at shutdown
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Accel-Buffering": "no",
}
UNAUTHORIZED = "This page needs its token: open the address that the command printed.\n"
TOO_MANY = "Too many pages are open.\n"


def make_app(feed: Feed, token: str, more: Sequence[web.RouteDef] = ()) -> web.Application:
    """Return the application of a live page.

    Args:
        feed: The source of the page.
        token: Requests without it are rejected.
        more: Additional routes behind the same token.
    """
    pages = PageRoutes(feed)
    app = web.Application(middlewares=[Access(token).check])
    app.add_routes(
        [
            web.get("/", pages.page),
            web.get("/events", pages.events, allow_head=False),
            web.get("/page.css", pages.style),
            web.get("/page.js", pages.script),
            *more,
        ]
    )
    app.cleanup_ctx.append(pages.follow)
    app.on_shutdown.append(pages.end_streams)
    app.on_response_prepare.append(add_security_headers)
    return app


class PageRoutes:
    """The request handlers."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.streams = 0

    async def follow(self, app: web.Application) -> AsyncIterator[None]:
        """Poll the feed while the application runs."""
        following = asyncio.create_task(self.feed.follow())
        yield
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following

    async def end_streams(self, app: web.Application) -> None:
        """End the event streams, which would keep the server running."""
        self.feed.close()

    async def page(self, request: web.Request) -> web.Response:
        """Return the whole page."""
        page = await self.feed.render(run_key(request))
        return web.Response(text=page.html, content_type="text/html")

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Stream the sections that change as server-sent events."""
        if self.streams >= MAX_STREAMS:
            return web.Response(text=TOO_MANY, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.streams += 1
        try:
            await response.prepare(request)
            async for update in self.feed.updates(run_key(request)):
                await response.write(f"event: board\ndata: {json.dumps(update)}\n\n".encode())
        except ConnectionResetError:
            pass  # the reader has closed the page
        finally:
            self.streams -= 1
        return response

    async def style(self, request: web.Request) -> web.Response:
        """Return the style sheet."""
        return web.Response(text=style(), content_type="text/css")

    async def script(self, request: web.Request) -> web.Response:
        """Return the script."""
        return web.Response(text=script(), content_type="text/javascript")


def run_key(request: web.Request) -> str:
    """Return the run that the address names; "" for none."""
    return request.query.get("run", "")[:MAX_KEY_LENGTH]


async def add_security_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the security headers to a response, and do not name the server's software."""
    response.headers.update(HEADERS)
    response.headers.popall("Server", None)


# ------------------------------------------------------------------------------ access
class Access:
    """Rejects requests without the token: in a header, a cookie, or once in the address.

    A token in the page's address is moved to a cookie and the browser is redirected to the address
    without it, so that it appears in no history and no screenshot.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        # cookies ignore ports: servers on one machine need different names
        self.cookie = f"coterie-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request, or reject it."""
        if self.is_token(request.query.get("token")) and request.path == "/":
            return self.set_cookie(request)
        _, _, bearer = request.headers.get("Authorization", "").partition("Bearer ")
        if self.is_token(bearer) or self.is_token(request.cookies.get(self.cookie)):
            return await handler(request)
        return web.Response(text=UNAUTHORIZED, status=401)

    def is_token(self, given: str | None) -> bool:
        """Compare in constant time."""
        if given is None:
            return False
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())

    def set_cookie(self, request: web.Request) -> web.Response:
        """Set the cookie and redirect to the same address without the token."""
        rest = urlencode([(k, v) for k, v in request.query.items() if k != "token"])
        address = f"./?{rest}" if rest else "./"
        response = web.Response(status=303, headers={"Location": address})
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="lax")
        return response


# ------------------------------------------------------------------------------ server
class LiveServer:
    """Serves the live page.

    `run()` serves until Ctrl-C. In a thread, set `should_exit = True` to stop it.

    Args:
        watched: The source of the page.
        host: Address to listen on.
        port: Port to listen on; 0 selects a free one.
        token: The token of the page; generated by default.
        more: Additional routes behind the same token.

    Raises:
        CoterieError: The port cannot be opened, or the token is too short.
    """

    def __init__(
        self,
        watched: Watched,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        more: Sequence[web.RouteDef] = (),
    ) -> None:
        self.token = check_token(token)
        self.socket = listen(host, port)
        self.feed = Feed(watched)
        self.app = make_app(self.feed, self.token, more)
        self.started = False
        self.should_exit = False

    @property
    def address(self) -> str:
        """The address of the page, without its token."""
        host, port = self.socket.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        if ":" in host:
            host = f"[{host}]"
        return f"http://{host}:{port}/"

    @property
    def address_with_token(self) -> str:
        """The address to open in a browser; a secret."""
        return f"{self.address}?token={self.token}"

    def run(self) -> None:
        """Serve until stopped."""
        try:
            asyncio.run(self._serve())
        finally:
            self.started = False
            self.socket.close()

    async def _serve(self) -> None:
        runner = web.AppRunner(
            self.app,
            access_log=None,  # addresses may contain the token
            handler_cancellation=True,  # ends the stream of a page that is closed
            keepalive_timeout=MAX_IDLE,
            shutdown_timeout=GRACE / 2,  # for the handlers to end, and again to cancel them
        )
        await runner.setup()
        server = runner.server
        assert server is not None

        def accept() -> asyncio.Protocol:
            if len(server.connections) < MAX_CONNECTIONS:
                return server()
            return ClosedConnection()

        listening = await asyncio.get_running_loop().create_server(accept, sock=self.socket)
        self.started = True
        try:
            while not self.should_exit:  # set by another thread
                await asyncio.sleep(0.1)
        finally:
            listening.close()
            await runner.cleanup()


class ClosedConnection(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()


def check_token(token: str | None) -> str:
    """Return a valid token, or a new one if none is given."""
    if token is None:
        return secrets.token_urlsafe(18)
    if len(token) < MIN_TOKEN_LENGTH or not TOKEN.fullmatch(token):
        raise CoterieError(
            f"the token must have at least {MIN_TOKEN_LENGTH} letters, digits or any of - _ . ~",
            "give another {}, or none",
            options=[Option("token")],
        )
    return token


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 selects a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as e:
        what = f"host {host!r} is not an address of this machine"
        raise CoterieError(what, "leave {} for 127.0.0.1", options=[Option("host")]) from e
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # also right after a restart
    try:
        opened.bind((host, port))
        opened.listen(128)
    except OSError as e:
        opened.close()
        raise port_error(e, host, port) from e
    return opened


def port_error(e: OSError, host: str, port: int) -> CoterieError:
    """Explain why a port cannot be opened."""
    if e.errno == errno.EADDRINUSE:
        what = f"port {port} of {host} is in use"
        return CoterieError(what, "give another {}, or 0 for any", options=[Option("port")])
    if e.errno == errno.EACCES:
        what = f"port {port} needs more privileges"
        return CoterieError(what, "give a {} above 1023", options=[Option("port")])
    what = f"host {host!r} is not an address of this machine"
    return CoterieError(what, "leave {} for 127.0.0.1", options=[Option("host")])
