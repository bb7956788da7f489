"""`coterie network certs`: make, renew and revoke certificates. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.cli.commands import require_network
from coterie.cli.flags import read_flags
from coterie.core.errors import CoterieError
from coterie.core.settings import setting


@dataclass(frozen=True, kw_only=True)
class CertsFlags:
    """The flags of `coterie network certs`."""

    host: str | None = setting(None, "the name or address at which sites reach the server")
    sites: tuple[str, ...] = setting((), "names of new sites")
    renew: tuple[str, ...] = setting((), "sites whose certificate to renew; `server`: its own")
    revoke: tuple[str, ...] = setting((), "sites whose certificates to refuse from now on")


def certs(names: list[str], argv: list[str]) -> int:
    """`coterie network certs DIR`"""
    about = (
        "Make the certificates of a network: of its server (--host) and of its sites (--sites\n"
        "a,b). Send each site its file, such as a.pem; all others stay on the server."
    )
    flags = read_flags("coterie network certs DIR", CertsFlags, about, argv)
    require_network()
    from coterie.network.certificates import make_authority, register_site, renew, revoke

    if len(names) != 1 or not (flags.host or flags.sites or flags.renew or flags.revoke):
        raise CoterieError(
            "certs needs a folder and --host, --sites, --renew or --revoke, as in `coterie network "
            "certs certs --host server.example.org --sites north,south`."
        )
    folder = Path(names[0])
    if flags.host:
        make_authority(folder, flags.host)
        print(f"{folder / 'server.pem'} for the server, {folder / 'ca.pem'} to sign certificates")
    for name in flags.sites:
        print(f"{register_site(folder, name)} for the site {name}")
    for name in flags.renew:
        print(f"{renew(folder, name)} renewed")
    for name in flags.revoke:
        revoke(folder, name)
        print(f"the certificates of {name} are revoked")
    return 0
