"""What a trained run answers: the group of a newcomer, and predictions.

assign(trained, x, y)             the group whose model fits a new client's rows best
predict(trained, x, cluster=2)    by a group's model; support=(x, y): as a newcomer with these rows
predict_as_client(run, x, name)   by the model of a client that trained; it needs the client's rows
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core import randomness
from coterie.core.call import pick_clients
from coterie.core.contract import Algorithm, Data
from coterie.core.errors import CoterieError, Option, unknown_name
from coterie.core.params import Params, count, pick, unstack
from coterie.core.task import Batch, Task
from coterie.runs.run import Run
from coterie.runs.trained import TrainedRun
from coterie.serve.rows import check_labelled_rows, check_rows, is_table

FEW = 10  # rows below which a choice of group is doubtful
FITS = 10  # times the usual loss: above it, no group fits


class Assignment(NamedTuple):
    """Which group fits a client, and how clearly."""

    group: int
    losses: list[float]  # mean loss of its rows under each group's model
    margin: float  # second least loss − the least: near 0, the choice is a toss-up
    usual: float | None = None  # test loss of the clients that trained, with their own models
    rows: int = 0  # number of rows that decided

    def __str__(self) -> str:
        losses = ", ".join(f"{k}: {loss:.4g}" for k, loss in enumerate(self.losses))
        return (
            f"group {self.group} (loss under each group's model {losses}; margin {self.margin:.4g})"
        )

    @property
    def doubts(self) -> list[str]:
        """Why the choice may mean little, a sentence each."""
        doubts = []
        if self.rows < FEW:
            doubts.append(f"it is chosen by {self.rows} rows only, and more may change it.")
        least = self.losses[self.group]
        if self.usual is not None and not least <= FITS * self.usual:
            doubts.append(
                f"it fits none of the groups: its least loss is {least:.3g}, and clients that "
                f"trained have {self.usual:.3g}."
            )
        return doubts


# ------------------------------------------------------------------------------ groups
def assign(trained: TrainedRun, x: Any, y: Any = None) -> Assignment:
    """The group whose model has the least loss on a new client's labelled rows."""
    if trained.groups is None:
        raise CoterieError(
            f"{trained.method.name} has no groups: take a run of a method that finds groups, "
            "such as ifca."
        )
    batch = check_labelled_rows(trained.task, trained.roster, x, y)
    usual = trained.last_evaluation.get("loss")
    return choose_group(trained.task, unstack(require_centres(trained)), batch, usual)


def choose_group(
    task: Task, models: Sequence[Params], batch: Batch, usual: float | None
) -> Assignment:
    """The model with the least finite loss on these rows."""
    losses = [float(task.loss(model, batch)) * task.loss_unit for model in models]
    finite = [loss if math.isfinite(loss) else math.inf for loss in losses]
    order = sorted(range(len(losses)), key=finite.__getitem__)
    margin = math.inf
    if len(order) > 1:
        margin = finite[order[1]] - finite[order[0]]
    return Assignment(order[0], losses, margin, usual, len(batch.x))


def require_centres(trained: TrainedRun) -> Params:
    """The groups' models; refused for methods without groups."""
    centres = trained.centres
    if centres is None:
        raise CoterieError(
            f"{trained.method.name} has no groups: ask for a client, or take a method that finds "
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
) -> Tensor:
    """Predictions for rows x by a group's model, or for a newcomer with labelled rows `support`."""
    if cluster is None and support is None and has_one_model(trained):
        cluster = 0
    require_one_of(cluster=cluster, support=support)
    rows = check_rows(trained.task, trained.roster, x, use_labels=False).x
    if cluster is not None:
        model = pick(require_centres(trained), check_cluster(trained, cluster))
        outputs = trained.task.outputs(model, rows)
    else:
        outputs = _outputs_of_newcomer(trained, support, rows)
    return to_predictions(trained.task, outputs, probabilities)


def has_one_model(trained: TrainedRun) -> bool:
    """Whether one model serves all clients, so that nobody need say whose is meant."""
    return trained.groups is None and trained.centres is not None


def check_cluster(trained: TrainedRun, cluster: int) -> int:
    """The number of a group that exists."""
    groups = count(require_centres(trained))
    if not 0 <= cluster < groups:
        raise CoterieError(f"cluster is {cluster}: the groups are 0 to {groups - 1}.")
    return cluster


def _outputs_of_newcomer(trained: TrainedRun, support: Any, rows: Tensor) -> Tensor:
    """Outputs for a client that was never trained and joins with labelled rows."""
    x, y = (support, None) if is_table(support) else support
    method = trained.method_now
    shared, _ = method.use(trained.state)
    batch = check_labelled_rows(trained.task, trained.roster, x, y)
    client_key = randomness.client_keys(["a newcomer"], trained.options.seed)[0]
    key = randomness.keys(client_key, trained.round, "evaluate")
    data = Data(batch, key, client_key)
    per_client, private = method.join(trained.task, shared, data)
    return method.predict(trained.task, shared, per_client, private, data, rows)


def predict_as_client(run: Run, x: Any, client: str, probabilities: bool = False) -> Tensor:
    """Predictions for rows x by the model of a client that trained."""
    rows = check_rows(run.task, run.roster, x, use_labels=False).x
    ids = client_ids(run, [client])
    shared, per_client = at_last_round(run).use(run.state)
    answers = run.ask_clients("outputs", ids, (shared, rows), pick_clients(per_client, ids))
    if not len(answers.ids):
        raise CoterieError(f"client {client!r} gave no finite answer: train with a smaller lr.")
    return to_predictions(run.task, answers.report["outputs"][0], probabilities)


def at_last_round(run: Run) -> Algorithm:
    """The method of a run as it is after the last round."""
    return run.trained().method_now


def client_ids(run: Run, names: Sequence[str]) -> Tensor:
    """The numbers of these clients."""
    known = {name: i for i, name in enumerate(run.roster.training_names)}
    for name in names:
        if name not in known:
            raise unknown_name("client", name, known)
    return torch.tensor([known[name] for name in names])


def to_predictions(task: Task, outputs: Tensor, probabilities: bool) -> Tensor:
    """Targets, class numbers, or the probability of each class."""
    if task.kind == "regression":
        return outputs
    return outputs.softmax(-1) if probabilities else outputs.argmax(-1)


def require_one_of(**whose: Any) -> None:
    """Refuse a call that does not say, or says twice, whose model is meant."""
    given = [name for name, value in whose.items() if value is not None]
    if len(given) == 1:
        return
    what = "predict must know whose model is meant"
    if given:
        what = f"predict is asked for the models of {' and '.join(given)} at once"
    choices = [Option("client"), Option("cluster"), Option("support")]
    raise CoterieError(what, "give one of {}, {} and {}", options=choices)
