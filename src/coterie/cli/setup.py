"""From the words of a command to methods, data and options: flags count over the config file, that over defaults."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from coterie import registry
from coterie.cli.flags import (
    DATA_HELP,
    Flag,
    General,
    Parser,
    Searching,
    Tuning,
    flags_of,
    general_flags,
    take_data,
    typed,
)
from coterie.contract import Algorithm, Local, check_settings
from coterie.data import makers
from coterie.data.spec import no_such_set
from coterie.errors import CoterieError, unknown
from coterie.runs.options import Options
from coterie.runs.search import VALID

COMMON = {f.name for f in fields(Local)} | {
    "clusters"
}  # what `compare` gives to every method that has it
MEANINGS = {"clusters": "number of groups to look for"}
TAKEN = {
    f.key for command in ("search", "compare") for f in general_flags(command)
}  # names that no setting gets
Given = dict[str, Any]


class Setup(NamedTuple):
    """All that a run or a comparison was asked for."""

    methods: dict[str, Algorithm]  # by the name that finds it again
    general: General
    options: Given
    spec: str
    data: Given
    over: dict[str, dict[str, list[Any]]]  # by method and setting: the values to choose among
    random: int | None = None  # try only so many combinations of them

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
                folder = base / method.name if len(self.methods) > 1 or self.over else base
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
    """Read the words (methods) and flags of `run`, `compare` or `search`."""
    classes = find_methods(command, words)
    alone = command != "compare"
    parser = Parser(
        f"coterie {command} {' '.join(words)}",
        [*method_flags(classes, alone), *general_flags(command)],
        next(iter(classes.values())).__doc__ or "" if alone else "",
        DATA_HELP
        + (
            ""
            if alone
            else "\nfor one method alone: --METHOD.NAME, such as --ifca.lr 0.05 or --ifca.tune lr=0.1,1"
        ),
    )
    data, rest = take_data(argv)
    flags = parser.given(rest)
    file = read_config(flags["config"], parser, classes) if "config" in flags else {}
    data = {k.removeprefix("data."): v for k, v in file.items() if k.startswith("data.")} | data
    general = General(**settled(parser, flags, file, General))
    check_settings(general)
    common = {
        k: getattr(general, k)
        for k in ("clients", "samples", "label", "client_column", "fill", "unseen")
    }
    data = {k: v for k, v in common.items() if v is not None} | {
        k: texts(v) for k, v in data.items()
    }
    spec, data = lasting(general.data, data)
    over = grids(classes, file | flags)
    if command == "search" and not over:
        raise CoterieError("search needs --over, the values to try, as in --over lr=0.01,0.1,1.")
    methods = {
        origin: build(cls, parser, flags, file, alone, over.get(origin, {}))
        for origin, cls in classes.items()
    }
    general = general if general.model is None else replace(general, model=absolute(general.model))
    options = ({"valid": VALID} if over else {}) | settled(parser, flags, file, Options)
    random = settled(parser, flags, file, Searching).get("random")
    return Setup(methods, general, options, spec, data, over, random)


# ---------------------------------------------------------------------------------------------- methods
def find_methods(command: str, words: list[str]) -> dict[str, type[Algorithm]]:
    alone = command != "compare"
    if not words or (alone and len(words) > 1):
        what = "one method" if alone else "the methods"
        raise CoterieError(
            f"{command} needs {what} first, as in `coterie {command} ifca`: `coterie list` names them."
        )
    words = sorted(registry.methods()) if words == ["all"] and command == "compare" else words
    found = {absolute(word): registry.find(word) for word in words}
    for word, cls in zip(words, found.values()):
        if not (is_dataclass(cls) and isinstance(getattr(cls, "name", None), str)):
            raise CoterieError(
                f"{word} is not complete: a method is a frozen dataclass with a name, a ClassVar[str]."
            )
    names = [cls.name for cls in found.values()]
    if len(names) < len(words) or len(set(names)) < len(names):
        raise CoterieError(
            f"a method is named twice ({', '.join(words)}): compare each with itself left out."
        )
    return found


def method_flags(classes: dict[str, type[Algorithm]], alone: bool) -> list[Flag]:
    """Every field with its method's name before it, and without it where that is clear."""
    prefixed: list[Flag] = []
    plain: dict[str, Flag] = {}
    for cls in classes.values():
        for flag in flags_of(
            cls, f"settings of {cls.name}" if alone else "settings of every method that has them"
        ):
            flag = flag._replace(help=MEANINGS.get(flag.key, flag.help))
            clear = flag.key not in TAKEN and (alone or flag.key in COMMON)
            if clear:
                same = flag.key not in plain or plain[flag.key].default == flag.default
                plain[flag.key] = flag if same else flag._replace(default=None)
            key, group = f"{cls.name.replace('-', '_')}.{flag.key}", f"settings of {cls.name} alone"
            prefixed.append(flag._replace(key=key, shown=not clear, group=group))
        if not alone:
            prefixed += flags_of(
                Tuning, "what is tried", f"{cls.name.replace('-', '_')}.", shown=False
            )
    return [*plain.values(), *prefixed]


