"""A node that is killed while it waits is missed at once."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

import pytest

from coterie.network.listening import OpenPolls
from coterie.network.simulation import free_port
from machines import wait_for


class Site:
    """The connection of a site with an open question."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()
        self.parts = [
            {"type": "http.request", "body": b"ask", "more_body": True},
            {"type": "http.request", "body": b"ed"},
        ]
        self.answers = []

    async def receive(self):
        if self.parts:
            return self.parts.pop(0)
        await self.broken.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.answers.append(message)


async def read_body(receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message.get("more_body"):
            return body


def test_who_hangs_up_before_the_answer_is_noted_until_it_is_heard():
    lines = OpenPolls()

    async def app(scope, receive, send):
        assert await read_body(receive) == b"asked"
        site.broken.set()
        assert (await receive())["type"] == "http.disconnect"

    async def main():
        nonlocal site
        site = Site()
        await lines.hold("ash", app, {}, site.receive, site.send)

    site = None
    asyncio.run(main())
    assert lines.hung_up == {"ash"}
    lines.heard("elm")
    assert lines.hung_up == {"ash"}
    lines.heard("ash")
    assert lines.hung_up == set()


def test_who_hangs_up_after_the_answer_is_there():
    lines = OpenPolls()

    async def app(scope, receive, send):
        await read_body(receive)
        await send({"type": "http.response.start"})
        site.broken.set()
        await asyncio.sleep(0.05)

    async def main():
        nonlocal site
        site = Site()
        await lines.hold("ash", app, {}, site.receive, site.send)

    site = None
    asyncio.run(main())
    assert lines.hung_up == set() and len(site.answers) == 1


def test_a_node_whose_connection_breaks_is_missed_at_once_and_found_again(tmp_path, monkeypatch):
    """Its heart would be missed after 20 seconds."""
    pytest.importorskip("flwr")
    from coterie.network.certificates import read_registry, register_site
    from coterie.network.flower_node import NodeConnection, read_key
    from coterie.network.flower_server import FlowerServer
    from coterie.network.listening import Address

    key = read_key(register_site(tmp_path, "ash"))
    address = Address(host="127.0.0.1", port=free_port())
    server = FlowerServer(address, read_registry(tmp_path))
    connect = socket.create_connection
    sockets = []

    def connect_and_keep(*where, **how):
        sockets.append(connect(*where, **how))
        return sockets[-1]

    monkeypatch.setattr(socket, "create_connection", connect_and_keep)
    try:
        first = NodeConnection(f"127.0.0.1:{address.port}", key, None)

        def ask() -> None:
            with suppress(Exception):  # the connection is broken below
                first.receive()

        threading.Thread(target=ask, daemon=True).start()
        wait_for(lambda: server.waiting, 10, "its question")
        assert server.connections() == {"ash": 1}
        first.gone.set()  # no more signs of life, as of a process that was killed
        for opened in sockets:
            opened.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: not server.connections(), 5, "its absence")
        again = NodeConnection(f"127.0.0.1:{address.port}", key, None)
        assert server.connections() == {"ash": 2}
        again.close()
        assert server.connections() == {}
    finally:
        server.close()
