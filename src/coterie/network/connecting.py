"""What a node needs to connect, and why it cannot, in words of ours."""

from __future__ import annotations

import datetime
import email.utils
import ssl
from pathlib import Path
from typing import Any

import httpx

from coterie.core.errors import CoterieError

CLOCKS_AGREE = 5.0  # seconds; Flower refuses a node whose clock is further ahead
MAKE_KEYS = "make one with `coterie network certs`"


class Lost(Exception):
    """The server does not know this connection any more."""


# ------------------------------------------------------------------------------ what it is given
def check_address(server: str) -> str:
    """HOST:PORT, as it was given."""
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in server:
        raise CoterieError(
            f"the server is {server!r}", "give its host and port, such as server.example.org:8443"
        )
    return server


def read_key(file: Path) -> Any:
    """A node's private key."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(file.read_bytes(), None)
    except OSError as e:
        raise CoterieError(f"the key {file} cannot be read ({e.strerror})", MAKE_KEYS) from e
    except (ValueError, TypeError) as e:
        raise CoterieError(f"{file} is not a private key", MAKE_KEYS) from e


def read_authority(file: Path) -> bytes:
    """The certificate of the authority that signs the server's."""
    try:
        raw = file.read_bytes()
        ssl.create_default_context(cadata=raw.decode("ascii"))
    except OSError as e:
        if isinstance(e, ssl.SSLError):
            raise CoterieError(f"{file} is not a certificate", "give the server's ca.crt") from e
        raise CoterieError(f"{file} cannot be read ({e.strerror})", "give ca.crt") from e
    except ValueError as e:
        raise CoterieError(f"{file} is not a certificate", "give the server's ca.crt") from e
    return raw


# ------------------------------------------------------------------------------ why not
def is_refusal(error: Exception) -> bool:
    """Whether a server that is there does not want this node, or this node not the server."""
    if isinstance(error, httpx.HTTPStatusError):
        return 400 <= error.response.status_code < 500
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def why_not_connected(error: Exception) -> str:
    """Why there is no connection."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return why_not_trusted(text)
    if isinstance(error, httpx.HTTPStatusError) and is_refusal(error):
        return why_refused(error.response)
    if isinstance(error, httpx.ConnectError):
        return why_not_there(text)
    if isinstance(error, httpx.RemoteProtocolError):
        return "the server has hung up"
    if isinstance(error, Lost):
        return text
    return f"the connection was lost ({type(error).__name__})"


def why_not_trusted(text: str) -> str:
    """Why this node does not trust the server."""
    if "mismatch" in text or "not valid for" in text:
        return "the server's certificate is for another host than the one that --server names"
    if "expired" in text:
        return "the server's certificate has expired, or the clock of this machine is off"
    if "not yet valid" in text:
        return "the server's certificate is not yet valid, or the clock of this machine is off"
    return "the server's certificate is not signed by the authority that this node trusts"


def why_refused(response: httpx.Response) -> str:
    """Why the server does not want this node."""
    off = clock_difference(response)
    if response.status_code == 401 and off is not None and abs(off) > CLOCKS_AGREE:
        return f"the server refuses this node, whose clock is off by {abs(off):.0f} seconds"
    return "the server does not accept this node's key"


def why_not_there(text: str) -> str:
    """Why nobody answers."""
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text:
        return "the server speaks without TLS"
    if "Name or service not known" in text or "name resolution" in text:
        return "the server's host is not known here"
    return "the server is not there"


def clock_difference(response: httpx.Response) -> float | None:
    """Seconds by which this machine's clock is ahead of the server's; None if it is unknown."""
    try:
        there = email.utils.parsedate_to_datetime(response.headers["date"])
        return (datetime.datetime.now(datetime.UTC) - there).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None
