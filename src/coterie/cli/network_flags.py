"""The flags of a network's server, and the table [network] of its config file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from coterie.cli.config_file import check_plain, read_toml
from coterie.cli.flags import Parser, flags_of
from coterie.cli.general import general_flags
from coterie.cli.network_config import one_config
from coterie.cli.values import Given
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.settings import setting
from coterie.methods.registry import methods
from coterie.network.transport import WaitPolicy

T = TypeVar("T", bound="Waits")
# what is asked for in a command, where it is seen, and not in a file
NOT_IN_TABLE = {"out", "resume", "insecure", "quiet", "debug"}


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How a server waits."""

    deadline: float = setting(120.0, "seconds that sites have for an answer", gt=0)
    quorum: float = setting(
        0.5, "share of the asked sites without whose answers no round goes on", gt=0, le=1
    )
    grace: float = setting(
        10.0, "seconds that it waits, beyond the quorum, for sites that are not connected", ge=0
    )
    quiet: bool = setting(False, "no progress", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)

    def waiting(self) -> WaitPolicy:
        """As the server takes it."""
        return WaitPolicy(deadline=self.deadline, quorum=self.quorum, grace=self.grace)


@dataclass(frozen=True, kw_only=True)
class ServerFlags(Waits):
    """The flags of `coterie network server`."""

    out: str | None = setting(None, "folder of the run; none: runs/METHOD-DATA-TIME")
    host: str = setting("0.0.0.0", "address to listen on")
    port: int = setting(8443, "port to listen on", ge=1, le=65535)
    certs: str = setting("certs", "folder of `coterie network certs`")
    wait: float = setting(3600.0, "seconds that all sites have to connect at first", gt=0)
    minimum_sites: int | None = setting(
        None, "begin with this many if no more have connected by then; none: all", ge=1
    )
    page: int | None = setting(
        None, "port of a live page, with metrics at /metrics; none: no page", ge=0, le=65535
    )
    page_host: str = setting("127.0.0.1", "address to serve the page at")
    resume: bool = setting(
        False, "go on with the run in --out; begin it if there is none yet", switch=True
    )
    insecure: bool = setting(
        False, "without TLS: whoever is between can read all that is sent", switch=True
    )


class NetworkParser(Parser):
    """The flags of a command whose run stands in a config file."""

    def explain_stray(self, word: str) -> CoterieError:
        """An error for a word that no flag takes; options of the run are told from others."""
        flag = word.partition("=")[0]
        key = flag.lstrip("-").replace("-", "_")
        belongs = f"{flag} belongs to the run, which stands in the config file"
        if key.startswith("data."):
            option = key.removeprefix("data.")
            return CoterieError(belongs, f'write it as in data = "folder:PATH?{option}=VALUE"')
        if key in keys_of_runs():
            return CoterieError(belongs, f"write {key} = VALUE there")
        return super().explain_stray(word)


def keys_of_runs() -> set[str]:
    """What a config file may say of a run, whatever its method."""
    keys = {flag.key for flag in general_flags("run")}
    for method in methods().values():
        keys |= {flag.key for flag in flags_of(method)}
    return keys


def read_network_flags(
    command: str, cls: type[T], about: str, words: list[str], argv: list[str]
) -> tuple[T, str]:
    """(the flags of a command, which count over the table [network], its config file)"""
    parser = NetworkParser(f"coterie network {command} CONFIG", flags_of(cls), about)
    flags = parser.parse(argv)
    config = one_config(command, words)
    obeyed = Waits  # a simulation has its own address
    if issubclass(cls, ServerFlags):
        obeyed = ServerFlags
    keys = {f.name for f in fields(obeyed)}
    values = {key: value for key, value in read_table(config).items() if key in keys}
    return Given(parser.flags, flags, values, f"[network] of {config}").make(cls), config


def read_table(config: str) -> dict[str, Any]:
    """The table [network] of a config file, by key; one that no server has is refused."""
    table = read_toml(config).get("network", {})
    if not isinstance(table, dict):
        raise CoterieError(f"network in {config} is no table", "write [network] in a line alone")
    known = {f.name for f in fields(ServerFlags)} - NOT_IN_TABLE
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = name.replace("-", "_")
        if key in NOT_IN_TABLE:
            flag = f"--{key.replace('_', '-')}"
            raise CoterieError(f"{name} stands in [network] of {config}", f"give the flag {flag}")
        if key not in known:
            raise unknown_name(f"key in [network] of {config}", name, known)
        check_plain(config, f"network.{name}", value)
        if key in values:
            raise CoterieError(f"{key} stands twice in [network] of {config}", "remove one")
        values[key] = value
    return values
