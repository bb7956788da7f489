"""The TOML file of --config."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from coterie.cli.flags import Flag
from coterie.core.errors import CoterieError, unknown_name

FOR_NETWORKS = ("method", "network")  # keys and tables that `coterie network` reads by itself
NOT_IN_FILES = {"config", "debug"}  # flags that a file cannot have


def read_config(path: str, known: Mapping[str, Flag], other_methods: set[str]) -> dict[str, Any]:
    """The file's values by key: "lr", "ifca.lr", "data.angles".

    other_methods: methods that do not run; their tables are left out.
    """
    values: dict[str, Any] = {}
    for key, value in flatten(read_toml(path)):
        if key.partition(".")[0] in {*other_methods, *FOR_NETWORKS}:
            continue
        check_key(path, key, known)
        check_plain(path, key, value)
        if key in values:  # TOML takes local-steps and local_steps for two keys
            raise CoterieError(f"{key} stands twice in {path}", "remove one of them")
        values[key] = value
    return values


def read_toml(path: str) -> dict[str, Any]:
    """The content of a TOML file; one sentence if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as e:
        raise CoterieError(f"the config file {path} cannot be read: {e.strerror}.") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        reason = str(e).rstrip(".")
        raise CoterieError(f"the config file {path} is not valid TOML: {reason}.") from e


def flatten(tables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values by "key" and "table.key", hyphens as underscores; `spec` of [data] is the key data."""
    for name, value in tables.items():
        if not isinstance(value, dict):
            yield name.replace("-", "_"), value
            continue
        for inner_name, inner_value in value.items():
            key = f"{name}.{inner_name}".replace("-", "_")
            if key == "data.spec":
                key = "data"
            yield key, inner_value


def check_key(path: str, key: str, known: Mapping[str, Flag]) -> None:
    """Refuse a key that no flag has; options of the data set are checked with the data."""
    if key.startswith("data.") or (key in known and key not in NOT_IN_FILES):
        return
    shown = {name for name, flag in known.items() if flag.shown}
    raise unknown_name(f"key in {path}", key, shown - NOT_IN_FILES)


def check_plain(path: str, key: str, value: Any) -> None:
    """Refuse tables, dates and lists of lists."""
    parts = [value]
    if isinstance(value, list):
        parts = value
    for part in parts:
        if isinstance(part, dict | list):
            raise CoterieError(f"{key} in {path} holds a table or a list", "give plain values")
        if isinstance(part, datetime.date | datetime.time):
            raise CoterieError(f"{key} in {path} is a date or a time", f'write "{part}"')
