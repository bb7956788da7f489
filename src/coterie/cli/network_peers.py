"""`coterie network peers`: a method without a server, one process per client."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from coterie.cli.ending import end_at_once
from coterie.cli.network_config import one_config, read_asked
from coterie.cli.network_node import end_with_parent
from coterie.cli.progress import Watcher
from coterie.cli.values import read_flags
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.network.peers.rendezvous import Rendezvous
from coterie.network.transport import WaitPolicy

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
ABOUT = """\
A method without a server (pdl-tc): one process per client, and each sees what all others upload.
Start the same command everywhere, with a rank of its own from 0 on; rank 0 listens at --master.
Where a peer is gone, all others end with its name; the same commands again go on.
There is no TLS and there are no keys: use it on networks that you trust.
"""


@dataclass(frozen=True, kw_only=True)
class PeersFlags:
    """The flags of `coterie network peers`."""

    local: int | None = setting(
        None, "start this many peers on this machine, from the config's folder of files", ge=2
    )
    data: str | None = setting(None, "this peer's table: a CSV, Excel or Parquet file")
    rank: int | None = setting(None, "which peer this is, from 0 on", ge=0)
    world: int | None = setting(None, "how many peers there are", ge=2)
    master: str | None = setting(None, "HOST:PORT at which the peer of rank 0 listens")
    name: str | None = setting(None, "this peer's name; none: that of its file")
    state: str = setting(
        "coterie-peer", "folder of this peer's files; with --local, of a folder for each"
    )
    deadline: float = setting(120.0, "seconds that peers have for an answer", gt=0)
    wait: float = setting(3600.0, "seconds that all peers have to come at first", gt=0)
    child: bool = setting(False, "end when standard input does", hidden=True, switch=True)
    quiet: bool = setting(False, "no progress", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


def peers(words: list[str], argv: list[str]) -> int:
    """`coterie network peers CONFIG`"""
    flags = read_flags("coterie network peers CONFIG", PeersFlags, ABOUT, argv)
    config = one_config("peers", words)
    if flags.local is not None:
        return all_peers(config, flags, flags.local)
    return one_peer(config, flags)


def all_peers(config: str, flags: PeersFlags, number: int) -> int:
    """All peers on this machine."""
    from coterie.network.peers.local import LocalPeers
    from coterie.network.peers.peer import check_method

    _, asked, path = read_asked(config, None)
    check_method(asked)
    base = Path(flags.state)
    LocalPeers(config, path, number, base, flags.deadline).run(flags.quiet)
    print(f"each peer's run, private state and own model are in its folder in {base}")
    return 0


def one_peer(config: str, flags: PeersFlags) -> int:
    """One peer, on its own machine."""
    from coterie.network.lean import leave_out_compiler
    from coterie.network.peers.group import PeerGroup
    from coterie.network.peers.peer import Peer

    place = place_of(flags)
    _, asked, _ = read_asked(config, None)
    assert flags.data is not None
    table = Path(flags.data)
    if not table.is_file():
        raise CoterieError(f"there is no file {table}", "give the path of one")
    if flags.child:
        threading.Thread(target=end_with_parent, daemon=True).start()
    peer = Peer(asked, flags.name or table.stem, table, Path(flags.state))
    peer.check_files()
    leave_out_compiler()
    watcher = Watcher(flags.quiet)
    with watcher():
        if place.host not in LOCAL_HOSTS:
            watcher.warn(
                "peers speak without TLS and keys: whoever is on this network can read and change "
                "what they send."
            )
        end_at_once()  # threads may wait for a store that is gone
        group = PeerGroup(place)
        try:
            run = peer.take_part(
                group,
                WaitPolicy(deadline=flags.deadline, quorum=1.0),
                lambda run: watcher.follow(peer.site.client, run),
            )
        finally:
            group.close()
    assert run.folder is not None
    print(f"run kept in {run.folder.path}")
    return 0


def place_of(flags: PeersFlags) -> Rendezvous:
    """Which peer this is, and where all meet."""
    needed = {
        "--data": flags.data,
        "--rank": flags.rank,
        "--world": flags.world,
        "--master": flags.master,
    }
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise CoterieError(
            f"a peer needs {', '.join(missing)}", "or start all on this machine with --local 4"
        )
    host, port = read_master(str(flags.master))
    assert flags.rank is not None
    assert flags.world is not None
    return Rendezvous(
        rank=flags.rank,
        world=flags.world,
        host=host,
        port=port,
        wait=flags.wait,
        deadline=flags.deadline,
    )


def read_master(master: str) -> tuple[str, int]:
    """HOST:PORT as its parts."""
    host, _, port = master.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise CoterieError(
            f"--master is {master!r}", "write HOST:PORT, as in peer0.example.org:29500"
        )
    return host.strip("[]"), int(port)
