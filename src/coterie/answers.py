"""What a finished run is for: a newcomer's group, and predictions.

result.assign(x, y)                       the group of a new client, its losses under every centre, the margin
result.predict(x, client="north")         or cluster=2, or support=(x, y): rows of a client that was never trained
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie import randomness
from coterie.contract import Algorithm, Data, Rows, at_round
from coterie.data.schema import Schema
from coterie.engine.call import is_rows
from coterie.engine.rounds import Run
from coterie.errors import CoterieError, unknown
from coterie.params import Params, count, pick, unstack
from coterie.task import Batch, Task


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
        for remark in schema.remarks(x):
            warnings.warn(remark, stacklevel=4)
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
    if run.method.groups(run.state) is None:
        raise CoterieError(f"{run.method.name} has no groups: take a run of a method that finds groups, such as ifca.")
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
    if run.fed.blank:
        raise CoterieError(f"client {client!r} answers with the help of its training rows, which are not here.")
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
