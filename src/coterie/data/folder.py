"""Clients whose rows are tables: a folder with a file per client, one table of all, or DataFrames."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from coterie.data.federation import Federation, Kind, Ragged, split
from coterie.data.memory import check_values, client_rows, from_memory, pack
from coterie.data.schema import Fill, Schema, describe, merge
from coterie.data.spec import maker
from coterie.data.tables import (
    files_in,
    named,
    numbers,
    read_npz,
    read_table,
    refuse_missing,
    texts,
)
from coterie.errors import CoterieError, Option, Refused, collecting, gather, unknown

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("coterie")
PARTS = ("train", "test", "valid")


@maker
def folder(
    path: str,
    label: str | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    unseen: int = 0,
    kind: Kind | None = None,
    fill: Fill | None = None,
    drop: tuple[str, ...] | None = None,
    categories: tuple[str, ...] | None = None,
    split_column: str | None = None,
    time_column: str | None = None,
) -> Federation:
    """One file per client: CSV or Parquet tables with a label column, or npz with x and y.

    A client is named by its file, without the ending. Tables are read as in `from_frames`. An npz file holds x and y,
    which stay as they are, and may hold x_test and y_test; else a random `test_share` of its rows is held out.
    """
    files = files_in(Path(path))
    if next(iter(files.values())).suffix.lower() == ".npz":
        options = {"label": label, "fill": fill, "drop": drop, "categories": categories}
        for name, value in (
            options | {"split_column": split_column, "time_column": time_column}
        ).items():
            if value is not None:
                raise CoterieError(
                    f"{name} is for tables, but {path} has npz files, of x and y: leave it out."
                )
        return from_npz(files, test_share, seed, kind).with_unseen(unseen, seed)
    if label is None:
        raise CoterieError(
            f"the data set folder needs a label, the column to predict in {path}",
            "give {}",
            options=[Option("label", "COLUMN")],
        )
    frames = {name: read_table(file, several(categories)) for name, file in files.items()}
    return from_frames(
        frames,
        label,
        None,
        test_share,
        seed,
        unseen,
        kind,
        fill,
        drop,
        categories,
        split_column,
        time_column,
    )


@maker
def table(
    path: str,
    label: str | None = None,
    client_column: str | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    unseen: int = 0,
    kind: Kind | None = None,
    fill: Fill | None = None,
    drop: tuple[str, ...] | None = None,
    categories: tuple[str, ...] | None = None,
    split_column: str | None = None,
    time_column: str | None = None,
) -> Federation:
    """One CSV or Parquet file of all clients' rows, with a label column and a column that names the client.

    It is read as in `from_frames`.
    """
    frame = read_table(Path(path), [*several(categories), *several(client_column)])
    if label is None or client_column is None:
        missing, use = "client_column", "that names the client"
        if label is None:
            missing, use = "label", "to predict"
        columns = ", ".join(map(str, frame.columns))
        raise CoterieError(
            f"the data set table needs the column {use}, and {path} has {columns}",
            "give {}",
            options=[Option(missing, "COLUMN")],
        )
    return from_frames(
        frame,
        label,
        client_column,
        test_share,
        seed,
        unseen,
        kind,
        fill,
        drop,
        categories,
        split_column,
        time_column,
    )


def from_frames(
    frames: Mapping[str, pd.DataFrame] | pd.DataFrame,
    label: str,
    client_column: str | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    unseen: int = 0,
    kind: Kind | None = None,
    fill: Fill | None = None,
    drop: Sequence[str] | None = None,
    categories: Sequence[str] | None = None,
    split_column: str | None = None,
    time_column: str | None = None,
) -> Federation:
    """A federation of pandas DataFrames by client name, or of one with a `client_column`.

    Every column but the label is a feature, encoded by the `schema` of the training rows (see `coterie.data.schema`);
    `drop` leaves columns out, `categories` are read as text whatever they hold. Missing cells are refused, or filled
    with the "mean" or "median" over all clients. Labels that are text, booleans or at most 20 whole numbers are
    classes, other numbers regression targets, which stay as they are; `kind` overrules. `unseen` clients, drawn at
    random, never train.

    The test part is a random `test_share` of each client's rows; or with `time_column` (numbers, or dates such as
    2026-01-31) its last share by that column; or `split_column` says train, test or valid for each row.
    """
    if split_column is not None and time_column is not None:
        raise CoterieError(
            "split_column and time_column both say which rows are for tests: give one of them."
        )
    tables = by_client(frames, client_column)
    index = row_numbers(tables, test_share, seed, split_column, time_column).with_unseen(
        unseen, seed
    )
    tables = without(tables, [*several(drop), *filter(None, (split_column, time_column))])
    schema = replace(
        schema_of(tables, index, label, kind, several(categories), fill),
        fill=fill,
        ignored=tuple(
            dict.fromkeys(
                [*several(drop), *filter(None, (client_column, split_column, time_column))]
            )
        ),
    )
    encoded = {
        name: schema.encode(frame, where=f"client {name!r}") for name, frame in tables.items()
    }
    log_schema(schema)
    return cut(encoded, index, schema)


def schema_of(
    tables: dict[str, pd.DataFrame], index: Federation, label: str, kind: Kind | None, categories: list[str],
    fill: Fill | None,
) -> Schema:  # fmt: skip
    """The schema of the training rows; all columns that cannot be used are named at once."""
    wrong: dict[str, list[CoterieError]] = {}
    descriptions = {}
    for i, name in enumerate(index.names):
        rows = index.train.client(i)[0] if i < len(index) else ()
        with collecting(wrong):
            descriptions[name] = describe(
                tables[name], label, kind, categories, rows, f"client {name!r}"
            )
    if not wrong:
        with collecting(wrong):
            schema = merge(descriptions)
    usable = [c for c in next(iter(tables.values())).columns if c != label and c not in wrong]
    for name, frame in tables.items() if fill is None else ():
        with collecting(wrong):
            gather({c: partial(refuse_gaps, frame[c], name) for c in usable if c in frame})
    if wrong:
        raise Refused(wrong)
    return schema


def refuse_gaps(column: pd.Series, client: str) -> None:
    refuse_missing(
        column,
        f"the column {column.name} of client {client!r}",
        "fill them with {}, or drop the column with {}",
        [Option("fill", "median"), Option("drop", str(column.name), of_data=True)],
    )


def cut(encoded: dict[str, tuple[Any, Any]], index: Federation, schema: Schema) -> Federation:
    """The encoded rows in the parts that `index` says."""

    def pairs(part: Ragged) -> list[tuple[Any, Any]]:
        rows = [part.client(i)[0].numpy() for i in range(index.total)]
        return [(encoded[name][0][r], encoded[name][1][r]) for name, r in zip(index.names, rows)]

    fed = from_memory(
        pairs(index.train),
        index.names,
        pairs(index.test),
        unseen=index.unseen,
        kind=schema.kind,
        labels=schema.classes,
    )
    valid = None
    if index.valid is not None:
        rows = [client_rows(name, pair) for name, pair in zip(index.names, pairs(index.valid))]
        valid = check_values(pack(index.names, rows), index.names, schema.kind)
    return replace(fed, valid=valid, schema=schema, source="frames")


def log_schema(schema: Schema) -> None:
    """Log what the columns and the label were taken for, a line each."""
    numbers = [c.name for c in schema.features if c.kind == "number"]
    if numbers:
        log.info("columns of numbers: %s", ", ".join(numbers))
    texts = [c for c in schema.features if c.kind == "category"]
    if texts:
        described = [f"{c.name} ({first_few(c.categories)})" for c in texts]
        log.info("columns of text: %s", ", ".join(described))
    log_gaps("number", f"are filled with the {schema.fill}", schema)
    log_gaps("category", "count as other", schema)
    if schema.ignored:
        log.info("columns left out: %s", ", ".join(schema.ignored))
    label = f"the label {schema.label} holds numbers: regression"
    if schema.classes is not None:
        classes = f"{len(schema.classes)} classes ({first_few(schema.classes)})"
        label = f"the label {schema.label} has {classes}: classification"
    log.info("%s (%s overrules)", label, Option("kind", of_data=True))


def log_gaps(kind: str, becomes: str, schema: Schema) -> None:
    """Log how many empty cells the columns of a kind had, and what becomes of them."""
    gaps = [f"{c.name} {c.missing}" for c in schema.features if c.kind == kind and c.missing]
    if gaps:
        log.info("empty cells in training rows %s: %s", becomes, ", ".join(gaps))


def first_few(texts: Sequence[str]) -> str:
    """The first five texts, with an ellipsis if there are more."""
    listed = ", ".join(texts[:5])
    if len(texts) > 5:
        listed += ", …"
    return listed


# ---------------------------------------------------------------------------------------------- clients
def by_client(
    frames: Mapping[str, pd.DataFrame] | pd.DataFrame, column: str | None
) -> dict[str, pd.DataFrame]:
    """The table of each client, by name."""
    if isinstance(frames, Mapping):
        if column is not None:
            raise CoterieError(
                f"client_column={column!r} is for one table of all clients: leave it out."
            )
        for name, frame in frames.items():
            if not hasattr(frame, "columns"):
                raise CoterieError(
                    f"client {name!r} is a {type(frame).__name__}: give a pandas DataFrame."
                )
        found = {str(name): named(frame, f"client {name!r}") for name, frame in frames.items()}
        if len(found) < len(frames):
            raise CoterieError(
                "two clients have the same name as text, such as 1 and '1': rename one of them."
            )
        return found
    if column is None:
        raise CoterieError(
            "one table of all clients needs client_column, the column that names the client: give it."
        )
    frame = named(frames, "the table")
    if column not in frame:
        raise unknown("client column of the table:", column, frame.columns)
    refuse_missing(
        frame[column], f"the client column {column} of the table", "name the client in every row"
    )
    return {name: rows.drop(columns=column) for name, rows in frame.groupby(texts(frame[column]))}


def without(tables: dict[str, pd.DataFrame], drop: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The tables without these columns, each of which some client must have."""
    known = {name for frame in tables.values() for name in frame.columns}
    for name in drop:
        if name not in known:
            raise unknown("column to drop", name, known)
    return {
        client: frame.drop(columns=list(drop), errors="ignore") for client, frame in tables.items()
    }


