"""The live page as a starlette application: read-only, behind a token.

/           the page
/events     server-sent events: the sections that changed
/page.css   style and script, as the Content-Security-Policy allows nothing inside the page
/page.js
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie.reporting.live.feed import Feed
from coterie.reporting.live.sections import script, style

MOST_STREAMS = 100  # pages that are open at once
LONGEST_KEY = 500  # of the name of a run in an address
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
LOCKED = "This page needs its token: open the address that the command printed.\n"
FULL = "Too many pages are open.\n"


def make_app(feed: Feed, token: str, more: Sequence[BaseRoute] = ()) -> Starlette:
    """The application that shows what a feed watches to whoever has the token.

    more: what a server of sites answers beside it, behind the same token.
    """
    pages = Pages(feed)
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
    app.add_middleware(Lock, token=token)
    app.add_middleware(SafeHeaders)
    return app


class Pages:
    """What each address answers."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.streams = 0

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Look at what is watched as long as the application runs."""
        following = asyncio.create_task(self.feed.follow())
        try:
            yield
        finally:
            self.feed.close()
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    async def page(self, request: Request) -> Response:
        """The whole page."""
        drawn = await self.feed.draw(key_of(request))
        return Response(drawn.page, media_type="text/html")

    async def events(self, request: Request) -> Response:
        """A stream of the sections that change."""
        if self.streams >= MOST_STREAMS:
            return PlainTextResponse(FULL, status_code=503)
        return StreamingResponse(self.stream(key_of(request)), media_type="text/event-stream")

    async def stream(self, key: str) -> AsyncIterator[str]:
        """Updates as server-sent events."""
        self.streams += 1
        try:
            async for update in self.feed.updates(key):
                yield f"event: board\ndata: {json.dumps(update)}\n\n"
        finally:
            self.streams -= 1

    async def style(self, request: Request) -> Response:
        """The style sheet."""
        return Response(style(), media_type="text/css")

    async def script(self, request: Request) -> Response:
        """The script."""
        return Response(script(), media_type="text/javascript")


def key_of(request: Request) -> str:
    """The run that an address names; "" for none."""
    return request.query_params.get("run", "")[:LONGEST_KEY]


# ------------------------------------------------------------------------------ who may look
class Lock:
    """Lets in only who gives the token: in a header, a cookie, or once in the address.

    A token in the address of the page is put into a cookie, and the address is opened without it,
    so that it stands in no history and no screenshot.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token.encode()
        # cookies know no ports: servers on one machine need names of their own
        self.cookie = f"coterie-{hashlib.sha256(self.token).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        request = Request(scope)
        answer: ASGIApp = PlainTextResponse(LOCKED, status_code=401)
        if self.fits(request.query_params.get("token")) and request.url.path == "/":
            answer = self.remember(request)
        elif self.has_token(request):
            answer = self.app
        await answer(scope, receive, send)

    def has_token(self, request: Request) -> bool:
        """Whether a request brings the token."""
        _, _, bearer = request.headers.get("authorization", "").partition("Bearer ")
        return self.fits(bearer) or self.fits(request.cookies.get(self.cookie))

    def fits(self, given: str | None) -> bool:
        """Compare in a time that says nothing of the token."""
        return given is not None and secrets.compare_digest(given.encode(), self.token)

    def remember(self, request: Request) -> Response:
        """Put the token into a cookie and open the same address without it."""
        rest = [(k, v) for k, v in parse_qsl(request.url.query) if k != "token"]
        address = "./"
        if rest:
            address = f"./?{urlencode(rest)}"
        answer = RedirectResponse(address, status_code=303)
        answer.set_cookie(self.cookie, self.token.decode(), httponly=True, samesite="lax")
        return answer


class SafeHeaders:
    """Sends with every answer what a browser must not do with it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_safely)
