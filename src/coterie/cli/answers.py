"""`coterie assign`, `predict` and `export`: what a trained run, or its exported models, are for."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from coterie.cli.own_files import OwnFiles
from coterie.cli.progress import Watcher
from coterie.cli.rows import (
    Models,
    as_columns,
    read_columns,
    read_labelled,
    read_rows,
    roster_of,
    write_csv,
)
from coterie.cli.values import read_flags
from coterie.core.errors import CoterieError, unknown_name
from coterie.core.settings import setting
from coterie.result import load
from coterie.runs.config import encode
from coterie.serve.card import CARD, Per
from coterie.serve.exported import Exported
from coterie.serve.predict import Assignment, require_one_of

FILL_HELP = "for missing cells; none: as in training"
FILLS = ("mean", "median")
DROP_HELP = "leave out a newcomer's rows that have no label"


# ------------------------------------------------------------------------------ coterie assign
@dataclass(frozen=True, kw_only=True)
class AssignFlags(OwnFiles):
    """The flags of `coterie assign`."""

    fill: str | None = setting(None, FILL_HELP, choices=FILLS)
    drop_incomplete: bool = setting(False, DROP_HELP, switch=True)
    json: bool = setting(False, "print one JSON document instead of a line", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


def assign(words: list[str], argv: list[str]) -> int:
    """`coterie assign RUN FILE`"""
    about = (
        "The group whose model has the least loss on a new client's labelled rows, and by how much."
    )
    asked = read_flags("coterie assign RUN FILE", AssignFlags, about, argv)
    usage = "coterie assign RUN FILE, such as coterie assign runs/mine new.csv"
    run, file = need_words(words, 2, usage)
    watcher = Watcher(level=logging.WARNING)
    with watcher():
        models = load(run, asked.load_model(), trust=asked.trust)
        rows = read_labelled(models, Path(file), asked.fill, watcher, asked.drop_incomplete)
        assignment = models.assign(*rows)
    name = Path(file).stem
    warn_of_doubts(assignment, name, watcher)
    if asked.json:
        print(encode(assignment._asdict()).decode())
    else:
        print(f"{name}: {assignment}")
    return 0


def warn_of_doubts(assignment: Assignment, name: str, watcher: Watcher) -> None:
    """Show why the choice of a group may mean little."""
    for doubt in assignment.doubts:
        watcher.warn(f"{name}: {doubt}")


# ------------------------------------------------------------------------------ coterie predict
@dataclass(frozen=True, kw_only=True)
class PredictFlags(OwnFiles):
    """The flags of `coterie predict`."""

    client: str | None = setting(None, "with the model of this client")
    cluster: int | None = setting(None, "with the model of this group")
    support: str | None = setting(None, "as a newcomer that has these labelled rows, a file")
    keep: tuple[str, ...] = setting((), "columns of the file to write beside the predictions")
    out: str | None = setting(None, "a CSV file to write; none: print")
    fill: str | None = setting(None, FILL_HELP, choices=FILLS)
    drop_incomplete: bool = setting(False, DROP_HELP, switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


def predict(words: list[str], argv: list[str]) -> int:
    """`coterie predict RUN FILE`"""
    about = (
        "A prediction for every row of a file; its label column, if it has one, is not looked at."
    )
    asked = read_flags("coterie predict RUN FILE", PredictFlags, about, argv)
    usage = "coterie predict RUN FILE with --client NAME, --cluster K or --support FILE"
    run, file = need_words(words, 2, usage)
    watcher = Watcher(level=logging.WARNING)
    with watcher():
        models = load(run, asked.load_model(), trust=asked.trust)
        x = read_rows(models, Path(file), asked.fill, watcher)
        kept = read_columns(Path(file), asked.keep)
        support = read_support(models, asked, watcher)
        outputs = predict_rows(models, x, asked, support)
    columns = as_columns(outputs, roster_of(models).labels, kept)
    write_csv(columns, asked.out)
    if asked.out is not None:
        print(f"{len(outputs)} predictions in {asked.out}")
    return 0


def read_support(models: Models, asked: PredictFlags, watcher: Watcher) -> Any:
    """The labelled rows of a newcomer, where there are any; the group it joins is shown."""
    if asked.support is None:
        return None
    file = Path(asked.support)
    support = read_labelled(models, file, asked.fill, watcher, asked.drop_incomplete)
    if isinstance(models, Exported) or models.clusters is not None:
        assignment = models.assign(*support)
        watcher.note(f"{file.stem}: {assignment}")
        warn_of_doubts(assignment, file.stem, watcher)
    return support


def predict_rows(models: Models, x: Any, asked: PredictFlags, support: Any) -> Tensor:
    """Targets, or the probability of every class, for rows x."""
    if isinstance(models, Exported):
        name = exported_name(models, asked, support)
        return models.predict(x, name, probabilities=True)
    return models.predict(
        x, client=asked.client, cluster=asked.cluster, support=support, probabilities=True
    )


def exported_name(models: Exported, asked: PredictFlags, support: Any) -> str:
    """The name of the exported model that is meant."""
    names = list(models.models)
    nobody_named = asked.client is None and asked.cluster is None and support is None
    if len(names) == 1 and nobody_named:
        return names[0]
    require_one_of(client=asked.client, cluster=asked.cluster, support=support)
    if asked.client is not None:
        return name_of_client(models, asked.client)
    if asked.cluster is not None:
        return name_of_group(models, asked.cluster)
    if models.card.newcomers == "train":
        raise CoterieError(
            f"a newcomer of {models.card.method.name} trains a model of its own: give the run's "
            "folder for --support."
        )
    return names[models.assign(*support).group]


def name_of_client(models: Exported, client: str) -> str:
    """The name of a client's exported model."""
    if models.card.per == "cluster":
        raise CoterieError(
            f"{models.path} holds models of groups, not of clients: give --cluster K, or export "
            "the run with --per client."
        )
    names = {entry.of: name for name, entry in models.card.files.items()}
    if client not in names:
        raise unknown_name("client", client, names)
    return names[client]


