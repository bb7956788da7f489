"""Hugging Face data sets that are on disk, dealt to clients by a column or by a partitioner of flwr-datasets.

Nothing is fetched, no script of a data set is run and nothing is unpickled.
"""

from __future__ import annotations

import importlib
import inspect
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.data.features import Dealt, Rows, encoded, known_columns, library, table_of
from coterie.data.federation import Federation, Kind
from coterie.data.folder import several
from coterie.data.memory import default_names
from coterie.data.natural import drawn
from coterie.data.schema import Fill
from coterie.data.spec import maker
from coterie.data.tables import READERS, read_table, refuse_missing, texts
from coterie.errors import CoterieError, Option, unknown

By = Literal[
    "iid", "dirichlet", "inner_dirichlet", "pathological", "shard", "continuous", "size", "linear", "square",
    "exponential", "grouped_natural_id",
]  # fmt: skip
ARGUMENTS = {  # our options, and what partitioners call them
    "clients": "num_partitions",
    "alpha": "alpha",
    "classes": "num_classes_per_partition",
    "shards": "num_shards_per_partition",
    "sizes": "partition_sizes",
}


@maker
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
    test_share: float = 0.25,
    seed: int = 0,
    unseen: int = 0,
    kind: Kind | None = None,
    fill: Fill | None = None,
    drop: tuple[str, ...] | None = None,
    categories: tuple[str, ...] | None = None,
) -> Federation:
    """A Hugging Face data set on disk: by a column that names the client, or by a partitioner of flwr-datasets.

    `path` is what `save_to_disk` wrote, or a CSV or Parquet file, or a folder of such files, whose names start with
    their split (train-00000.parquet). Columns become rows x as in `from_partitioner`.

    With `client_column`, every value is a client; `clients` of them are drawn (default: all) among those with `least`
    rows or more. A split named test gives the test rows, each to the client that it names; without one, a random
    `test_share` of each client's rows is held out.

    With `partitioner`, the rows of the train split are shuffled by `seed` and dealt to `clients`: iid, dirichlet
    (`alpha`), pathological (`classes` each), shard (`shards` each), size (`sizes`), linear, square, exponential and
    others, by the label unless `arguments` has partition_by. These are further arguments of the partitioner, such as
    min_partition_size=5,shuffle=false. Whom a partitioner would give test rows is not known, so that a `test_share` of
    each client's own rows is held out, and a test split is left alone.

    `split` names another split to deal; it alone is then used. Of a client's rows at most `samples` are taken.
    """
    splits = read(Path(path))
    rows = splits.get(split or "train")
    if rows is None:
        raise unknown(f"split of {path}:", split or "train", splits)
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
    known_columns(rows, path, label, *several(client_column))
    options = {
        "alpha": alpha,
        "classes": classes,
        "shards": shards,
        "sizes": sizes,
        "arguments": arguments,
    }
    if client_column is not None:
        if given := [name for name, value in options.items() if value is not None]:
            raise CoterieError(
                f"{given[0]} is for partitioners, and client_column says who is a client: leave it out."
            )
        key = clients_in(rows, client_column)
    else:
        by = partitioner_of(str(partitioner), label, seed, {"clients": clients, **options})
        by.dataset, clients = rows.shuffle(seed=seed, keep_in_memory=True), None
        rows, key = dealt(by)
    mine = drawn(key, clients, samples, least, seed)
    train, test = (rows.select(mine), key[mine]), None
    if client_column is not None and split is None and "test" in splits:
        test = test_rows(splits["test"], train[1], client_column, path)
    left_out = [*several(drop), *several(client_column)]
    return encoded(
        train,
        test,
        label,
        left_out,
        fill,
        categories,
        test_share=test_share,
        seed=seed,
        unseen=unseen,
        kind=kind,
    )


def from_partitioner(
    partitioner: Any,
    label: str,
    test: Any = None,
    test_share: float = 0.25,
    seed: int = 0,
    unseen: int = 0,
    kind: Kind | None = None,
    fill: Fill | None = None,
    drop: Sequence[str] | None = None,
    categories: Sequence[str] | None = None,
) -> Federation:
    """One client per partition of a flwr-datasets partitioner whose `dataset` is set.

    `test` is a partitioner of rows for tests, which deals client i its partition i; without it, a random `test_share`
    of each client's rows is held out. Clients of a NaturalIdPartitioner have the names of their ids.

    One column of images, lists or arrays of one shape becomes x: images, and arrays of bytes with two axes or more,
    are scaled to [0, 1], channels first; other arrays stay as they are. Columns of numbers and texts are encoded as in
    `from_frames`, with its `fill` and `categories`. `drop` leaves columns out. A ClassLabel names the classes. `unseen`
    clients, drawn at random, never train.
    """
    held = None if test is None else dealt(test)
    return encoded(
        dealt(partitioner), held, label, several(drop), fill, categories,
        test_share=test_share, seed=seed, unseen=unseen, kind=kind,
    )  # fmt: skip


def flat(why: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(why).split()).rstrip(".")


