"""`coterie network`: the same run on real sites."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.cli.config_file import read_toml
from coterie.cli.flags import Parser
from coterie.cli.network_new import new
from coterie.cli.progress import Watcher
from coterie.cli.setup import Setup, setup
from coterie.cli.values import read_flags
from coterie.data.site_table import SiteTable
from coterie.data.spec import read_spec
from coterie.data.table_options import TableOptions, as_names
from coterie.errors import CoterieError, unknown
from coterie.network.flower_version import check_flower
from coterie.network.handshake import Asked
from coterie.network.status import status_as_text, status_of
from coterie.network.terms import Owner
from coterie.network.transport import Waiting
from coterie.reporting import report as write_report
from coterie.result import Result
from coterie.runs.options import Options
from coterie.runs.run import Run
from coterie.settings import setting

log = logging.getLogger("coterie")
USAGE = """\
The same run on real sites, which keep their rows.

  coterie network simulate CONFIG       all of it on this machine, for a first try
  coterie network certs DIR             certificates of a server, and keys of its sites
  coterie network server CONFIG         a server, which waits for its sites and trains
  coterie network node --data FILE …    a site: answers a server, and keeps its rows
  coterie network describe CONFIG --data FILE
                                        what would leave a site before the first round
  coterie network status RUN            round, groups, who answers and who does not
  coterie network new DIR               an app for those who already run Flower

