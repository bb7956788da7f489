"""`coterie network peers`: train without a server, one process per client."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from coterie.cli.commands import skip_cleanup_at_exit
from coterie.cli.flags import read_flags
from coterie.cli.network_config import check_config_name, read_network_run
from coterie.cli.network_site import exit_with_parent
from coterie.cli.progress import Watcher
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.network.peers.rendezvous import Rendezvous
from coterie.network.waiting import WaitPolicy

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
ABOUT = """\
Train without a server (pdl-tc): one process per client, and each sees the uploads of all others.
Start the same command on every machine with a different --rank, from 0; rank 0 listens at --master.
If a peer is lost, all others exit and name it; the same commands continue the run.
There is no TLS and there are no keys: use it only on networks that you trust.
"""


@dataclass(frozen=True, kw_only=True)
class PeersFlags:
    """The flags of `coterie network peers`."""

    local: int | None = setting(
        None, "start this many peers on this machine, from the folder in the config file", ge=2
    )
    data: str | None = setting(None, "this peer's table: a CSV, Excel or Parquet file")
    rank: int | None = setting(None, "number of this peer, from 0", ge=0)
    world: int | None = setting(None, "number of peers", ge=2)
    master: str | None = setting(None, "HOST:PORT at which the peer of rank 0 listens")
    name: str | None = setting(None, "this peer's name; none: that of its table")
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
    if flags.local is not None:
        return run_local_peers(config, flags, flags.local)
    return run_peer(config, flags)


def run_local_peers(config: str, flags: PeersFlags, number: int) -> int:
    """Run all peers on this machine."""
    from coterie.network.peers.local import LocalPeers
    from coterie.network.peers.peer import check_method

    _, spec, path = read_network_run(config, None)
    check_method(spec)
    base = Path(flags.state)
    LocalPeers(config, path, number, base, flags.deadline).run(flags.quiet)
    print(f"each peer's run, private state and own model are in its folder in {base}")
    return 0


def run_peer(config: str, flags: PeersFlags) -> int:
    """Run one peer."""
    from coterie.network.peers.group import PeerGroup
    from coterie.network.peers.peer import Peer

    place = place_of(flags)
    _, spec, _ = read_network_run(config, None)
    assert flags.data is not None
    table = Path(flags.data)
    if not table.is_file():
        raise CoterieError(f"there is no file {table}", "check the path")
    if flags.child:
        threading.Thread(target=exit_with_parent, daemon=True).start()
    peer = Peer(spec, flags.name or table.stem, table, Path(flags.state))
    peer.describe()  # raises if its files are those of another run
    watcher = Watcher(flags.quiet)
    with watcher.showing():
        if place.host not in LOCAL_HOSTS:
            watcher.warn(
                "peers use neither TLS nor keys: anyone on this network can read and change their "
                "messages."
            )
        skip_cleanup_at_exit()  # threads may wait for a store that is gone
        group = PeerGroup(place)
        try:
            run = peer.train(
                group,
                WaitPolicy(deadline=flags.deadline, quorum=1.0),
                lambda run: watcher.follow(peer.site.client, run),
            )
        finally:
            group.close()
    assert run.folder is not None
    print(f"run saved in {run.folder.path}")
    return 0


def place_of(flags: PeersFlags) -> Rendezvous:
    """Return the rank of this peer and the address of rank 0."""
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
    """Split HOST:PORT."""
    host, _, port = master.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise CoterieError(
            f"--master is {master!r}", "write HOST:PORT, as in peer0.example.org:29500"
        )
    return host.strip("[]"), int(port)
