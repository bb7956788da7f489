"""Exported models: a safetensors file for each cluster or client, and card.json.

card.json describes the models and how to use them, with a checksum of each file and of itself.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensors_as_bytes
from torch import Tensor

from coterie import models
from coterie.core.call import pick_clients
from coterie.core.contract import Algorithm
from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.core.model_spec import ModelSpec
from coterie.core.params import Params, unstack
from coterie.core.targets import IGNORE_INDEX
from coterie.core.task import Task
from coterie.core.version import __version__
from coterie.data import Schema
from coterie.data.roster import Kind, Roster
from coterie.methods import registry
from coterie.methods.grouped import GroupedFedAvg
from coterie.methods.threshold import PFLTC
from coterie.metrics import hard_labels
from coterie.runs.config import (
    FieldConfig,
    MethodConfig,
    RosterConfig,
    decode,
    encode,
    encode_readable,
    method_config,
    restore_roster,
    roster_config,
)
from coterie.runs.files import lock_for_writing, write_error
from coterie.runs.run import Run
from coterie.runs.trained import TrainedRun
from coterie.serve.predict import (
    Assignment,
    at_last_round,
    check_labelled_rows,
    check_rows,
    choose_group,
    require_centres,
    to_predictions,
)

AT_ONCE = 256  # clients whose models are asked for at once
Named = tuple[str, str, Params]  # a file's name, whose model it holds, the model
CARD = "card.json"
FORMAT = 2  # the first with a checksum of the card itself
FILE_NAME = r"[\w-]+"  # of a model, without its ending
Per = Literal["cluster", "client"]
EXPORT_AGAIN = "export the run again"


# ------------------------------------------------------------------------------ card.json
class FileEntry(msgspec.Struct):
    """One exported model."""

    of: str  # "group 2", or a client's name
    sha256: str


class ModelCard(msgspec.Struct, kw_only=True):
    """The content of card.json; version 0.1 did not write `format` and `sha256`."""

    format: int = 1
    coterie: str = __version__
    method: MethodConfig
    data: str
    rounds: int
    model: str
    input: list[int]  # the shape of a sample
    tokens: bool
    kind: Kind
    classes: int | None
    labels: list[str] | None
    schema: dict[str, Any] | None
    dtype: str
    scores: dict[str, float | None]
    groups: dict[str, list[str]]
    per: Per
    new_clients: str = msgspec.field(name="newcomers")  # how a new client gets its model; 0.2's key
    files: dict[str, FileEntry]
    sha256: str | None = None  # of the other fields; see `checksum`
    target_shape: list[int] = []  # the shape of a sample's target
    ignore_index: int = IGNORE_INDEX
    fields: list[FieldConfig] = []  # the parts of a sample, if it has several


def write_card(card: ModelCard) -> str:
    """Return the text of card.json, with its checksum."""
    card.format = FORMAT
    card.sha256 = checksum(encode(card))
    return encode_readable(card)


def checksum(raw: bytes) -> str:
    """Return the SHA-256 of all fields of a card but `sha256`; whitespace does not count."""
    content = json.loads(raw)
    content.pop("sha256", None)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_card(folder: Path) -> ModelCard:
    """Read and check the card of a folder of exported models."""
    file = folder / CARD
    try:
        raw = file.read_bytes()
    except OSError as e:
        raise CoterieError(
            f"{file} cannot be read ({e.strerror})", "give a folder that export wrote"
        ) from e
    card = decode(raw, ModelCard, str(file), EXPORT_AGAIN)
    if card.dtype not in ("float32", "float64"):
        raise CoterieError(f"{file} is damaged (dtype is {card.dtype!r})", EXPORT_AGAIN)
    if not card.files:
        raise CoterieError(f"{file} is damaged (it names no files)", EXPORT_AGAIN)
    for name in card.files:
        if not re.fullmatch(FILE_NAME, name):
            raise CoterieError(f"{file} names a file {name!r}, which no export has", EXPORT_AGAIN)
    check_checksum(card, raw, file)
    return card


def check_checksum(card: ModelCard, raw: bytes, file: Path) -> None:
    """Raise an error if a card was changed; cards of version 0.1 have no checksum."""
    if card.format < FORMAT and card.sha256 is None:
        return
    try:
        expected = checksum(raw)
    except (ValueError, RecursionError) as e:  # json is stricter than msgspec
        raise CoterieError(f"{file} is damaged ({e})", EXPORT_AGAIN) from e
    if card.sha256 != expected:
        raise CoterieError(f"{file} is not the card that was exported", EXPORT_AGAIN)


def roster_of(card: ModelCard, file: Path) -> Roster:
    """Return the roster that a card describes, with one client without samples."""
    nobody = {part: [0] for part in ("train", "test", "valid")}
    config = RosterConfig(
        names=["any"],
        unseen=0,
        rows=nobody,
        row_shape=card.input,
        tokens=card.tokens,
        kind=card.kind,
        classes=card.classes,
        target_shape=card.target_shape,
        ignore_index=card.ignore_index,
        fields=card.fields,
        labels=card.labels,
        schema=card.schema,
        source=card.data,
        truth=None,
        planted=None,
    )
    return restore_roster(config, str(file))


# ------------------------------------------------------------------------------ writing
def export_groups(trained: TrainedRun, path: str | Path, onnx: bool = False) -> Path:
    """Write a file for each cluster model."""
    models = [
        (f"group-{k}", f"group {k}", model)
        for k, model in enumerate(unstack(require_centres(trained)))
    ]
    return _export(trained, path, "cluster", models, onnx)


def export_clients(run: Run, path: str | Path, onnx: bool = False) -> Path:
    """Write a file for each client's model, which the clients send."""
    return _export(run.trained(), path, "client", list(_models_of_clients(run)), onnx)