def several(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


# ---------------------------------------------------------------------------------------------- train and test
def row_numbers(
    tables: dict[str, pd.DataFrame],
    share: float,
    seed: int,
    split_column: str | None,
    time_column: str | None,
) -> Federation:
    """A federation whose x are the numbers of the rows of each client's table: who trains and tests on which."""
    names = tuple(tables)
    if not names:
        raise CoterieError("a federation needs at least one client, and none was given.")
    if split_column is not None:
        words = [
            column_of(name, frame, split_column).astype(str).to_numpy()
            for name, frame in tables.items()
        ]
        for name, found in zip(names, words):
            if wrong := sorted({*found.tolist()} - {*PARTS}):
                raise unknown(
                    f"part in the column {split_column} of client {name!r}:", wrong[0], PARTS
                )
        train, test, valid = (
            stacked([np.flatnonzero(found == part) for found in words]) for part in PARTS
        )
        return Federation(
            names, train, test, "regression", None, valid=valid if len(valid.x) else None
        )
    all_rows = stacked([np.arange(len(frame)) for frame in tables.values()])
    train, test = split(all_rows, names, share, seed, "test")
    if time_column is not None:
        order = [
            times(name, column_of(name, frame, time_column)).argsort(kind="stable")
            for name, frame in tables.items()
        ]
        cuts = train.sizes.tolist()
        train = stacked([np.sort(rows[:cut]) for rows, cut in zip(order, cuts)])
        test = stacked([np.sort(rows[cut:]) for rows, cut in zip(order, cuts)])
    return Federation(names, train, test, "regression", None)


def stacked(rows: list[np.ndarray]) -> Ragged:
    x = torch.from_numpy(np.concatenate(rows))
    return Ragged(x, x, torch.tensor([len(r) for r in rows]))


def column_of(name: str, frame: pd.DataFrame, column: str) -> pd.Series:
    """A column without missing cells that says which rows are for tests."""
    if column not in frame:
        raise unknown(f"column of client {name!r}:", column, frame.columns)
    refuse_missing(frame[column], f"the column {column} of client {name!r}", "complete it")
    return frame[column]


def times(name: str, column: pd.Series) -> np.ndarray:
    """Numbers, or dates as numbers."""
    import pandas as pd

    try:
        if pd.to_numeric(column, errors="coerce").notna().all() and column.dtype.kind != "M":
            return numbers(column, f"client {name!r}")
        dotted = (
            column.dtype.kind != "M"
            and column.astype(str).str.fullmatch(r"\d{1,2}\.\d{1,2}\.\d{4}").all()
        )
        form = "%d.%m.%Y" if dotted else "ISO8601"
        return pd.to_datetime(column, format=form, utc=True).astype("int64").to_numpy()
    except (ValueError, TypeError) as why:
        if isinstance(why, CoterieError):
            raise
        raise CoterieError(
            f"the column {column.name} of client {name!r} is no time: write numbers, or dates such as 2026-01-31 or "
            "31.1.2026."
        ) from None


# ---------------------------------------------------------------------------------------------- arrays
def from_npz(files: dict[str, Path], test_share: float, seed: int, kind: Kind | None) -> Federation:
    """Clients from arrays x and y, all with x_test and y_test or none."""
    found = {name: read_npz(file) for name, file in files.items()}
    with_test = [name for name, arrays in found.items() if "x_test" in arrays]
    if 0 < len(with_test) < len(found):
        other = next(name for name in found if name not in with_test)
        raise CoterieError(
            f"{files[with_test[0]]} has test rows and {files[other]} has none: give x_test and y_test to all or none."
        )
    test = (
        {name: (arrays["x_test"], arrays["y_test"]) for name, arrays in found.items()}
        if with_test
        else None
    )
    clients = {name: (arrays["x"], arrays["y"]) for name, arrays in found.items()}
    return from_memory(clients, test=test, test_share=test_share, seed=seed, kind=kind)
