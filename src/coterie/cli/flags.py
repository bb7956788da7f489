"""Flags from the fields of dataclasses: names, types, defaults, limits and help. Nothing here needs torch."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Any, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from coterie.errors import CoterieError, unknown
from coterie.runs.options import Options
from coterie.settings import setting


@dataclass(frozen=True, kw_only=True)
class General:
    """What the command is told beside the run's `Options` and the method's own settings."""

    data: str = setting(
        "rotated:digits", "the data set, options after a question mark: rotated:mnist?angles=0,180"
    )
    clients: int | None = setting(None, "number of clients; none: as the data set has it", least=1)
    samples: int | None = setting(
        None, "training rows per client; none: as the data set has it", least=1
    )
    label: str | None = setting(None, "the column to predict, in tables")
    client_column: str | None = setting(
        None, "the column that names the client, where one table has all"
    )
    fill: str | None = setting(
        None, "what to put in tables' missing cells; none: refuse them", choices=("mean", "median")
    )
    unseen: int | None = setting(
        None, "clients kept out of training, to see how newcomers fare; none: 0", least=0
    )
    model: str | None = setting(
        None, "mlp, mlp:128,64, softmax, linear, cnn or file.py:Net; none: by the data"
    )
    out: str | None = setting(None, "folder of the run; none: runs/METHOD-DATA-TIME")
    seeds: int = setting(1, "repeat with so many seeds, from --seed on", least=1)
    config: str | None = setting(
        None, "TOML file with the same keys as the flags, which count over it"
    )
    plan: str | None = setting(None, "CHUNK,WORKERS: clients at once, and threads", hidden=True)
    dry_run: bool = setting(
        False, "train nothing; tell sizes, bytes per round, memory and plan", switch=True
    )
    json: bool = setting(False, "print one JSON document instead of the table", switch=True)
    quiet: bool = setting(False, "no progress", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


VALUES = "NAME=A,B,…"


@dataclass(frozen=True, kw_only=True)
class Searching:
    """What `search` is told besides."""

    over: tuple[str, ...] = setting(
        (), "a setting and values to try; several: all combinations", repeated=VALUES
    )
    random: int | None = setting(
        None, "try so many combinations, drawn by --seed; none: all", least=1
    )


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What `compare` is told besides."""

    tune: tuple[str, ...] = setting(
        (), "a setting and values that each method which has it chooses among, on the valid rows of one seed",
        repeated=VALUES,
    )  # fmt: skip


TABLES = (
    "drop",
    "categories",
    "kind",
    "test_share",
    "time_column",
    "split_column",
)  # options that need no name here
DATA_HELP = (
    "options of the data set: --data.angles 0,180, or in its name; `coterie list` names them\n"
    f"of tables: {', '.join(f'--data.{name}' for name in TABLES)}"
)


