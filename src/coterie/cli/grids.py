"""The values that a search tries: --over, --tune and --METHOD.tune."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.cli.flags import Flag, flags_of
from coterie.cli.values import Given, convert
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError, unknown_name

Grid = dict[str, list[Any]]  # by setting, the values to try
Classes = Mapping[str, type[Algorithm]]


def read_grids(classes: Classes, given: Given) -> dict[str, Grid]:
    """By method, the values to try; those of --METHOD.tune count over those of --tune."""
    for_all = {**read_texts("over", given), **read_texts("tune", given)}
    grids = {}
    for origin, cls in classes.items():
        settings = {flag.key: flag for flag in flags_of(cls)}
        for_one = read_texts(prefixed(cls, "tune"), given)
        for name in [*for_one, *read_texts("over", given)]:
            if name not in settings:
                raise unknown_name(f"setting of {cls.name}", name, settings)
        texts = {**for_all, **for_one}
        grid = {
            name: convert_all(settings[name], texts[name]) for name in texts if name in settings
        }
        if grid:
            grids[origin] = grid
    for name in read_texts("tune", given):
        if not any(name in grid for grid in grids.values()):
            what = f"{given.name_of('tune')} names {name!r}, which none of these methods has"
            raise CoterieError(what, "leave it out")
    return grids


def read_texts(key: str, given: Given) -> dict[str, list[str]]:
    """By setting, the values as text, from one or several NAME=A,B."""
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


def convert_all(flag: Flag, texts: list[str]) -> list[Any]:
    """Each value once, as the type of its setting."""
    return list(dict.fromkeys(convert(flag, text, flag.key) for text in texts))


def prefixed(cls: type[Algorithm], name: str) -> str:
    """The key of a setting of one method: "one_shot.lr"."""
    return f"{cls.name.replace('-', '_')}.{name}"
