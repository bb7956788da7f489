"""From the words of a command to methods, data and options: flags count over the config file, that over defaults."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from coterie import registry
from coterie.cli.flags import Flag, General, Parser, flags_of, general_flags, take_data, typed
from coterie.contract import Algorithm, Local, check_settings
from coterie.data import makers
from coterie.engine.options import Options
from coterie.errors import CoterieError, unknown

COMMON = {f.name for f in fields(Local)} | {"clusters"}  # what `compare` gives to every method that has it
MEANINGS = {"clusters": "number of groups to look for"}
Given = dict[str, Any]


class Setup(NamedTuple):
    """All that a run or a comparison was asked for."""

    methods: dict[str, Algorithm]  # by the name that finds it again
    general: General
    options: Given
    spec: str
    data: Given

    @property
    def seeds(self) -> range:
        first = self.options.get("seed", Options.seed)
        return range(first, first + self.general.seeds)

    def origin(self, seed: int) -> Given:
        """The arguments of `data.load` that make the data of a seed."""
        return {"spec": self.spec, "seed": seed, **self.data}

    def jobs(self, base: Path) -> Iterator[tuple[Path, str, int]]:
        """(folder, method, seed) of every run, those on the same data together."""
        for seed in self.seeds:
            for name, method in self.methods.items():
                folder = base / method.name if len(self.methods) > 1 else base
                yield folder / f"seed-{seed}" if self.general.seeds > 1 else folder, name, seed

    def folder(self) -> Path:
        """Where all is written: --out, or a new folder in runs/."""
        if self.general.out is not None:
            return Path(self.general.out)
        kind, _, first = self.spec.partition("?")[0].partition(":")
        data = "-".join(filter(None, [kind, Path(first).name]))
        method = next(iter(self.methods.values())).name if len(self.methods) == 1 else "compare"
        name = f"{method}-{data}-{time.strftime('%Y%m%d-%H%M%S')}"
        found, n = Path("runs") / name, 1
        while found.exists():
            n += 1
            found = Path("runs") / f"{name}-{n}"
        return found


def setup(command: str, words: list[str], argv: list[str]) -> Setup:
    """Read the words (methods) and flags of `run` or `compare`."""
    classes = find_methods(command, words)
    alone = command == "run"
    parser = Parser(
        f"coterie {command} {' '.join(words)}",
        [*method_flags(classes, alone), *general_flags()],
        next(iter(classes.values())).__doc__ or "" if alone else "",
        "options of the data set: --data.angles 0,180, or in its name"
        + ("" if alone else "\na setting for one method alone: --METHOD.NAME, such as --ifca.lr 0.05"),
    )
    data, rest = take_data(argv)
    flags = parser.given(rest)
    file = read_config(flags["config"], parser, classes) if "config" in flags else {}
    data = {k.removeprefix("data."): v for k, v in file.items() if k.startswith("data.")} | data
    general = General(**settled(parser, flags, file, General))
    check_settings(general)
    common = {k: getattr(general, k) for k in ("clients", "samples", "label", "unseen")}
    data = {k: v for k, v in common.items() if v is not None} | {k: texts(v) for k, v in data.items()}
    spec, data = lasting(general.data, data)
    methods = {origin: build(cls, parser, flags, file, alone) for origin, cls in classes.items()}
    general = general if general.model is None else replace(general, model=absolute(general.model))
    return Setup(methods, general, settled(parser, flags, file, Options), spec, data)


# ---------------------------------------------------------------------------------------------- methods
def find_methods(command: str, words: list[str]) -> dict[str, type[Algorithm]]:
    if not words or (command == "run" and len(words) > 1):
        what = "one method" if command == "run" else "the methods"
        raise CoterieError(f"{command} needs {what} first, as in `coterie {command} ifca`: `coterie list` names them.")
    words = sorted(registry.methods()) if words == ["all"] and command == "compare" else words
    found = {absolute(word): registry.find(word) for word in words}
    for word, cls in zip(words, found.values()):
        if not (is_dataclass(cls) and isinstance(getattr(cls, "name", None), str)):
            raise CoterieError(f"{word} is not complete: a method is a frozen dataclass with a name, a ClassVar[str].")
    names = [cls.name for cls in found.values()]
    if len(names) < len(words) or len(set(names)) < len(names):
        raise CoterieError(f"a method is named twice ({', '.join(words)}): compare each with itself left out.")
    return found


def method_flags(classes: dict[str, type[Algorithm]], alone: bool) -> list[Flag]:
    """Every field with its method's name before it, and without it where that is clear."""
    taken, prefixed = {f.key for f in general_flags()}, []
    plain: dict[str, Flag] = {}
    for cls in classes.values():
        for flag in flags_of(cls, f"settings of {cls.name}" if alone else "settings of every method that has them"):
            flag = flag._replace(help=MEANINGS.get(flag.key, flag.help))
            clear = flag.key not in taken and (alone or flag.key in COMMON)
            if clear:
                same = flag.key not in plain or plain[flag.key].default == flag.default
                plain[flag.key] = flag if same else flag._replace(default=None)
            key, group = f"{cls.name.replace('-', '_')}.{flag.key}", f"settings of {cls.name} alone"
            prefixed.append(flag._replace(key=key, shown=not clear, group=group))
    return [*plain.values(), *prefixed]


