"""`coterie assign`, `coterie predict` and `coterie export`: what a finished run, or its exported models, are for."""

from __future__ import annotations

import csv
import json
import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from coterie.cli.flags import Flag, Parser, general_flags, typed
from coterie.cli.progress import Watcher
from coterie.cli.train import opened
from coterie.data.tables import read_npz, read_table
from coterie.errors import CoterieError, unknown
from coterie.metrics import to_json
from coterie.result import Result
from coterie.serve.answers import given as whose
from coterie.serve.answers import one_of
from coterie.serve.export import CARD, Exported

FILL = Flag(
    "fill", str | None, "mean or median for missing cells; none: as in training", None, {}, "flags"
)
DEBUG = next(f._replace(group="flags") for f in general_flags() if f.key == "debug")
Source = Result | Exported


def source(words: list[str], need: int, usage: str) -> tuple[Source, list[Path]]:
    """The run, without its data, or the exported models; and the files named after it."""
    if len(words) != need:
        raise CoterieError(f"write {usage}.")
    path = Path(words[0])
    of = Exported(path) if (path / CARD).exists() else Result(opened(path, answers_only=True))
    return of, [Path(w) for w in words[1:]]


def rows_of(
    of: Source, file: Path, given: dict[str, Any], watcher: Watcher, labels: bool = True
) -> tuple[Any, Any]:
    """(x, y or None) of a table, encoded as in training, or of an npz file; `labels`: whether those are looked at."""
    if file.suffix.lower() == ".npz":
        arrays = read_npz(file, ("x", "y") if labels else ("x",))
        return arrays["x"], arrays.get("y")
    schema = of.schema if isinstance(of, Exported) else of._run.fed.schema
    if schema is None:
        raise CoterieError(
            f"the training data were no tables, so {file} must be an .npz file with x and y."
        )
    frame = read_table(file, schema.texts)
    frame = frame if labels else frame.drop(columns=schema.label, errors="ignore")
    for remark in schema.remarks(frame, str(file)):
        watcher.warn(remark)
    return schema.encode(frame, given.get("fill"), where=str(file))


def labelled(of: Source, file: Path, given: dict[str, Any], watcher: Watcher) -> tuple[Any, Any]:
    x, y = rows_of(of, file, given, watcher)
    if y is None:
        schema = of.schema if isinstance(of, Exported) else of._run.fed.schema
        raise CoterieError(f"{file} lacks the column {schema.label}: add the labels.")  # type: ignore[union-attr]
    return x, y


def assign(words: list[str], argv: list[str]) -> int:
    shown = [f._replace(group="flags") for f in general_flags() if f.key == "json"]
    about = (
        "The group whose model has the least loss on a new client's labelled rows, and by how much."
    )
    given = Parser("coterie assign RUN FILE", [FILL, *shown, DEBUG], about).given(argv)
    watcher = Watcher(level=logging.WARNING)
    with watcher():
        of, (file,) = source(
            words, 2, "coterie assign RUN FILE, such as coterie assign runs/mine new.csv"
        )
        found = of.assign(*labelled(of, file, given, watcher))
    for doubt in found.doubts:
        watcher.warn(f"{file.stem}: {doubt}")
    print(json.dumps(to_json(found._asdict())) if "json" in given else f"{file.stem}: {found}")
    return 0


