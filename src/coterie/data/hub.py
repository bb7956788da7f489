"""Hugging Face data sets, partitioned by a column or by a partitioner of flwr-datasets."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data.csv_files import to_one_line
from coterie.data.federation import Federation
from coterie.data.hub_rows import (
    KeyedRows,
    Rows,
    check_column_names,
    encode_rows,
    import_optional,
    read_splits,
    to_frame,
)
from coterie.data.memory import default_names
from coterie.data.natural import draw_clients
from coterie.data.spec import maker
from coterie.data.table_options import HubKeywords, TableOptions, as_names, show_table_options
from coterie.data.tables import Table

ARGUMENTS = {  # our options, and the names of the partitioners' arguments
    "clients": "num_partitions",
    "alpha": "alpha",
    "classes": "num_classes_per_partition",
    "shards": "num_shards_per_partition",
    "sizes": "partition_sizes",
}


def make_partitioner(
    name: str, label: str, seed: int, options: Mapping[str, Any], more: Sequence[str]
) -> Any:
    """Make a partitioner by name from our `options` and `more` arguments, each NAME=VALUE."""
    title = "".join(word.title() for word in name.split("_"))
    make = getattr(import_optional("flwr_datasets.partitioner"), f"{title}Partitioner")
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
            f"the partitioner {name} cannot be made ({to_one_line(why).rstrip('.')})",
            "give it other arguments",
        ) from None


def check_arguments(
    name: str, given: Mapping[str, Any], takes: Mapping[str, inspect.Parameter]
) -> None:
    """Raise for unknown arguments of a partitioner, and for missing ones."""
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
    """Parse NAME=VALUE; a value is JSON or otherwise text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise CoterieError(f"{text!r} in arguments has no value", f"write {text}=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def load_partitions(partitioner: Any) -> KeyedRows:
    """Return the rows of all partitions, concatenated, with the client of each row."""
    title = type(partitioner).__name__
    if not partitioner.is_dataset_assigned():
        raise CoterieError(f"the {title} has no data set", "set its dataset first")
    try:
        with warnings.catch_warnings(action="ignore"):  # it warns about every failed attempt
            parts = [partitioner.load_partition(i) for i in range(partitioner.num_partitions)]
    except (ValueError, LookupError, TypeError, AssertionError) as why:
        raise CoterieError(
            f"the {title} cannot partition these rows ({to_one_line(why).rstrip('.')})",
            "give it other arguments",
        ) from None
    if any(part.column_names != parts[0].column_names for part in parts):
        raise CoterieError(
            f"the {title} gives clients different columns", "use one that partitions rows"
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
    rows = import_optional("datasets").concatenate_datasets(parts).with_format(None)
    return rows, np.repeat(names, [len(part) for part in parts])


By = Literal[
    "iid", "dirichlet", "inner_dirichlet", "pathological", "shard", "continuous", "size", "linear",
    "square", "exponential", "grouped_natural_id",
]  # fmt: skip


@maker
@show_table_options(HubKeywords)
def hub(
    path: str,
    label: str | None = None,
    client_column: str | None = None,
    partitioner: By | None = None,
    clients: int | None = None,
    samples: int | None = None,
    least: int = 1,
    alpha: float | None = None,
    classes: int | None = None,
    shards: int | None = None,
    sizes: tuple[int, ...] | None = None,
    arguments: tuple[str, ...] | None = None,
    split: str | None = None,
    **options: Unpack[HubKeywords],
) -> Federation:
    """A Hugging Face data set on disk, partitioned by a column or by flwr-datasets.

    `path` is a folder that `save_to_disk` wrote, a CSV or Parquet file, or a folder of such files,
    whose names start with their split (train-00000.parquet). Columns are encoded as in
    `from_partitioner`.

    With `client_column`, every value is a client; `clients` of them are drawn (default: all) among
    those with at least `least` rows. If there is a test split, its rows become the test rows of the
    clients they name; otherwise, a random `test_share` of each client's rows is held out.

    With `partitioner`, the rows of the train split are shuffled by `seed` and distributed:
    iid, dirichlet (`alpha`), pathological (`classes` each), shard (`shards` each), size (`sizes`),
    linear, square, exponential and others, by the label unless `arguments` has partition_by. These
    are further arguments of the partitioner, such as min_partition_size=5,shuffle=false. Whom a
    partitioner would give test rows is not known, so that a `test_share` of each client's own rows
    is held out, and a test split is left alone.

    `split` names a split to use instead of train and test. Of a client's rows at most `samples`
    are taken. With `drop_incomplete`, rows of tables without a label are dropped.

    Example:
        >>> hub("saved/adult", label="income", partitioner="iid", clients=10)  # doctest: +SKIP
    """
    seed = options.get("seed", 0)
    splits = read_splits(Path(path))
    rows = splits.get(split or "train")
    if rows is None:
        raise unknown_name(f"split of {path}:", split or "train", splits)
    label = check_columns(rows, path, label, client_column, partitioner)
    dealing = {"alpha": alpha, "classes": classes, "shards": shards, "sizes": sizes}
    test = None
    if client_column is not None:
        refuse_partitioner_options(**dealing, arguments=arguments)
        key = read_clients(rows, client_column)
    else:
        given = {"clients": clients, **dealing}
        by = make_partitioner(str(partitioner), label, seed, given, as_names(arguments))
        by.dataset = rows.shuffle(seed=seed, keep_in_memory=True)
        rows, key = load_partitions(by)
        clients = None  # keep all partitions
    chosen = draw_clients(key, clients, samples, least, seed)
    key = key[chosen]
    if client_column is not None and split is None and "test" in splits:
        test = read_test_rows(splits["test"], key, client_column, path)
    table_options = TableOptions(label=label, **options)
    dropped = (*table_options.drop, *as_names(client_column))
    table_options = replace(table_options, drop=dropped)
    return encode_rows((rows.select(chosen), key), test, table_options)


@show_table_options(HubKeywords)
def from_partitioner(
    partitioner: Any,
    label: str,
    test: Any = None,
    **options: Unpack[HubKeywords],
) -> Federation:
    """Make a federation with one client per partition of a flwr-datasets partitioner.

    The partitioner's `dataset` must be set. `test` is a partitioner of test rows, whose partition i
    belongs to client i; without it, a random `test_share` of each client's rows is held out.
    Clients of a NaturalIdPartitioner are named by their ids.

    One column of images, lists or arrays of one shape becomes x: images, and arrays of bytes with
    two axes or more, are scaled to [0, 1], channels first; other arrays stay as they are. Columns
    of numbers and texts are encoded as in `from_frames`, with its `fill`, `categories`,
    `min_category_count`, `min_rows_to_report` and `drop_incomplete`. `drop` leaves columns out.
    A ClassLabel names the classes. `unseen` clients, drawn at random, never train.

    Example:
        >>> from flwr_datasets.partitioner import IidPartitioner  # doctest: +SKIP
        >>> partitioner = IidPartitioner(num_partitions=10)  # doctest: +SKIP
        >>> partitioner.dataset = dataset  # a datasets.Dataset  # doctest: +SKIP
        >>> from_partitioner(partitioner, label="income")  # doctest: +SKIP
    """
    table_options = TableOptions(label=label, **options)
    held = None if test is None else load_partitions(test)
    return encode_rows(load_partitions(partitioner), held, table_options)


# ------------------------------------------------------------------------------ columns
def check_columns(
    rows: Rows, path: str, label: str | None, client_column: str | None, partitioner: str | None
) -> str:
    """Return the label; raise for missing columns, and unless clients have exactly one source."""
    columns = ", ".join(rows.column_names)
    if label is None:
        raise CoterieError(
            f"the data set hub needs the column to predict, and {path} has {columns}",
            "give {}",
            options=[Option("label", "COLUMN")],
        )
    if (client_column is None) == (partitioner is None):
        raise CoterieError(
            "the data set hub needs either a column that names the client or a partitioner, "
            f"and {path} has {columns}",
            "give {}, or {}",
            options=[
                Option("client_column", "COLUMN"),
                Option("partitioner", "iid", of_data=True),
            ],
        )
    check_column_names(rows, path, label, *as_names(client_column))
    return label


def refuse_partitioner_options(**options: Any) -> None:
    """Raise for options that only partitioners have."""
    for name, value in options.items():
        if value is not None:
            raise CoterieError(
                f"{name} is for partitioners, and client_column says who is a client",
                "leave it out",
            )


def read_clients(rows: Rows, column: str) -> np.ndarray:
    """Return the client of each row: integers or strings."""
    cells = Table.of(to_frame(rows.select_columns(column)), "").columns[column]
    cells.require_complete("name the client in every row", role="client column")
    cells.require_exact()
    if cells.values is not None and not (cells.parsed % 1).any():
        return cells.values.astype(np.int64)
    codes, texts = cells.text_codes
    return np.array(texts)[codes]


def read_test_rows(test: Rows, key: np.ndarray, column: str, path: str) -> KeyedRows:
    """Return the test rows of clients that have training rows, with the client of each row."""
    check_column_names(test, f"the split test of {path}", column)
    test_key = read_clients(test, column)
    chosen = np.flatnonzero(np.isin(test_key, key))
    if not len(chosen):
        raise CoterieError(
            f"the split test of {path} has no row of a client of the split train",
            "hold out training rows instead, with {}",
            options=[Option("split", "train", of_data=True)],
        )
    return test.select(chosen), test_key[chosen]
