"""The methods of a command: classes by name, flags of hyper-parameters, and values to try."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from coterie.cli.flags import Flag, FlagValues, flags_of
from coterie.cli.run_flags import RECOMMENDED, TuneFlags, run_flags
from coterie.core.contract import Algorithm, Local
from coterie.core.errors import CoterieError, unknown_name
from coterie.methods import registry

Classes = Mapping[str, type[Algorithm]]  # by name, or by file and class
Grid = dict[str, list[Any]]  # by hyper-parameter, the values to try
# hyper-parameters that `compare` passes to every method that has them
COMMON = {f.name for f in fields(Local)} | {"clusters"}
# flags that no hyper-parameter can have without its method's name
TAKEN = {"debug"} | {flag.key for command in ("search", "compare") for flag in run_flags(command)}
MEANINGS = {"clusters": "number of groups to look for; auto: chosen from the data"}


# ------------------------------------------------------------------------------ methods by name
def find_methods(command: str, names: list[str]) -> dict[str, type[Algorithm]]:
    """Return the classes of methods.

    Args:
        command: "run", "compare" or "search".
        names: Names of methods, or file.py:Class. For `compare`, ["all"] stands for all methods,
            and [] for the recommended ones.

    Returns:
        The classes by name, files with their full path, so that a run can be resumed from anywhere.

    Raises:
        CoterieError: A method is unknown, incomplete or named twice, or their number is wrong.
    """
    if command == "compare" and names == ["all"]:
        names = sorted(registry.methods())
    if command == "compare" and not names:
        names = list(RECOMMENDED)
    if command != "compare" and len(names) != 1:
        raise CoterieError(
            f"{command} needs one method first, as in `coterie {command} ifca`: `coterie list` "
            "lists the methods."
        )
    classes = {with_full_path(name): registry.find(name) for name in names}
    for name, cls in zip(names, classes.values()):
        if not (is_dataclass(cls) and isinstance(getattr(cls, "name", None), str)):
            raise CoterieError(
                f"{name} is incomplete: a method is a frozen dataclass with a name, a "
                "ClassVar[str]."
            )
    if len({cls.name for cls in classes.values()}) < len(names):
        raise CoterieError(f"a method is named twice ({', '.join(names)}): name each once.")
    return classes


def with_full_path(name: str) -> str:
    """Return file.py:Name with the absolute path of the file; other names unchanged."""
    path, colon, attribute = name.rpartition(":")
    if not colon or not path.endswith(".py"):
        return name
    return f"{os.path.abspath(path)}:{attribute}"


# ------------------------------------------------------------------------------ flags
def method_flags(classes: Classes, is_one_method: bool) -> list[Flag]:
    """Return a flag --METHOD.NAME for every hyper-parameter, and --NAME where that is unambiguous.

    Args:
        classes: The methods.
        is_one_method: Whether the command takes one method, whose flags need no prefix.
    """
    short: dict[str, Flag] = {}
    full: list[Flag] = []
    for cls in classes.values():
        group = "hyper-parameters of every method that has them"
        if is_one_method:
            group = f"hyper-parameters of {cls.name}"
        for flag in flags_of(cls, group):
            flag = flag._replace(help=MEANINGS.get(flag.key, flag.help))
            is_short = has_short_name(flag.key, is_one_method)
            full.append(
                flag._replace(
                    key=prefixed(cls, flag.key),
                    shown=not is_short,
                    group=f"hyper-parameters of {cls.name} only",
                )
            )
            if is_short and short.get(flag.key, flag).default != flag.default:
                flag = flag._replace(default=None)  # the methods' defaults differ
            if is_short:
                short[flag.key] = flag
        if not is_one_method:
            full += flags_of(TuneFlags, "values to try", prefix=prefixed(cls, ""), shown=False)
    return [*short.values(), *full]


def has_short_name(name: str, is_one_method: bool) -> bool:
    """Whether a hyper-parameter has a flag without its method's name."""
    return name not in TAKEN and (is_one_method or name in COMMON)