def export_client(trained: TrainedRun, client: str, model: Params, path: str | Path) -> Path:
    """Write one client's model, on the client's own machine."""
    return _export(trained, path, "client", [(_file_name(client, set()), client, model)], False)


def _export(
    trained: TrainedRun, path: str | Path, per: Per, models: list[Named], onnx: bool
) -> Path:
    folder = Path(path)
    ensure_free(folder)
    files: dict[str, FileEntry] = {}
    contents: dict[str, bytes] = {}
    frozen = trained.task.frozen
    saved = trained.task.module.state_dict().keys()  # without buffers that torch does not save
    for name, owner, params in models:
        whole = {**{k: v for k, v in frozen.items() if k in saved}, **params}
        raw = tensors_as_bytes({k: v.detach().cpu().contiguous() for k, v in whole.items()})
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
    """Raise an error if the path is a file or a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CoterieError(
            f"{folder} exists and is not empty", "choose another folder to export to"
        )


def _write_folder(folder: Path, contents: dict[str, bytes]) -> None:
    """Write all files or none of them."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with lock_for_writing(folder) as unfinished:
            try:
                unfinished.mkdir(exist_ok=True)
                _clear(unfinished)  # left by a killed process
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
            f"a client of {run.method.name} uses several models: export them per cluster."
        )
    shared, per_client = at_last_round(run).use(run.state)
    taken: set[str] = set()
    for ids in run.all_clients.sort().values.split(AT_ONCE):
        answers = run.ask_clients("personal_model", ids, shared, pick_clients(per_client, ids))
        for i, model in zip(answers.ids.tolist(), unstack(answers.values["model"])):
            client = run.roster.names[i]
            yield _file_name(client, taken), client, model


def _file_name(client: str, taken: set[str]) -> str:
    """Return a unique file name for a client, also on file systems that ignore case."""
    plain = re.sub(r"[^\w-]+", "-", client).strip("-") or "client"
    numbered = (f"{plain}-{k}" for k in itertools.count(2))
    for name in itertools.chain([plain], numbered):
        if name.casefold() not in taken:
            taken.add(name.casefold())
            return name
    raise AssertionError("numbers do not end")


# ------------------------------------------------------------------------------ the card
def _card(trained: TrainedRun, per: Per, files: dict[str, FileEntry]) -> ModelCard:
    roster = roster_config(trained.roster)
    last = trained.last_evaluation if trained.history else {}  # a site of a network has no history
    scores: dict[str, Any] = {
        name: value
        for name, value in last.items()
        if isinstance(value, float) and "seconds" not in name
    }
    return ModelCard(
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
        target_shape=roster.target_shape,
        ignore_index=roster.ignore_index,
        fields=roster.fields,
        dtype=trained.options.dtype,
        scores=scores,
        groups=_members(trained),
        per=per,
        new_clients="join the group of least loss" if joins_by_loss(trained.method) else "train",
        files=files,
    )


def _members(trained: TrainedRun) -> dict[str, list[str]]:
    """Return the names of the clients in each cluster."""
    if trained.state is None or trained.groups is None:  # unknown at a site
        return {}
    labels = hard_labels(trained.groups).tolist()
    members: dict[str, list[str]] = {str(k): [] for k in sorted(set(labels))}
    for name, label in zip(trained.roster.training_names, labels):
        members[str(label)].append(name)
    return members


