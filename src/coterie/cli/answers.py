"""`coterie assign`, `predict` and `export`: what a trained run, or its exported models, are for."""

from __future__ import annotations

import csv
import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.cli.flags import Flag, Parser, general_flags, typed
from coterie.cli.progress import Watcher
from coterie.data.roster import Roster
from coterie.data.tables import read_npz, read_table
from coterie.errors import CoterieError, unknown
from coterie.result import Result, load
from coterie.runs.config import encode
from coterie.serve.answers import Assignment, need_one_of
from coterie.serve.card import CARD
from coterie.serve.exported import Exported

FILL = Flag(
    "fill", str | None, "mean or median for missing cells; none: as in training", None, {}, "flags"
)
DEBUG = next(f._replace(group="flags") for f in general_flags() if f.key == "debug")
Answerer = Result | Exported
Given = dict[str, Any]


# ------------------------------------------------------------------------------ models and rows
def open_models(words: list[str], number: int, usage: str) -> tuple[Answerer, list[Path]]:
    """(the run or the exported models, the files that are named after it)."""
    if len(words) != number:
        raise CoterieError(f"write {usage}.")
    return load(words[0]), [Path(word) for word in words[1:]]


def roster_of(models: Answerer) -> Roster:
    """What is known of the training data."""
    return models.roster if isinstance(models, Exported) else models.trained.roster


def read_rows(
    models: Answerer, file: Path, given: Given, watcher: Watcher, *, use_labels: bool = True
) -> tuple[Any, Any]:
    """(x, y or None) of a table, encoded as in training, or of an npz file."""
    if file.suffix.lower() == ".npz":
        arrays = read_npz(file, ("x", "y") if use_labels else ("x",))
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
    return schema.encode(frame, given.get("fill"), where=str(file))


def read_labelled(models: Answerer, file: Path, given: Given, watcher: Watcher) -> tuple[Any, Any]:
    """(x, y) of a file that must have labels."""
    x, y = read_rows(models, file, given, watcher)
    if y is None:
        schema = roster_of(models).schema
        assert schema is not None  # npz files without y are refused when they are read
        raise CoterieError(f"{file} lacks the column {schema.label}: add the labels.")
    return x, y


# ------------------------------------------------------------------------------ coterie assign
def assign(words: list[str], argv: list[str]) -> int:
    """`coterie assign RUN FILE`"""
    shown = [f._replace(group="flags") for f in general_flags() if f.key == "json"]
    about = (
        "The group whose model has the least loss on a new client's labelled rows, and by how much."
    )
    given = Parser("coterie assign RUN FILE", [FILL, *shown, DEBUG], about).given(argv)
    watcher = Watcher(level=logging.WARNING)
    usage = "coterie assign RUN FILE, such as coterie assign runs/mine new.csv"
    with watcher():
        models, (file,) = open_models(words, 2, usage)
        assignment = models.assign(*read_labelled(models, file, given, watcher))
    warn_of_doubts(assignment, file, watcher)
    if "json" in given:
        print(encode(assignment._asdict()).decode())
    else:
        print(f"{file.stem}: {assignment}")
    return 0


def warn_of_doubts(assignment: Assignment, file: Path, watcher: Watcher) -> None:
    """Say why the choice of a group may mean little."""
    for doubt in assignment.doubts:
        watcher.warn(f"{file.stem}: {doubt}")


# ------------------------------------------------------------------------------ coterie predict
PREDICT_FLAGS = {
    flag.key: flag
    for flag in (
        Flag("client", str | None, "with the model of this client", None, {}, "flags"),
        Flag("cluster", int | None, "with the model of this group", None, {}, "flags"),
        Flag(
            "support",
            str | None,
            "as a newcomer that has these labelled rows, a file",
            None,
            {},
            "flags",
        ),
        Flag(
            "keep",
            str | None,
            "columns of the file to write beside the predictions, A,B",
            None,
            {},
            "flags",
        ),
        Flag("out", str | None, "a CSV file to write; none: print", None, {}, "flags"),
        FILL,
        DEBUG,
    )
}


