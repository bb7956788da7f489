"""The live page of a server of sites, with its metrics beside it, in a thread of the server."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from coterie.core.errors import CoterieError
from coterie.network import metrics
from coterie.network.registry import write_private
from coterie.network.watching import WatchedServer
from coterie.reporting.live.server import LiveServer

TOKEN_FILE = "page-token"
TO_END = 5.0  # seconds


class LivePage:
    """Serves the page of a server until it is closed."""

    def __init__(self, watched: WatchedServer, host: str, port: int, token: str) -> None:
        """An error in one sentence where the port cannot be had."""
        self.watched = watched
        self.server = LiveServer(watched, host, port, token, self.routes())
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()

    def routes(self) -> list[Route]:
        """What is served beside the page."""
        return [Route("/metrics", self.metrics)]

    async def metrics(self, request: Request) -> Response:
        """What Prometheus asks for."""
        text = metrics.as_text(self.watched.metrics())
        return Response(text, headers={"Content-Type": metrics.TYPE})

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return self.server.address

    def close(self) -> None:
        """Take leave of open pages."""
        self.server.should_exit = True
        self.thread.join(TO_END)


def kept_token(certs: Path) -> str:
    """The token of a server's page, which stays the same when the server is restarted."""
    file = certs / TOKEN_FILE
    try:
        return file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(18)
        write_private(file, f"{token}\n".encode())
        return token
    except (OSError, ValueError) as e:
        raise CoterieError(f"{file} cannot be read ({e})", "remove it") from e
