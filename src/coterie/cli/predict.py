"""`coterie assign`, `predict` and `export`: use a trained run, or the models it has exported."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from coterie.cli.flags import check_names, read_flags
from coterie.cli.progress import ProgressDisplay
from coterie.cli.run_flags import UserCode
from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.core.settings import setting
from coterie.data.roster import Roster
from coterie.data.schema import Fill, Schema
from coterie.data.table_files import read_npz, read_table
from coterie.data.tables import Table
from coterie.result import Result, load
from coterie.runs.config import encode
from coterie.runs.tables import write_csv
from coterie.serve.export import CARD, Exported, Per
from coterie.serve.predict import Assignment, require_one_of

Models = Result | Exported


@dataclass(frozen=True, kw_only=True)
class NewRowsFlags(UserCode):
    """Flags for reading the rows of a new client."""

    fill: str | None = setting(
        None, "fill missing cells; none: as in training", choices=("mean", "median")
    )
    drop_incomplete: bool = setting(
        False, "drop the new client's rows that have no label", switch=True
    )


# ------------------------------------------------------------------------------ coterie assign
@dataclass(frozen=True, kw_only=True)
class AssignFlags(NewRowsFlags):
    """The flags of `coterie assign`."""

    json: bool = setting(False, "print one JSON document instead of a line", switch=True)


def assign(names: list[str], argv: list[str]) -> int:
    """`coterie assign RUN FILE`"""
    about = "Find the group whose model has the lowest loss on the labelled rows of a new client."
    asked = read_flags("coterie assign RUN FILE", AssignFlags, about, argv)
    usage = "coterie assign RUN FILE, such as coterie assign runs/mine new.csv"
    run, file = check_names(names, 2, usage)
    display = ProgressDisplay(level=logging.WARNING)
    with display.active():
        models = load(run, asked.load_model(), trust=asked.trust)
        assignment = models.assign(*read_labelled(models, Path(file), asked, display))
    name = Path(file).stem
    warn_of_doubts(assignment, name, display)
    if asked.json:
        print(encode(assignment._asdict()).decode())
    else:
        print(f"{name}: {assignment}")
    return 0


def warn_of_doubts(assignment: Assignment, name: str, display: ProgressDisplay) -> None:
    """Warn of reasons why the assignment may be unreliable."""
    for doubt in assignment.doubts:
        display.warn(f"{name}: {doubt}")


# ------------------------------------------------------------------------------ coterie predict
@dataclass(frozen=True, kw_only=True)
class PredictFlags(NewRowsFlags):
    """The flags of `coterie predict`."""

    client: str | None = setting(None, "use the model of this client")
    cluster: int | None = setting(None, "use the model of this group")
    support: str | None = setting(
        None, "a file with labelled rows of a new client: use the model that fits them"
    )
    interval: float | None = setting(
        None, "also give the interval that holds a number with this probability, such as 0.9"
    )
    keep: tuple[str, ...] = setting((), "columns of the file to copy beside the predictions")
    out: str | None = setting(None, "CSV file to write; none: print")


def predict(names: list[str], argv: list[str]) -> int:
    """`coterie predict RUN FILE`"""
    about = "Predict every row of a file; its label column, if it has one, is ignored."
    asked = read_flags("coterie predict RUN FILE", PredictFlags, about, argv)
    usage = "coterie predict RUN FILE with --client NAME, --cluster K or --support FILE"
    run, file = check_names(names, 2, usage)
    display = ProgressDisplay(level=logging.WARNING)
    with display.active():
        models = load(run, asked.load_model(), trust=asked.trust)
        x = read_unlabelled(models, Path(file), asked, display)
        kept = read_columns(Path(file), asked.keep)
        support = read_support(models, asked, display)
        if isinstance(models, Exported):
            if asked.interval is not None:
                raise CoterieError("exported models have no intervals: give the run's folder.")
            name = exported_name(models, asked, support)
            outputs = models.predict(x, name, probabilities=True)
        else:
            outputs = models.predict(
                x,
                client=asked.client,
                cluster=asked.cluster,
                support=support,
                probabilities=True,
                interval=asked.interval,
            )
    columns = as_columns(outputs, roster_of(models).labels, kept, asked.interval is not None)
    write_predictions(columns, asked.out)
    if asked.out is not None:
        print(f"{len(outputs)} predictions saved in {asked.out}")
    return 0


def read_support(models: Models, asked: PredictFlags, display: ProgressDisplay) -> Any:
    """Return the labelled rows of --support, if it is given, and show the group they fit."""
    if asked.support is None:
        return None
    file = Path(asked.support)
    support = read_labelled(models, file, asked, display)
    if isinstance(models, Exported) or models.clusters is not None:
        assignment = models.assign(*support)
        display.note(f"{file.stem}: {assignment}")
        warn_of_doubts(assignment, file.stem, display)
    return support


def exported_name(models: Exported, asked: PredictFlags, support: Any) -> str:
    """Return the name of the exported model to predict with."""
    names = list(models.models)
    if len(names) == 1 and asked.client is None and asked.cluster is None and support is None:
        return names[0]
    require_one_of(client=asked.client, cluster=asked.cluster, support=support)
    if asked.client is not None:
        if models.card.per == "cluster":
            raise CoterieError(
                f"{models.path} has models of groups, not of clients: give --cluster K, or export "
                "the run with --per client."
            )
        by_client = {entry.of: name for name, entry in models.card.files.items()}
        if asked.client not in by_client:
            raise unknown_name("client", asked.client, by_client)
        return by_client[asked.client]
    if asked.cluster is not None:
        if models.card.per == "client":
            raise CoterieError(
                f"{models.path} has models of clients, not of groups: give --client NAME, or "
                "export the run with --per cluster."
            )
        if not 0 <= asked.cluster < len(names):
            raise CoterieError(f"--cluster is {asked.cluster}: give 0 to {len(names) - 1}.")
        return names[asked.cluster]
    if models.card.new_clients == "train":
        raise CoterieError(
            f"a new client of {models.card.method.name} trains a model of its own: give the run's "
            "folder for --support."
        )
    return names[models.assign(*support).group]


# ------------------------------------------------------------------------------ coterie export
@dataclass(frozen=True, kw_only=True)
class ExportFlags(UserCode):
    """The flags of `coterie export`."""

    per: str | None = setting(
        None,
        "export a model per group or per client; none: per group, if there are groups",
        choices=("cluster", "client"),
    )
    out: str = setting("models", "folder to write; it must not exist")
    onnx: bool = setting(False, "write an ONNX file beside each model", switch=True)


def export(names: list[str], argv: list[str]) -> int:
    """`coterie export RUN`"""
    about = "Write the models as safetensors files, and card.json with all that using them needs."
    asked = read_flags("coterie export RUN", ExportFlags, about, argv)
    usage = "coterie export RUN, such as coterie export runs/mine --out models"
    (run,) = check_names(names, 1, usage)
    with ProgressDisplay(level=logging.WARNING).active():
        models = load(run, asked.load_model(), trust=asked.trust)
        if isinstance(models, Exported):
            raise CoterieError(f"{run} has exported models already: give the folder of a run.")
        folder = models.export(asked.out, cast(Per | None, asked.per), onnx=asked.onnx)
    print(f"{len(list(folder.glob('*.safetensors')))} models and {CARD} saved in {folder}")
    return 0


# ------------------------------------------------------------------------------ reading rows
def roster_of(models: Models) -> Roster:
    """Return the roster of the training data."""
    if isinstance(models, Exported):
        return models.roster
    return models.trained.roster


def read_unlabelled(
    models: Models, file: Path, flags: NewRowsFlags, display: ProgressDisplay
) -> Any:
    """Read the inputs x of a file: a table, encoded as in training, or an npz file."""
    if is_npz(file):
        return read_npz(file, ("x",))["x"]
    schema = need_schema(models, file)
    table = read_new_table(schema, file, display).drop([schema.label])
    x, _ = schema.encode_table(table, cast(Fill | None, flags.fill))
    return x


def read_labelled(
    models: Models, file: Path, flags: NewRowsFlags, display: ProgressDisplay
) -> tuple[Any, Any]:
    """Read inputs and labels (x, y) of a new client's file."""
    if is_npz(file):
        arrays = read_npz(file, ("x", "y"))
        return arrays["x"], arrays["y"]
    schema = need_schema(models, file)
    table = read_new_table(schema, file, display)
    table = rows_with_label(table, schema.label, flags.drop_incomplete, display)
    return schema.encode_table(table, cast(Fill | None, flags.fill))


