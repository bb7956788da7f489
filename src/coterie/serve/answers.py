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
from coterie.errors import CoterieError, unknown
from coterie.params import Params, count, pick, unstack
from coterie.runs.run import Run
from coterie.task import Batch, Task

FEW = 10  # rows below which a choice of group is doubtful
FITS = 10  # times the usual loss: what is above fits no group


class Assignment(NamedTuple):
    """Which group fits a client, and how clearly."""

    group: int
    losses: list[float]  # mean loss of its rows under each group's model
    margin: float  # second least loss − the least: near 0, the choice is a toss-up
    usual: float | None = None  # the test loss of the clients that trained, with their own models
    rows: int = 0  # that it was chosen by

    def __str__(self) -> str:
        losses = ", ".join(f"{k}: {loss:.4g}" for k, loss in enumerate(self.losses))
        return (
            f"group {self.group} (loss under each group's model {losses}; margin {self.margin:.4g})"
        )

    @property
    def doubts(self) -> list[str]:
        """Why the choice may mean little, a sentence each."""
        least, found = min(self.losses), []
        if self.rows < FEW:
            found.append(f"it is chosen by {self.rows} rows only, and more may change it.")
        if self.usual is not None and not least <= FITS * self.usual:
            usual = f"clients that trained have {self.usual:.3g}"
            found.append(f"it fits none of the groups: its least loss is {least:.3g}, and {usual}.")
        return found


# ---------------------------------------------------------------------------------------------- rows from outside
def rows(
    task: Task, like: Tensor, schema: Schema | None, x: Any, y: Any = None, labels: bool = True
) -> Batch:
    """Rows that somebody brings, checked; without y, zeros stand for it. A DataFrame is encoded as in training.

    labels: whether those of a DataFrame are looked at.
    """
    if hasattr(x, "columns"):
        if schema is None:
            raise CoterieError(
                "x is a table, and this run was not trained on tables: give an array or a tensor."
            )
        for remark in schema.remarks(x):
            warnings.warn(remark, stacklevel=4)
        x, found = schema.encode(x if labels else x.drop(columns=schema.label, errors="ignore"))
        y = found if y is None else y
    x = tensor("x", x)
    if not len(x) or x.shape[1:] != like.shape[1:]:
        raise CoterieError(
            f"x has the shape {tuple(x.shape)}: it must be rows of the shape {tuple(like.shape[1:])}."
        )
    if not bool(x.isfinite().all()):
        raise CoterieError("x holds NaN or infinity: fill or remove these rows.")
    x = x.to(like.dtype if not like.is_floating_point() else task.dtype)
    whole = task.kind == "classification"
    y = torch.zeros(len(x)) if y is None else tensor("y", y)
    if y.shape != (len(x),):
        raise CoterieError(
            f"y has the shape {tuple(y.shape)} for {len(x)} rows: give one label per row."
        )
    if not bool(y.isfinite().all()):
        raise CoterieError("y holds NaN or infinity: give every row a label.")
    if whole and not bool(((y >= 0) & (y < (task.classes or 0)) & (y == y.floor())).all()):
        raise CoterieError(
            f"y must hold whole numbers from 0 to {(task.classes or 0) - 1}, the classes of the run."
        )
    return Batch.of(x, y.long() if whole else y.to(task.dtype), task.dtype)


def tensor(name: str, values: Any) -> Tensor:
    try:
        found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as e:
        raise CoterieError(f"{name} does not hold numbers ({e}): give an array or a tensor.") from e
    if found.dim() == 0 or found.is_complex():
        raise CoterieError(
            f"{name} is {found.dtype} of the shape {tuple(found.shape)}: give a number per cell of rows."
        )
    return found


def need_labels(x: Any, y: Any) -> None:
    if y is None and not hasattr(x, "columns"):
        raise CoterieError("the rows need labels: give y, or a table with the label column.")


def assigned(task: Task, models: Iterable[Params], batch: Batch, usual: float | None) -> Assignment:
    losses = [float(task.loss(m, batch)) for m in models]
    order = sorted(
        range(len(losses)), key=lambda k: losses[k] if math.isfinite(losses[k]) else math.inf
    )
    margin = losses[order[1]] - losses[order[0]] if len(order) > 1 else math.inf
    return Assignment(order[0], losses, margin, usual, len(batch.x))


