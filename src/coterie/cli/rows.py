"""Rows of a user's file for a trained model, and its predictions as a table."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from torch import Tensor

from coterie.cli.progress import Watcher
from coterie.data.roster import Roster
from coterie.data.schema import Fill
from coterie.data.tables import read_npz, read_table
from coterie.errors import CoterieError, unknown
from coterie.result import Result
from coterie.serve.exported import Exported

Models = Result | Exported


# ------------------------------------------------------------------------------ reading
def roster_of(models: Models) -> Roster:
    """What is known of the training data."""
    if isinstance(models, Exported):
        return models.roster
    return models.trained.roster


def read_rows(
    models: Models, file: Path, fill: str | None, watcher: Watcher, *, use_labels: bool = True
) -> tuple[Any, Any]:
    """(x, y or None) of a table, encoded as in training, or of an npz file."""
    if file.suffix.lower() == ".npz":
        wanted: tuple[str, ...] = ("x",)
        if use_labels:
            wanted = ("x", "y")
        arrays = read_npz(file, wanted)
        return arrays["x"], arrays.get("y")
    schema = roster_of(models).schema
    if schema is None:
        raise CoterieError(
            f"the training data were no tables, so {file} must be an .npz file with x and y."
        )
    frame = read_table(file, schema.texts)
    if not use_labels:
        frame = frame.drop(columns=schema.label, errors="ignore")
    for remark in schema.remarks(frame, str(file)):
        watcher.warn(remark)
    return schema.encode(frame, cast(Fill | None, fill), where=str(file))


def read_labelled(
    models: Models, file: Path, fill: str | None, watcher: Watcher
) -> tuple[Any, Any]:
    """(x, y) of a file that must have labels."""
    x, y = read_rows(models, file, fill, watcher)
    if y is None:
        schema = roster_of(models).schema
        assert schema is not None  # npz files without y are refused when they are read
        raise CoterieError(f"{file} lacks the column {schema.label}: add the labels.")
    return x, y


def read_columns(file: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Columns of a table, as they are."""
    if not names:
        return {}
    frame = read_table(file, names)
    for name in names:
        if name not in frame:
            raise unknown(f"column of {file}:", name, frame.columns)
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
