"""`coterie network node`: a site, which answers a server and keeps its rows."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from coterie.cli.ending import end_at_once
from coterie.cli.network_config import tell_insecure
from coterie.cli.progress import Watcher
from coterie.cli.values import read_flags
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.network.flower_setup import check_flower
from coterie.network.terms import OwnerPolicy
from coterie.runs.files import write_error


@dataclass(frozen=True, kw_only=True)
class NodeFlags:
    """The flags of `coterie network node`."""

    data: str = setting(..., "the site's table: a CSV, Excel or Parquet file")
    server: str = setting(..., "HOST:PORT of the server")
    key: str = setting(..., "the site's private key, of `coterie network certs`")
    ca: str | None = setting(None, "ca.crt of the server's authority; needed unless --insecure")
    name: str | None = setting(None, "the site's name; none: that of the key's file")
    state: str = setting("coterie-site", "folder of the site's private states and its own model")
    label: str | None = setting(None, "the only column that may be the label; none: any")
    min_rows_to_report: int = setting(
        1, "refuse runs that ask for sums over fewer rows than this", ge=1
    )
    insecure: bool = setting(
        False, "without TLS: whoever is between can read all that is sent", switch=True
    )
    child: bool = setting(False, "end when standard input does", hidden=True, switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


def node(words: list[str], argv: list[str]) -> int:
    """`coterie network node --data FILE --server HOST:PORT --key FILE`"""
    about = "Keep a site's rows, and answer a server. It goes on until it is stopped."
    flags = read_flags("coterie network node", NodeFlags, about, argv)
    check_flower()
    if flags.ca is None and not flags.insecure:
        raise CoterieError("a node needs the certificate of its server's authority", "give --ca")
    for file in filter(None, (flags.data, flags.ca)):
        if not Path(file).is_file():
            raise CoterieError(f"there is no file {file}", "give the path of one")
    import torch

    from coterie.network.flower_node import FlowerNode
    from coterie.network.site import NetworkSite

    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 2) // 2)))
    key = Path(flags.key)
    make_folder(Path(flags.state))
    owner = OwnerPolicy(label=flags.label, min_rows_to_report=flags.min_rows_to_report)
    site = NetworkSite(flags.name or key.stem, Path(flags.data), Path(flags.state), owner)
    certificate = None if flags.ca is None or flags.insecure else Path(flags.ca)
    if site.participation.wish == "left":
        print(f"the owner of {flags.state} has left; `coterie network unpause` takes that back")
        return 0
    living = FlowerNode(site, flags.server, key, certificate)
    signal.signal(signal.SIGTERM, end_once)
    if flags.child:
        threading.Thread(target=end_with_parent, daemon=True).start()
    end_at_once()  # its files are whole at any time, and to unload torch takes a second
    watcher = Watcher(repeats=True)
    try:
        with watcher():
            tell_insecure(flags.insecure, watcher)
            living.live()
    finally:
        living.close()
    return 0


def end_once(*_: object) -> None:
    """End this process; a second signal would break into its end with a traceback."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def make_folder(folder: Path) -> None:
    """Make the folder of a site's states, where its owner can pause it at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise write_error(e, folder) from e


def end_with_parent() -> None:
    """End this process when the one that started it is gone, however it ended."""
    while os.read(0, 1):
        pass
    os._exit(0)
