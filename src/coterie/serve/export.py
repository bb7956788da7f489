"""Models in files, and from files.

result.export("models")                   a safetensors file per group (per="client": per client) and card.json
ct.load("models").predict(x, "group-2")   from these files alone
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensors_as_bytes
from torch import Tensor

from coterie import models
from coterie.algorithms.threshold import PFLTC
from coterie.common.grouped import WithinGroups
from coterie.contract import Algorithm
from coterie.data.facts import blank, facts
from coterie.errors import CoterieError, unknown
from coterie.metrics import hard, to_json
from coterie.params import Params, unstack
from coterie.runs.folder import explained
from coterie.runs.run import Run
from coterie.serve.answers import (
    Assignment,
    answer,
    assigned,
    centres_of,
    member,
    need_labels,
    rows,
)
from coterie.task import Task
from coterie.version import __version__

CARD, NAME = "card.json", r"[\w-]+"  # of a file, without its ending
Per = Literal["cluster", "client"]


def export(run: Run, path: str | Path, per: Per | None, onnx: bool = False) -> Path:
    """The folder is written whole or not at all."""
    if onnx:
        from coterie.serve.onnx_file import as_onnx
    folder = Path(path)
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [1]):
        raise CoterieError(f"{folder} exists and is not empty: choose another folder to export to.")
    per = per or ("client" if run.method.centres(run.state) is None else "cluster")
    found = groups_models(run) if per == "cluster" else clients_models(run)
    files, contents = {}, {}
    for name, (title, params) in found.items():
        data = tensors_as_bytes({k: v.detach().cpu().contiguous() for k, v in params.items()})
        files[name] = {"of": title, "sha256": hashlib.sha256(data).hexdigest()}
        contents[f"{name}.safetensors"] = data
        if onnx:
            contents[f"{name}.onnx"] = as_onnx(run.task, params, run.fed.train.x[:2])
    contents[CARD] = (
        json.dumps(card(run, per, files), indent=1, ensure_ascii=False) + "\n"
    ).encode()
    write_folder(folder, contents)
    return folder


def write_folder(folder: Path, contents: dict[str, bytes]) -> None:
    """All files or none."""
    beside = folder.with_name(folder.name + ".new")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        for file, data in contents.items():
            (beside / file).write_bytes(data)
        os.replace(beside, folder)
    except OSError as e:
        shutil.rmtree(beside, ignore_errors=True)
        raise explained(e, folder) from e


def by_loss(method: Algorithm) -> bool:
    """Whether a newcomer answers with the model of the group whose loss is least, and with nothing of its own."""
    known = (Algorithm.join, WithinGroups.join, PFLTC.join)
    return type(method).join in known and type(method).predict is Algorithm.predict


def groups_models(run: Run) -> dict[str, tuple[str, Params]]:
    return {f"group-{k}": (f"group {k}", c) for k, c in enumerate(unstack(centres_of(run)))}


def clients_models(run: Run) -> dict[str, tuple[str, Params]]:
    if type(run.method).model is Algorithm.model:
        raise CoterieError(
            f"a client of {run.method.name} answers with several models: export them per cluster."
        )
    found: dict[str, tuple[str, Params]] = {}
    for client in run.fed.names[: len(run.fed)]:
        method, shared, per_client, private, data = member(run, client)
        plain = re.sub(r"[^\w-]+", "-", client).strip("-") or "client"
        taken = {name.casefold() for name in found}  # some disks take A and a for the same
        names = itertools.chain([plain], (f"{plain}-{k}" for k in itertools.count(2)))
        name = next(name for name in names if name.casefold() not in taken)
        found[name] = (client, method.model(run.task, shared, per_client, private, data))
    return found


def card(run: Run, per: Per, files: dict[str, Any]) -> dict[str, Any]:
    groups = run.method.groups(run.state)
    found = [] if groups is None else hard(groups).tolist()
    last = next((row for row in reversed(run.history) if "loss" in row), {})
    whole: dict[str, Any] = to_json(
        {
            "coterie": __version__,
            "method": {"name": run.method.name, "settings": asdict(run.method)},  # type: ignore[call-overload]
            "data": run.fed.source,
            "rounds": run.round,
            "model": run.model_name,
            **facts(run.fed),
            "dtype": run.options.dtype,
            "scores": {
                k: v for k, v in last.items() if isinstance(v, float) and "seconds" not in k
            },
            "groups": {
                str(k): [n for n, g in zip(run.fed.names, found) if g == k]
                for k in sorted(set(found))
            },
            "per": per,
            "newcomers": "join the group of least loss" if by_loss(run.method) else "train",
            "files": files,
        }
    )
    return whole


class Exported:
    """Models from a folder that `export` wrote."""

    def __init__(self, path: str | Path, model: Any = None) -> None:
        self.path = Path(path)
        try:
            self.card: dict[str, Any] = json.loads((self.path / CARD).read_text(encoding="utf-8"))
            c = self.card
            fed = blank(c)
            files = {str(n): dict(f) for n, f in c["files"].items()}
            dtype = {"float32": torch.float32, "float64": torch.float64}[c["dtype"]]
            told = [
                c["model"],
                c["method"]["name"],
                c["per"],
                c["newcomers"],
                *(f["of"] for f in files.values()),
            ]
            if (
                not files
                or not all(isinstance(text, str) for text in told)
                or not isinstance(c["scores"], dict)
            ):
                raise ValueError("its names are no text")
            if fed.labels is not None and len(fed.labels) != fed.classes:
                raise ValueError("it names other classes than it counts")
        except OSError as e:
            raise CoterieError(
                f"{self.path / CARD} cannot be read ({e.strerror}): give a folder of `export`."
            ) from e
        except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as e:
            raise CoterieError(f"{self.path / CARD} is damaged ({e}): export the run again.") from e
        if model is None and c["model"].partition(":")[0] not in models.models():
            raise CoterieError(
                f"the model {c['model']} is one of your own: give it again, ct.load(path, model=…)."
            )
        factory = models.build(c["model"], fed) if model is None else model
        self.like, self.schema = fed.train.x, fed.schema
        self.task = Task(
            factory, fed.kind, self.like.expand(2, *self.like.shape[1:]), fed.classes, dtype
        )
        self.models = {name: self._read(name, facts) for name, facts in files.items()}

    def _read(self, name: str, facts: dict[str, Any]) -> Params:
        file, like = self.path / f"{name}.safetensors", self.task.init(0)
        if not re.fullmatch(NAME, name):
            raise CoterieError(
                f"{self.path / CARD} names a file {name!r}, which no export has: export the run again."
            )
        try:
            data = file.read_bytes()
            found: Params = read_tensors(data)
        except (OSError, SafetensorError) as e:
            raise CoterieError(f"{file} cannot be read ({e}): export the run again.") from e
        if hashlib.sha256(data).hexdigest() != facts.get("sha256"):
            raise CoterieError(f"{file} is not the file that was exported: export the run again.")
        if {k: v.shape for k, v in found.items()} != {k: v.shape for k, v in like.items()}:
            raise CoterieError(
                f"{file} does not fit the model {self.card['model']}: give the model it was trained with."
            )
        return {k: found[k].to(self.task.dtype) for k in like}

    def predict(self, x: Any, name: str, probabilities: bool = False) -> Tensor:
        """Classes (or targets) for rows x by the model `name`, such as "group-2" or a client's."""
        if name not in self.models:
            raise unknown("model", name, self.models)
        new = rows(self.task, self.like, self.schema, x, labels=False).x
        return answer(self.task, self.task.outputs(self.models[name], new), probabilities)

    def assign(self, x: Any, y: Any = None) -> Assignment:
        """The group whose model has the least loss on these rows."""
        need_labels(x, y)
        if self.card["per"] == "client":
            raise CoterieError(
                f"{self.path} holds models of clients, not of groups: export the run per cluster."
            )
        batch, usual = (
            rows(self.task, self.like, self.schema, x, y),
            self.card["scores"].get("loss"),
        )
        return assigned(self.task, self.models.values(), batch, usual)

    def __repr__(self) -> str:
        return f"Exported({self.card['method']['name']}, {', '.join(self.models)})"
