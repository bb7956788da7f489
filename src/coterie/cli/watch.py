"""`coterie watch`: a page that shows a run while it is trained."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from coterie.cli.progress import Watcher
from coterie.cli.values import read_flags
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.reporting.live.folder import WatchedFolder

LOCAL = ("127.0.0.1", "::1", "localhost")
TOKEN = "COTERIE_TOKEN"  # the environment variable that may hold the token


@dataclass(frozen=True, kw_only=True)
class WatchFlags:
    """The flags of `coterie watch`."""

    port: int = setting(0, "port of the page; 0: any that is free", ge=0, le=65535)
    host: str = setting("127.0.0.1", "address to serve it at; 0.0.0.0: to the whole network")
    token: str | None = setting(None, f"who has it may look; none: that of {TOKEN}, or a new one")
    debug: bool = setting(False, "show tracebacks", switch=True)


def watch(words: list[str], argv: list[str]) -> int:
    """`coterie watch RUN`"""
    about = (
        "A page that shows a run while it is trained, or the runs of a comparison;\n"
        "it only reads the folder. Ctrl-C ends the page, not the run."
    )
    asked = read_flags("coterie watch RUN", WatchFlags, about, argv)
    if len(words) != 1 or not words[0]:
        raise CoterieError("watch needs the folder of a run, as in `coterie watch runs/mine`.")
    watcher = Watcher(level=logging.WARNING)
    with watcher():
        folder = WatchedFolder(words[0])
        try:
            from coterie.reporting.live.server import LiveServer
        except ModuleNotFoundError as e:
            what = "a live page needs starlette and uvicorn"
            raise CoterieError(what, "pip install 'coterie[watch]'") from e
        token = asked.token or os.environ.get(TOKEN) or None
        server = LiveServer(folder, asked.host, asked.port, token)
        tell_unencrypted(asked.host, watcher)
        print(f"{words[0]} is shown at {server.address}", flush=True)
        server.run()
    return 0


def tell_unencrypted(host: str, watcher: Watcher) -> None:
    """Warn of a page that others can read on its way."""
    if host not in LOCAL:
        watcher.warn(
            "the page is served to the network without encryption: put a proxy with TLS before it, "
            "or use a tunnel."
        )
