"""Evaluation is an exchange like any other.

Written once, mapped by every engine, its bytes counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.clustering.losses import best_by_loss
from coterie.clustering.resampling import bootstrap_shares
from coterie.clustering.sketch import sketch
from coterie.core.call import EvaluationData
from coterie.core.contract import (
    Algorithm,
    Data,
    Finite,
    Losses,
    MixtureShares,
    Report,
    RowCount,
    Upload,
    Weight,
    client,
)
from coterie.core.params import Params, unstack
from coterie.core.task import Batch, Task
from coterie.metrics.histogram import count_scores, log_odds_of_guess
from coterie.metrics.scoring import MOST_CONFUSION, count_confusion

MEASURED = {
    "n": RowCount("how many rows were measured", exact=True),
    "loss": Losses("the sum of their losses"),
    "absolute": Losses("the sum of their absolute errors"),
    "y": Finite("the sum of their targets"),
    "y2": Finite("the sum of their squared targets", minimum=0),
    "brier": Losses("the sum of their squared distances between probability and truth"),
    "scored": RowCount(
        "how many rows have which predicted odds, in 256 steps, by class or by right and wrong",
        exact=True,
    ),
    "confusion": RowCount(
        "by class: how often it was taken for each other, of up to 12 classes", exact=True
    ),
    "hit": RowCount("by class: how many rows it got right"),
    "true": RowCount("by class: how many rows it has", exact=True),
    "guessed": RowCount("by class: how often it was guessed", exact=True),
}
MEMBERSHIP = {
    "losses": Losses("its mean loss under each centre"),
    "shares": MixtureShares("how often each centre fits best in a bootstrap over its rows"),
}
SKETCH_BINS = 4096  # numbers in a model's sketch; smaller models stay as they are


@dataclass(frozen=True)
class Evaluation:
    """What clients are asked besides the method's own functions.

    The method chooses and adapts on a client's training part; only the measuring sees the test
    part. choose_on="test" is the protocol of some papers: the method sees the rows it is measured
    on.
    """

    method: Algorithm
    choose_on: str = "train"

    def _choosing_data(self, evaluation: EvaluationData) -> Data:
        if self.choose_on == "train":
            return evaluation.train
        return evaluation.train._replace(own=evaluation.test, gram=())

    @client(report=MEASURED, max_calls=lambda evaluation: 2)
    def measure(
        self, task: Task, shared: Any, per_client: Any, private: Any, evaluation: EvaluationData
    ) -> tuple[Upload, Any]:
        """Sums over the client's test rows, from which every metric is computed."""
        data = self._choosing_data(evaluation)
        out = self.method.predict(task, shared, per_client, private, data, evaluation.test.x)
        return Upload({}, {}, measured_sums(task, out, evaluation.test)), private

    @client(report=MEASURED, max_calls=lambda evaluation: 2)
    def measure_newcomer(
        self, task: Task, shared: Any, per_client: Any, private: Any, evaluation: EvaluationData
    ) -> tuple[Upload, Any]:
        """The same for a client that was never trained: it joins first."""
        data = self._choosing_data(evaluation)
        per_client, joined = self.method.join(task, shared, data)
        out = self.method.predict(task, shared, per_client, joined, data, evaluation.test.x)
        return Upload({}, {}, measured_sums(task, out, evaluation.test)), private

    @client(report={"outputs": Report("outputs for rows that it was sent")})
    def outputs(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """The client's outputs for rows x that it is sent along."""
        sent, x = shared
        out = self.method.predict(task, sent, per_client, private, data, x)
        return Upload({}, {}, {"outputs": out}), private

    @client(weight=Weight())
    def personal_model(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """The model that the client would use."""
        model = self.method.model(task, shared, per_client, private, data)
        return Upload({"model": model}, torch.ones_like(data.size)[None], {}), private

    @client(weight=Weight())
    def newcomer_model(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """The model of a client that was never trained: it joins first."""
        per_client, joined = self.method.join(task, shared, data)
        model = self.method.model(task, shared, per_client, joined, data)
        return Upload({"model": model}, torch.ones_like(data.size)[None], {}), private

    @client(report={"losses": Losses()})
    def losses(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """The loss of the client's training rows under each centre [K], in the target's unit."""
        _, losses = best_by_loss(task, unstack(centres), data.all)
        losses = losses * task.loss_unit
        return Upload({}, {}, {"losses": losses.nan_to_num(torch.inf, torch.inf)}), private

    @client(report=MEMBERSHIP)
    def membership(
        self,
        task: Task,
        centres: Params,
        per_client: Any,
        private: Any,
        data: Data | EvaluationData,
    ) -> tuple[Upload, Any]:
        """How well each centre fits the client, and how sure that is.

        Asked about a part that was held out, it looks at that part alone; else at the training
        rows. These flatter the centre that they trained, and the more so, the fewer rows its group
        has: a client that is a group of its own is always sure.
        """
        rows = data.all if isinstance(data, Data) else data.test
        by_row = torch.stack([task.losses(centre, rows) for centre in unstack(centres)], 1)
        real = torch.where(rows.mask[:, None] > 0, by_row, 0.0)
        means = real.sum(0) / rows.mask.sum().clamp(min=1) * task.loss_unit
        report = {
            "losses": means.nan_to_num(torch.inf, torch.inf),
            "shares": bootstrap_shares(by_row, rows.mask),
        }
        return Upload({}, {}, report), private

    @client(report={"model": Report("a sketch of its model")})
    def model_sketch(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """The client's model in a few numbers, in which distances are kept."""
        model = self.method.model(task, shared, per_client, private, data)
        return Upload({}, {}, {"model": sketch(model, SKETCH_BINS, 0)}), private


def measured_sums(task: Task, out: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Sums over a client's rows, never the rows, from which every metric can be computed."""
    losses = task.measure(out, batch.y)
    report = {"n": batch.mask.sum(), "loss": sum_of_losses(losses, batch)}
    if task.kind == "regression":
        y = batch.y.double() * batch.mask
        absolute = sum_of_losses((out - batch.y).abs(), batch)
        return {**report, "absolute": absolute, "y": y.sum(), "y2": (y * y).sum()}
    return {**report, **class_sums(out, batch)}


def sum_of_losses(losses: Tensor, batch: Batch) -> Tensor:
    """The sum over the real rows; infinite where a model diverged."""
    real = torch.where(batch.mask > 0, losses, 0.0)
    return real.sum().nan_to_num(torch.inf, torch.inf)


def class_sums(out: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Counts of rows by class and by predicted odds, and squared errors of probabilities."""
    number = out.shape[-1]
    classes = torch.arange(number, device=out.device)
    truth = batch.y[:, None] == classes
    guess = out.argmax(-1)
    errors = ((out.softmax(-1) - truth.to(out.dtype)) ** 2).sum(-1)
    if number == 2:  # both classes have the same error, which counts once
        errors = errors / 2
        scored = count_scores(out[:, 1] - out[:, 0], batch.y, batch.mask)
    else:
        is_right = (guess == batch.y).long()
        scored = count_scores(log_odds_of_guess(out), is_right, batch.mask)
    report = {"brier": sum_of_losses(errors, batch), "scored": scored}
    if number <= MOST_CONFUSION:
        return {**report, "confusion": count_confusion(batch.y, guess, batch.mask, number)}
    real = batch.mask[:, None] > 0
    truth = truth & real
    guessed = (guess[:, None] == classes) & real
    counts = {"hit": truth & guessed, "true": truth, "guessed": guessed}
    return {**report, **{name: count.sum(0) for name, count in counts.items()}}
