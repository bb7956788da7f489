"""Evaluation is an exchange like any other.

Written once, mapped by every engine, its bytes counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from coterie.clustering.kmeans import sketch
from coterie.clustering.losses import best_by_loss, bootstrap_shares
from coterie.core.call import EvaluationData
from coterie.core.contract import (
    Algorithm,
    Data,
    Losses,
    MixtureShares,
    Report,
    Upload,
    Weight,
    client,
)
from coterie.core.params import Params, unstack
from coterie.core.task import Task
from coterie.metrics.scores import EVALUATION_SUMS, sum_over_samples

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

    @client(report=EVALUATION_SUMS, max_calls=lambda evaluation: 2)
    def measure(
        self, task: Task, shared: Any, per_client: Any, private: Any, evaluation: EvaluationData
    ) -> tuple[Upload, Any]:
        """Sums over the client's test rows, from which every metric is computed."""
        data = self._choosing_data(evaluation)
        out = self.method.predict(task, shared, per_client, private, data, evaluation.test.x)
        return Upload({}, {}, sum_over_samples(task, out, evaluation.test)), private

    @client(report=EVALUATION_SUMS, max_calls=lambda evaluation: 2)
    def measure_newcomer(
        self, task: Task, shared: Any, per_client: Any, private: Any, evaluation: EvaluationData
    ) -> tuple[Upload, Any]:
        """The same for a client that was never trained: it joins first."""
        data = self._choosing_data(evaluation)
        per_client, joined = self.method.join(task, shared, data)
        out = self.method.predict(task, shared, per_client, joined, data, evaluation.test.x)
        return Upload({}, {}, sum_over_samples(task, out, evaluation.test)), private

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
