"""`coterie network server`: train on real sites; `coterie network simulate`: on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.cli.commands import require_network
from coterie.cli.network_config import (
    ServerFlags,
    WaitingFlags,
    read_network_flags,
    read_network_run,
)
from coterie.cli.progress import ProgressDisplay
from coterie.cli.watch import TOKEN, describe_address, warn_unencrypted
from coterie.core.errors import CoterieError, Option
from coterie.core.settings import setting
from coterie.network.connections import listen
from coterie.network.server import (
    begin,
    export_models,
    read_network_file,
    resume,
    serve,
)
from coterie.network.transport import Messenger
from coterie.runs.folder import ensure_free, is_incomplete
from coterie.runs.run import Run

if TYPE_CHECKING:
    from coterie.network.https_server import HttpsServer
    from coterie.network.monitoring import WatchedServer

log = logging.getLogger("coterie")


# ------------------------------------------------------------------------------ server
def server(names: list[str], argv: list[str]) -> int:
    """`coterie network server CONFIG`"""
    about = "Wait for all sites that have a certificate, agree on the run with them, and train."
    flags, config = read_network_flags("server", ServerFlags, about, names, argv)
    require_network()
    from coterie.network.certificates import SiteDirectory
    from coterie.network.https_server import HttpsServer

    config_file, spec, _ = read_network_run(config, flags.out)
    spec = replace(flags.complete(spec), min_sites=flags.minimum_sites, max_rows=flags.max_rows)
    certs = Path(flags.certs)
    registered = SiteDirectory(certs).names
    check_minimum_sites(flags, len(registered))
    if flags.page:
        listen(flags.page_host, flags.page, "the live page", "page", "page_host").close()
    out = config_file.given_folder
    if flags.resume and out is None:
        raise CoterieError("--resume needs the folder of the run", "give --out")
    # a folder whose command was killed before the first round has nothing to resume
    resumes = flags.resume and out is not None and out.exists() and not is_incomplete(out)
    if out is not None and not resumes:
        ensure_free(out)  # before waiting for the sites
    display = ProgressDisplay(flags.quiet, repeats=True)
    with display.active():
        transport = HttpsServer(flags.host, flags.port, certs)
        display.note(f"listening on {flags.host}:{flags.port} for {len(registered)} sites")
        messenger = Messenger(transport, flags.waiting())
        title = f"{spec.method.name} on {len(registered)} sites"
        try:
            with live_page(flags, title, transport, display) as watched:
                if resumes and out is not None:
                    if watched is not None:
                        watched.show_folder(out)
                    run = resume(out, messenger)
                else:
                    sites = wait_for_sites(flags, registered, messenger)
                    run = begin(spec, sites, messenger, out or config_file.folder())
                if watched is not None:
                    watched.show(run)
                serve(run, display.follow(run.method.name, run))
        finally:
            transport.close()
    assert run.folder is not None
    print(f"run saved in {run.folder.path}")
    models = export_models(run, run.folder.path / "models")
    if models is not None:
        print(f"models of the groups in {models}")
    return 0


@contextmanager
def live_page(
    flags: ServerFlags, title: str, transport: HttpsServer, display: ProgressDisplay
) -> Iterator[WatchedServer | None]:
    """Serve a live page within this context, if --page is given."""
    if flags.page is None:
        yield None
        return
    from coterie.network.monitoring import TOKEN_FILE, LivePage, WatchedServer, page_token

    starts = "The run starts when all sites are connected."
    if flags.minimum_sites is not None:
        starts = (
            f"The run starts when all sites are connected, or {flags.wait:g} seconds after the "
            f"server starts if at least {flags.minimum_sites} of them are."
        )
    place = TOKEN
    token = os.environ.get(TOKEN)
    if not token:
        place = str(Path(flags.certs) / TOKEN_FILE)
        token = page_token(Path(flags.certs))
    watched = WatchedServer(transport, title, starts)
    page = LivePage(watched, flags.page_host, flags.page, token)
    warn_unencrypted(flags.page_host, display)
    print(f"the run is shown at {describe_address(page.server, place)}", flush=True)
    try:
        yield watched
    finally:
        page.close()


def check_minimum_sites(flags: ServerFlags, registered: int) -> None:
    """Refuse to wait for more sites than have a certificate."""
    if flags.minimum_sites is not None and flags.minimum_sites > registered:
        raise CoterieError(
            f"the run needs {flags.minimum_sites} sites, but {registered} have a certificate in "
            f"{flags.certs}",
            "give {} or fewer, or register more sites with `coterie network certs`",
            options=[Option("minimum_sites", str(registered))],
        )


def wait_for_sites(flags: ServerFlags, registered: list[str], messenger: Messenger) -> list[str]:
    """Wait for the sites before the first round.

    Returns:
        All sites that have a certificate; after --wait seconds those that are connected, if they
        are enough.
    """
    missing = messenger.wait_for(registered, flags.wait)
    connected = [name for name in registered if name not in missing]
    if not missing:
        return connected
    if flags.minimum_sites is not None and len(connected) >= flags.minimum_sites:
        log.warning("the run starts without %s.", ", ".join(missing))
        return connected
    raise CoterieError(
        f"{', '.join(missing)} did not connect", "check these sites, or revoke their certificates"
    )


# ------------------------------------------------------------------------------ simulate
@dataclass(frozen=True, kw_only=True)
class SimulateFlags(WaitingFlags):
    """The flags of `coterie network simulate`."""

    nodes: int | None = setting(None, "use only the first files of the folder; none: all", ge=1)
    out: str | None = setting(None, "folder for all results; none: runs/METHOD-DATA-TIME")
    port: int = setting(0, "port of the server; 0: any free port", ge=0, le=65535)


def simulate(names: list[str], argv: list[str]) -> int:
    """`coterie network simulate CONFIG`"""
    about = (
        "Run a server and its sites on this machine, each in its own process, with temporary\n"
        "certificates. Writes the models and a report, and stops all processes at the end."
    )
    flags, config = read_network_flags("simulate", SimulateFlags, about, names, argv)
    require_network()
    from coterie.network.simulation import Simulation
    from coterie.reporting import report

    config_file, spec, path = read_network_run(config, flags.out)
    spec = flags.complete(spec)
    display = ProgressDisplay(flags.quiet)
    with display.active():
        simulation = Simulation(spec, path, flags.nodes, flags.port)
        base = config_file.folder()
        ensure_free(base / "run", "choose another --out")  # before the nodes start
        with simulation.running(base) as transport:
            run: Run = simulation.run(
                transport, base, flags.waiting(), lambda r: display.follow("network", r)
            )
        models = export_models(run, base / "models")
        report([str(base / "run")], str(base / "report.html"), warn=log.info)
    print(f"run saved in {base / 'run'}; report in {base / 'report.html'}")
    if models is not None:
        print(f"models of the groups in {models}")
    experiment = read_network_file(base / "run").experiment
    print(f"each site's own model in {base / 'sites'}/SITE/SITE-run-{experiment}/model")
    return 0
