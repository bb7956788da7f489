"""How peers reach each other: all connect to the first one over HTTPS, which passes bytes on.

The first peer listens, as a server does, and its certificates identify the others. It sends each
of them what all peers gave in the last exchange; the reply is what that peer gives in the next one.
If a peer ends, or does not reply within the deadline, the first peer names it to all others, and
all of them end.
"""

from __future__ import annotations

import http.client
import logging
import ssl
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Protocol

from coterie.core.errors import CoterieError
from coterie.network.https_node import (
    ConnectionLost,
    NodeRefused,
    NumberedRequest,
    ServerConnection,
    client_context,
    explain,
)
from coterie.network.https_server import HttpsServer
from coterie.network.packets import Packet, sanitize_text
from coterie.network.transport import list_names

log = logging.getLogger("coterie")
OWN = "own"  # the piece with which a peer replies
POLL = 0.2  # seconds
START_AGAIN = "start all peers again: each continues from its own files"
BROKEN = (OSError, http.client.HTTPException, ConnectionLost, NodeRefused)


class PeerGroup(Protocol):
    """Gathers bytes from all peers."""

    def all_gather(self, own: bytes) -> dict[str, bytes]:
        """Return the bytes of every peer by name; raise CoterieError if one is missing."""
        ...

    def leave(self) -> None:
        """Leave after the last exchange, when all peers have its bytes."""
        ...

    def close(self) -> None:
        """Close all connections, which ends the other peers if they still need this one."""
        ...


class FirstPeer:
    """The end of the peer to which all others connect.

    Args:
        name: Name of this peer.
        server: Listens for the others.
        wait: Seconds in which all peers must connect.
        deadline: Seconds in which all peers must reply.

    Raises:
        CoterieError: The peer is not registered, or the others do not connect.
    """

    def __init__(self, name: str, server: HttpsServer, wait: float, deadline: float) -> None:
        self.name = name
        self.server = server
        self.deadline = deadline
        self.others = [other for other in server.names if other != name]
        if len(self.others) == len(server.names):
            raise CoterieError(
                f"the peer {name} has no certificate in this network",
                f"registered are: {', '.join(self.others)}",
            )
        end = time.monotonic() + wait
        logged: list[str] = []
        while missing := [other for other in self.others if other not in server.connections()]:
            if time.monotonic() > end:
                raise CoterieError(
                    f"{list_names(missing)} did not connect within {wait:g} seconds",
                    "start all peers",
                )
            if missing != logged:
                log.info("waiting for %s to connect", list_names(missing))
                logged = missing
            time.sleep(POLL)
        self.sessions: dict[str, Hashable] = dict(server.connections())
        self._send(Packet(b"", {name: b""}))  # who the first peer is

    def all_gather(self, own: bytes) -> dict[str, bytes]:
        """Return the bytes of every peer by name; raise CoterieError if one is missing."""
        gathered = {self.name: own}
        end = time.monotonic() + self.deadline
        while missing := [other for other in self.others if other not in gathered]:
            for name, packet in self.server.receive(POLL):
                gathered[name] = packet.pieces.get(OWN, b"")
            connected = self.server.connections()
            gone = [
                name
                for name in missing
                if name not in gathered and connected.get(name) != self.sessions.get(name, 0)
            ]
            if gone:
                self._fail(f"{list_names(gone)} no longer answers")
            if time.monotonic() > end:
                self._fail(f"{list_names(missing)} did not answer within {self.deadline:g} seconds")
        gathered = dict(sorted(gathered.items()))
        self._send(Packet(b"", gathered))
        return gathered

    def leave(self) -> None:
        """Wait until the others have left, so that they have the bytes of the last exchange."""
        end = time.monotonic() + self.deadline
        while self.server.connections() and time.monotonic() < end:
            time.sleep(POLL)

    def close(self) -> None:
        """Close all connections, which ends the other peers if they still need this one."""
        self.server.close()

    def _send(self, packet: Packet) -> None:
        self.server.send(dict.fromkeys(self.others, packet))

    def _fail(self, what: str) -> None:
        """Inform the others, and raise the same error here."""
        self._send(Packet(what.encode(), {}))
        self.leave()
        raise CoterieError(what, START_AGAIN)


class OtherPeer:
    """The end of a peer that connects to the first one.

    Args:
        server: HOST:PORT of the first peer.
        identity: This peer's file of `coterie network certs`.
        wait: Seconds in which all peers must connect.

    Raises:
        CoterieError: The first peer cannot be reached, or refuses the certificate.
    """

    def __init__(self, server: str, identity: Path, wait: float) -> None:
        context = client_context(identity)
        end = time.monotonic() + wait
        logged = ""
        while True:
            try:
                self.connection = ServerConnection(server, context)
                self.request = self._receive()
                if not self.request.packet.head:
                    self.first = sanitize_text(", ".join(self.request.packet.pieces))
                    return
                reason = "an earlier run of the peers is about to end"
                self.connection.close()
            except (NodeRefused, ssl.SSLCertVerificationError) as e:
                raise CoterieError(explain(e), "check the certificates and the clocks") from e
            except BROKEN as e:
                reason = explain(e)
            if time.monotonic() > end:
                raise CoterieError(
                    f"the first peer at {server} cannot be joined ({reason})",
                    "start it, or correct --server",
                )
            if reason != logged:
                log.info("waiting for the first peer at %s: %s", server, reason)
                logged = reason
            time.sleep(POLL)

    def all_gather(self, own: bytes) -> dict[str, bytes]:
        """Return the bytes of every peer by name; raise CoterieError if one is missing."""
        try:
            self.connection.reply(self.request.number, Packet(b"", {OWN: own}))
            self.request = self._receive()
        except BROKEN as e:
            raise CoterieError(f"{self.first} no longer answers", START_AGAIN) from e
        head, gathered = self.request.packet
        if head:
            raise CoterieError(sanitize_text(head.decode(errors="replace")), START_AGAIN)
        return gathered

    def leave(self) -> None:
        """Leave after the last exchange."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _receive(self) -> NumberedRequest:
        """Wait for the next request; polls are answered at least every ten seconds."""
        while True:
            request = self.connection.receive()
            if request is not None:
                return request