class Flag(NamedTuple):
    key: str  # "local_steps", "ifca.lr": as in a config file
    kind: Any  # its type; see `supported`
    help: str
    default: Any  # MISSING: must be given
    limits: Mapping[str, Any]
    group: str  # the heading in --help
    shown: bool = True

    @property
    def name(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def base(self) -> Any:
        """The type, without None."""
        return next((k for k in _options(self.kind) if k is not NoneType), self.kind)

    @property
    def optional(self) -> bool:
        return NoneType in _options(self.kind)

    def told(self) -> str:
        """Meaning, limits and default, for --help."""
        signs = {"above": ">", "least": "≥", "below": "<", "most": "≤"}
        notes = [
            f"{sign} {self.limits[word]}" for word, sign in signs.items() if word in self.limits
        ]
        if self.default is MISSING:
            notes.append("required")
        elif isinstance(self.default, bool):
            notes += ["default"] if self.default else []
        elif self.default or self.default == 0:
            notes.append(
                f"default {self.default:g}"
                if isinstance(self.default, float)
                else f"default {self.default}"
            )
        return self.help + (f" ({', '.join(notes)})" if notes else "")


def flags_of(cls: type, group: str, prefix: str = "", shown: bool = True) -> list[Flag]:
    """A flag for every field whose type can be written on a command line."""
    kinds, found = get_type_hints(cls), []
    for f in fields(cls):
        default = f.default if f.default_factory is MISSING else f.default_factory()
        seen = shown and not f.metadata.get("hidden")
        flag = Flag(
            prefix + f.name,
            kinds[f.name],
            f.metadata.get("help", ""),
            default,
            f.metadata,
            group,
            seen,
        )
        if f.init and supported(flag.base):
            found.append(flag)
    return found


def supported(kind: Any) -> bool:
    return kind in (int, float, str, bool) or (
        get_origin(kind) is tuple and get_args(kind)[0] in (int, float, str)
    )


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else ()


def general_flags(command: str = "run") -> list[Flag]:
    more = {
        "search": flags_of(Searching, "what is tried"),
        "compare": flags_of(Tuning, "what is tried"),
    }
    return (
        more.get(command, [])
        + flags_of(General, "data, model and output")
        + flags_of(Options, "the run")
    )


# ---------------------------------------------------------------------------------------------- reading a command line
class Parser(argparse.ArgumentParser):
    """argparse whose errors are our one sentence; values stay text until the config file is read, too."""

    def __init__(
        self, prog: str, flags: Iterable[Flag], description: str = "", epilog: str = ""
    ) -> None:
        width = min(shutil.get_terminal_size().columns, 120)
        style = lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=34, width=width
        )
        super().__init__(
            prog, f"{prog} [FLAGS]", description, epilog, allow_abbrev=False, formatter_class=style
        )  # fmt: skip
        self.flags = {f.key: f for f in flags}
        groups: dict[str, Any] = {}
        for flag in self.flags.values():
            if flag.group not in groups:
                groups[flag.group] = self.add_argument_group(flag.group)
            _add(groups[flag.group], flag)

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        flag, _, what = message.partition(": ")
        raise CoterieError(
            f"{flag} needs a value." if what == "expected one argument" else f"{message}."
        )

    def given(self, argv: list[str]) -> dict[str, Any]:
        """What was given, by key: text, or a bool where the flag takes no value."""
        found, rest = self.parse_known_args([dashed(word) for word in argv])
        if rest:
            raise self.stray(rest[0])
        return vars(found)

    def stray(self, word: str) -> CoterieError:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            return CoterieError(
                f"{word!r} belongs to no flag: names come first, then flags ({self.prog} --help)."
            )
        if name.lstrip("-").replace("-", "_") in TABLES:
            return CoterieError(f"{name} belongs to the data set: write --data.{name.lstrip('-')}.")
        owners = [f.name for f in self.flags.values() if f.name.endswith(f".{name.lstrip('-')}")]
        if owners:
            return CoterieError(f"{name} belongs to one method: write {' or '.join(owners)}.")
        return unknown("flag", name, [f.name for f in self.flags.values() if f.shown] + ["--help"])


def _add(group: Any, flag: Flag) -> None:
    how: dict[str, Any] = {"dest": flag.key, "default": argparse.SUPPRESS}
    how["help"] = flag.told().replace("%", "%%") if flag.shown else argparse.SUPPRESS
    if flag.base is bool:
        how["action"] = (
            "store_true" if flag.limits.get("switch") else argparse.BooleanOptionalAction
        )
    elif "repeated" in flag.limits:
        how |= {"action": "append", "metavar": flag.limits["repeated"]}
    else:
        kind = {int: "N", float: "X", str: "WORD"}.get(flag.base, "A,B,…")
        how["metavar"] = "|".join(flag.limits.get("choices", (kind, *flag.limits.get("words", ()))))
    group.add_argument(flag.name, **how)


def dashed(word: str) -> str:
    """--local_steps=5 → --local-steps=5"""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


def take_data(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """(options of the data set, given as --data.NAME VALUE; the other words)"""
    found: dict[str, str] = {}
    rest, words = [], iter(argv)
    for word in words:
        if not word.startswith("--data."):
            rest.append(word)
            continue
        name, equals, value = word.partition("=")
        if not equals and (value := next(words, "--")).startswith("--"):
            raise CoterieError(f"{name} needs a value.")
        found[name.removeprefix("--data.").replace("-", "_")] = value
    return found, rest


# ---------------------------------------------------------------------------------------------- values
def typed(flag: Flag, value: Any) -> Any:
    """Text, or a value of a config file, as the flag's type."""
    if isinstance(value, list):
        value = ",".join(map(str, value))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if flag.optional and text.lower() == "none":
        return None
    words = tuple(flag.limits.get("words", ()))
    if text in words:
        return text
    several = get_origin(flag.base) is tuple
    each = get_args(flag.base)[0] if several else flag.base
    try:
        return (
            tuple(_one(each, part) for part in text.split(",") if part)
            if several
            else _one(each, text)
        )
    except ValueError:
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}[each]
        wanted = " or ".join((wanted, *words, *["none"] * flag.optional))
        raise CoterieError(f"{flag.key} is {text!r}: it must be {wanted}.") from None


def _one(kind: Any, text: str) -> Any:
    if kind is bool:
        return ("false", "true").index(text.lower()) == 1
    if kind is float and not math.isfinite(float(text)):
        raise ValueError
    return kind(text)
