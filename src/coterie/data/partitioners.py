"""Partitioners of flwr-datasets: making one from options, and dealing its partitions to clients."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data.features import Dealt, library
from coterie.data.memory import default_names
from coterie.data.tables import one_line

ARGUMENTS = {  # our options, and what partitioners call them
    "clients": "num_partitions",
    "alpha": "alpha",
    "classes": "num_classes_per_partition",
    "shards": "num_shards_per_partition",
    "sizes": "partition_sizes",
}


def make_partitioner(
    name: str, label: str, seed: int, options: Mapping[str, Any], more: Sequence[str]
) -> Any:
    """The partitioner of this name, from our `options` and `more` arguments, each NAME=VALUE."""
    title = "".join(word.title() for word in name.split("_"))
    make = getattr(library("flwr_datasets.partitioner"), f"{title}Partitioner")
    takes = inspect.signature(make).parameters
    given: dict[str, Any] = {}
    for argument, value in (("partition_by", label), ("seed", seed)):
        if argument in takes:
            given[argument] = value
    for option, value in options.items():
        if value is None:
            continue
        if ARGUMENTS[option] not in takes:
            raise CoterieError(f"{option} is not for the partitioner {name}", "leave it out")
        given[ARGUMENTS[option]] = list(value) if isinstance(value, tuple) else value
    given.update(parse_argument(text) for text in more)
    check_arguments(name, given, takes)
    try:
        return make(**given)
    except (ValueError, TypeError) as why:
        raise CoterieError(
            f"the partitioner {name} cannot be made ({one_line(why).rstrip('.')})",
            "give it other arguments",
        ) from None


def check_arguments(
    name: str, given: Mapping[str, Any], takes: Mapping[str, inspect.Parameter]
) -> None:
    """Refuse arguments that a partitioner does not take, and the lack of one that it needs."""
    for argument in given:
        if argument not in takes:
            raise unknown_name(f"argument of the partitioner {name}:", argument, takes)
    ours = {argument: option for option, argument in ARGUMENTS.items()}
    for argument, parameter in takes.items():
        if parameter.default is not parameter.empty or argument in given:
            continue
        missing = Option("arguments", f"{argument}=VALUE", of_data=True)
        if argument in ours:
            missing = Option(ours[argument], of_data=True)
        raise CoterieError(f"the partitioner {name} needs {argument}", "give {}", options=[missing])


def parse_argument(text: str) -> tuple[str, Any]:
    """NAME=VALUE; a value is a number, true, false, or else text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise CoterieError(f"{text!r} in arguments has no value", f"write {text}=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def deal(partitioner: Any) -> Dealt:
    """All partitions, one after another, with the client of each row."""
    title = type(partitioner).__name__
    if not partitioner.is_dataset_assigned():
        raise CoterieError(f"the {title} has no data set to deal", "set its dataset first")
    try:
        with warnings.catch_warnings(action="ignore"):  # of every failed attempt
            parts = [partitioner.load_partition(i) for i in range(partitioner.num_partitions)]
    except (ValueError, LookupError, TypeError, AssertionError) as why:
        raise CoterieError(
            f"the {title} cannot deal these rows ({one_line(why).rstrip('.')})",
            "give it other arguments",
        ) from None
    if any(part.column_names != parts[0].column_names for part in parts):
        raise CoterieError(
            f"the {title} gives clients different columns", "use one that deals rows"
        )
    names: Sequence[Any] = default_names(len(parts))
    ids = getattr(partitioner, "partition_id_to_natural_id", None)
    if ids:
        names = [ids[i] for i in range(len(parts))]
    for name, part in zip(names, parts):
        if not len(part):
            raise CoterieError(
                f"the {title} leaves client {name!r} without rows", "ask for fewer clients"
            )
    rows = library("datasets").concatenate_datasets(parts).with_format(None)
    return rows, np.repeat(names, [len(part) for part in parts])