# ---------------------------------------------------------------------------------------------- files
def read(path: Path) -> dict[str, Rows]:
    """The splits of a data set on disk; what has none is train."""
    datasets = library("datasets")
    if not path.exists():
        raise CoterieError(
            f"there is no {path} on disk, and nothing is fetched: write the data set there with save_to_disk, or give "
            "a folder of its Parquet files."
        )
    try:
        with offline():
            if any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
                found = datasets.load_from_disk(str(path.resolve()), keep_in_memory=True)
                found = found if isinstance(found, dict) else {"train": found}
                return {str(name): rows.with_format(None) for name, rows in found.items()}
            return read_files(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as why:
        if isinstance(why, CoterieError):
            raise
        raise CoterieError(
            f"{path} is no Hugging Face data set ({flat(why)}): write it with save_to_disk."
        ) from None


def read_files(path: Path) -> dict[str, Rows]:
    """Tables by split: train-00000-of-00002.parquet and train-00001-of-00002.parquet are train."""
    datasets = library("datasets")
    files = (
        [path]
        if path.is_file()
        else [file for file in sorted(path.iterdir()) if file.suffix in READERS]
    )
    if not files:
        raise CoterieError(
            f"{path} has neither what save_to_disk writes nor a {' or '.join(READERS)} file: add it."
        )
    splits: dict[str, list[Rows]] = {}
    for file in files:
        if file.suffix == ".parquet":  # it tells what columns mean, which pandas would lose
            rows = datasets.Dataset(library("pyarrow.parquet").read_table(file))
        else:
            rows = datasets.Dataset.from_pandas(read_table(file), preserve_index=False)
        splits.setdefault("train" if len(files) == 1 else file.stem.partition("-")[0], []).append(
            rows
        )
    return {name: datasets.concatenate_datasets(parts) for name, parts in splits.items()}


@contextmanager
def offline() -> Iterator[None]:
    """The libraries look nothing up; HF_HUB_OFFLINE and HF_DATASETS_OFFLINE count only when they are imported."""
    places = [
        importlib.import_module(name) for name in ("datasets.config", "huggingface_hub.constants")
    ]
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            place.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
        yield
    finally:
        for place, value in zip(places, before):
            place.HF_HUB_OFFLINE = value  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------- clients
def clients_in(rows: Rows, column: str) -> np.ndarray:
    """The client of each row: whole numbers, or texts."""
    values = table_of(rows.select_columns(column))[column]
    refuse_missing(values, f"the client column {column}", "name the client in every row")
    return values.to_numpy() if values.dtype.kind in "iu" else np.array(texts(values))


def test_rows(test: Rows, key: np.ndarray, column: str, path: str) -> Dealt:
    """The test rows of clients that have training rows."""
    known_columns(test, f"the split test of {path}", column)
    whose = clients_in(test, column)
    mine = np.flatnonzero(np.isin(whose, key))
    if not len(mine):
        raise CoterieError(
            f"the split test of {path} has no row of a client of the split train",
            "hold out training rows instead, with {}",
            options=[Option("split", "train", of_data=True)],
        )
    return test.select(mine), whose[mine]


def partitioner_of(name: str, label: str, seed: int, options: dict[str, Any]) -> Any:
    """The partitioner of this name, made with the options of `hub`."""
    arguments = several(options.pop("arguments"))
    title = "".join(word.title() for word in name.split("_"))
    make = getattr(library("flwr_datasets.partitioner"), f"{title}Partitioner")
    takes = inspect.signature(make).parameters
    given: dict[str, Any] = {"partition_by": label, "seed": seed}
    given = {argument: value for argument, value in given.items() if argument in takes}
    for option, value in options.items():
        if value is not None and ARGUMENTS[option] not in takes:
            raise CoterieError(f"{option} is not for the partitioner {name}: leave it out.")
        if value is not None:
            given[ARGUMENTS[option]] = list(value) if isinstance(value, tuple) else value
    given |= dict(map(argument_of, arguments))
    for argument in given:
        if argument not in takes:
            raise unknown(f"argument of the partitioner {name}:", argument, takes)
    ours = {argument: option for option, argument in ARGUMENTS.items()}
    for argument, parameter in takes.items():
        if parameter.default is parameter.empty and argument not in given:
            missing = Option("arguments", f"{argument}=VALUE", of_data=True)
            if argument in ours:
                missing = Option(ours[argument], of_data=True)
            raise CoterieError(
                f"the partitioner {name} needs {argument}", "give {}", options=[missing]
            )
    try:
        return make(**given)
    except (ValueError, TypeError) as why:
        raise CoterieError(
            f"the partitioner {name} cannot be made ({flat(why)}): give it other arguments."
        ) from None


def argument_of(text: str) -> tuple[str, Any]:
    """NAME=VALUE; a value is a number, true, false, or else text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise CoterieError(f"{text!r} in arguments has no value: write {text}=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def dealt(partitioner: Any) -> Dealt:
    """All partitions, one after another."""
    what = type(partitioner).__name__
    if not partitioner.is_dataset_assigned():
        raise CoterieError(f"the {what} has no data set to deal: set its dataset first.")
    try:
        with warnings.catch_warnings(action="ignore"):  # of every failed attempt
            parts = [partitioner.load_partition(i) for i in range(partitioner.num_partitions)]
    except (ValueError, LookupError, TypeError, AssertionError) as why:
        raise CoterieError(
            f"the {what} cannot deal these rows ({flat(why)}): give it other arguments."
        ) from None
    if any(part.column_names != parts[0].column_names for part in parts):
        raise CoterieError(f"the {what} gives clients different columns: use one that deals rows.")
    ids = getattr(partitioner, "partition_id_to_natural_id", None) or dict(
        enumerate(default_names(len(parts)))
    )
    names = [ids[i] for i in range(len(parts))]
    for name, part in zip(names, parts):
        if not len(part):
            raise CoterieError(
                f"the {what} leaves client {name!r} without rows: ask for fewer clients."
            )
    rows = library("datasets").concatenate_datasets(parts).with_format(None)
    return rows, np.repeat(names, [len(part) for part in parts])
