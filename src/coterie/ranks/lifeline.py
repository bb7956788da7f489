"""A connection from every rank to rank 0, on which nothing need be said.

It tells who is gone. The system closes it when a process ends, however it ends, and its keepalive
notices a machine that is cut off. So rank 0 can name the rank that is gone, and no rank outlives
rank 0, whatever it is doing.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

FAREWELL = b"bye\n"  # said by a rank that leaves because another one is gone
IDLE, BETWEEN, PROBES = 10, 5, 3  # seconds and numbers of the keepalive


class Lifelines:
    """The ends of all lifelines, at rank 0."""

    def __init__(self, host: str) -> None:
        """host: the address to listen on."""
        self.server = socket.create_server((host, 0))
        self.port: int = self.server.getsockname()[1]
        self.connections: list[socket.socket] = []
        self.here: dict[int, str] = {}  # by rank: its machine and process
        self.lost: list[int] = []  # ranks that ended without a word, the first one first
        self.closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.closed:
            try:
                connection, _ = self.server.accept()
            except OSError:  # closed
                return
            keep_alive(connection)
            self.connections.append(connection)
            threading.Thread(target=self._watch, args=(connection,), daemon=True).start()

    def _watch(self, connection: socket.socket) -> None:
        """Wait until a rank is gone."""
        rank = ""
        with connection, connection.makefile("rb") as lines:
            try:
                rank, name = lines.readline().decode().rstrip().split(" ", 1)
                self.here[int(rank)] = name
                last_word = lines.readline()
            except (OSError, ValueError):  # cut off, or a stranger
                last_word = b""
        if not self.closed and last_word != FAREWELL and rank.isdecimal():
            self.lost.append(int(rank))

    def close(self) -> None:
        """End all ranks that still live."""
        self.closed = True
        self.server.close()
        for connection in self.connections:
            hang_up(connection)


class Lifeline:
    """The end of one rank's lifeline, at that rank."""

    def __init__(self, host: str, port: int, rank: int, at_end: Callable[[], None]) -> None:
        """at_end: called in a thread when rank 0 is gone."""
        self.connection = socket.create_connection((host, port), timeout=60)
        self.connection.settimeout(None)
        keep_alive(self.connection)
        name = f"{socket.gethostname()}, process {os.getpid()}"
        self.connection.sendall(f"{rank} {name}\n".encode())
        self.at_end = at_end
        self.closed = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with suppress(OSError):
            self.connection.recv(1)  # rank 0 says nothing: this returns when it is gone
        if not self.closed:
            self.at_end()

    def say_farewell(self) -> None:
        """Leave because another rank is gone."""
        self.closed = True
        with suppress(OSError):
            self.connection.sendall(FAREWELL)

    def close(self) -> None:
        """Leave because rank 0 has said that all is done."""
        self.say_farewell()
        hang_up(self.connection)


def hang_up(connection: socket.socket) -> None:
    """Close a connection also for a thread that reads from it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def keep_alive(connection: socket.socket) -> None:
    """Notice within half a minute that the other machine is cut off."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("KEEPIDLE", IDLE), ("KEEPINTVL", BETWEEN), ("KEEPCNT", PROBES)):
        option = getattr(socket, f"TCP_{name}", None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
