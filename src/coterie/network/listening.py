"""Where a server listens, and what it does with requests before Flower reads them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import errno
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, Option

LONG_QUESTION = "/pull-messages"  # which a server holds open until it has a message


class OpenPolls:
    """Notes whose connection broke while a question of theirs was open.

    So a node that is killed while it waits is missed at once, and not when its signs of life are.
    """

    def __init__(self) -> None:
        self.hung_up: set[str] = set()  # names of sites

    def heard(self, name: str) -> None:
        """Note that a site has asked something."""
        self.hung_up.discard(name)

    async def hold(self, name: str, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Let an application answer a site's question, and note if the site hangs up before."""
        is_answered = False
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())

        async def wait_for_end() -> Any:
            message = await receive()
            if not is_answered:
                self.hung_up.add(name)
            return message

        async def receive_again() -> Any:
            if messages:
                return messages.pop(0)
            return await asyncio.shield(ending)

        async def send_on(message: Any) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        ending = asyncio.create_task(wait_for_end())
        try:
            await app(scope, receive_again, send_on)
        finally:
            ending.cancel()


log = logging.getLogger("coterie")
MOST_BYTES = 512 * 1024 * 1024  # of one request
STRANGERS_BYTES = 16 * 1024  # of one request that names no key which is registered
KEY_HEADER = b"flwr-public-key"
TIME_HEADER = b"flwr-timestamp"
CONNECT = "/activate-node"
CLOCK_TOLERANCE = 5.0  # seconds by which a node's clock may be ahead, as Flower has it
OLDEST_SIGNATURE = 305.0  # seconds
SAY_AGAIN = 600.0  # seconds after which the same refusal is logged again

UNKNOWN_KEY = "a key that is not registered"
CLOCK_OFF = "a clock that is off"
NO_SIGNATURE = "no valid signature"
TOO_LONG = "a request that is too long"
FAILURE = "a failure of this server"


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens; without a certificate, packets travel in the clear."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None


def refuse_port_in_use(
    address: Address, who: str = "the server", port: str = "port", host: str = "host"
) -> None:
    """Say in one sentence that the address cannot be had, such as when somebody listens there.

    who: is to listen there.  port, host: the options that name the address.
    """
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))
    except (OSError, UnicodeError) as e:
        reason = getattr(e, "strerror", None) or e
        to_change = host
        if isinstance(e, OSError) and e.errno in (errno.EADDRINUSE, errno.EACCES):
            to_change = port
        raise CoterieError(
            f"{who} cannot listen on {address.host}:{address.port} ({reason})",
            "choose another {}",
            options=[Option(to_change)],
        ) from e


class RequestGate:
    """Refuses requests that are too long before they are read, and logs whom the server refuses.

    Whoever names a registered key may send a model; others may send a signature, no more.
    """

    def __init__(
        self,
        app: Any,
        keys: Mapping[bytes, str],
        refuse: Callable[[str, str], None],
        most: int = MOST_BYTES,
        lines: OpenPolls | None = None,
    ) -> None:
        """keys: the sites' names by public key, in PEM.  refuse: told (reason, who) each time."""
        self.app = app
        self.keys = keys
        self.refuse = refuse
        self.most = most
        self.lines = lines or OpenPolls()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on a request whose length is known and within the limit."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        name = self.keys.get(key_in(headers))
        length = headers.get(b"content-length", b"")
        limit = STRANGERS_BYTES if name is None else self.most
        if not length.isdigit() or int(length) > limit:
            self.refuse(TOO_LONG, who_sent(scope, name))
            await send_empty(send, 413 if length else 411)
            return

        async def watched_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                reason = reason_for(message["status"], scope["path"], headers, name)
                if reason is not None:
                    self.refuse(reason, who_sent(scope, name))
            await send(message)

        if name is not None:
            self.lines.heard(name)
        if name is None or not scope["path"].endswith(LONG_QUESTION):
            await self.app(scope, receive, watched_send)
            return
        await self.lines.hold(name, self.app, scope, receive, watched_send)


async def send_empty(send: Any, status: int) -> None:
    """Answer with a status alone."""
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def key_in(headers: Mapping[bytes, bytes]) -> bytes:
    """The public key that a request names, in PEM; b"" for none."""
    try:
        return base64.b64decode(headers.get(KEY_HEADER, b""), validate=True)
    except (binascii.Error, ValueError):
        return b""


def who_sent(scope: Any, name: str | None) -> str:
    """The site whose key a request names, else its address."""
    if name is not None:
        return name
    client = scope.get("client")
    if not client:
        return "somebody"
    return f"somebody at {client[0]}"


def reason_for(
    status: int, path: str, headers: Mapping[bytes, bytes], name: str | None
) -> str | None:
    """Why a node is refused, by the status that Flower answers; None if it is not."""
    if status >= 500:
        return FAILURE
    if status not in (401, 412):
        return None
    if name is None:
        return UNKNOWN_KEY
    if status == 412:
        return None  # of a node whose key is known: it only came too late with something
    age = age_of(headers.get(TIME_HEADER, b""))
    if age is not None and not -CLOCK_TOLERANCE < age < OLDEST_SIGNATURE:
        return f"{CLOCK_OFF} by {abs(age):.0f} seconds"
    if not path.endswith(CONNECT):
        return None  # a node of before this server was restarted, which connects again
    return NO_SIGNATURE


def age_of(timestamp: bytes) -> float | None:
    """Seconds since a signature was made, by the clocks of both; None if it says no time."""
    try:
        signed = datetime.datetime.fromisoformat(timestamp.decode("ascii"))
        return (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
    except (ValueError, TypeError, UnicodeError):
        return None


class Refusals:
    """Counts whom the server refused to listen to, and logs each once in a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: dict[str, int] = {}  # by reason, without numbers
        self._clock = clock
        self._logged: dict[tuple[str, str], float] = {}

    def __call__(self, reason: str, who: str) -> None:
        """Count a refusal."""
        kind = CLOCK_OFF if reason.startswith(CLOCK_OFF) else reason
        self.counts[kind] = self.counts.get(kind, 0) + 1
        now = self._clock()
        last = self._logged.get((kind, who))
        if last is not None and now - last < SAY_AGAIN:
            return
        if len(self._logged) > 1000:  # a stranger may come from many addresses
            self._logged.clear()
        self._logged[kind, who] = now
        log.warning("%s was refused: %s.", who, reason)
