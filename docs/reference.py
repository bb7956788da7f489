"""The generated parts on data sets, models and commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints
from unittest.mock import patch

from coterie.cli import dispatch
from coterie.cli.commands import COMMANDS, NETWORK_COMMANDS
from coterie.cli.flags import Flag, Parser
from coterie.core.values import base_type, literal_choices
from coterie.data import bases, makers
from coterie.data.spec import format_value
from coterie.models import models


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    full = [
        [cell.replace("|", "\\|") for cell in row] + [""] * (len(head) - len(row)) for row in rows
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*head], ["---"] * len(head), *full))


def lines(known: dict[str, str]) -> str:
    """Names, and what each is in one line."""
    return table(["name", ""], [[f"`{name}`", line] for name, line in known.items()])


# ------------------------------------------------------------------------------ data sets, models
def data_sets() -> str:
    return "\n\n".join(data_set(name, make) for name, (make, _) in sorted(makers().items()))


def data_set(name: str, make: Callable[..., Any]) -> str:
    """Its docstring, with its options after the first line."""
    first, _, rest = (inspect.getdoc(make) or "").partition("\n\n")
    types, options = get_type_hints(make), inspect.signature(make).parameters.values()
    rows = [[f"`{o.name}`", default_of(o), taken(types[o.name])] for o in options]
    return "\n\n".join(
        filter(None, [f"### {name}", first, table(["option", "default", "takes"], rows), rest])
    )


def default_of(option: inspect.Parameter) -> str:
    if option.default is option.empty:
        return "required"
    return "none" if option.default in (None, ()) else format_value(option.default)


def taken(kind: Any) -> str:
    """Describe the values of an option of this type."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    kind = base_type(kind)
    if literal_choices(kind):
        return " or ".join(literal_choices(kind))
    return (
        f"{words[get_args(kind)[0]]}, or several: A,B" if get_origin(kind) is tuple else words[kind]
    )


def base_sets() -> str:
    return lines(bases())


def model_names() -> str:
    return lines(models())


# ------------------------------------------------------------------------------ Python API
def functions_named_as_modules(package: ModuleType) -> str:
    """Return directives of mkdocstrings for functions that a module of the same name hides.

    `coterie.data.folder` is the function in Python, and the module for mkdocstrings.
    """
    found = []
    for name in package.__all__:
        if find_spec(f"{package.__name__}.{name}") is not None:
            function = getattr(package, name)
            place = f"{function.__module__}.{function.__qualname__}"
            found.append(f"::: {place}\n    options:\n      heading_level: 3")
    return "\n\n".join(found)


# ------------------------------------------------------------------------------ commands
def commands() -> str:
    """Document every command; flags that `run`, `compare` and `search` share are listed once."""
    common = parser_of("run").flags
    parts = [
        network() if name == "network" else command(name, parser_of(name), common)
        for name in COMMANDS
    ]
    groups = dict.fromkeys(flag.group for flag in common.values())
    shared = [
        f"{g[0].upper()}{g[1:]}:\n\n{flags(f for f in common.values() if f.group == g)}"
        for g in groups
    ]
    return "\n\n".join([*parts, "## Flags of run, compare and search", *shared])


def command(name: str, parser: Parser, common: dict[str, Flag]) -> str:
    trains = name in ("run", "compare", "search")
    own = [flag for key, flag in parser.flags.items() if not (trains and key in common)]
    about = COMMANDS[name].help if trains else parser.description or ""
    more = (
        "The method's hyper-parameters are flags, too; the other flags are listed "
        "[below](#flags-of-run-compare-and-search)."
    )
    parts = [
        f"## {name}",
        f"`coterie {COMMANDS[name].usage}`",
        f"{about[0].upper()}{about[1:].rstrip('.')}.",
    ]
    return "\n\n".join(parts + [more] * trains + [flags(own)] * bool(own))


def network() -> str:
    """List the commands for real sites; their --help shows the flags."""
    rows = [[f"`coterie network {c.usage}`", c.help] for c in NETWORK_COMMANDS.values()]
    return "\n\n".join(
        [
            "## network",
            f"`coterie {COMMANDS['network'].usage}`",
            "Train on [real sites](network.md), which keep their data. "
            "`coterie network COMMAND --help` shows the flags. CONFIG is a TOML file as for "
            "`coterie run --config`, with a key `method`.",
            table(["command", "what it does"], rows),
        ]
    )


def flags(found: Iterable[Flag]) -> str:
    return table(
        ["flag", "meaning"], [[f"`{usage(flag)}`", flag.describe()] for flag in found if flag.shown]
    )


def usage(flag: Flag) -> str:
    """The flag and what it takes, as --help shows it."""
    (action,) = (a for a in Parser("", [flag])._actions if a.dest == flag.key)
    return " ".join(filter(None, ["/".join(action.option_strings), str(action.metavar or "")]))


def parser_of(name: str) -> Parser:
    """The parser whose help a command prints."""
    found: list[Parser] = []
    with (
        patch.object(Parser, "print_help", lambda self, *_: found.append(self)),
        suppress(SystemExit),
    ):
        dispatch([name, "--help"])
    return found[0]
