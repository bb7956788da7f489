"""`coterie network certs`, `describe` and `status`: what needs no connection."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.cli.network_config import one_config, read_asked
from coterie.cli.values import read_flags
from coterie.core.errors import CoterieError
from coterie.core.settings import setting
from coterie.data.site_table import SiteTable
from coterie.network.flower_setup import check_flower
from coterie.network.status import status_as_text, status_of


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
