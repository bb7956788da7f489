"""`coterie network server`: waits for its sites, agrees with them, and trains."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.cli.network_config import read_asked, tell_insecure
from coterie.cli.network_flags import ServerFlags, read_network_flags
from coterie.cli.progress import Watcher
from coterie.cli.watch import TOKEN, tell_unencrypted
from coterie.core.errors import CoterieError, Option
from coterie.network.flower_setup import check_flower
from coterie.network.listening import Address, refuse_port_in_use
from coterie.network.registry import RegistryWatcher, read_registry
from coterie.network.server import (
    OpenMessenger,
    begin,
    export_models,
    messenger_factory,
    resume,
    serve,
)
from coterie.runs.folder import ensure_free, is_incomplete
from coterie.runs.run import Run

if TYPE_CHECKING:
    from coterie.network.watching import RegisteredTransport, WatchedServer

log = logging.getLogger("coterie")


def server(words: list[str], argv: list[str]) -> int:
    """`coterie network server CONFIG`"""
    about = "Wait for all sites that have a key, agree with them, and train."
    flags, config = read_network_flags("server", ServerFlags, about, words, argv)
    check_flower()
    from coterie.network.flower_server import FlowerServer

    read, asked, _ = read_asked(config, flags.out)
    certs = Path(flags.certs)
    keys = read_registry(certs)
    check_sites(flags, len(keys))
    check_page(flags)
    address = address_of(flags)
    out = read.given_folder
    if flags.resume and out is None:
        raise CoterieError("--resume needs the folder of the run", "give --out")
    goes_on = flags.resume and out is not None and not has_no_run(out)
    if out is not None and not goes_on:
        ensure_free(out)  # now, and not when all sites have come
    watcher = Watcher(flags.quiet, repeats=True)
    with watcher():
        tell_insecure(flags.insecure, watcher)
        transport = FlowerServer(address, keys)
        transport.on_stranger = RegistryWatcher(certs, transport.register)
        watcher.note(f"listening on {flags.host}:{flags.port} for {len(keys)} sites")
        open_messenger = messenger_factory(transport, flags.waiting())
        title = f"{asked.method.name} on {len(keys)} sites"
        try:
            with page_of(flags, title, transport, watcher) as page:
                if goes_on and out is not None:
                    page.show_folder(out)
                    run = resume(out, open_messenger)
                else:
                    names = wait_for_sites(flags, sorted(keys), open_messenger)
                    run = begin(asked, names, open_messenger, out or read.folder())
                page.show(run)
                serve(run, watcher.follow(run.method.name, run))
        finally:
            transport.close()
    assert run.folder is not None
    print(f"run kept in {run.folder.path}")
    models = export_models(run, run.folder.path / "models")
    if models is not None:
        print(f"models of the groups in {models}")
    return 0


class NoPage:
    """Stands for a page that nobody asked for."""

    def show_folder(self, folder: Path) -> None:
        """Show nothing."""

    def show(self, run: Run) -> None:
        """Show nothing."""


@contextmanager
def page_of(
    flags: ServerFlags, title: str, transport: RegisteredTransport, watcher: Watcher
) -> Iterator[WatchedServer | NoPage]:
    """Serve a live page from now on, if there is to be one."""
    if flags.page is None:
        yield NoPage()
        return
    from coterie.network.page import LivePage, kept_token
    from coterie.network.watching import WatchedServer

    token = os.environ.get(TOKEN) or kept_token(Path(flags.certs))
    watched = WatchedServer(transport, title, when_it_begins(flags))
    page = LivePage(watched, flags.page_host, flags.page, token)
    tell_unencrypted(flags.page_host, watcher)
    print(f"the run is shown at {page.address}", flush=True)
    try:
        yield watched
    finally:
        page.close()


def when_it_begins(flags: ServerFlags) -> str:
    """What a server waits for at first, in a sentence."""
    if flags.minimum_sites is None:
        return "The run begins when all sites are connected."
    return (
        f"The run begins when all sites are connected, or {flags.wait:g} seconds after the server "
        f"was started if {flags.minimum_sites} of them are."
    )


def check_page(flags: ServerFlags) -> None:
    """Refuse a port of the page that cannot be had before anybody waits for sites."""
    if flags.page:
        address = Address(host=flags.page_host, port=flags.page)
        refuse_port_in_use(address, "the live page", "page", "page_host")


def has_no_run(out: Path) -> bool:
    """Whether a folder is not there, or its command was killed before the run began."""
    return not out.exists() or is_incomplete(out)


def check_sites(flags: ServerFlags, registered: int) -> None:
    """Refuse to wait for more sites than can come."""
    if flags.minimum_sites is not None and flags.minimum_sites > registered:
        raise CoterieError(
            f"{flags.minimum_sites} sites are to take part, and {registered} have a key in "
            f"{flags.certs}",
            "give {} of them or fewer, or register more with `coterie network certs`",
            options=[Option("minimum_sites", str(registered))],
        )


def address_of(flags: ServerFlags) -> Address:
    """Where to listen, with which certificate."""
    if flags.insecure:
        return Address(host=flags.host, port=flags.port)
    folder = Path(flags.certs)
    files: dict[str, Any] = {"certificate": folder / "server.crt", "key": folder / "server.key"}
    for file in files.values():
        if not file.exists():
            raise CoterieError(
                f"there is no {file}", f"make it with `coterie network certs {folder}`"
            )
    return Address(host=flags.host, port=flags.port, **files)


def wait_for_sites(
    flags: ServerFlags, registered: list[str], open_messenger: OpenMessenger
) -> list[str]:
    """Those who take part: all who have a key, or enough of them when the time is over."""
    missing = open_messenger("0" * 16, 0).wait_for(registered, flags.wait)
    there = [name for name in registered if name not in missing]
    if not missing:
        return there
    if flags.minimum_sites is not None and len(there) >= flags.minimum_sites:
        log.warning("the run begins without %s.", ", ".join(missing))
        return there
    raise CoterieError(f"{', '.join(missing)} did not connect", "see to them, or remove their keys")