def name_of_group(models: Exported, group: int) -> str:
    """The name of a group's exported model."""
    if models.card.per == "client":
        raise CoterieError(
            f"{models.path} holds models of clients, not of groups: give --client NAME, or export "
            "the run with --per cluster."
        )
    if not 0 <= group < len(models.models):
        raise CoterieError(f"--cluster is {group}: the groups are 0 to {len(models.models) - 1}.")
    return list(models.models)[group]


# ------------------------------------------------------------------------------ coterie export
@dataclass(frozen=True, kw_only=True)
class ExportFlags(OwnFiles):
    """The flags of `coterie export`."""

    per: str | None = setting(
        None,
        "a model for each; none: cluster, where there are groups",
        choices=("cluster", "client"),
    )
    out: str = setting("models", "the folder to write; it must not exist")
    onnx: bool = setting(False, "an ONNX file beside each", switch=True)
    debug: bool = setting(False, "show tracebacks", switch=True)


def export(words: list[str], argv: list[str]) -> int:
    """`coterie export RUN`"""
    about = "The models as safetensors files, and card.json with all that is needed to use them."
    asked = read_flags("coterie export RUN", ExportFlags, about, argv)
    usage = "coterie export RUN, such as coterie export runs/mine --out models"
    (run,) = need_words(words, 1, usage)
    with Watcher(level=logging.WARNING)():
        models = load(run, asked.load_model(), trust=asked.trust)
        if isinstance(models, Exported):
            raise CoterieError(f"{run} holds exported models already: give the folder of a run.")
        per = cast(Per | None, asked.per)
        folder = models.export(asked.out, per, onnx=asked.onnx)
    print(f"{len(list(folder.glob('*.safetensors')))} models and {CARD} in {folder}")
    return 0


def need_words(words: list[str], number: int, usage: str) -> list[str]:
    """The names of a command, which must be this many."""
    if len(words) != number:
        raise CoterieError(f"write {usage}.")
    return words
