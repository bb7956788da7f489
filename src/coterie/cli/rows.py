"""Rows of a user's file for a trained model, and its predictions as a table."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
from torch import Tensor

from coterie.cli.progress import Watcher
from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.data.client_table import Table
from coterie.data.roster import Roster
from coterie.data.schema import Fill, Schema
from coterie.data.tables import read_npz, read_table
from coterie.result import Result
from coterie.serve.exported import Exported

Models = Result | Exported


# ------------------------------------------------------------------------------ reading
def roster_of(models: Models) -> Roster:
    """What is known of the training data."""
    if isinstance(models, Exported):
        return models.roster
    return models.trained.roster


def read_rows(models: Models, file: Path, fill: str | None, watcher: Watcher) -> Any:
    """Rows x of a table, encoded as in training, or of an npz file; labels are not looked at."""
    if is_npz(file):
        return read_npz(file, ("x",))["x"]
    schema = need_schema(models, file)
    table = read_new_table(schema, file, watcher).without([schema.label])
    x, _ = schema.encode_table(table, cast(Fill | None, fill))
    return x


def read_labelled(
    models: Models,
    file: Path,
    fill: str | None,
    watcher: Watcher,
    drop_incomplete: bool = False,
) -> tuple[Any, Any]:
    """(x, y) of a newcomer's file, which must have labels.

    drop_incomplete: whether rows without a label are left out instead of refused.
    """
    if is_npz(file):
        arrays = read_npz(file, ("x", "y"))
        return arrays["x"], arrays["y"]
    schema = need_schema(models, file)
    table = read_new_table(schema, file, watcher)
    table = rows_with_label(table, schema.label, drop_incomplete, watcher)
    return schema.encode_table(table, cast(Fill | None, fill))


def is_npz(file: Path) -> bool:
    """Whether a file holds arrays instead of a table."""
    return file.suffix.lower() == ".npz"


def need_schema(models: Models, file: Path) -> Schema:
    """How the training tables were encoded; refused where there were none."""
    schema = roster_of(models).schema
    if schema is None:
        raise CoterieError(
            f"the training data were no tables, so {file} must be an .npz file with x and y."
        )
    return schema


def read_new_table(schema: Schema, file: Path, watcher: Watcher) -> Table:
    """A table of a user; what training did not have is shown."""
    frame = read_table(file, schema.texts)
    for remark in schema.remarks(frame, str(file)):
        watcher.warn(remark)
    return Table.of(frame, str(file))


def rows_with_label(table: Table, label: str, drop_incomplete: bool, watcher: Watcher) -> Table:
    """The rows that have a label; refused if there are none or, unless asked for, if some lack it.

    A newcomer's group is the one whose model predicts its labels best: without labels, there is
    nothing to compare.
    """
    cells = table.columns.get(label)
    if cells is None or cells.empty_cells == table.rows:
        lacks = f"lacks the column {label}" if cells is None else f"has no {label} in any row"
        raise CoterieError(
            f"{table.where} {lacks}, and a newcomer's group is found by its labels",
            "add them for some rows, ten or more; or predict with a group that you choose, {}",
            options=[Option("cluster", "K")],
        )
    if not cells.empty_cells:
        return table
    if not drop_incomplete:
        cells.refuse_missing(
            "give these rows a label, or leave them out with {}",
            [Option("drop_incomplete")],
            role="label column",
        )
    watcher.note(f"left out: {cells.empty_cells} of {table.rows} rows of {table.where}: no {label}")
    return table.part(np.flatnonzero(~cells.missing), table.where)


def read_columns(file: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of a table, as they are."""
    if not names:
        return {}
    frame = read_table(file, names)
    for name in names:
        if name not in frame:
            raise unknown_name(f"column of {file}:", name, frame.columns)
    return {name: frame[name].where(frame[name].notna(), "").tolist() for name in names}


# ------------------------------------------------------------------------------ writing
def as_columns(
    outputs: Tensor, labels: Sequence[str] | None, kept: dict[str, list[Any]]
) -> dict[str, Sequence[Any]]:
    """Columns of a table, rows numbered from 1: the target, or class and probabilities."""
    columns: dict[str, Sequence[Any]] = {"row": range(1, len(outputs) + 1), **kept}
    if outputs.dim() == 1:
        columns["prediction"] = [f"{v:.6g}" for v in outputs.tolist()]
        return columns
    labels = labels or [str(k) for k in range(outputs.shape[1])]
    columns["prediction"] = [labels[k] for k in outputs.argmax(-1).tolist()]
    for k, label in enumerate(labels):
        columns[f"P({label})"] = [f"{p:.4f}" for p in outputs[:, k].tolist()]
    return columns


def write_csv(columns: dict[str, Sequence[Any]], out: str | None) -> None:
    """Write columns to a file, or print them."""
    with open_output(out) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values()))


@contextmanager
def open_output(out: str | None) -> Iterator[TextIO]:
    """A file to write, or the standard output."""
    if out is None:
        yield sys.stdout
        return
    with open(out, "w", newline="", encoding="utf-8") as file:
        yield file
