"""Models read back from a folder that `export` wrote."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from torch import Tensor

from coterie import models
from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.core.params import Params
from coterie.core.task import Task
from coterie.data import Schema
from coterie.methods import registry
from coterie.serve.card import CARD, EXPORT_AGAIN, FileEntry, read_card, roster_of
from coterie.serve.predict import Assignment, choose_group, to_predictions
from coterie.serve.rows import check_labelled_rows, check_rows


class Exported:
    """Exported models, by name: "group-2", or a client's."""

    def __init__(self, path: str | Path, model: Any = None) -> None:
        self.path = Path(path)
        self.card = read_card(self.path)
        self.roster = roster_of(self.card, self.path / CARD)
        if model is None:
            model = self._known_model()
        elif isinstance(model, str):
            model = registry.model(model)
        if isinstance(model, str):
            model = models.build(model, self.roster)
        x, _ = self.roster.example()
        dtype = getattr(torch, self.card.dtype)
        scale = self.roster.label_scale
        self.task = Task(model, self.roster.kind, x, self.roster.classes, dtype, scale=scale)
        self.models = {name: self._read(name, entry) for name, entry in self.card.files.items()}

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
        like = self.task.init(0)
        if {k: v.shape for k, v in params.items()} != {k: v.shape for k, v in like.items()}:
            raise CoterieError(
                f"{file} does not fit the model {self.card.model}",
                "give the model it was trained with",
            )
        return {k: params[k].to(self.task.dtype) for k in like}

    @property
    def schema(self) -> Schema | None:
        """What the columns of the training tables mean, where there were any."""
        return self.roster.schema

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes, where they have any."""
        return self.roster.labels

    def predict(self, x: Any, name: str, probabilities: bool = False) -> Tensor:
        """Classes (or targets) for rows x by the model `name`, such as "group-2"."""
        if name not in self.models:
            raise unknown_name("model", name, self.models)
        rows = check_rows(self.task, self.roster, x, use_labels=False).x
        outputs = self.task.outputs(self.models[name], rows)
        return to_predictions(self.task, outputs, probabilities)

    def assign(self, x: Any, y: Any = None) -> Assignment:
        """The group whose model has the least loss on these rows."""
        if self.card.per == "client":
            raise CoterieError(
                f"{self.path} holds models of clients, not of groups: export the run per cluster."
            )
        batch = check_labelled_rows(self.task, self.roster, x, y)
        return choose_group(
            self.task, list(self.models.values()), batch, self.card.scores.get("loss")
        )

    def __repr__(self) -> str:
        return f"Exported({self.card.method.name}, {', '.join(self.models)})"
