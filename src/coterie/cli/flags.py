"""Flags made from the fields of dataclasses, and the parser that reads them. No torch is needed."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from coterie.core.errors import CoterieError, unknown_name
from coterie.core.settings import BOUNDS

# options of tables that have no flag of their own
TABLES = ("drop", "categories", "kind", "test_share", "time_column", "split_column")
DATA_HELP = (
    "options of the data set: --data.angles 0,180, or in its name; `coterie list` names them\n"
    f"of tables: {', '.join(f'--data.{name}' for name in TABLES[:4])},\n"
    f"           {', '.join(f'--data.{name}' for name in TABLES[4:])}"
)
IN_LIMIT = re.compile(r"(?<=[<≤>≥]) |(?<=default) ")
NO_BREAK = "\u00a0"
METAVARS = {int: "N", float: "X", str: "WORD"}


# ------------------------------------------------------------------------------ one flag
class Flag(NamedTuple):
    """A flag of a command."""

    key: str  # "local_steps", "ifca.lr": as in a config file
    kind: Any  # its type; see `is_supported`
    help: str
    default: Any  # MISSING: it must be given
    limits: Mapping[str, Any]
    group: str  # the heading in --help
    shown: bool  # in --help

    @property
    def name(self) -> str:
        """The flag as it is typed: "--local-steps"."""
        return "--" + self.key.replace("_", "-")

    @property
    def base(self) -> Any:
        """The type, without None; of several types the first."""
        for kind in union_members(self.kind):
            if kind is not NoneType:
                return kind
        return self.kind

    @property
    def optional(self) -> bool:
        """Whether it may be none."""
        return NoneType in union_members(self.kind)

    @property
    def words(self) -> tuple[str, ...]:
        """Words that may stand in place of a number."""
        return tuple(self.limits.get("literals", ()))

    def describe(self) -> str:
        """Meaning, limits and default, for --help."""
        notes = [
            f"{sign} {self.limits[word]}"
            for word, (sign, _) in BOUNDS.items()
            if word in self.limits
        ]
        notes += describe_default(self.default)
        if not notes:
            return self.help
        return f"{self.help} ({', '.join(notes)})"


def describe_default(default: Any) -> list[str]:
    """A note on the default; none where there is nothing to say."""
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
    """A flag for every field of a dataclass whose type can be written on a command line."""
    kinds = get_type_hints(cls)
    flags = []
    for field in fields(cls):
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        flag = Flag(
            key=prefix + field.name,
            kind=kinds[field.name],
            help=field.metadata.get("help", ""),
            default=default,
            limits=field.metadata,
            group=group,
            shown=shown and not field.metadata.get("hidden"),
        )
        if field.init and is_supported(flag.base):
            flags.append(flag)
    return flags


def is_supported(kind: Any) -> bool:
    """Whether values of a type can be written on a command line."""
    if get_origin(kind) is tuple:
        return get_args(kind)[0] in (int, float, str)
    return kind in (int, float, str, bool)


def union_members(kind: Any) -> tuple[Any, ...]:
    """The types of a union; none for other types."""
    if get_origin(kind) in (Union, UnionType):
        return get_args(kind)
    return ()


# ------------------------------------------------------------------------------ the parser
class HelpFormat(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, up to 120 characters."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, 120)
        super().__init__(prog, max_help_position=34, width=width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Wrap a flag's help; a limit such as ≥ 1 stays on one line."""
        lines = super()._split_lines(IN_LIMIT.sub(NO_BREAK, text), width)
        return [line.replace(NO_BREAK, " ") for line in lines]


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence.

    Values stay text: they are converted when a config file, if there is one, has been read, too.
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
        self.flags = {flag.key: flag for flag in flags}
        groups: dict[str, Any] = {}
        for flag in self.flags.values():
            if flag.group not in groups:
                groups[flag.group] = self.add_argument_group(flag.group)
            groups[flag.group].add_argument(flag.name, **argument_options(flag))

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error as our own."""
        flag, _, what = message.removeprefix("argument ").partition(": ")
        if what == "expected one argument":
            raise CoterieError(f"{flag} needs a value.")
        if what.startswith("ignored explicit argument"):
            raise CoterieError(f"{flag} takes no value.")
        raise CoterieError(f"{message}.")

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """What was given, by key: text, or a bool where the flag takes no value."""
        known, rest = self.parse_known_args([with_hyphens(word) for word in argv])
        if rest:
            raise self.explain_stray(rest[0])
        return vars(known)

    def explain_stray(self, word: str) -> CoterieError:
        """An error for a word that no flag takes."""
        flag = word.partition("=")[0]
        name = flag.lstrip("-")
        if not flag.startswith("-"):
            return CoterieError(
                f"{word!r} belongs to no flag: names come first, then flags ({self.prog} --help)."
            )
        if name.replace("-", "_") in TABLES:
            return CoterieError(f"{flag} belongs to the data set: write --data.{name}.")
        owners = [known.name for known in self.flags.values() if known.name.endswith(f".{name}")]
        if owners:
            return CoterieError(f"{flag} belongs to one method: write {' or '.join(owners)}.")
        shown = [known.name for known in self.flags.values() if known.shown]
        return unknown_name("flag", flag, [*shown, "--help"])


def argument_options(flag: Flag) -> dict[str, Any]:
    """The keyword arguments of argparse's `add_argument` for a flag."""
    options: dict[str, Any] = {
        "dest": flag.key,
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS,
    }
    if flag.shown:
        options["help"] = flag.describe().replace("%", "%%")
    if flag.limits.get("switch"):
        options["action"] = "store_true"
    elif flag.base is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif "repeated" in flag.limits:
        options["action"] = "append"
        options["metavar"] = flag.limits["repeated"]
    elif "choices" in flag.limits:
        options["metavar"] = "|".join(flag.limits["choices"])
    else:
        options["metavar"] = "|".join((METAVARS.get(flag.base, "A,B,…"), *flag.words))
    return options


def with_hyphens(word: str) -> str:
    """--local_steps=5 → --local-steps=5"""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def take_data(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """(options of the data set, given as --data.NAME VALUE; the other words)"""
    options: dict[str, str] = {}
    rest = []
    words = iter(argv)
    for word in words:
        if not word.startswith("--data."):
            rest.append(word)
            continue
        flag, equals, value = word.partition("=")
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise CoterieError(f"{flag} needs a value.")
        options[flag.removeprefix("--data.").replace("-", "_")] = value
    return options, rest
