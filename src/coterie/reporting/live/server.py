"""The port of a live page, and the server behind it."""

from __future__ import annotations

import asyncio
import errno
import re
import secrets
import socket
from collections.abc import Sequence
from typing import Any

import uvicorn
from starlette.routing import BaseRoute

from coterie.core.errors import CoterieError, Option
from coterie.reporting.live.app import make_app
from coterie.reporting.live.feed import Feed, Watched

SHORTEST_TOKEN = 8
PARTING = 2.0  # seconds that open pages have to take leave
TOKEN = re.compile(r"[A-Za-z0-9_.~-]+")  # stands in addresses and cookies as it is


class LiveServer(uvicorn.Server):
    """Serves the live page until it is told to stop.

    `run()` serves until a signal comes. A server of sites calls it in a thread, where it hears no
    signals, and ends it with `should_exit = True`.
    """

    def __init__(
        self,
        watched: Watched,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        more: Sequence[BaseRoute] = (),
    ) -> None:
        """An error in one sentence where the port cannot be had.

        more: what is served beside the page, behind the same token.
        """
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
                access_log=False,  # addresses may hold the token
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
        """Serve until told to stop."""
        try:
            super().run(sockets or [self.socket])
        finally:
            self.socket.close()

    async def shutdown(self, sockets: Any = None) -> None:
        """End the streams of open pages first, which would go on for ever."""
        self.feed.close()
        asyncio.get_running_loop().call_later(PARTING, self._cut_off)
        await super().shutdown(sockets)

    def _cut_off(self) -> None:
        """Leave those who read nothing, such as a laptop that sleeps."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def check_token(token: str | None) -> str:
    """A token that was given, or a new one."""
    if token is None:
        return secrets.token_urlsafe(18)
    if len(token) < SHORTEST_TOKEN or not TOKEN.fullmatch(token):
        raise CoterieError(
            f"the token must have {SHORTEST_TOKEN} or more letters, digits or signs of - _ . ~",
            "give another {}, or none",
            options=[Option("token")],
        )
    return token


def listen(host: str, port: int) -> socket.socket:
    """Open a port; 0 is any that is free."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as e:
        what = f"host {host!r} is no address of this machine"
        raise CoterieError(what, "leave {} for 127.0.0.1", options=[Option("host")]) from e
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # right after a restart, too
    try:
        opened.bind((host, port))
        opened.listen(128)
    except OSError as e:
        opened.close()
        raise port_error(e, host, port) from e
    return opened


def port_error(e: OSError, host: str, port: int) -> CoterieError:
    """Why a port cannot be had, in one sentence."""
    if e.errno == errno.EADDRINUSE:
        what = f"port {port} of {host} is in use"
        return CoterieError(what, "give another {}, or 0 for any", options=[Option("port")])
    if e.errno == errno.EACCES:
        what = f"port {port} needs more rights than you have"
        return CoterieError(what, "give a {} above 1023", options=[Option("port")])
    what = f"host {host!r} is no address of this machine"
    return CoterieError(what, "leave {} for 127.0.0.1", options=[Option("host")])
