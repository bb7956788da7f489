"""Predictions of a trained run, and cluster assignment of new clients.

assign(trained, x, y)             the cluster whose model has the least loss on a new client's data
predict(trained, x, cluster=2)    with a cluster model; support=(x, y): as a new client
predict_as_client(run, x, name)   with the model of a client that trained, which needs its samples
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core import randomness
from coterie.core.call import pick_clients
from coterie.core.contract import Algorithm, Data
from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.core.inputs import pack_inputs
from coterie.core.params import Params, count, pick, unstack
from coterie.core.targets import prediction_of
from coterie.core.task import Batch, Task
from coterie.data.roster import Roster
from coterie.runs.run import Run
from coterie.runs.trained import TrainedRun
from coterie.serve.intervals import add_conformal, check_level, group_members, has_posterior

MIN_SAMPLES = 10  # below it, an assignment is doubtful
MAX_LOSS_RATIO = 10  # to the typical loss; above it, no cluster fits


class Assignment(NamedTuple):
    """The cluster that fits a new client best.

    `str()` gives one line; `doubts` says why the assignment may be unreliable.
    """

    group: int
    losses: list[float]  # mean loss under each cluster model
    margin: float  # second least loss − least loss; near 0, both fit equally well
    typical_loss: float | None = None  # test loss of the clients that trained
    rows: int = 0  # number of samples that decided

    def __str__(self) -> str:
        losses = ", ".join(f"{k}: {loss:.4g}" for k, loss in enumerate(self.losses))
        if len(self.losses) == 1:
            return f"group {self.group}, the only one (loss {self.losses[0]:.4g})"
        margin = "no other group fits"
        if math.isfinite(self.margin):
            margin = f"margin {self.margin:.4g}"
        return f"group {self.group} (loss under each group's model {losses}; {margin})"

    @property
    def doubts(self) -> list[str]:
        """Why the assignment may be unreliable, one sentence each."""
        doubts = []
        if self.rows < MIN_SAMPLES:
            doubts.append(f"it rests on {self.rows} rows only; more rows may change it.")
        least = self.losses[self.group]
        if self.typical_loss is not None and not least <= MAX_LOSS_RATIO * self.typical_loss:
            doubts.append(
                f"it fits none of the groups: its least loss is {least:.3g}, and clients that "
                f"trained have {self.typical_loss:.3g}."
            )
        return doubts


# ------------------------------------------------------------------------------ groups
def assign(trained: TrainedRun, x: Any, y: Any = None) -> Assignment:
    """Assign a new client to the cluster whose model has the least loss; see `Result.assign`."""
    if not trained.finds_groups:
        raise CoterieError(
            f"{trained.method.name} has no groups: use a run of a method that finds groups, "
            "such as ifca."
        )
    batch = check_labelled_rows(trained.task, trained.roster, x, y)
    typical_loss = trained.last_evaluation.get("loss")
    return choose_group(trained.task, unstack(require_centres(trained)), batch, typical_loss)


def choose_group(
    task: Task, models: Sequence[Params], batch: Batch, typical_loss: float | None
) -> Assignment:
    """Choose the model with the least finite loss.

    Args:
        task: The model as a function of its parameters.
        models: The parameters of each cluster model.
        batch: The new client's labelled samples.
        typical_loss: The test loss of the clients that trained, if known.
    """
    losses = [float(task.loss(model, batch)) * task.loss_unit for model in models]
    finite = [loss if math.isfinite(loss) else math.inf for loss in losses]
    order = sorted(range(len(losses)), key=finite.__getitem__)
    margin = math.inf
    if len(order) > 1:
        margin = finite[order[1]] - finite[order[0]]
    return Assignment(order[0], losses, margin, typical_loss, len(batch.x))


def require_centres(trained: TrainedRun) -> Params:
    """Return the cluster models; raise an error for methods without clusters."""
    centres = trained.centres
    if centres is None:
        raise CoterieError(
            f"{trained.method.name} has no groups: name a client, or use a method that finds "
            "groups."
        )
    return centres


# ------------------------------------------------------------------------------ predictions
def predict(
    trained: TrainedRun,
    x: Any,
    *,
    cluster: int | None = None,
    support: Any = None,
    probabilities: bool = False,
    interval: float | None = None,
    load_run: Callable[[], Run] | None = None,
) -> Tensor:
    """Predict with a cluster model or as a new client; see `Result.predict`.

    `load_run` returns the run with its data, which intervals of some methods need.
    """
    if interval is not None:
        check_level(trained.task, interval)
    if cluster is None and support is None and has_one_model(trained):
        cluster = 0
    require_one_of(cluster=cluster, support=support)
    rows = check_rows(trained.task, trained.roster, x, use_labels=False).x
    group = cluster
    if cluster is not None:
        model = pick(require_centres(trained), check_cluster(trained, cluster))
        outputs = trained.task.outputs(model, rows)
    else:
        joined = join_as_new(trained, support)
        if interval is not None and has_posterior(trained.method):
            return joined.predict_interval(rows, interval)
        outputs = joined.predict(rows)
        if interval is not None and trained.groups is not None:
            group = assign(trained, *split_support(support)).group
    if interval is None:
        return to_predictions(trained.task, outputs, probabilities)
    if has_posterior(trained.method):
        raise CoterieError(
            "an interval depends on the site's own rows", "name a client, or give its labelled rows"
        )
    assert load_run is not None
    return add_conformal(load_run(), outputs, interval, group_members(trained, group))


def has_one_model(trained: TrainedRun) -> bool:
    """Return whether all clients use the same model."""
    return not trained.finds_groups and trained.centres is not None


def check_cluster(trained: TrainedRun, cluster: int) -> int:
    """Return the cluster number; raise an error if there is no such cluster."""
    groups = count(require_centres(trained))
    if not 0 <= cluster < groups:
        raise CoterieError(f"cluster is {cluster}: the groups are 0 to {groups - 1}.")
    return cluster


class JoinedClient(NamedTuple):
    """A new client that has joined with its labelled samples."""

    method: Algorithm
    task: Task
    shared: Any
    per_client: Any
    private: Any
    data: Data

    def predict(self, x: Tensor) -> Tensor:
        """Return the outputs for rows x."""
        return self.method.predict(
            self.task, self.shared, self.per_client, self.private, self.data, x
        )

    def predict_interval(self, x: Tensor, level: float) -> Tensor:
        """Return prediction, low and high for rows x, [n, 3]."""
        ends = self.method.predict_interval(
            self.task, self.shared, self.per_client, self.private, self.data, x, level
        )
        return torch.cat([self.predict(x)[:, None], ends], 1)


def join_as_new(trained: TrainedRun, support: Any) -> JoinedClient:
    """Let a client with these labelled samples join."""
    method = trained.method_now
    shared, _ = method.use(trained.state)
    x, y = split_support(support)
    batch = check_labelled_rows(trained.task, trained.roster, x, y)
    # this name determines the random draws since 0.2
    client_key = randomness.client_keys(["a newcomer"], trained.options.seed)[0]
    key = randomness.keys(client_key, trained.round, "evaluate")
    data = Data(batch, key, client_key)
    per_client, private = method.join(trained.task, shared, data)
    return JoinedClient(method, trained.task, shared, per_client, private, data)


def split_support(support: Any) -> tuple[Any, Any]:
    """Return (x, y) of labelled samples; a table has its labels in x."""
    return (support, None) if is_table(support) else support


def predict_as_client(
    run: Run, x: Any, client: str, probabilities: bool = False, interval: float | None = None
) -> Tensor:
    """Predict with the model of a client that trained; see `Result.predict`."""
    if interval is not None:
        check_level(run.task, interval)
    rows = check_rows(run.task, run.roster, x, use_labels=False).x
    ids = client_ids(run, [client])
    shared, per_client = at_last_round(run).use(run.state)
    function, static = "outputs", {}
    if interval is not None and has_posterior(run.method):
        function, static = "interval", {"level": interval}
    picked = pick_clients(per_client, ids)
    answers = run.ask_clients(function, ids, (shared, rows), picked, **static)
    if not len(answers.ids):
        raise CoterieError(
            f"client {client!r} returned no finite outputs: train with a smaller lr."
        )
    outputs = answers.report[function][0]
    if interval is None:
        return to_predictions(run.task, outputs, probabilities)
    if static:
        return outputs
    trained, own = run.trained(), int(ids[0])
    groups = trained.hard_groups
    group = None if groups is None else int(groups[own])
    return add_conformal(run, outputs, interval, group_members(trained, group), own)


def at_last_round(run: Run) -> Algorithm:
    """Return the method with the step sizes of the last round."""
    return run.trained().method_now


def client_ids(run: Run, names: Sequence[str]) -> Tensor:
    """Return the positions of these clients in the roster, int64 [n]."""
    known = {name: i for i, name in enumerate(run.roster.training_names)}
    for name in names:
        if name not in known:
            raise unknown_name("client", name, known)
    return torch.tensor([known[name] for name in names])


def to_predictions(task: Task, outputs: Any, probabilities: bool) -> Tensor:
    """Convert outputs to targets, class numbers or probabilities, on the CPU."""
    return task.target.predictions(prediction_of(outputs).detach().cpu(), probabilities)


def require_one_of(**whose: Any) -> None:
    """Check that exactly one of client, cluster and support is given."""
    given = [name for name, value in whose.items() if value is not None]
    if len(given) == 1:
        return
    what = "predict needs to know which model to use"
    if given:
        what = f"predict got {' and '.join(given)}, which name different models"
    choices = [Option("client"), Option("cluster"), Option("support")]
    raise CoterieError(what, "give one of {}, {} and {}", options=choices)


# ------------------------------------------------------------------------------ input
def check_rows(
    task: Task, roster: Roster, x: Any, y: Any = None, *, use_labels: bool = True
) -> Batch:
    """Check a user's samples and convert them to a batch.

    Args:
        task: The model that will receive them.
        roster: Shape, classes and schema of the training data.
        x: Samples [n, ...], or a DataFrame, which is encoded as in training.
        y: Labels [n]; zeros if they are missing.
        use_labels: Whether to read the label column of a DataFrame.

    Raises:
        CoterieError: If shape, type or values do not fit the model.
    """
    if is_table(x):
        x, label_column = encode_table(roster, x, use_labels)
        y = label_column if y is None else y
    if roster.fields:
        if not isinstance(x, Mapping):
            names = ", ".join(field.name for field in roster.fields)
            raise CoterieError(f"x must be a dict of {names}, the inputs of this run.")
        x = pack_inputs({name: as_input(name, v) for name, v in x.items()}, roster.fields, "x")
    x = check_x(task, roster, as_tensor("x", x))
    if y is None:
        y = task.target.example(len(x), task.dtype)
    else:
        y = check_y(task, as_tensor("y", y), len(x))
    return Batch.of(x.to(task.device), y.to(task.device), task.dtype)


def is_table(x: Any) -> bool:
    """Return whether x is a DataFrame."""
    return hasattr(x, "columns")


def encode_table(roster: Roster, table: Any, use_labels: bool) -> tuple[Any, Any]:
    """Encode a DataFrame by the schema of the training tables, as (x, y or None)."""
    if roster.schema is None:
        raise CoterieError(
            "x is a table, and this run was not trained on tables: give an array or a tensor."
        )
    for remark in roster.schema.remarks(table):
        warnings.warn(remark, stacklevel=6)
    if not use_labels:
        table = table.drop(columns=roster.schema.label, errors="ignore")
    return roster.schema.encode(table)


def check_labelled_rows(task: Task, roster: Roster, x: Any, y: Any = None) -> Batch:
    """Check a user's labelled samples and convert them to a batch; labels are required."""
    if task.kind == "self-supervised":
        return check_rows(task, roster, x)
    if y is None and not is_table(x):
        raise CoterieError("the rows need labels: give y, or a table with the label column.")
    if y is None and roster.schema is not None and roster.schema.label not in x:
        raise CoterieError(f"the table lacks the column {roster.schema.label}", "add the labels")
    return check_rows(task, roster, x, y)


