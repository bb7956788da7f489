"""Evaluation is an exchange like any other.

Written once, mapped by every engine, its bytes counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.clustering.resampling import shares_of_resamples
from coterie.clustering.sketch import sketch
from coterie.common.losses import least_loss
from coterie.contract import (
    Algorithm,
    Data,
    Finite,
    Losses,
    Report,
    RowCount,
    Shares,
    Upload,
    Weight,
    client,
)
from coterie.engine.call import Exam
from coterie.params import Params, unstack
from coterie.task import Batch, Task

MEASURED = {
    "n": RowCount("how many rows were measured", exact=True),
    "loss": Losses("the sum of their losses"),
    "y": Finite("the sum of their targets"),
    "y2": Finite("the sum of their squared targets", least=0),
    "hit": RowCount("by class: how many rows it got right"),
    "true": RowCount("by class: how many rows it has", exact=True),
    "guessed": RowCount("by class: how often it was guessed", exact=True),
}
MEMBERSHIP = {
    "losses": Losses("its mean loss under each centre"),
    "shares": Shares("how often each centre fits best, when its rows are drawn again and again"),
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

    def _choosing_data(self, exam: Exam) -> Data:
        if self.choose_on == "train":
            return exam.train
        return exam.train._replace(all=exam.test)

    @client(report=MEASURED, most=lambda evaluation: 2)
    def measure(
        self, task: Task, shared: Any, per_client: Any, private: Any, exam: Exam
    ) -> tuple[Upload, Any]:
        """Sums over the client's test rows, from which every metric is computed."""
        data = self._choosing_data(exam)
        out = self.method.predict(task, shared, per_client, private, data, exam.test.x)
        return Upload({}, {}, measured_sums(task, out, exam.test)), private

    @client(report=MEASURED, most=lambda evaluation: 2)
    def measure_newcomer(
        self, task: Task, shared: Any, per_client: Any, private: Any, exam: Exam
    ) -> tuple[Upload, Any]:
        """The same for a client that was never trained: it joins first."""
        data = self._choosing_data(exam)
        per_client, joined = self.method.join(task, shared, data)
        out = self.method.predict(task, shared, per_client, joined, data, exam.test.x)
        return Upload({}, {}, measured_sums(task, out, exam.test)), private

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

    @client(report={"losses": Losses()})
    def losses(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """The loss of the client's training rows under each centre [K], in the target's unit."""
        _, losses = least_loss(task, unstack(centres), data.all)
        losses = losses * task.loss_unit
        return Upload({}, {}, {"losses": losses.nan_to_num(torch.inf, torch.inf)}), private

    @client(report=MEMBERSHIP)
    def membership(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data | Exam
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
            "shares": shares_of_resamples(by_row, rows.mask),
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
    losses = torch.where(batch.mask > 0, task.measure(out, batch.y), 0.0)
    report = {"n": batch.mask.sum(), "loss": losses.sum().nan_to_num(torch.inf, torch.inf)}
    if task.kind == "regression":
        y = batch.y.double() * batch.mask
        return {**report, "y": y.sum(), "y2": (y * y).sum()}
    classes = torch.arange(out.shape[-1], device=out.device)
    real = batch.mask[:, None] > 0
    truth = (batch.y[:, None] == classes) & real
    guess = (out.argmax(-1)[:, None] == classes) & real
    counts = {"hit": truth & guess, "true": truth, "guessed": guess}
    return {**report, **{name: count.sum(0) for name, count in counts.items()}}
