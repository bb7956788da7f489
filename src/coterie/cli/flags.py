"""Flags made from the fields of dataclasses: --help, parsing, and values of the right type.

A field declared with `setting` becomes a flag with its help text, limits and default. A value comes
from a flag or from a config file, so its text is converted only after both have been read.
Nothing here loads torch.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from coterie.core.errors import CoterieError, unknown_name
from coterie.core.settings import BOUNDS, check_settings
from coterie.core.values import base_type, convert_value

T = TypeVar("T")
# options of tables that have no flag of their own
TABLE_OPTIONS = ("drop", "categories", "kind", "test_share", "time_column", "split_column")
DATA_HELP = (
    "options of the data set: --data.angles 0,180, or in its name; `coterie list` lists them\n"
    f"of tables: {', '.join(f'--data.{name}' for name in TABLE_OPTIONS[:4])},\n"
    f"           {', '.join(f'--data.{name}' for name in TABLE_OPTIONS[4:])}"
)
# spaces that must not break: in "≥ 1" and "default 5"
IN_LIMIT = re.compile(r"(?<=[<≤>≥]) |(?<=default) ")
NO_BREAK = "\u00a0"
METAVARS = {int: "N", float: "X", str: "TEXT"}


# ------------------------------------------------------------------------------ one flag
class Flag(NamedTuple):
    """A flag of a command, or a key of its config file."""

    key: str  # as in a config file: "local_steps", "ifca.lr"
    kind: Any  # the type of its value; see `is_supported`
    help: str
    default: Any  # MISSING: required
    metadata: Mapping[str, Any]  # limits and more, as given to `setting`
    group: str  # the heading in --help
    shown: bool  # in --help

    @property
    def name(self) -> str:
        """The flag as it is typed: "--local-steps"."""
        return "--" + self.key.replace("_", "-")

    @property
    def base(self) -> Any:
        """The type without None; the first of several types."""
        return base_type(self.kind)

    @property
    def literals(self) -> tuple[str, ...]:
        """Words that are accepted in place of a number."""
        return tuple(self.metadata.get("literals", ()))

    def convert(self, value: Any, name: str = "") -> Any:
        """Convert text, or a value of a config file, to the type of this flag.

        Args:
            value: What is given.
            name: Name of the flag or key in error messages; "": that of the flag.

        Raises:
            CoterieError: The value does not fit.
        """
        choices = self.metadata.get("choices", ())
        return convert_value(value, self.kind, name or self.name, self.literals, choices)

    def describe(self) -> str:
        """Return meaning, limits and default, for --help."""
        notes = [
            f"{sign} {self.metadata[bound]}"
            for bound, (sign, _) in BOUNDS.items()
            if bound in self.metadata
        ]
        notes += describe_default(self.default)
        if not notes:
            return self.help
        return f"{self.help} ({', '.join(notes)})"


def describe_default(default: Any) -> list[str]:
    """Return a note on a flag's default, or nothing if there is none."""
    if default is MISSING:
        return ["required"]
    if default is True:
        return ["default"]
    if default is False or default in (None, "", ()):
        return []
    if isinstance(default, float):
        return [f"default {default:g}"]
    return [f"default {default}"]


def flags_of(cls: type, group: str = "flags", prefix: str = "", shown: bool = True) -> list[Flag]:
    """Make a flag of every field of a dataclass whose type can be written on a command line.

    Args:
        cls: A dataclass whose fields are declared with `setting`.
        group: Heading of the flags in --help.
        prefix: Text before each key, such as "ifca.".
        shown: Whether --help shows the flags.
    """
    kinds = get_type_hints(cls)
    flags = []
    for f in fields(cls):
        default = f.default
        if f.default_factory is not MISSING:
            default = f.default_factory()
        flag = Flag(
            key=prefix + f.name,
            kind=kinds[f.name],
            help=f.metadata.get("help", ""),
            default=default,
            metadata=f.metadata,
            group=group,
            shown=shown and not f.metadata.get("hidden"),
        )
        if f.init and is_supported(flag.base):
            flags.append(flag)
    return flags


def is_supported(kind: Any) -> bool:
    """Whether values of a type can be written on a command line."""
    if get_origin(kind) is tuple:
        return get_args(kind)[0] in (int, float, str)
    return kind in (int, float, str, bool)


# read by `coterie.cli.main` for every command; a flag only for --help
DEBUG = Flag("debug", bool, "show tracebacks", False, {"switch": True}, "debugging", True)