CONFIG is a TOML file as for `coterie run --config`, with a key `method`.
"""


def network(words: list[str], argv: list[str]) -> int:
    """`coterie network COMMAND`"""
    if not words:
        Parser("coterie network COMMAND", [], USAGE).print_help()
        return 0
    commands: dict[str, Callable[[list[str], list[str]], int]] = {
        "simulate": simulate,
        "certs": certs,
        "server": server,
        "node": node,
        "describe": describe,
        "status": status,
        "new": new,
    }
    if words[0] not in commands:
        raise unknown("command of coterie network", words[0], commands)
    return commands[words[0]](words[1:], argv)


# ------------------------------------------------------------------------------ the config file
def read_asked(config: str, out: str | None) -> tuple[Setup, Asked, Path]:
    """(what the file says, what the server is to run, the folder of the sites' files)"""
    method = read_toml(config).get("method")
    if not isinstance(method, str):
        raise CoterieError(
            f"{config} does not name a method", 'add a first line such as method = "ifca"'
        )
    flags = ["--config", config]
    if out is not None:
        flags += ["--out", out]
    read = setup("run", [method], flags)
    name = read.spec.partition("?")[0].partition(":")[0]
    if name != "folder":
        raise CoterieError(
            f"the data of {config} are {name}, and sites of a network have a table each",
            'write data = "folder:PATH", with one file per site',
        )
    _, arguments = read_spec(read.spec, read.seeds[0], **read.data)
    path = Path(arguments.pop("path"))
    if arguments.get("label") is None:
        raise CoterieError(f"{config} does not name the label", 'add label = "COLUMN"')
    for several in ("drop", "categories"):
        arguments[several] = as_names(arguments.get(several))
    (chosen,) = read.methods.values()
    asked = Asked(
        method=chosen,
        data=TableOptions(**arguments),
        options=Options(**{**read.options, "seed": read.seeds[0]}),
        model=read.general.model,
    )
    return read, asked, path


def one_config(command: str, words: list[str]) -> str:
    """The config file of a command."""
    if len(words) != 1:
        raise CoterieError(
            f"{command} needs one config file, as in `coterie network {command} ifca.toml`."
        )
    return words[0]


# ------------------------------------------------------------------------------ flags
@dataclass(frozen=True, kw_only=True)
class Waits:
    """How a server waits."""

    deadline: float = setting(120.0, "seconds that sites have for an answer", above=0)
    quorum: float = setting(
        0.5, "share of the asked sites without whose answers no round goes on", above=0, most=1
    )
    quiet: bool = setting(False, "no progress", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)

    def waiting(self) -> Waiting:
        """As the server takes it."""
        return Waiting(deadline=self.deadline, quorum=self.quorum)


@dataclass(frozen=True, kw_only=True)
class SimulateFlags(Waits):
    """The flags of `coterie network simulate`."""

    nodes: int | None = setting(None, "use the first files of the folder alone; none: all", least=1)
    out: str | None = setting(None, "folder of all that is written; none: runs/METHOD-DATA-TIME")
    port: int = setting(0, "port of the server; 0: a free one", least=0, most=65535)


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
    minimum_rows: int = setting(
        1, "refuse runs that ask for sums over fewer rows than this", least=1
    )
    insecure: bool = setting(
        False, "without TLS: whoever is between can read all that is sent", switch=True
    )
    child: bool = setting(False, "end when standard input does", hidden=True, switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


@dataclass(frozen=True, kw_only=True)
class CertsFlags:
    """The flags of `coterie network certs`."""

    host: str | None = setting(None, "the server's name or address, by which sites reach it")
    sites: tuple[str, ...] = setting((), "names of sites that need a key")
    debug: bool = setting(False, "show tracebacks", switch=True)


@dataclass(frozen=True, kw_only=True)
class DescribeFlags:
    """The flags of `coterie network describe`."""

    data: str = setting(..., "the site's table")
    debug: bool = setting(False, "show tracebacks", switch=True)


@dataclass(frozen=True, kw_only=True)
class StatusFlags:
    """The flags of `coterie network status`."""

    json: bool = setting(False, "print one JSON document", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


# ------------------------------------------------------------------------------ simulate
def simulate(words: list[str], argv: list[str]) -> int:
    """`coterie network simulate CONFIG`"""
    about = (
        "A server and its sites on this machine, each in a process of its own, with TLS and keys\n"
        "that are thrown away: from a folder of tables to models, a report and no process left."
    )
    asked_flags = read_flags("coterie network simulate CONFIG", SimulateFlags, about, argv)
    check_flower()
    from coterie.network.simulation import Simulation

    read, asked, path = read_asked(one_config("simulate", words), asked_flags.out)
    watcher = Watcher(asked_flags.quiet)
    with watcher():
        simulation = Simulation(asked, path, asked_flags.nodes, asked_flags.port)
        base = read.folder()
        with simulation.running(base) as transport:
            run = simulation.run(
                transport, base, asked_flags.waiting(), lambda r: watcher.follow("network", r)
            )
        models = write_results(run, base)
    print(f"run kept in {base / 'run'}; report in {base / 'report.html'}")
    if models is not None:
        print(f"models of the groups in {models}")
    print(f"each site's own model is in its folder in {base / 'sites'}")
    return 0


def write_results(run: Run, base: Path) -> Path | None:
    """The groups' models, where the method has groups, and a report."""
    models = None
    if run.trained().centres is not None:
        models = Path(Result.of(run).export(base / "models"))
    write_report([str(base / "run")], str(base / "report.html"), tell=log.info)
    return models


# ------------------------------------------------------------------------------ server
def server(words: list[str], argv: list[str]) -> int:
    """`coterie network server CONFIG`"""
    about = "Wait for all sites that have a key, agree with them, and train."
    flags = read_flags("coterie network server CONFIG", ServerFlags, about, argv)
    check_flower()
    from coterie.network.certificates import read_registry
    from coterie.network.flower_server import Address, FlowerServer
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


def tell_insecure(insecure: bool, watcher: Watcher) -> None:
    """Say loudly that packets can be read on their way."""
    if insecure:
        watcher.warn("WITHOUT TLS: whoever is between server and sites can read all that is sent.")


# ------------------------------------------------------------------------------ node
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
    owner = Owner(label=flags.label, minimum_rows=flags.minimum_rows)
    site = NetworkSite(flags.name or key.stem, Path(flags.data), Path(flags.state), owner)
    certificate = None if flags.ca is None or flags.insecure else Path(flags.ca)
    living = FlowerNode(site, flags.server, key, certificate)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if flags.child:
        threading.Thread(target=end_with_parent, daemon=True).start()
    watcher = Watcher()
    try:
        with watcher():
            tell_insecure(flags.insecure, watcher)
            living.live()
    finally:
        living.close()
    return 0


def end_with_parent() -> None:
    """End this process when the one that started it is gone, however it ended."""
    while os.read(0, 1):
        pass
    os._exit(0)


# ------------------------------------------------------------------------------ small commands
def certs(words: list[str], argv: list[str]) -> int:
    """`coterie network certs DIR`"""
    about = (
        "Certificates of a server (--host) and keys of sites (--sites a,b). Give each site its\n"
        "key and ca.crt; server.key and sites.json stay with the server."
    )
    flags = read_flags("coterie network certs DIR", CertsFlags, about, argv)
    check_flower()
    from coterie.network.certificates import make_authority, register_site

    if len(words) != 1 or not (flags.host or flags.sites):
        raise CoterieError(
            "certs needs a folder and --host, --sites or both, as in `coterie network certs certs "
            "--host server.example.org --sites north,south`."
        )
    folder = Path(words[0])
    if flags.host:
        make_authority(folder, flags.host)
        print(f"{folder / 'ca.crt'} for sites; {folder / 'server.crt'} and server.key")
    for name in flags.sites:
        print(f"{register_site(folder, name)} for the site {name}")
    return 0


def describe(words: list[str], argv: list[str]) -> int:
    """`coterie network describe CONFIG --data FILE`"""
    about = "What would leave a site before the first round; nothing does."
    flags = read_flags("coterie network describe CONFIG", DescribeFlags, about, argv)
    _, asked, _ = read_asked(one_config("describe", words), None)
    table = SiteTable(Path(flags.data).stem, Path(flags.data), asked.data)
    rows = {name: int(n[0]) for name, n in table.index.roster.rows._asdict().items()}
    told: dict[str, Any] = {"rows": rows, "description": table.describe()}
    print(json.dumps(told, indent=1, ensure_ascii=False))
    return 0


def status(words: list[str], argv: list[str]) -> int:
    """`coterie network status RUN`"""
    about = "How a network's run goes, from its folder."
    flags = read_flags("coterie network status RUN", StatusFlags, about, argv)
    if len(words) != 1:
        raise CoterieError("status needs a run's folder, as in `coterie network status runs/x`")
    found = status_of(Path(words[0]))
    if flags.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        print(status_as_text(found))
    return 0
