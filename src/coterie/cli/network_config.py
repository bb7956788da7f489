"""The config file of a network: the run, and the flags of its server in the table [network]."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from coterie.cli.flags import FlagValues, Parser, flags_of
from coterie.cli.run_flags import run_flags
from coterie.cli.setup import Setup, check_plain_value, read_setup
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.settings import setting
from coterie.core.toml import read_toml
from coterie.data.schema_file import read_schema_file
from coterie.data.spec import read_spec
from coterie.data.table_options import TableOptions, as_names
from coterie.methods.registry import methods
from coterie.network.handshake import RunSpec
from coterie.network.transport import WaitPolicy
from coterie.runs.options import Options

T = TypeVar("T", bound="WaitingFlags")
# flags that must be visible in the command, so that a file cannot set them
NOT_IN_TABLE = {"out", "resume", "quiet", "debug"}


# ------------------------------------------------------------------------------ the run
def read_network_run(config: str, out: str | None) -> tuple[Setup, RunSpec, Path]:
    """Read the run that a config file describes.

    Args:
        config: A TOML file as for `coterie run --config`, with a key `method`.
        out: Folder of the run; None: a new one in runs/.

    Returns:
        The setup, the run as the server offers it to the sites, and the folder of the data.

    Raises:
        CoterieError: The file lacks the method or the label, or its data are no folder of tables.
    """
    method = read_toml(config).get("method")
    if not isinstance(method, str):
        raise CoterieError(
            f"{config} does not name a method", 'add a first line such as method = "ifca"'
        )
    flags = ["--config", config]
    if out is not None:
        flags += ["--out", out]
    read = read_setup("run", [method], flags)
    name = read.spec.partition("?")[0].partition(":")[0]
    if name != "folder":
        raise CoterieError(
            f"the data of {config} are {name}, but each site of a network has a table",
            'write data = "folder:PATH", with one file per site',
        )
    _, arguments = read_spec(read.spec, read.seeds[0], **read.data)
    path = Path(arguments.pop("path"))
    if arguments.get("label") is None:
        raise CoterieError(f"{config} does not name the label", 'add label = "COLUMN"')
    for several in ("drop", "categories"):
        arguments[several] = as_names(arguments.get(several))
    if read.options.get("dp") is not None:
        raise CoterieError(
            f"{config} asks for dp, which so far only simulations can keep",
            "use secure sums, or train with `coterie run`",
        )
    (chosen,) = read.methods.values()
    asked = RunSpec(
        method=chosen,
        data=TableOptions(**arguments),
        options=Options(**{**read.options, "seed": read.seeds[0]}),
        model=read.flags.model,
        classes=as_classes(read_network_table(config).get("classes", ())),
    )
    return read, asked, path


def as_classes(given: Any) -> tuple[str, ...]:
    """Return the names of classes in [network]: a text with commas, or a list."""
    names = given.split(",") if isinstance(given, str) else given
    return tuple(str(name).strip() for name in names)


def check_config_name(command: str, names: list[str]) -> str:
    """Return the config file of a command, its only name."""
    if len(names) != 1:
        raise CoterieError(
            f"{command} needs one config file, as in `coterie network {command} ifca.toml`."
        )
    return names[0]


# ------------------------------------------------------------------------------ flags of a server
@dataclass(frozen=True, kw_only=True)
class WaitingFlags:
    """How long a server waits for its sites."""

    deadline: float = setting(120.0, "seconds that sites have to reply", gt=0)
    quorum: float = setting(
        0.5, "fraction of the selected sites that must reply to complete a round", gt=0, le=1
    )
    grace: float = setting(
        10.0, "seconds to wait, once the quorum is reached, for sites that are offline", ge=0
    )
    classes: tuple[str, ...] = setting(
        (), "classes of the label; none: those that at least two sites have"
    )
    schema: str | None = setting(
        None,
        "a file with the schema of the tables, so that sites send no statistics of their rows; "
        "none: made from their statistics",
    )
    quiet: bool = setting(False, "no progress", switch=True)

    def complete(self, spec: RunSpec) -> RunSpec:
        """Return the run with the classes or the schema that these flags give."""
        if not self.schema:  # a run config of Flower has no None
            return replace(spec, classes=self.classes or spec.classes)
        if self.classes:
            raise CoterieError("classes and schema both name the classes", "give one of the two")
        return replace(spec, schema=read_schema_file(Path(self.schema)))

    def waiting(self) -> WaitPolicy:
        """Return the values as the server takes them."""
        return WaitPolicy(deadline=self.deadline, quorum=self.quorum, grace=self.grace)


@dataclass(frozen=True, kw_only=True)
class ServerFlags(WaitingFlags):
    """The flags of `coterie network server`."""

    out: str | None = setting(None, "folder of the run; none: runs/METHOD-DATA-TIME")
    host: str = setting("0.0.0.0", "address to listen on")
    port: int = setting(8443, "port to listen on", ge=1, le=65535)
    certs: str = setting("certs", "folder of `coterie network certs`")
    wait: float = setting(3600.0, "seconds to wait for all sites before the first round", gt=0)
    minimum_sites: int | None = setting(
        None, "after that time, start with this many sites; none: all", ge=1
    )
    max_rows: int | None = setting(
        None,
        "refuse sites that claim more rows, because a site's weight is its number of rows; none: "
        "100,000,000",
        ge=1,
    )
    page: int | None = setting(
        None, "port of a live page, with metrics at /metrics; none: no page", ge=0, le=65535
    )
    page_host: str = setting("127.0.0.1", "address of the live page")
    resume: bool = setting(
        False, "continue the run in --out, or start it if there is none", switch=True
    )


class NetworkParser(Parser):
    """The parser of a command whose run is described by a config file."""

    def explain_unknown(self, word: str) -> CoterieError:
        """Return an error for an unknown flag; options of the run belong in the config file."""
        flag = word.partition("=")[0]
        key = flag.lstrip("-").replace("-", "_")
        belongs = f"{flag} belongs to the run, which the config file describes"
        if key.startswith("data."):
            option = key.removeprefix("data.")
            return CoterieError(belongs, f'write it as in data = "folder:PATH?{option}=VALUE"')
        classes = methods().values()
        keys = {f.key for f in run_flags("run")} | {f.key for cls in classes for f in flags_of(cls)}
        if key in keys:
            return CoterieError(belongs, f"write {key} = VALUE there")
        return super().explain_unknown(word)


def read_network_flags(
    command: str, cls: type[T], description: str, names: list[str], argv: list[str]
) -> tuple[T, str]:
    """Read the flags of a command; they override the table [network] of its config file.

    Returns:
        The flags, and the config file.
    """
    parser = NetworkParser(f"coterie network {command} CONFIG", flags_of(cls), description)
    flags = parser.parse(argv)
    config = check_config_name(command, names)
    used = ServerFlags if issubclass(cls, ServerFlags) else WaitingFlags
    keys = {f.name for f in fields(used)}
    values = {key: value for key, value in read_network_table(config).items() if key in keys}
    return FlagValues(parser.flags, flags, values, f"[network] of {config}").make(cls), config


def read_network_table(config: str) -> dict[str, Any]:
    """Return the table [network] of a config file, by key; refuse unknown keys."""
    table = read_toml(config).get("network", {})
    if not isinstance(table, dict):
        raise CoterieError(f"network in {config} is not a table", "write [network] on its own line")
    known = {f.name for f in fields(ServerFlags)} - NOT_IN_TABLE
    values: dict[str, Any] = {}
    for name, value in table.items():
        key = name.replace("-", "_")
        if key in NOT_IN_TABLE:
            flag = f"--{key.replace('_', '-')}"
            raise CoterieError(f"{name} is in [network] of {config}", f"give the flag {flag}")
        if key not in known:
            raise unknown_name(f"key in [network] of {config}", name, known)
        check_plain_value(config, f"network.{name}", value)
        if key in values:
            raise CoterieError(f"{key} occurs twice in [network] of {config}", "remove one")
        values[key] = value
    return values