def predict(words: list[str], argv: list[str]) -> int:
    flags = [
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
    ]
    about = (
        "A prediction for every row of a file; its label column, if it has one, is not looked at."
    )
    given = Parser("coterie predict RUN FILE", flags, about).given(argv)
    client, cluster = (
        given.get("client"),
        typed(flags[1], given["cluster"]) if "cluster" in given else None,
    )
    watcher = Watcher(level=logging.WARNING)
    with watcher():
        of, (file,) = source(
            words, 2, "coterie predict RUN FILE with --client NAME, --cluster K or --support FILE"
        )
        x, _ = rows_of(of, file, given, watcher, labels=False)
        kept = columns_of(file, given["keep"]) if "keep" in given else {}
        support = (
            labelled(of, Path(given["support"]), given, watcher) if "support" in given else None
        )
        if support is not None and not (isinstance(of, Result) and of.clusters is None):
            joined, who = of.assign(*support), Path(given["support"]).stem
            watcher.note(f"{who}: {joined}")
            for doubt in joined.doubts:
                watcher.warn(f"{who}: {doubt}")
        if isinstance(of, Result):
            of = (
                of if client is None else Result(opened(Path(words[0])))
            )  # a client answers with its rows at hand
            names = of._run.fed.labels
            found = of.predict(
                x, client=client, cluster=cluster, support=support, probabilities=True
            )
        else:
            names = of.card["labels"]
            found = of.predict(x, exported_name(of, client, cluster, support), probabilities=True)
    header, rows = answers(found, names, kept)
    with (
        open(given["out"], "w", newline="", encoding="utf-8")
        if "out" in given
        else nullcontext(sys.stdout) as to
    ):
        csv.writer(to, lineterminator="\n").writerows([header, *rows])
    if "out" in given:
        print(f"{len(rows)} predictions in {given['out']}")
    return 0


def columns_of(file: Path, names: str) -> dict[str, list[Any]]:
    """Columns of a table, as they are."""
    wanted = [name.strip() for name in names.split(",")]
    frame = read_table(file, wanted)
    for name in wanted:
        if name not in frame:
            raise unknown(f"column of {file}:", name, frame.columns)
    return {name: frame[name].where(frame[name].notna(), "").tolist() for name in wanted}


def answers(
    found: torch.Tensor, names: Sequence[str] | None, kept: dict[str, list[Any]]
) -> tuple[list[str], list[list[Any]]]:
    """A line per row, numbered from 1: the target, or the most probable class and the probability of each."""
    columns: dict[str, Sequence[Any]] = {"row": range(1, len(found) + 1), **kept}
    if found.dim() == 1:
        columns["prediction"] = [f"{v:.6g}" for v in found.tolist()]
    else:
        names = names or [str(k) for k in range(found.shape[1])]
        columns["prediction"] = [names[k] for k in found.argmax(-1).tolist()]
        columns |= {
            f"P({name})": [f"{p:.4f}" for p in found[:, k].tolist()] for k, name in enumerate(names)
        }
    return list(columns), [list(line) for line in zip(*columns.values())]


def exported_name(of: Exported, client: str | None, cluster: int | None, support: Any) -> str:
    """Which of the exported models is meant; for a newcomer the one that fits its rows best."""
    if len(of.models) == 1 and not whose(client, cluster, support):
        return next(iter(of.models))
    one_of(client, cluster, support)
    if support is not None:
        if of.card["newcomers"] == "train":
            name = of.card["method"]["name"]
            raise CoterieError(
                f"a newcomer of {name} trains a model of its own: give the run's folder for --support."
            )
        return list(of.models)[of.assign(*support).group]
    titles = {facts["of"]: name for name, facts in of.card["files"].items()}
    return titles.get(client or f"group {cluster}", client or f"group-{cluster}")


def export(words: list[str], argv: list[str]) -> int:
    flags = [
        Flag(
            "per",
            str | None,
            "cluster or client; none: cluster, where there are groups",
            None,
            {},
            "flags",
        ),
        Flag("out", str, "the folder to write; it must not exist", "models", {}, "flags"),
        Flag("onnx", bool, "an ONNX file beside each", False, {"switch": True}, "flags"),
        DEBUG,
    ]
    about = "The models as safetensors files, and card.json with all that is needed to use them."
    given = Parser("coterie export RUN", flags, about).given(argv)
    per = given.get("per")
    if per not in (None, "cluster", "client"):
        raise CoterieError(f"per is {per!r}: it must be one of cluster, client.")
    with Watcher(level=logging.WARNING)():
        of, _ = source(
            words, 1, "coterie export RUN, such as coterie export runs/mine --out models"
        )
        if isinstance(of, Exported):
            raise CoterieError(
                f"{words[0]} holds exported models already: give the folder of a run."
            )
        if per == "client" or (per is None and of.centres is None):
            of = Result(opened(Path(words[0])))  # a client answers with its rows at hand
        folder = of.export(given.get("out", "models"), per, onnx="onnx" in given)
    print(f"{len(list(folder.glob('*.safetensors')))} models and {CARD} in {folder}")
    return 0