def answer(task: Task, outputs: Tensor, probabilities: bool) -> Tensor:
    if task.kind == "regression":
        return outputs
    return outputs.softmax(-1) if probabilities else outputs.argmax(-1)


# ---------------------------------------------------------------------------------------------- of a run
def centres(run: Run) -> Params | None:
    return run.method.centres(run.state)


def centres_of(run: Run) -> Params:
    found = centres(run)
    if found is None:
        raise CoterieError(
            f"{run.method.name} has no groups: ask for a client, or take a method that finds groups."
        )
    return found


def assign(run: Run, x: Any, y: Any = None) -> Assignment:
    need_labels(x, y)
    if run.method.groups(run.state) is None:
        raise CoterieError(
            f"{run.method.name} has no groups: take a run of a method that finds groups, such as ifca."
        )
    batch = rows(run.task, run.fed.train.x, run.fed.schema, x, y)
    usual = next((row["loss"] for row in reversed(run.history) if "loss" in row), None)
    return assigned(run.task, unstack(centres_of(run)), batch, usual)


def predict(
    run: Run, x: Any, client: str | None, cluster: int | None, support: Any, probabilities: bool
) -> Tensor:
    if support is not None and hasattr(support, "columns"):
        support = support, None
    if (
        not given(client, cluster, support)
        and run.method.groups(run.state) is None
        and centres(run) is not None
    ):
        cluster = 0  # there is one model for all
    one_of(client, cluster, support)
    new = rows(run.task, run.fed.train.x, run.fed.schema, x, labels=False).x
    if cluster is not None:
        return answer(
            run.task,
            run.task.outputs(pick(centres_of(run), group_of(run, cluster)), new),
            probabilities,
        )
    method, shared, per_client, private, data = (
        newcomer(run, *support) if client is None else member(run, client)
    )
    return answer(
        run.task, method.predict(run.task, shared, per_client, private, data, new), probabilities
    )


def given(client: Any, cluster: Any, support: Any) -> list[str]:
    return [
        name
        for name, v in (("client", client), ("cluster", cluster), ("support", support))
        if v is not None
    ]


def one_of(*whose: Any) -> None:
    """Whose model is meant must be said once."""
    found = given(*whose)
    if len(found) != 1:
        both = f", not {' and '.join(found)}" if found else ""
        raise CoterieError(
            f"predict needs one of --client, --cluster and --support{both}: whose model is meant?"
        )


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
        raise CoterieError(
            f"client {client!r} answers with the help of its training rows, which are not here."
        )
    i, method = names.index(client), at_round(run.root, run.round).method
    shared, per_client = method.use(run.state)
    mine = lambda v: tree_map(lambda t: t[v.index[i]], v.table) if isinstance(v, Rows) else v[i]
    private = tree_map(lambda v: v[i], run.engine.snapshot())
    x, y = run.fed.train.client(i)
    return (
        method,
        shared,
        tree_map(mine, per_client, is_leaf=is_rows),
        private,
        seen(run, x, y, run.client_keys[i]),
    )


def newcomer(run: Run, x: Any, y: Any) -> tuple[Algorithm, Any, Any, Any, Data]:
    """The same for a client that was never trained and joins with labelled rows."""
    need_labels(x, y)
    method = at_round(run.root, run.round).method
    shared, _ = method.use(run.state)
    batch = rows(run.task, run.fed.train.x, run.fed.schema, x, y)
    data = seen(run, batch.x, batch.y, randomness.client_keys(["a newcomer"], run.options.seed)[0])
    per_client, private = method.join(run.task, shared, data)
    return method, shared, per_client, private, data


def seen(run: Run, x: Tensor, y: Tensor, client_key: Tensor) -> Data:
    x = x.to(run.task.dtype) if x.is_floating_point() else x
    y = y.to(run.task.dtype) if run.task.kind == "regression" else y
    return Data(
        Batch.of(x, y, run.task.dtype),
        randomness.keys(client_key, run.round, "evaluate"),
        client_key,
    )
