"""`coterie network server`: waits for its sites, agrees with them, and trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.cli.network_config import Waits, one_config, read_asked, tell_insecure
from coterie.cli.progress import Watcher
from coterie.cli.values import read_flags
from coterie.errors import CoterieError
from coterie.network.flower_version import check_flower
from coterie.settings import setting


@dataclass(frozen=True, kw_only=True)
class ServerFlags(Waits):
    """The flags of `coterie network server`."""

    out: str | None = setting(None, "folder of the run; none: runs/METHOD-DATA-TIME")
    host: str = setting("0.0.0.0", "address to listen on")
    port: int = setting(8443, "port to listen on", least=1, most=65535)
    certs: str = setting("certs", "folder of `coterie network certs`")
    wait: float = setting(3600.0, "seconds that all sites have to connect at first", above=0)
    resume: bool = setting(False, "go on with the run in --out", switch=True)
    insecure: bool = setting(
        False, "without TLS: whoever is between can read all that is sent", switch=True
    )


def server(words: list[str], argv: list[str]) -> int:
    """`coterie network server CONFIG`"""
    about = "Wait for all sites that have a key, agree with them, and train."
    flags = read_flags("coterie network server CONFIG", ServerFlags, about, argv)
    check_flower()
    from coterie.network.certificates import read_registry
    from coterie.network.flower_server import FlowerServer
    from coterie.network.listening import Address
    from coterie.network.server import begin, post_for, resume, serve

    read, asked, _ = read_asked(one_config("server", words), flags.out)
    folder = Path(flags.certs)
    keys = read_registry(folder)
    address = Address(host=flags.host, port=flags.port)
    if not flags.insecure:
        needed = {"certificate": folder / "server.crt", "key": folder / "server.key"}
        for file in needed.values():
            if not file.exists():
                raise CoterieError(
                    f"there is no {file}", f"make it with `coterie network certs {folder}`"
                )
        address = Address(host=flags.host, port=flags.port, **needed)
    if flags.resume and read.given_folder is None:
        raise CoterieError("--resume needs the folder of the run", "give --out")
    watcher = Watcher(flags.quiet)
    with watcher():
        tell_insecure(flags.insecure, watcher)
        transport = FlowerServer(address, keys)
        watcher.note(f"listening on {flags.host}:{flags.port} for {len(keys)} sites")
        open_post = post_for(transport, flags.waiting())
        try:
            if flags.resume:
                assert read.given_folder is not None
                run = resume(read.given_folder, open_post)
            else:
                missing = open_post("0" * 16, 0).wait_for(sorted(keys), flags.wait)
                if missing:
                    raise CoterieError(
                        f"{', '.join(missing)} did not connect", "see to them, or remove their keys"
                    )
                out = read.given_folder or read.folder()
                run = begin(asked, sorted(keys), open_post, out)
            serve(run, watcher.follow(run.method.name, run))
        finally:
            transport.close()
    assert run.folder is not None
    print(f"run kept in {run.folder.path}")
    return 0
