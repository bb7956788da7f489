"""The data set of a command: its spec and its options."""

from __future__ import annotations

import os
from inspect import signature
from typing import Any

from coterie.cli.general import DataSet
from coterie.cli.values import Given
from coterie.data import makers
from coterie.data.spec import no_such_set

DATA_FLAGS = (
    "clients", "samples", "label", "client_column", "fill", "drop_incomplete", "min_rows",
    "min_category_count", "unseen",
)  # fmt: skip


def all_data_options(
    general: DataSet, given: Given, data_options: dict[str, str]
) -> dict[str, Any]:
    """Options of the data set; flags count over the file, --data.NAME over --NAME."""
    general_values = {name: getattr(general, name) for name in DATA_FLAGS}
    options = {name: value for name, value in general_values.items() if value is not None}
    flags = {name: value for name, value in options.items() if name in given.flags}
    for key, value in given.file.items():
        if key.startswith("data."):
            options[key.removeprefix("data.")] = as_option(value)
    options |= {**flags, **data_options}
    if given.has("min_rows_to_report") and has_option(general.data, "min_rows_to_report"):
        options.setdefault(
            "min_rows_to_report", given.value("min_rows_to_report")
        )  # one flag for both
    return options


def has_option(spec: str, option: str) -> bool:
    """Whether the data set of a spec takes an option."""
    name = spec.partition("?")[0].partition(":")[0]
    known = makers()
    return name in known and option in signature(known[name][0]).parameters


def as_option(value: Any) -> Any:
    """A list of a config file as a data set's option is written."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value


def with_full_paths(spec: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A data set's spec and options with full paths: a run can be resumed from anywhere.

    A seed among the options moves into the spec, where it counts over that of the run.
    """
    head, _, query = spec.partition("?")
    name, _, first = head.partition(":")
    known = makers()
    if name not in known:
        raise no_such_set(spec)
    if first and next(iter(signature(known[name][0]).parameters)) == "path":
        head = f"{name}:{full_path(first)}"
    options = dict(options)
    if "path" in options:
        options["path"] = full_path(str(options["path"]))
    queries = [query]
    if "seed" in options:
        queries.append(f"seed={options.pop('seed')}")
    query = "&".join(filter(None, queries))
    if not query:
        return head, options
    return f"{head}?{query}", options


def full_path(path: str) -> str:
    """An absolute path; ~ is expanded here, as no shell does it within folder:~/sites."""
    return os.path.abspath(os.path.expanduser(path))