def prefixed(cls: type[Algorithm], name: str) -> str:
    """Return the key of a hyper-parameter of one method: "one_shot.lr"."""
    return f"{cls.name.replace('-', '_')}.{name}"


def keys_of(cls: type[Algorithm], name: str, is_one_method: bool) -> list[str]:
    """Return the keys that give a hyper-parameter of a method; the first overrides the others."""
    if has_short_name(name, is_one_method):
        return [prefixed(cls, name), name]
    return [prefixed(cls, name)]


# ------------------------------------------------------------------------------ values to try
def read_grids(classes: Classes, given: FlagValues) -> dict[str, Grid]:
    """Return the values to try, by method, from --over, --tune and --METHOD.tune.

    Raises:
        CoterieError: A hyper-parameter is unknown or given twice, or a value does not fit.
    """
    over, tune = read_texts("over", given), read_texts("tune", given)
    grids = {}
    for method, cls in classes.items():
        known = {flag.key: flag for flag in flags_of(cls)}
        own = read_texts(prefixed(cls, "tune"), given)
        for name in [*own, *over]:
            if name not in known:
                raise unknown_name(f"hyper-parameter of {cls.name}", name, known)
        grid = {}
        for name, texts in {**over, **tune, **own}.items():
            if name in known:
                values = [known[name].convert(text, name) for text in texts]
                grid[name] = list(dict.fromkeys(values))
        if grid:
            grids[method] = grid
    for name in tune:
        if not any(name in grid for grid in grids.values()):
            what = f"{given.name_of('tune')} names {name!r}, which none of these methods has"
            raise CoterieError(what, "remove it")
    return grids


def read_texts(key: str, given: FlagValues) -> dict[str, list[str]]:
    """Split one or several NAME=A,B into the texts of the values, by hyper-parameter."""
    items = given.flags.get(key, given.file.get(key, []))
    if not isinstance(items, list):
        items = [items]
    texts: dict[str, list[str]] = {}
    for item in items:
        name, _, values = str(item).partition("=")
        name = name.strip().replace("-", "_")
        parts = [value.strip() for value in values.split(",") if value.strip()]
        if not name or not parts:
            what = f"{given.name_of(key)} is {item!r}"
            raise CoterieError(what, "write NAME=A,B, such as lr=0.01,0.1")
        if name in texts:
            both = ",".join([*texts[name], *parts])
            raise CoterieError(f"{given.name_of(key)} names {name} twice", f"write {name}={both}")
        texts[name] = parts
    return texts


# ------------------------------------------------------------------------------ values
def refuse_unused_flags(
    classes: Classes, given: FlagValues, grids: dict[str, Grid], is_one_method: bool
) -> None:
    """Refuse a flag whose hyper-parameter is searched by all methods, so that it has no effect."""
    for key in given.flags:
        name = key.rpartition(".")[2]
        owners = [
            method
            for method, cls in classes.items()
            if name in cls.__dataclass_fields__  # type: ignore[attr-defined]
            and key in keys_of(cls, name, is_one_method)
        ]
        if owners and all(name in grids.get(method, {}) for method in owners):
            raise CoterieError(
                f"{given.name_of(key)} has no effect, because values of {name} are searched",
                "remove one of the two",
            )


def make_method(
    cls: type[Algorithm],
    given: FlagValues,
    grid: Grid,
    is_one_method: bool,
) -> Algorithm:
    """Make a method from the given hyper-parameters.

    Args:
        cls: The method.
        given: Values of flags and of the config file.
        grid: Values to try; the method gets the first of each.
        is_one_method: Whether the command takes one method.

    Raises:
        CoterieError: A required hyper-parameter is missing, or a value does not fit.
    """
    values = {}
    for field in fields(cls):  # type: ignore[arg-type]
        keys = keys_of(cls, field.name, is_one_method)
        if field.name in grid:
            values[field.name] = grid[field.name][0]
        elif given.has(*keys):
            values[field.name] = given.get(*keys)
        elif field.default is MISSING and field.default_factory is MISSING:
            help = field.metadata.get("help", "which has no default")
            raise CoterieError(f"{cls.name} needs --{field.name.replace('_', '-')}, the {help}.")
    return cls(**values)