def build(cls: type[Algorithm], parser: Parser, flags: Given, file: Given, alone: bool) -> Algorithm:
    prefix, values = cls.name.replace("-", "_"), {}
    taken = {f.key for f in general_flags()}
    for f in fields(cls):  # type: ignore[arg-type]
        keys = [f"{prefix}.{f.name}"] + [f.name] * (f.name not in taken and (alone or f.name in COMMON))
        given = [(key, layer) for layer in (flags, file) for key in keys if key in layer]
        if given:
            key, layer = given[0]
            values[f.name] = typed(parser.flags[key], layer[key])
        elif f.default is MISSING and f.default_factory is MISSING:
            meaning = MEANINGS.get(f.name, f.metadata.get("help", "which has no default"))
            raise CoterieError(f"{cls.name} needs --{f.name.replace('_', '-')}, the {meaning}.")
    return cls(**values)


def settled(parser: Parser, flags: Given, file: Given, cls: type) -> Given:
    """The fields of a dataclass that were given."""
    given = file | flags
    return {f.name: typed(parser.flags[f.name], given[f.name]) for f in fields(cls) if f.name in given}


# ---------------------------------------------------------------------------------------------- the config file
def read_config(path: str, parser: Parser, classes: dict[str, type[Algorithm]]) -> Given:
    """The file's values by key: "lr", "ifca.lr", "data.angles". Tables of methods that do not run are left out."""
    try:
        with open(path, "rb") as f:
            tables = tomllib.load(f)
    except OSError as e:
        raise CoterieError(f"the config file {path} cannot be read: {e.strerror}.") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise CoterieError(f"the config file {path} is not valid TOML: {str(e).rstrip('.')}.") from e
    flat: Given = {}
    for key, value in tables.items():
        inside = value.items() if isinstance(value, dict) else [("", value)]
        flat |= {f"{key}.{name}".rstrip(".").replace("-", "_"): v for name, v in inside}
    if "data.spec" in flat:
        flat["data"] = flat.pop("data.spec")
    running = {cls.name for cls in classes.values()}
    absent = {name.replace("-", "_") for name in registry.methods() if name not in running}
    flat = {k: v for k, v in flat.items() if k.partition(".")[0] not in absent}
    known = parser.flags.keys() - {"config", "debug"}
    for key, value in flat.items():
        if key not in known and not key.startswith("data."):
            raise unknown(f"key in {path}", key, {k for k in known if parser.flags[k].shown})
        if isinstance(value, dict):
            raise CoterieError(f"the key {key} in {path} is a table: tables hold only plain values.")
    return flat


def texts(value: Any) -> Any:
    """A list of a config file as a data set's option is written."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


# ---------------------------------------------------------------------------------------------- names that last
def lasting(spec: str, options: Given) -> tuple[str, Given]:
    """The data set's name and options, paths made absolute, so that a run can be resumed from anywhere."""
    head, mark, query = spec.partition("?")
    name, colon, first = head.partition(":")
    known = makers()
    if name not in known:
        raise unknown("data set", name, known)
    if colon and next(iter(signature(known[name][0]).parameters)) == "path":
        head = f"{name}:{Path(first).resolve()}"
    if "path" in options:
        options["path"] = str(Path(options["path"]).resolve())
    if "seed" in options:  # in the name it counts over --seed
        mark, query = "?", "&".join(filter(None, [query, f"seed={options.pop('seed')}"]))
    return head + mark + query, options


def absolute(name: str) -> str:
    """file.py:Name with the file's full path; other names as they are."""
    path, colon, attribute = name.rpartition(":")
    return f"{Path(path).resolve()}:{attribute}" if path.endswith(".py") and colon else name
