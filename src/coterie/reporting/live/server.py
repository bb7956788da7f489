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
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie.core.errors import CoterieError, Option
from coterie.reporting.live.feed import Feed, Watched
from coterie.reporting.live.page import script, style

MIN_TOKEN_LENGTH = 8
TOKEN = re.compile(r"[A-Za-z0-9_.~-]+")  # needs no escaping in addresses and cookies
MAX_STREAMS = 100  # open pages
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


def make_app(feed: Feed, token: str, more: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the ASGI application of a live page.

    Args:
        feed: The source of the page.
        token: Requests without it are rejected.
        more: Additional routes behind the same token.
    """
    pages = PageRoutes(feed)
    app = Starlette(
        routes=[
            Route("/", pages.page),
            Route("/events", pages.events),
            Route("/page.css", pages.style),
            Route("/page.js", pages.script),
            *more,
        ],
        lifespan=pages.lifespan,
    )
    app.add_middleware(TokenMiddleware, token=token)
    app.add_middleware(SecurityHeaders)
    return app


class PageRoutes:
    """The request handlers."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.streams = 0

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Poll the feed while the application runs."""
        following = asyncio.create_task(self.feed.follow())
        try:
            yield
        finally:
            self.feed.close()
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    async def page(self, request: Request) -> Response:
        """Return the whole page."""
        page = await self.feed.render(run_key(request))
        return Response(page.html, media_type="text/html")

    async def events(self, request: Request) -> Response:
        """Stream the sections that change."""
        if self.streams >= MAX_STREAMS:
            return PlainTextResponse(TOO_MANY, status_code=503)
        return StreamingResponse(self.stream(run_key(request)), media_type="text/event-stream")

    async def stream(self, key: str) -> AsyncIterator[str]:
        """Yield updates as server-sent events."""
        self.streams += 1
        try:
            async for update in self.feed.updates(key):
                yield f"event: board\ndata: {json.dumps(update)}\n\n"
        finally:
            self.streams -= 1

    async def style(self, request: Request) -> Response:
        """Return the style sheet."""
        return Response(style(), media_type="text/css")

    async def script(self, request: Request) -> Response:
        """Return the script."""
        return Response(script(), media_type="text/javascript")


def run_key(request: Request) -> str:
    """Return the run that the address names; "" for none."""
    return request.query_params.get("run", "")[:MAX_KEY_LENGTH]


# ------------------------------------------------------------------------------ access
class TokenMiddleware:
    """Rejects requests without the token: in a header, a cookie, or once in the address.

    A token in the page's address is moved to a cookie and the browser is redirected to the address
    without it, so that it appears in no history and no screenshot.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token.encode()
        # cookies ignore ports: servers on one machine need different names
        self.cookie = f"coterie-{hashlib.sha256(self.token).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        request = Request(scope)
        response: ASGIApp = PlainTextResponse(UNAUTHORIZED, status_code=401)
        if self.is_token(request.query_params.get("token")) and request.url.path == "/":
            response = self.set_cookie(request)
        elif self.has_token(request):
            response = self.app
        await response(scope, receive, send)

    def has_token(self, request: Request) -> bool:
        """Whether a request carries the token."""
        _, _, bearer = request.headers.get("authorization", "").partition("Bearer ")
        return self.is_token(bearer) or self.is_token(request.cookies.get(self.cookie))

    def is_token(self, given: str | None) -> bool:
        """Compare in constant time."""
        return given is not None and secrets.compare_digest(given.encode(), self.token)

    def set_cookie(self, request: Request) -> Response:
        """Set the cookie and redirect to the same address without the token."""
        rest = [(k, v) for k, v in parse_qsl(request.url.query) if k != "token"]
        address = "./"
        if rest:
            address = f"./?{urlencode(rest)}"
        response = RedirectResponse(address, status_code=303)
        response.set_cookie(self.cookie, self.token.decode(), httponly=True, samesite="lax")
        return response


class SecurityHeaders:
    """Adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers)


# ------------------------------------------------------------------------------ server
class LiveServer(uvicorn.Server):
    """Serves the live page.

    `run()` serves until SIGINT or SIGTERM. In a thread, which receives no signals, set
    `should_exit = True` to stop it.

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
        more: Sequence[BaseRoute] = (),
    ) -> None:
        self.token = check_token(token)
        self.socket = listen(host, port)
        self.feed = Feed(watched)
        super().__init__(
            uvicorn.Config(
                make_app(self.feed, self.token, more),
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                log_level="error",
                access_log=False,  # addresses may contain the token
                server_header=False,
                limit_concurrency=400,
            )
        )

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        host, port = self.socket.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        if ":" in host:
            host = f"[{host}]"
        return f"http://{host}:{port}/?token={self.token}"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until stopped."""
        try:
            super().run(sockets or [self.socket])
        finally:
            self.socket.close()

    async def shutdown(self, sockets: Any = None) -> None:
        """End the event streams first; they would keep the server running."""
        self.feed.close()
        asyncio.get_running_loop().call_later(GRACE, self._abort_connections)
        await super().shutdown(sockets)

    def _abort_connections(self) -> None:
        """Close connections whose reader does not respond, such as a sleeping laptop."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


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
