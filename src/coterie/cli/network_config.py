"""What the commands of a network share: the config file, and a warning."""

from __future__ import annotations

from pathlib import Path

from coterie.cli.config_file import read_toml
from coterie.cli.progress import Watcher
from coterie.cli.setup import Setup, setup
from coterie.core.errors import CoterieError
from coterie.data.spec import read_spec
from coterie.data.table_options import TableOptions, as_names
from coterie.network.handshake import RunSpec
from coterie.runs.options import Options


def read_asked(config: str, out: str | None) -> tuple[Setup, RunSpec, Path]:
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
    asked = RunSpec(
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


def tell_insecure(insecure: bool, watcher: Watcher) -> None:
    """Say loudly that packets can be read on their way."""
    if insecure:
        watcher.warn("WITHOUT TLS: whoever is between server and sites can read all that is sent.")