def is_npz(file: Path) -> bool:
    """Whether a file holds arrays instead of a table."""
    return file.suffix.lower() == ".npz"


def need_schema(models: Models, file: Path) -> Schema:
    """Return the schema of the training tables; an error if the training data were arrays."""
    schema = roster_of(models).schema
    if schema is None:
        raise CoterieError(
            f"the training data are not tables, so {file} must be an .npz file with x and y."
        )
    return schema


def read_new_table(schema: Schema, file: Path, display: ProgressDisplay) -> Table:
    """Read a table, and show how it differs from those of training."""
    table = Table.of(read_table(file, schema.texts), str(file))
    for remark in schema.remarks_on(table):
        display.warn(remark)
    return table


def rows_with_label(
    table: Table, label: str, drop_incomplete: bool, display: ProgressDisplay
) -> Table:
    """Return the rows that have a label.

    The group of a new client is the one whose model predicts its labels best, so labels are needed.

    Raises:
        CoterieError: No row has a label, or some have none and `drop_incomplete` is not set.
    """
    cells = table.columns.get(label)
    if cells is None or cells.num_missing == table.rows:
        lacks = f"has no column {label}" if cells is None else f"has no {label} in any row"
        raise CoterieError(
            f"{table.where} {lacks}, but a new client's group is found by its labels",
            "add labels to ten rows or more, or predict with a group that you choose, {}",
            options=[Option("cluster", "K")],
        )
    if not cells.num_missing:
        return table
    if not drop_incomplete:
        cells.require_complete(
            "give these rows a label, or drop them with {}",
            [Option("drop_incomplete")],
            role="label column",
        )
    display.note(
        f"dropped {cells.num_missing} of {table.rows} rows of {table.where} that have no {label}"
    )
    return table.take(np.flatnonzero(~cells.missing), table.where)