def build(
    cls: type[Algorithm],
    parser: Parser,
    flags: Given,
    file: Given,
    alone: bool,
    over: dict[str, list[Any]],
) -> Algorithm:
    """A method from what was given; a setting that is searched stands at its first value."""
    prefix, values = cls.name.replace("-", "_"), {name: tried[0] for name, tried in over.items()}
    for f in fields(cls):  # type: ignore[arg-type]
        keys = [f"{prefix}.{f.name}"] + [f.name] * (
            f.name not in TAKEN and (alone or f.name in COMMON)
        )
        given = [(key, layer) for layer in (flags, file) for key in keys if key in layer]
        if f.name in over:
            continue
        if given:
            key, layer = given[0]
            values[f.name] = typed(parser.flags[key], layer[key])
        elif f.default is MISSING and f.default_factory is MISSING:
            meaning = MEANINGS.get(f.name, f.metadata.get("help", "which has no default"))
            raise CoterieError(f"{cls.name} needs --{f.name.replace('_', '-')}, the {meaning}.")
    return cls(**values)


def grids(classes: dict[str, type[Algorithm]], given: Given) -> dict[str, dict[str, list[Any]]]:
    """The values to try, by method and setting: from --over, or --tune and for one method --METHOD.tune over it."""
    found: dict[str, dict[str, list[Any]]] = {}
    for origin, cls in classes.items():
        own = {flag.key: flag for flag in flags_of(cls, "")}
        for key in ("over", "tune", f"{cls.name.replace('-', '_')}.tune"):
            for name, values in tried(key, given):
                if name in own:
                    found.setdefault(origin, {})[name] = list(
                        dict.fromkeys(typed(own[name], v) for v in values)
                    )
                elif key != "tune":
                    raise unknown(f"setting of {cls.name}", name, own)
    for name, _ in tried("tune", given):
        if not any(name in values for values in found.values()):
            raise CoterieError(
                f"tune names {name!r}, which none of these methods has: leave it out."
            )
    return found


def tried(key: str, given: Given) -> Iterator[tuple[str, list[str]]]:
    """(setting, values as text) of each NAME=A,B."""
    texts = given.get(key, [])
    for text in texts if isinstance(texts, list) else [texts]:
        name, _, values = str(text).partition("=")
        found = [value.strip() for value in values.split(",") if value.strip()]
        if not name or not found:
            raise CoterieError(f"{key} is {text!r}: write NAME=A,B, such as lr=0.01,0.1.")
        yield name.strip().replace("-", "_"), found


def settled(parser: Parser, flags: Given, file: Given, cls: type) -> Given:
    """The fields of a dataclass that were given."""
    given = file | flags
    return {
        f.name: typed(parser.flags[f.name], given[f.name]) for f in fields(cls) if f.name in given
    }


# ---------------------------------------------------------------------------------------------- the config file
def read_config(path: str, parser: Parser, classes: dict[str, type[Algorithm]]) -> Given:
    """The file's values by key: "lr", "ifca.lr", "data.angles". Tables of methods that do not run are left out."""
    try:
        with open(path, "rb") as f:
            tables = tomllib.load(f)
    except OSError as e:
        raise CoterieError(f"the config file {path} cannot be read: {e.strerror}.") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise CoterieError(
            f"the config file {path} is not valid TOML: {str(e).rstrip('.')}."
        ) from e
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
            raise CoterieError(
                f"the key {key} in {path} is a table: tables hold only plain values."
            )
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
        raise no_such_set(spec)
    if colon and next(iter(signature(known[name][0]).parameters)) == "path":
        head = f"{name}:{os.path.abspath(first)}"
    if "path" in options:
        options["path"] = os.path.abspath(options["path"])
    if "seed" in options:  # in the name it counts over --seed
        mark, query = "?", "&".join(filter(None, [query, f"seed={options.pop('seed')}"]))
    return head + mark + query, options


def absolute(name: str) -> str:
    """file.py:Name with the file's full path; other names as they are."""
    path, colon, attribute = name.rpartition(":")
    return f"{os.path.abspath(path)}:{attribute}" if path.endswith(".py") and colon else name
