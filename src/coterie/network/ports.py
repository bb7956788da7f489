"""Ports of this machine."""

from __future__ import annotations

import errno
import socket

from coterie.core.errors import CoterieError, Option

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def check_port(
    host: str,
    port: int,
    listener: str = "the server",
    port_option: str = "port",
    host_option: str = "host",
) -> None:
    """Refuse an address on which this process cannot listen.

    Args:
        host: Name or address of an interface of this machine.
        port: Port number.
        listener: Who is to listen there, for the message.
        port_option: Option that sets the port.
        host_option: Option that sets the host.

    Raises:
        CoterieError: Another process listens there, or the address is not one of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError) as e:
        reason = getattr(e, "strerror", None) or e
        taken = isinstance(e, OSError) and e.errno in (errno.EADDRINUSE, errno.EACCES)
        raise CoterieError(
            f"{listener} cannot listen on {host}:{port} ({reason})",
            "choose another {}",
            options=[Option(port_option if taken else host_option)],
        ) from e
