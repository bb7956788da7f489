"""`coterie watch`: a page that shows a run while it trains."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.cli.flags import check_names, read_flags
from coterie.cli.progress import ProgressDisplay
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.reporting.live.folder import WatchedFolder

if TYPE_CHECKING:
    from coterie.reporting.live.server import LiveServer

LOCAL = ("127.0.0.1", "::1", "localhost")
TOKEN = "COTERIE_TOKEN"  # environment variable with the token of the page


@dataclass(frozen=True, kw_only=True)
class WatchFlags:
    """The flags of `coterie watch`."""

    port: int = setting(0, "port of the page; 0: any free port", ge=0, le=65535)
    host: str = setting("127.0.0.1", "address of the page; 0.0.0.0: the whole network")
    token: str | None = setting(None, f"password of the page; none: {TOKEN}, or a new one")


def watch(names: list[str], argv: list[str]) -> int:
    """`coterie watch RUN`"""
    about = (
        "Show a run, or the runs of a comparison, in the browser while they train.\n"
        "The folder is only read. Ctrl-C ends the page, not the run."
    )
    asked = read_flags("coterie watch RUN", WatchFlags, about, argv)
    (path,) = check_names(names, 1, "coterie watch RUN, such as coterie watch runs/mine")
    display = ProgressDisplay(level=logging.WARNING)
    with display.active():
        folder = WatchedFolder(path)
        try:
            from coterie.reporting.live.server import LiveServer
        except ModuleNotFoundError as e:
            what = "the live page needs aiohttp"
            raise CoterieError(what, "pip install 'coterie[watch]'") from e
        token = asked.token or os.environ.get(TOKEN) or None
        server = LiveServer(folder, asked.host, asked.port, token)
        warn_unencrypted(asked.host, display)
        with token_place(asked, server.token) as place:
            print(f"{path} is shown at {describe_address(server, place)}", flush=True)
            server.run()
    return 0


def describe_address(server: LiveServer, place: str) -> str:
    """Return the address of a page; with the token on a terminal only, as other output is logged.

    Args:
        server: The server of the page.
        place: Where else the token can be found.
    """
    if sys.stdout.isatty():
        return server.address_with_token
    return f"{server.address} with the token in {place}"


@contextmanager
def token_place(asked: WatchFlags, token: str) -> Iterator[str]:
    """Yield where the token can be found, if it is not printed: a file for a generated one."""
    if asked.token or os.environ.get(TOKEN):
        yield "--token" if asked.token else TOKEN
        return
    with tempfile.NamedTemporaryFile("w", prefix="coterie-token-") as file:  # mode 0600
        file.write(f"{token}\n")
        file.flush()
        yield file.name


def warn_unencrypted(host: str, display: ProgressDisplay) -> None:
    """Warn if the page leaves this machine, because it is not encrypted."""
    if host not in LOCAL:
        display.warn(
            "the page is served to the network without encryption: use a proxy with TLS, or a "
            "tunnel."
        )
