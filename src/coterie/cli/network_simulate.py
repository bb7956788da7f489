"""`coterie network simulate`: a server and its sites on this machine."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from coterie.cli.network_config import read_asked
from coterie.cli.network_flags import Waits, read_network_flags
from coterie.cli.progress import Watcher
from coterie.core.settings import setting
from coterie.network.flower_setup import check_flower
from coterie.network.server import export_models, read_network_file
from coterie.reporting import report as write_report
from coterie.runs.folder import ensure_free
from coterie.runs.run import Run

log = logging.getLogger("coterie")


@dataclass(frozen=True, kw_only=True)
class SimulateFlags(Waits):
    """The flags of `coterie network simulate`."""

    nodes: int | None = setting(None, "use the first files of the folder alone; none: all", ge=1)
    out: str | None = setting(None, "folder of all that is written; none: runs/METHOD-DATA-TIME")
    port: int = setting(0, "port of the server; 0: a free one", ge=0, le=65535)


def simulate(words: list[str], argv: list[str]) -> int:
    """`coterie network simulate CONFIG`"""
    about = (
        "A server and its sites on this machine, each in a process of its own, with TLS and keys\n"
        "that are thrown away: from a folder of tables to models, a report and no process left."
    )
    flags, config = read_network_flags("simulate", SimulateFlags, about, words, argv)
    check_flower()
    from coterie.network.simulation import Simulation

    read, asked, path = read_asked(config, flags.out)
    watcher = Watcher(flags.quiet)
    with watcher():
        simulation = Simulation(asked, path, flags.nodes, flags.port)
        base = read.folder()
        ensure_free(base / "run", "choose another --out")  # now, and not when all nodes are there
        with simulation.running(base) as transport:
            run = simulation.run(
                transport, base, flags.waiting(), lambda r: watcher.follow("network", r)
            )
        models = write_results(run, base)
    print(f"run kept in {base / 'run'}; report in {base / 'report.html'}")
    if models is not None:
        print(f"models of the groups in {models}")
    experiment = read_network_file(base / "run").experiment
    print(f"each site's own model in {base / 'sites'}/SITE/SITE-run-{experiment}/model")
    return 0


def write_results(run: Run, base: Path) -> Path | None:
    """The groups' models, where the method has groups, and a report."""
    models = export_models(run, base / "models")
    write_report([str(base / "run")], str(base / "report.html"), tell=log.info)
    return models