# ------------------------------------------------------------------------------ the parser
class HelpFormat(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, up to 120 characters."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, 120)
        super().__init__(prog, max_help_position=34, width=width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Wrap a flag's help without breaking limits such as "≥ 1"."""
        lines = super()._split_lines(IN_LIMIT.sub(NO_BREAK, text), width)
        return [line.replace(NO_BREAK, " ") for line in lines]


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are `CoterieError`s of one sentence.

    Args:
        prog: The command and its names, such as "coterie resume RUN".
        flags: The flags; `--debug` is added.
        description: Text above the flags in --help.
        epilog: Text below the flags in --help.
    """

    def __init__(
        self, prog: str, flags: Iterable[Flag], description: str = "", epilog: str = ""
    ) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} [FLAGS]",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=HelpFormat,
        )
        self.flags = {flag.key: flag for flag in (*flags, DEBUG)}
        groups: dict[str, Any] = {}
        for flag in self.flags.values():
            if flag.group not in groups:
                groups[flag.group] = self.add_argument_group(flag.group)
            groups[flag.group].add_argument(flag.name, **argument_options(flag))

    def error(self, message: str) -> NoReturn:
        """Raise an error of argparse as a `CoterieError`."""
        flag, _, what = message.removeprefix("argument ").partition(": ")
        if what == "expected one argument":
            raise CoterieError(f"{flag} needs a value.")
        if what.startswith("ignored explicit argument"):
            raise CoterieError(f"{flag} takes no value.")
        raise CoterieError(f"{message}.")

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """Return the given values by key: text, or a bool for flags without a value."""
        known, rest = self.parse_known_args([with_hyphens(argument) for argument in argv])
        if rest:
            raise self.explain_unknown(rest[0])
        return vars(known)

    def explain_unknown(self, argument: str) -> CoterieError:
        """Return an error for an argument that is neither a flag nor a value of one."""
        flag = argument.partition("=")[0]
        name = flag.lstrip("-")
        if not flag.startswith("-"):
            return CoterieError(
                f"{argument!r} belongs to no flag: "
                f"give names first, then flags ({self.prog} --help)."
            )
        if name.replace("-", "_") in TABLE_OPTIONS:
            return CoterieError(f"{flag} is an option of the data set: write --data.{name}.")
        owners = [known.name for known in self.flags.values() if known.name.endswith(f".{name}")]
        if owners:
            return CoterieError(f"{flag} belongs to one method: write {' or '.join(owners)}.")
        method, dot, _ = name.partition(".")
        if dot and not any(known.name.startswith(f"--{method}.") for known in self.flags.values()):
            return CoterieError(f"{flag} has no effect: this command does not run {method}.")
        shown = [known.name for known in self.flags.values() if known.shown]
        return unknown_name("flag", flag, [*shown, "--help"])


def argument_options(flag: Flag) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for a flag."""
    options: dict[str, Any] = {
        "dest": flag.key,
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS,
    }
    if flag.shown:
        options["help"] = flag.describe().replace("%", "%%")
    if flag.metadata.get("switch"):
        options["action"] = "store_true"
    elif flag.base is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif "repeated" in flag.metadata:
        options["action"] = "append"
        options["metavar"] = flag.metadata["repeated"]
    elif "choices" in flag.metadata:
        options["metavar"] = "|".join(flag.metadata["choices"])
    else:
        options["metavar"] = "|".join((METAVARS.get(flag.base, "A,B,…"), *flag.literals))
    return options


def with_hyphens(argument: str) -> str:
    """--local_steps=5 → --local-steps=5"""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def split_data_options(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Separate the options of the data set, given as --data.NAME VALUE, from the other arguments.

    Returns:
        The options by name, and the other arguments.
    """
    options: dict[str, str] = {}
    rest = []
    arguments = iter(argv)
    for argument in arguments:
        if not argument.startswith("--data."):
            rest.append(argument)
            continue
        flag, equals, value = argument.partition("=")
        if not equals:
            value = next(arguments, "--")
            if value.startswith("--"):
                raise CoterieError(f"{flag} needs a value.")
        options[flag.removeprefix("--data.").replace("-", "_")] = value
    return options, rest


# ------------------------------------------------------------------------------ values
@dataclass(frozen=True)
class FlagValues:
    """The values that the flags and the config file of a command give; flags override the file.

    Attributes:
        known: All flags of the command by key ("lr", "ifca.lr").
        flags: Values of flags, by key.
        file: Values of the config file, by key.
        path: Path of the config file, for error messages.
    """

    known: Mapping[str, Flag]
    flags: Mapping[str, Any]
    file: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""

    def has(self, *keys: str) -> bool:
        """Whether one of these keys is given."""
        return any(key in self.flags or key in self.file for key in keys)

    def get(self, *keys: str) -> Any:
        """Return the value given by a flag, else by the file; of several keys, the first."""
        for source in (self.flags, self.file):
            for key in keys:
                if key in source:
                    return self.known[key].convert(source[key], self.name_of(key))
        raise KeyError(keys)

    def name_of(self, key: str) -> str:
        """Return a key as error messages name it: "--lr" or "lr in settings.toml"."""
        if key in self.flags:
            return self.known[key].name
        return f"{key} in {self.path}"

    def fields_of(self, cls: type) -> dict[str, Any]:
        """Return the given fields of a dataclass of settings, after checking their limits."""
        values = {f.name: self.get(f.name) for f in fields(cls) if self.has(f.name)}
        check_settings(cls(**values))
        return values

    def make(self, cls: type[T]) -> T:
        """Make a dataclass of settings from the given values and its defaults."""
        return cls(**self.fields_of(cls))


def read_flags(prog: str, cls: type[T], description: str, argv: list[str]) -> T:
    """Read the flags of a command that are the fields of one dataclass.

    Args:
        prog: The command and its names, such as "coterie resume RUN".
        cls: A dataclass whose fields are declared with `setting`.
        description: Text for --help.
        argv: The flags and their values.

    Raises:
        CoterieError: A flag is unknown, or its value does not fit.
    """
    parser = Parser(prog, flags_of(cls), description)
    return FlagValues(parser.flags, parser.parse(argv)).make(cls)


def check_names(names: list[str], number: int, usage: str) -> list[str]:
    """Refuse a command whose number of names before the flags is wrong; usage: an example."""
    if len(names) != number or not all(names):
        raise CoterieError(f"wrong number of names: write {usage}.")
    return names
