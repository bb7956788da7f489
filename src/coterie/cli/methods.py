"""The methods of a command: their classes by name, their flags, and their settings."""

from __future__ import annotations

import os
from dataclasses import MISSING, fields, is_dataclass

from coterie.cli.flags import Flag, flags_of
from coterie.cli.general import Tuning, general_flags
from coterie.cli.grids import Classes, Grid, prefixed
from coterie.cli.values import Given
from coterie.core.contract import Algorithm, Local
from coterie.core.errors import CoterieError
from coterie.methods import registry

COMMON = {f.name for f in fields(Local)} | {
    "clusters"
}  # `compare` gives them to all that have them
TAKEN = {flag.key for command in ("search", "compare") for flag in general_flags(command)}
RECOMMENDED = ("fedavg", "fedavg-ft", "ditto", "local", "ifca")  # what `compare` alone compares
MEANINGS = {"clusters": "number of groups to look for"}


# ------------------------------------------------------------------------------ methods by name
def find_methods(command: str, words: list[str]) -> dict[str, type[Algorithm]]:
    """The classes that the words name, by a name that finds each again from anywhere."""
    if command == "compare" and words == ["all"]:
        words = sorted(registry.methods())
    if command == "compare" and not words:
        words = list(RECOMMENDED)
    check_number_of_methods(command, words)
    classes = {with_full_path(word): registry.find(word) for word in words}
    for word, cls in zip(words, classes.values()):
        if not (is_dataclass(cls) and isinstance(getattr(cls, "name", None), str)):
            raise CoterieError(
                f"{word} is not complete: a method is a frozen dataclass with a name, a "
                "ClassVar[str]."
            )
    names = {cls.name for cls in classes.values()}
    if len(names) < len(words):
        raise CoterieError(f"a method is named twice ({', '.join(words)}): name each once.")
    return classes


def check_number_of_methods(command: str, words: list[str]) -> None:
    """Refuse a command without a method, or with several, where there must be one."""
    if command != "compare" and len(words) != 1:
        raise CoterieError(
            f"{command} needs one method first, as in `coterie {command} ifca`: `coterie list` "
            "names them."
        )


def with_full_path(name: str) -> str:
    """file.py:Name with the file's full path; other names as they are."""
    path, colon, attribute = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        return name
    return f"{os.path.abspath(path)}:{attribute}"


# ------------------------------------------------------------------------------ flags
def method_flags(classes: Classes, is_alone: bool) -> list[Flag]:
    """A flag --METHOD.NAME for every setting, and --NAME where that is clear."""
    short: dict[str, Flag] = {}
    full: list[Flag] = []
    for cls in classes.values():
        group = "settings of every method that has them"
        if is_alone:
            group = f"settings of {cls.name}"
        for flag in flags_of(cls, group):
            flag = flag._replace(help=MEANINGS.get(flag.key, flag.help))
            is_clear = has_short_name(flag.key, is_alone)
            full.append(
                flag._replace(
                    key=prefixed(cls, flag.key),
                    shown=not is_clear,
                    group=f"settings of {cls.name} alone",
                )
            )
            if is_clear and short.get(flag.key, flag).default != flag.default:
                flag = flag._replace(default=None)  # each method has its own
            if is_clear:
                short[flag.key] = flag
        if not is_alone:
            full += flags_of(Tuning, "what is tried", prefix=prefixed(cls, ""), shown=False)
    return [*short.values(), *full]


def has_short_name(name: str, is_alone: bool) -> bool:
    """Whether a setting has a flag without its method's name before it."""
    return name not in TAKEN and (is_alone or name in COMMON)


def setting_keys(cls: type[Algorithm], name: str, is_alone: bool) -> list[str]:
    """The keys that give a setting of a method, that which counts most first."""
    if has_short_name(name, is_alone):
        return [prefixed(cls, name), name]
    return [prefixed(cls, name)]


# ------------------------------------------------------------------------------ settings
def refuse_without_effect(
    classes: Classes, given: Given, over: dict[str, Grid], is_alone: bool
) -> None:
    """Refuse a flag for a setting that is searched: its value would not be used."""
    for key in given.flags:
        name = key.rpartition(".")[2]
        owners = [
            origin
            for origin, cls in classes.items()
            if name in cls.__dataclass_fields__  # type: ignore[attr-defined]
            and key in setting_keys(cls, name, is_alone)
        ]
        if owners and all(name in over.get(origin, {}) for origin in owners):
            raise CoterieError(
                f"{given.name_of(key)} has no effect, because values of {name} are tried",
                "leave out one of the two",
            )


def make_method(
    cls: type[Algorithm],
    given: Given,
    over: Grid,
    is_alone: bool,
    counts_by_itself: bool = False,
) -> Algorithm:
    """A method with the settings that are given; one that is searched has its first value.

    counts_by_itself: where the number of clusters is not given, the method chooses it.
    """
    values = {}
    for field in fields(cls):  # type: ignore[arg-type]
        keys = setting_keys(cls, field.name, is_alone)
        if field.name in over:
            values[field.name] = over[field.name][0]
        elif given.has(*keys):
            values[field.name] = given.value(*keys)
        elif field.name == "clusters" and counts_by_itself:
            values[field.name] = "auto"
        elif field.default is MISSING and field.default_factory is MISSING:
            help = field.metadata.get("help", "which has no default")
            meaning = MEANINGS.get(field.name, help)
            raise CoterieError(f"{cls.name} needs --{field.name.replace('_', '-')}, the {meaning}.")
    return cls(**values)