def read_columns(file: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Read columns of a table without encoding them."""
    if not names:
        return {}
    cells = read_table(file, names)
    for name in names:
        if name not in cells.column_names:
            raise unknown_name(f"column of {file}:", name, cells.column_names)
    columns = {name: cells.column(name).to_pylist() for name in names}
    return {name: ["" if cell is None else cell for cell in c] for name, c in columns.items()}


# ------------------------------------------------------------------------------ writing predictions
def as_columns(
    outputs: Tensor,
    labels: Sequence[str] | None,
    kept: dict[str, list[Any]],
    has_interval: bool = False,
) -> dict[str, Sequence[Any]]:
    """Return predictions as columns of a table.

    Args:
        outputs: [n] predicted values, [n, 3] with their intervals, or [n, classes] probabilities.
        labels: Names of the classes.
        kept: Columns of the file to copy.
        has_interval: Whether outputs have intervals.
    """
    columns: dict[str, Sequence[Any]] = {"row": range(1, len(outputs) + 1), **kept}
    if has_interval:
        for name, values in zip(("prediction", "low", "high"), outputs.T.tolist()):
            columns[name] = [f"{v:.6g}" for v in values]
        return columns
    if outputs.dim() == 1:
        columns["prediction"] = [f"{v:.6g}" for v in outputs.tolist()]
        return columns
    labels = labels or [str(k) for k in range(outputs.shape[1])]
    columns["prediction"] = [labels[k] for k in outputs.argmax(-1).tolist()]
    for k, label in enumerate(labels):
        columns[f"P({label})"] = [f"{p:.4f}" for p in outputs[:, k].tolist()]
    return columns


def write_predictions(columns: dict[str, Sequence[Any]], out: str | None) -> None:
    """Write columns to a CSV file, or print them."""
    output: Any = nullcontext(sys.stdout)
    if out is not None:
        output = open(out, "w", newline="", encoding="utf-8")  # noqa: SIM115
    with output as file:
        write_csv(file, tuple(columns), zip(*columns.values()))
