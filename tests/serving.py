"""A live page on a free port of this machine, in a thread, and how to ask it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coterie.reporting.live.feed import Watched
from coterie.reporting.live.server import LiveServer

TOKEN = "a-token-of-tests"
KEY = {"Authorization": f"Bearer {TOKEN}"}


@contextmanager
def served(watched: Watched, port: int = 0, token: str = TOKEN) -> Iterator[LiveServer]:
    """Serve a page, look ten times a second, and stop in the end."""
    server = LiveServer(watched, port=port, token=token)
    server.feed.period = 0.1
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline and thread.is_alive()
            time.sleep(0.01)
        yield server
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server does not stop"


def port_of(server: LiveServer) -> int:
    port: int = server.socket.getsockname()[1]
    return port


class Answer:
    """An answer of the server, read to its end."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.text = answer.read().decode()


def ask(
    server: LiveServer, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> Answer:
    """Ask the server for a path, with the token unless other headers are given."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=20)
    try:
        connection.request(method, path, headers=KEY if headers is None else headers)
        return Answer(connection.getresponse())
    finally:
        connection.close()


class Stream:
    """The events of a page."""

    def __init__(self, server: LiveServer, path: str = "/events") -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=20)
        self.connection.request("GET", path, headers=KEY)
        self.answer = self.connection.getresponse()

    def next(self) -> dict[str, Any]:
        """The next event."""
        assert self.answer.readline() == b"event: board\n"
        data = self.answer.readline()
        assert self.answer.readline() == b"\n"
        update: dict[str, Any] = json.loads(data.removeprefix(b"data: "))
        return update

    def close(self) -> None:
        self.connection.close()