def predict(words: list[str], argv: list[str]) -> int:
    """`coterie predict RUN FILE`"""
    about = (
        "A prediction for every row of a file; its label column, if it has one, is not looked at."
    )
    given = Parser("coterie predict RUN FILE", PREDICT_FLAGS.values(), about).given(argv)
    if "cluster" in given:
        given["cluster"] = typed(PREDICT_FLAGS["cluster"], given["cluster"])
    watcher = Watcher(level=logging.WARNING)
    usage = "coterie predict RUN FILE with --client NAME, --cluster K or --support FILE"
    with watcher():
        models, (file,) = open_models(words, 2, usage)
        x, _ = read_rows(models, file, given, watcher, use_labels=False)
        kept = read_columns(file, given["keep"]) if "keep" in given else {}
        support = read_support(models, given, watcher)
        outputs = outputs_for(models, x, given, support)
    columns = as_columns(outputs, roster_of(models).labels, kept)
    write_csv(columns, given.get("out"))
    return 0


def read_support(models: Answerer, given: Given, watcher: Watcher) -> Any:
    """The labelled rows of a newcomer, where there are any; the group it joins is shown."""
    if "support" not in given:
        return None
    file = Path(given["support"])
    support = read_labelled(models, file, given, watcher)
    if isinstance(models, Exported) or models.clusters is not None:
        assignment = models.assign(*support)
        watcher.note(f"{file.stem}: {assignment}")
        warn_of_doubts(assignment, file, watcher)
    return support


def outputs_for(models: Answerer, x: Any, given: Given, support: Any) -> Tensor:
    """Targets, or the probability of every class, for rows x."""
    client, cluster = given.get("client"), given.get("cluster")
    if isinstance(models, Exported):
        name = exported_name(models, client, cluster, support)
        return models.predict(x, name, probabilities=True)
    return models.predict(x, client=client, cluster=cluster, support=support, probabilities=True)


def exported_name(models: Exported, client: str | None, cluster: int | None, support: Any) -> str:
    """Which of the exported models is meant; for a newcomer the one that fits its rows best."""
    if len(models.models) == 1 and client is None and cluster is None and support is None:
        return next(iter(models.models))
    need_one_of(client=client, cluster=cluster, support=support)
    if support is not None:
        if models.card.newcomers == "train":
            raise CoterieError(
                f"a newcomer of {models.card.method.name} trains a model of its own: give the run's "
                "folder for --support."
            )
        return list(models.models)[models.assign(*support).group]
    if client is None:
        return f"group-{cluster}"
    names_by_owner = {entry.of: name for name, entry in models.card.files.items()}
    return names_by_owner.get(client, client)


def read_columns(file: Path, names: str) -> dict[str, list[Any]]:
    """Columns of a table, as they are."""
    wanted = [name.strip() for name in names.split(",")]
    frame = read_table(file, wanted)
    for name in wanted:
        if name not in frame:
            raise unknown(f"column of {file}:", name, frame.columns)
    return {name: frame[name].where(frame[name].notna(), "").tolist() for name in wanted}


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
    lines = [list(columns), *zip(*columns.values())]
    with open(out, "w", newline="", encoding="utf-8") if out else nullcontext(sys.stdout) as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
    if out:
        print(f"{len(lines) - 1} predictions in {out}")


# ------------------------------------------------------------------------------ coterie export
def export(words: list[str], argv: list[str]) -> int:
    """`coterie export RUN`"""
    per_help = "cluster or client; none: cluster, where there are groups"
    flags = [
        Flag("per", str | None, per_help, None, {}, "flags"),
        Flag("out", str, "the folder to write; it must not exist", "models", {}, "flags"),
        Flag("onnx", bool, "an ONNX file beside each", False, {"switch": True}, "flags"),
        DEBUG,
    ]
    about = "The models as safetensors files, and card.json with all that is needed to use them."
    given = Parser("coterie export RUN", flags, about).given(argv)
    per = given.get("per")
    if per not in (None, "cluster", "client"):
        raise CoterieError(f"per is {per!r}: it must be one of cluster, client.")
    usage = "coterie export RUN, such as coterie export runs/mine --out models"
    with Watcher(level=logging.WARNING)():
        models, _ = open_models(words, 1, usage)
        if isinstance(models, Exported):
            raise CoterieError(
                f"{words[0]} holds exported models already: give the folder of a run."
            )
        folder = models.export(given.get("out", "models"), per, onnx="onnx" in given)
    print(f"{len(list(folder.glob('*.safetensors')))} models and {CARD} in {folder}")
    return 0