def check_x(task: Task, roster: Roster, x: Tensor) -> Tensor:
    """Check shape and values, and convert to the model's type."""
    if not len(x) or tuple(x.shape[1:]) != roster.row_shape:
        raise CoterieError(
            f"x has the shape {tuple(x.shape)}: it must be rows of the shape {roster.row_shape}."
        )
    if not bool(x.isfinite().all()):
        raise CoterieError("x holds NaN or infinity: fill or remove these rows.")
    return x.to(torch.int64 if roster.tokens else task.dtype)


def check_y(task: Task, y: Tensor, rows: int) -> Tensor:
    """Check that there is one finite label per sample, and that classes are known."""
    target = task.target
    if y.shape != (rows, *target.shape):
        wanted = "one label per row" if not target.shape else f"targets of shape {target.shape}"
        raise CoterieError(f"y has the shape {tuple(y.shape)} for {rows} rows: give {wanted}.")
    if not bool(y.isfinite().all()):
        raise CoterieError("y holds NaN or infinity: give every row a label.")
    if not target.row.has_classes:
        if task.kind == "multilabel" and not bool(((y == 0) | (y == 1)).all()):
            raise CoterieError("y must hold 0 and 1, whether each label applies.")
        return y.to(task.dtype)
    classes = task.classes or 0
    is_class = (y >= 0) & (y < classes) & (y == y.floor())
    if not bool((is_class | ~target.labelled(y)).all()):
        ignored = f", or {target.ignore_index}" if target.row.has_positions else ""
        raise CoterieError(
            f"y must hold whole numbers from 0 to {classes - 1}, the classes of the run{ignored}."
        )
    return y.long()


def as_input(name: str, values: Any) -> Tensor:
    """Convert one of several inputs to a tensor of floats or of int64."""
    found = as_tensor(f"the input {name!r}", values)
    is_whole = found.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)
    return found.long() if is_whole else found.to(torch.promote_types(found.dtype, torch.float32))


def as_tensor(name: str, values: Any) -> Tensor:
    """Convert numbers of any kind to a tensor."""
    try:
        if hasattr(values, "__array__") and not isinstance(values, Tensor):
            values = np.array(values)  # a copy, as torch warns about read-only arrays
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as e:
        raise CoterieError(f"{name} does not hold numbers ({e}): give an array or a tensor.") from e
    if tensor.dim() == 0 or tensor.is_complex():
        raise CoterieError(
            f"{name} is {tensor.dtype} of the shape {tuple(tensor.shape)}: "
            "give a number per cell of rows."
        )
    return tensor
