"""Models written to files: a safetensors file for each group or client, and card.json."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save as tensors_as_bytes

from coterie.core.call import pick_clients
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError
from coterie.core.params import Params, unstack
from coterie.core.task import Task
from coterie.methods.grouped import GroupedFedAvg
from coterie.methods.threshold import PFLTC
from coterie.metrics import hard_labels
from coterie.runs.config import method_config, roster_config
from coterie.runs.files import lock_for_writing, write_error
from coterie.runs.run import Run
from coterie.runs.trained import TrainedRun
from coterie.serve.card import CARD, Card, FileEntry, Per, write_card
from coterie.serve.predict import at_last_round, require_centres

AT_ONCE = 256  # clients whose models are asked for at once
Named = tuple[str, str, Params]  # a file's name, whose model it holds, the model


def export_groups(trained: TrainedRun, path: str | Path, onnx: bool = False) -> Path:
    """A file for each group's model; it needs no client."""
    models = [
        (f"group-{k}", f"group {k}", model)
        for k, model in enumerate(unstack(require_centres(trained)))
    ]
    return _export(trained, path, "cluster", models, onnx)


def export_clients(run: Run, path: str | Path, onnx: bool = False) -> Path:
    """A file for each client's model; the clients are asked for them."""
    return _export(run.trained(), path, "client", list(_models_of_clients(run)), onnx)


def export_client(trained: TrainedRun, client: str, model: Params, path: str | Path) -> Path:
    """One client's model, on the client's own machine."""
    return _export(trained, path, "client", [(_file_name(client, set()), client, model)], False)


def _export(
    trained: TrainedRun, path: str | Path, per: Per, models: list[Named], onnx: bool
) -> Path:
    folder = Path(path)
    ensure_free(folder)
    files: dict[str, FileEntry] = {}
    contents: dict[str, bytes] = {}
    for name, owner, params in models:
        raw = tensors_as_bytes({k: v.detach().cpu().contiguous() for k, v in params.items()})
        files[name] = FileEntry(of=owner, sha256=hashlib.sha256(raw).hexdigest())
        contents[f"{name}.safetensors"] = raw
        if onnx:
            contents[f"{name}.onnx"] = _as_onnx(trained.task, params, trained)
    contents[CARD] = write_card(_card(trained, per, files)).encode()
    _write_folder(folder, contents)
    return folder


def _as_onnx(task: Task, params: Params, trained: TrainedRun) -> bytes:
    from coterie.serve.onnx_file import as_onnx

    return as_onnx(task, params, trained.roster.example()[0])


def ensure_free(folder: Path) -> None:
    """Refuse a file, or a folder that holds something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CoterieError(
            f"{folder} exists and is not empty", "choose another folder to export to"
        )


def _write_folder(folder: Path, contents: dict[str, bytes]) -> None:
    """Write all files or none."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock_for_writing(folder) as unfinished:
            try:
                unfinished.mkdir(exist_ok=True)
                _clear(unfinished)  # a kill may have left something
                for file, raw in contents.items():
                    (unfinished / file).write_bytes(raw)
                os.replace(unfinished, folder)
            except OSError:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
    except OSError as e:
        ensure_free(folder)  # by another process meanwhile
        raise write_error(e, folder) from e


def _clear(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


# ------------------------------------------------------------------------------ clients' models
def _models_of_clients(run: Run) -> Iterator[Named]:
    if type(run.method).model is Algorithm.model:
        raise CoterieError(
            f"a client of {run.method.name} answers with several models: export them per cluster."
        )
    shared, per_client = at_last_round(run).use(run.state)
    taken: set[str] = set()
    for ids in run.all_clients.sort().values.split(AT_ONCE):
        answers = run.ask_clients("personal_model", ids, shared, pick_clients(per_client, ids))
        for i, model in zip(answers.ids.tolist(), unstack(answers.values["model"])):
            client = run.roster.names[i]
            yield _file_name(client, taken), client, model


def _file_name(client: str, taken: set[str]) -> str:
    """A name for a client's file that no other has, also on disks where A and a are the same."""
    plain = re.sub(r"[^\w-]+", "-", client).strip("-") or "client"
    numbered = (f"{plain}-{k}" for k in itertools.count(2))
    for name in itertools.chain([plain], numbered):
        if name.casefold() not in taken:
            taken.add(name.casefold())
            return name
    raise AssertionError("numbers do not end")


# ------------------------------------------------------------------------------ the card
def _card(trained: TrainedRun, per: Per, files: dict[str, FileEntry]) -> Card:
    roster = roster_config(trained.roster)
    last = trained.last_evaluation if trained.history else {}  # a site has no history
    scores: dict[str, Any] = {
        name: value
        for name, value in last.items()
        if isinstance(value, float) and "seconds" not in name
    }
    return Card(
        method=method_config(trained.method),
        rounds=trained.round,
        model=trained.model_name,
        data=roster.source,
        input=roster.row_shape,
        tokens=roster.tokens,
        kind=roster.kind,
        classes=roster.classes,
        labels=roster.labels,
        schema=roster.schema,
        dtype=trained.options.dtype,
        scores=scores,
        groups=_members(trained),
        per=per,
        newcomers="join the group of least loss" if joins_by_loss(trained.method) else "train",
        files=files,
    )


def _members(trained: TrainedRun) -> dict[str, list[str]]:
    """The names of the clients in each group."""
    if trained.state is None or trained.groups is None:  # a site does not know the groups
        return {}
    labels = hard_labels(trained.groups).tolist()
    members: dict[str, list[str]] = {str(k): [] for k in sorted(set(labels))}
    for name, label in zip(trained.roster.training_names, labels):
        members[str(label)].append(name)
    return members


def joins_by_loss(method: Algorithm) -> bool:
    """Whether a newcomer answers with the model of the group whose loss is least, unchanged."""
    by_loss = (Algorithm.join, GroupedFedAvg.join, PFLTC.join)
    has_groups = type(method).centres is not Algorithm.centres
    return has_groups and type(method).join in by_loss and type(method).predict is Algorithm.predict