def joins_by_loss(method: Algorithm) -> bool:
    """Return whether a new client uses the cluster model with the least loss, unchanged."""
    by_loss = (Algorithm.join, GroupedFedAvg.join, PFLTC.join)
    has_groups = type(method).centres is not Algorithm.centres
    return has_groups and type(method).join in by_loss and type(method).predict is Algorithm.predict


# ------------------------------------------------------------------------------ reading
class Exported:
    """Exported models, read from a folder that `Result.export` wrote.

    Args:
        path: The folder.
        model: The model, if the card cannot name it (a model of your own).

    Raises:
        CoterieError: If a file is damaged or does not fit the model.

    Example:
        >>> import coterie as ct, tempfile
        >>> fed = ct.data.linear(clients=6, samples=20, dim=3, clusters=2)
        >>> result = ct.run(ct.IFCA(clusters=2, lr=0.1), fed, rounds=2)
        >>> models = ct.load(result.export(tempfile.mkdtemp()))
        >>> models.predict(fed.test.x[:5], "group-1").shape
        torch.Size([5])
    """

    def __init__(self, path: str | Path, model: Any = None) -> None:
        self.path = Path(path)
        self.card = read_card(self.path)
        self.roster = roster_of(self.card, self.path / CARD)
        if model is None:
            model = self._known_model()
        elif isinstance(model, str):
            model = registry.model(model)
        spec = model if isinstance(model, ModelSpec) else ModelSpec(model)
        if isinstance(spec.model, str):
            spec = replace(spec, model=models.build(spec.model, self.roster))
        x, _ = self.roster.example()
        dtype = getattr(torch, self.card.dtype)
        scale = self.roster.label_scale
        target, fields = self.roster.target, self.roster.fields
        self.task = Task(spec, target, x, dtype=dtype, scale=scale, fields=fields)
        files = {name: self._read(name, entry) for name, entry in self.card.files.items()}
        # frozen values are the same in all files
        self.task = self.task.with_frozen(next(iter(files.values())))
        self.models = {
            name: {k: params[k] for k in self.task.init(0)} for name, params in files.items()
        }

    def _known_model(self) -> Any:
        name = self.card.model
        if name.partition(":")[0] not in models.models():
            raise CoterieError(
                f"the model {name} is one of your own",
                "give it again, with {}",
                options=[Option("model", "FILE.py:NAME")],
            )
        return models.build(name, self.roster)

    def _read(self, name: str, entry: FileEntry) -> Params:
        file = self.path / f"{name}.safetensors"
        try:
            raw = file.read_bytes()
            params: Params = read_tensors(raw)
        except (OSError, SafetensorError) as e:
            raise CoterieError(f"{file} cannot be read ({e})", EXPORT_AGAIN) from e
        if hashlib.sha256(raw).hexdigest() != entry.sha256:
            raise CoterieError(f"{file} is not the file that was exported", EXPORT_AGAIN)
        frozen = self.task.frozen
        saved = self.task.module.state_dict().keys()
        like = {**{k: v for k, v in frozen.items() if k in saved}, **self.task.init(0)}
        if {k: v.shape for k, v in params.items()} != {k: v.shape for k, v in like.items()}:
            raise CoterieError(
                f"{file} does not fit the model {self.card.model}",
                "give the model it was trained with; an export of version 0.2 lacks the frozen "
                "values of a model: export the run again",
            )
        return {k: params[k].to(like[k]) for k in like}

    @property
    def schema(self) -> Schema | None:
        """The schema of the training tables; None if the data were not tables."""
        return self.roster.schema

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes, if they have names."""
        return self.roster.labels

    def predict(self, x: Any, name: str, probabilities: bool = False) -> Tensor:
        """Predict classes or targets.

        Args:
            x: Samples [n, ...], or a DataFrame with the columns of the training tables.
            name: The model: "group-2", or a client's file name.
            probabilities: Return the probability of each class instead of class numbers.
        """
        if name not in self.models:
            raise unknown_name("model", name, self.models)
        rows = check_rows(self.task, self.roster, x, use_labels=False).x
        outputs = self.task.outputs(self.models[name], rows)
        return to_predictions(self.task, outputs, probabilities)

    def assign(self, x: Any, y: Any = None) -> Assignment:
        """Find the cluster whose model has the least loss on labelled samples."""
        if self.card.per == "client":
            raise CoterieError(
                f"{self.path} has models of clients, not of groups: export the run per cluster."
            )
        batch = check_labelled_rows(self.task, self.roster, x, y)
        return choose_group(
            self.task, list(self.models.values()), batch, self.card.scores.get("loss")
        )

    def __repr__(self) -> str:
        return f"Exported({self.card.method.name}, {', '.join(self.models)})"
