"""`coterie network peers`: train without a server, one process per client."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.commands import require_network, skip_cleanup_at_exit
from coterie.cli.flags import read_flags
from coterie.cli.network_config import check_config_name, read_network_run
from coterie.cli.network_site import exit_with_parent
from coterie.cli.progress import ProgressDisplay
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.network.handshake import RunSpec
from coterie.network.transport import WaitPolicy

if TYPE_CHECKING:
    from coterie.network.peer_group import PeerGroup

ABOUT = """\
Train without a server (pdl-tc): one process per client, and each sees the uploads of all others.
Make a certificate for each peer with `coterie network certs`, and start the same command on every
machine, each with its own table and file. All peers connect to the first one, which has --certs.
If a peer is lost, all others exit and name it; the same commands continue the run.
"""


@dataclass(frozen=True, kw_only=True)
class PeersFlags:
    """The flags of `coterie network peers`."""

    local: int | None = setting(
        None, "start this many peers on this machine, from the folder in the config file", ge=2
    )
    data: str | None = setting(None, "this peer's table: a CSV, Excel or Parquet file")
    key: str | None = setting(
        None, "this peer's file of `coterie network certs`, named after it, such as north.pem"
    )
    first: str | None = setting(None, "HOST:PORT at which the first peer listens")
    certs: str | None = setting(
        None, "this is the first peer: the folder of `coterie network certs`"
    )
    state: str = setting(
        "coterie-peer", "folder of this peer's files; with --local, one subfolder for each peer"
    )
    deadline: float = setting(120.0, "seconds that peers have to reply", gt=0)
    wait: float = setting(3600.0, "seconds to wait for all peers before the first round", gt=0)
    child: bool = setting(False, "exit when standard input ends", hidden=True, switch=True)
    quiet: bool = setting(False, "no progress", switch=True)


def peers(names: list[str], argv: list[str]) -> int:
    """`coterie network peers CONFIG`"""
    flags = read_flags("coterie network peers CONFIG", PeersFlags, ABOUT, argv)
    config = check_config_name("peers", names)
    require_network()
    _, spec, path = read_network_run(config, None)
    if flags.local is None:
        return run_peer(spec, flags)
    from coterie.network.peers import check_method
    from coterie.network.simulation import run_local_peers

    check_method(spec)
    base = Path(flags.state)
    run_local_peers(config, path, flags.local, base, deadline=flags.deadline, quiet=flags.quiet)
    print(f"each peer's run, private state and own model are in its folder in {base}")
    return 0


def run_peer(spec: RunSpec, flags: PeersFlags) -> int:
    """Run one peer."""
    from coterie.network.peers import Peer

    needed = {"--data": flags.data, "--key": flags.key, "--first": flags.first}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise CoterieError(
            f"a peer needs {', '.join(missing)}", "or start all on this machine with --local 4"
        )
    assert flags.data is not None and flags.key is not None
    for file in (flags.data, flags.key):
        if not Path(file).is_file():
            raise CoterieError(f"there is no file {file}", "check the path")
    if flags.child:
        threading.Thread(target=exit_with_parent, daemon=True).start()
    peer = Peer(spec, Path(flags.key).stem, Path(flags.data), Path(flags.state))
    peer.describe()  # raises if its files are those of another run
    display = ProgressDisplay(flags.quiet)
    with display.active():
        skip_cleanup_at_exit()  # unloading torch takes a second
        group = join_group(peer.site.client, flags)
        try:
            run = peer.train(
                group,
                WaitPolicy(deadline=flags.deadline, quorum=1.0),
                lambda run: display.follow(peer.site.client, run),
            )
            group.leave()
        finally:
            group.close()
    assert run.folder is not None
    print(f"run saved in {run.folder.path}")
    return 0


def join_group(name: str, flags: PeersFlags) -> PeerGroup:
    """Connect to the other peers."""
    from coterie.network.connections import listen
    from coterie.network.https_node import split_address
    from coterie.network.https_server import HttpsServer
    from coterie.network.peer_group import FirstPeer, OtherPeer

    assert flags.first is not None and flags.key is not None
    host, port = split_address(flags.first)
    if flags.certs is None:
        return OtherPeer(flags.first, Path(flags.key), flags.wait)
    try:
        listen(host, port, "the first peer").close()
    except CoterieError as e:
        raise CoterieError(e.what, "give --first an address and a free port of this machine") from e
    server = HttpsServer(host, port, Path(flags.certs))
    try:
        return FirstPeer(name, server, flags.wait, flags.deadline)
    except CoterieError:
        server.close()
        raise
