"""`coterie network node`: a site, which keeps its rows and replies to a server.

`pause`, `unpause` and `leave` change whether the site participates; `allow` resets what it has
disclosed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from coterie.cli.commands import require_network, skip_cleanup_at_exit
from coterie.cli.flags import read_flags
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.network.owner import Participation, allow_again, find_participation
from coterie.network.policy import PolicyFlags, policy_of
from coterie.runs.files import make_private_folder, write_error


@dataclass(frozen=True, kw_only=True)
class NodeFlags(PolicyFlags):
    """The flags of `coterie network node`."""

    data: str = setting(..., "the site's table: a CSV, Excel or Parquet file")
    server: str = setting(..., "HOST:PORT of the server")
    key: str = setting(..., "the site's file of `coterie network certs`, such as north.pem")
    name: str | None = setting(None, "the site's name in logs; none: that of the key file")
    state: str = setting("coterie-site", "folder for the site's private state and its own model")
    child: bool = setting(False, "exit when standard input ends", hidden=True, switch=True)


def node(names: list[str], argv: list[str]) -> int:
    """`coterie network node --data FILE --server HOST:PORT --key FILE`"""
    about = "Keep a site's rows and reply to a server, until it is stopped."
    flags = read_flags("coterie network node", NodeFlags, about, argv)
    require_network()
    for file in (flags.data, flags.key):
        if not Path(file).is_file():
            raise CoterieError(f"there is no file {file}", "check the path")
    # Arrow's own allocator keeps the memory that reading a table took; this one returns it
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    import torch

    from coterie.cli.progress import ProgressDisplay
    from coterie.network.https_node import HttpsNode
    from coterie.network.site import NetworkSite

    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 2) // 2)))
    key = Path(flags.key)
    state = Path(flags.state)
    try:
        make_private_folder(state)  # so that its owner can pause it at once
    except OSError as e:
        raise write_error(e, state) from e
    site = NetworkSite(flags.name or key.stem, Path(flags.data), state, policy_of(flags), key=key)
    if site.participation.status == "left":
        print(f"the site in {flags.state} has left; `coterie network unpause` undoes this")
        return 0
    https_node = HttpsNode(site, flags.server, key)
    signal.signal(signal.SIGTERM, exit_once)
    if flags.child:
        threading.Thread(target=exit_with_parent, daemon=True).start()
    skip_cleanup_at_exit()  # its files are always complete, and unloading torch takes a second
    display = ProgressDisplay(repeats=True)
    try:
        with display.active():
            https_node.run()
    finally:
        https_node.close()
    return 0


def exit_once(*_: object) -> None:
    """Exit; ignore further signals, which would interrupt the exit with a traceback."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def exit_with_parent() -> None:
    """Wait until the process that started this one is gone, then exit."""
    while os.read(0, 1):
        pass
    os._exit(0)


# ------------------------------------------------------------------------------ pause, leave
ABOUT = {
    "pause": "Let a site skip all rounds until `unpause`. Its node stays connected and keeps\n"
    "its group; the server continues without it if the quorum allows.",
    "unpause": "Let a site participate again.",
    "leave": "Withdraw a site. Its node informs the server, which stops waiting for it, and\n"
    "exits. To return, use `unpause` and start the node again. Its files stay: delete the\n"
    "folder if you do not need them.",
    "allow": "Allow another choice of the site's test rows, and reset the counts of answers and\n"
    "scored models. Statistics of two choices can be subtracted, which may reveal rows. Stop the\n"
    "node first.",
}


@dataclass(frozen=True, kw_only=True)
class OwnerFlags:
    """The flags of `coterie network pause`, `unpause`, `leave` and `allow`."""

    state: str = setting("coterie-site", "folder of the site's private state, as given to its node")


def pause(names: list[str], argv: list[str]) -> int:
    """`coterie network pause`"""
    participation = read_participation("pause", names, argv)
    participation.pause()
    print(f"the site in {participation.folder} is paused; `coterie network unpause` resumes it")
    return 0


def unpause(names: list[str], argv: list[str]) -> int:
    """`coterie network unpause`"""
    participation = read_participation("unpause", names, argv)
    before = participation.status
    participation.unpause()
    if before == "left":
        print(f"the site in {participation.folder} may participate again: start its node")
    else:
        print(f"the site in {participation.folder} participates")
    return 0


def leave(names: list[str], argv: list[str]) -> int:
    """`coterie network leave`"""
    participation = read_participation("leave", names, argv)
    participation.leave()
    print(f"the site in {participation.folder} leaves; its node informs the server and exits")
    return 0


def allow(names: list[str], argv: list[str]) -> int:
    """`coterie network allow`"""
    folder = read_participation("allow", names, argv).folder
    if allow_again(folder):
        print(f"the site in {folder} answers as if its table were new: start its node")
    else:
        print(f"the site in {folder} has not disclosed anything yet")
    return 0


def read_participation(command: str, names: list[str], argv: list[str]) -> Participation:
    """Read the flags of pause, unpause, leave or allow; return the participation of the site."""
    flags = read_flags(f"coterie network {command}", OwnerFlags, ABOUT[command], argv)
    if names:
        raise CoterieError(f"{command} takes no names", "give the folder of the site as --state")
    return find_participation(Path(flags.state))
