"""What a finished run is for: a newcomer's group, predictions, models in files.

result.assign(x, y)                       the group of a new client, its losses under every centre, the margin
result.predict(x, client="north")         or cluster=2, or support=(x, y): rows of a client that was never trained
result.export("models")                   a safetensors file per group (per="client": per client) and card.json
ct.load("models").predict(x, "group-2")   from these files alone
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensors_as_bytes
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie import models, randomness
from coterie.contract import Algorithm, Data, Rows, at_round
from coterie.data import Federation, Ragged
from coterie.data.schema import Schema
from coterie.engine.call import is_rows
from coterie.engine.checkpoint import write_whole
from coterie.engine.rounds import Run
from coterie.errors import CoterieError, unknown
from coterie.metrics import hard, to_json
from coterie.params import Params, count, pick, unstack
from coterie.task import Batch, Task
from coterie.version import __version__

CARD, NAME = "card.json", r"[\w-]+"  # of a file, without its ending
Per = Literal["cluster", "client"]


class Assignment(NamedTuple):
    """Which group fits a client, and how clearly."""

    group: int
    losses: list[float]  # mean loss of its rows under each group's model
    margin: float  # second least loss − the least: near 0, the choice is a toss-up

    def __str__(self) -> str:
        losses = ", ".join(f"{k}: {loss:.4g}" for k, loss in enumerate(self.losses))
        return f"group {self.group} (loss under each group's model {losses}; margin {self.margin:.4g})"


# ---------------------------------------------------------------------------------------------- rows from outside
def rows(task: Task, like: Tensor, schema: Schema | None, x: Any, y: Any = None) -> Batch:
    """Rows that somebody brings, checked; without y, zeros stand for it. A DataFrame is encoded as in training."""
    if hasattr(x, "columns"):
        if schema is None:
            raise CoterieError("x is a table, and this run was not trained on tables: give an array or a tensor.")
        x, labels = schema.encode(x)
        y = labels if y is None else y
    x = torch.as_tensor(x)
    if not len(x) or x.shape[1:] != like.shape[1:]:
        raise CoterieError(f"x has the shape {tuple(x.shape)}: it must be rows of the shape {tuple(like.shape[1:])}.")
    if not bool(x.isfinite().all()):
        raise CoterieError("x holds NaN or infinity: fill or remove these rows.")
    x = x.to(like.dtype if not like.is_floating_point() else task.dtype)
    whole = task.kind == "classification"
    y = torch.zeros(len(x)) if y is None else torch.as_tensor(y)
    if y.shape != (len(x),):
        raise CoterieError(f"y has the shape {tuple(y.shape)} for {len(x)} rows: give one label per row.")
    if whole and not bool(((y >= 0) & (y < (task.classes or 0)) & (y == y.floor())).all()):
        raise CoterieError(f"y must hold whole numbers from 0 to {(task.classes or 0) - 1}, the classes of the run.")
    return Batch.of(x, y.long() if whole else y.to(task.dtype), task.dtype)


def need_labels(x: Any, y: Any) -> None:
    if y is None and not hasattr(x, "columns"):
        raise CoterieError("assign needs labels: give y, or a table with the label column.")


def assigned(task: Task, models: Iterable[Params], batch: Batch) -> Assignment:
    losses = [float(task.loss(m, batch)) for m in models]
    order = sorted(range(len(losses)), key=lambda k: losses[k] if math.isfinite(losses[k]) else math.inf)
    return Assignment(order[0], losses, losses[order[1]] - losses[order[0]] if len(order) > 1 else math.inf)


def answer(task: Task, outputs: Tensor, probabilities: bool) -> Tensor:
    if task.kind == "regression":
        return outputs
    return outputs.softmax(-1) if probabilities else outputs.argmax(-1)


# ---------------------------------------------------------------------------------------------- of a run
def centres_of(run: Run) -> Params:
    centres = run.method.centres(run.state)
    if centres is None:
        raise CoterieError(f"{run.method.name} has no groups: ask for a client, or take a method that finds groups.")
    return centres


def assign(run: Run, x: Any, y: Any = None) -> Assignment:
    need_labels(x, y)
    return assigned(run.task, unstack(centres_of(run)), rows(run.task, run.fed.train.x, run.fed.schema, x, y))


def predict(run: Run, x: Any, client: str | None, cluster: int | None, support: Any, probabilities: bool) -> Tensor:
    if sum(v is not None for v in (client, cluster, support)) != 1:
        raise CoterieError("predict needs one of client, cluster and support: whose model is meant?")
    new = rows(run.task, run.fed.train.x, run.fed.schema, x).x
    if cluster is not None:
        return answer(run.task, run.task.outputs(pick(centres_of(run), group_of(run, cluster)), new), probabilities)
    method, shared, own, private, data = newcomer(run, *support) if client is None else member(run, client)
    return answer(run.task, method.predict(run.task, shared, own, private, data, new), probabilities)


def group_of(run: Run, cluster: int) -> int:
    k = count(centres_of(run))
    if not 0 <= cluster < k:
        raise CoterieError(f"cluster is {cluster}: the groups are 0 to {k - 1}.")
    return cluster


def member(run: Run, client: str) -> tuple[Algorithm, Any, Any, Any, Data]:
    """What `predict` and `model` of a method take, for a client that trained."""
    names = run.fed.names[: len(run.fed)]
    if client not in names:
        raise unknown("client", client, names)
    i, method = names.index(client), at_round(run.root, run.round).method
    shared, own = method.use(run.state)
    mine = lambda v: tree_map(lambda t: t[v.index[i]], v.table) if isinstance(v, Rows) else v[i]
    private = tree_map(lambda v: v[i], run.engine.snapshot())
    x, y = run.fed.train.client(i)
    return method, shared, tree_map(mine, own, is_leaf=is_rows), private, seen(run, x, y, run.homes[i])


def newcomer(run: Run, x: Any, y: Any) -> tuple[Algorithm, Any, Any, Any, Data]:
    """The same for a client that was never trained and joins with labelled rows."""
    method = at_round(run.root, run.round).method
    shared, _ = method.use(run.state)
    batch = rows(run.task, run.fed.train.x, run.fed.schema, x, y)
    data = seen(run, batch.x, batch.y, randomness.homes(["a newcomer"], run.options.seed)[0])
    own, private = method.join(run.task, shared, data)
    return method, shared, own, private, data


def seen(run: Run, x: Tensor, y: Tensor, home: Tensor) -> Data:
    x = x.to(run.task.dtype) if x.is_floating_point() else x
    y = y.to(run.task.dtype) if run.task.kind == "regression" else y
    return Data(Batch.of(x, y, run.task.dtype), randomness.keys(home, run.round, "evaluate"), home)


# ---------------------------------------------------------------------------------------------- files
def export(run: Run, path: str | Path, per: Per | None) -> Path:
    """Every file is written whole or not at all, the card last."""
    folder = Path(path)
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [1]):
        raise CoterieError(f"{folder} exists and is not empty: choose another folder to export to.")
    per = per or ("client" if run.method.centres(run.state) is None else "cluster")
    found = groups_models(run) if per == "cluster" else clients_models(run)
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {}
    for name, (title, params) in found.items():
        data = tensors_as_bytes({k: v.detach().cpu().contiguous() for k, v in params.items()})
        (folder / f"{name}.safetensors").write_bytes(data)
        files[name] = {"of": title, "sha256": hashlib.sha256(data).hexdigest()}
    write_whole(folder / CARD, json.dumps(card(run, per, files), indent=1, ensure_ascii=False) + "\n")
    return folder


def groups_models(run: Run) -> dict[str, tuple[str, Params]]:
    return {f"group-{k}": (f"group {k}", c) for k, c in enumerate(unstack(centres_of(run)))}


def clients_models(run: Run) -> dict[str, tuple[str, Params]]:
    if type(run.method).model is Algorithm.model:
        raise CoterieError(f"a client of {run.method.name} answers with several models: export them per cluster.")
    found: dict[str, tuple[str, Params]] = {}
    for i, client in enumerate(run.fed.names[: len(run.fed)]):
        method, shared, own, private, data = member(run, client)
        plain = re.sub(r"[^\w-]+", "-", client).strip("-") or "client"
        name = plain if plain not in found else f"{plain}-{i}"
        found[name] = (client, method.model(run.task, shared, own, private, data))
    return found


def card(run: Run, per: Per, files: dict[str, Any]) -> dict[str, Any]:
    groups = run.method.groups(run.state)
    found = [] if groups is None else hard(groups).tolist()
    last = next((row for row in reversed(run.history) if "loss" in row), {})
    schema = run.fed.schema
    whole: dict[str, Any] = to_json(
        {
            "coterie": __version__,
            "method": {"name": run.method.name, "settings": asdict(run.method)},  # type: ignore[call-overload]
            "data": run.fed.source,
            "rounds": run.round,
            "model": run.model_name,
            "kind": run.fed.kind,
            "classes": run.fed.classes,
            "labels": run.fed.labels,
            "input": list(run.fed.train.x.shape[1:]),
            "dtype": run.options.dtype,
            "schema": None if schema is None else json.loads(schema.to_json()),
            "scores": {k: v for k, v in last.items() if isinstance(v, float) and "seconds" not in k},
            "groups": {str(k): [n for n, g in zip(run.fed.names, found) if g == k] for k in sorted(set(found))},
            "per": per,
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
            schema = c["schema"]
            self.schema = None if schema is None else Schema.from_json(json.dumps(schema))
            whole = c["kind"] == "classification"
            x = torch.zeros(2, *map(int, c["input"]))
            part = Ragged(x, torch.zeros(2, dtype=torch.long if whole else torch.float), torch.tensor([2]))
            fed = Federation(("any",), part, part, c["kind"], c["classes"])
            files, dtype = (
                {str(n): dict(f) for n, f in c["files"].items()},
                {"float32": torch.float32, "float64": torch.float64}[c["dtype"]],
            )
        except OSError as e:
            raise CoterieError(f"{self.path / CARD} cannot be read ({e.strerror}): give a folder of `export`.") from e
        except (ValueError, KeyError, TypeError) as e:
            raise CoterieError(f"{self.path / CARD} is damaged ({e}): export the run again.") from e
        if model is None and c["model"].partition(":")[0] not in models.models():
            raise CoterieError(f"the model {c['model']} is one of your own: give it again, ct.load(path, model=…).")
        factory = models.build(c["model"], fed) if model is None else model
        self.like = x[:0]
        self.task = Task(factory, c["kind"], x, c["classes"], dtype)
        self.models = {name: self._read(name, facts) for name, facts in files.items()}

    def _read(self, name: str, facts: dict[str, Any]) -> Params:
        file, like = self.path / f"{name}.safetensors", self.task.init(0)
        if not re.fullmatch(NAME, name):
            raise CoterieError(f"{self.path / CARD} names a file {name!r}, which no export has: export the run again.")
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
        new = rows(self.task, self.like, self.schema, x).x
        return answer(self.task, self.task.outputs(self.models[name], new), probabilities)

    def assign(self, x: Any, y: Any = None) -> Assignment:
        """The exported model of least loss; the group is its place in `models`."""
        need_labels(x, y)
        return assigned(self.task, self.models.values(), rows(self.task, self.like, self.schema, x, y))

    def __repr__(self) -> str:
        return f"Exported({self.card['method']['name']}, {', '.join(self.models)})"
