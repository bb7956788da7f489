"""The client functions of evaluation: scores, losses, predictions and models of a client.

Evaluation is an exchange like training: every engine runs the same functions. Its bytes are counted
separately.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.clustering.kmeans import sketch
from coterie.clustering.losses import best_by_loss, bootstrap_shares
from coterie.core.call import EvaluationData
from coterie.core.contract import (
    Algorithm,
    Data,
    Finite,
    Losses,
    MixtureShares,
    Report,
    Upload,
    Weight,
    client,
)
from coterie.core.params import Params, unstack
from coterie.core.task import Task
from coterie.metrics.sums import EVALUATION_SUMS, SPREAD_SUMS, spread_sums, sum_over_samples

MEMBERSHIP = {
    "losses": Losses("its mean loss under each centre"),
    "shares": MixtureShares("how often each centre fits best in a bootstrap over its rows"),
}
ERROR_BINS = 1000  # of the histogram of absolute errors, each 1.4 % wide
SECURE_SUMS = EVALUATION_SUMS | SPREAD_SUMS
SKETCH_BINS = 4096  # numbers in a model's sketch; smaller models stay as they are


def error_edges(loss_unit: float) -> Tensor:
    """The edges of the bins of absolute errors, [ERROR_BINS + 1], in the label's unit."""
    sizes = torch.logspace(-4, 2, ERROR_BINS, dtype=torch.float64) * math.sqrt(loss_unit)
    return torch.cat([sizes.new_zeros(1), sizes])


@dataclass(frozen=True)
class Evaluation:
    """The client functions that every run has besides those of its method.

    It is the root of all client functions of a run: paths such as "method.inner" start here.

    The method chooses and adapts on a client's training split; only the scores come from the test
    split. With choose_on="test", the protocol of some papers, the method sees the test samples too.
    """

    method: Algorithm
    choose_on: str = "train"

    def _choosing_data(self, evaluation: EvaluationData) -> Data:
        if self.choose_on == "train":
            return evaluation.train
        return evaluation.train._replace(own=evaluation.evaluated, gram=())

    @client(report=EVALUATION_SUMS, max_calls=lambda evaluation: 2, secure="replaced")
    def measure(
        self, task: Task, shared: Any, per_client: Any, private: Any, evaluation: EvaluationData
    ) -> tuple[Upload, Any]:
        """Report sums over the evaluated samples, from which every metric is computed."""
        data = self._choosing_data(evaluation)
        out = self.method.predict(task, shared, per_client, private, data, evaluation.evaluated.x)
        return Upload({}, {}, sum_over_samples(task, out, evaluation.evaluated)), private

    @client(report=SECURE_SUMS, max_calls=lambda evaluation: 2, secure="only")
    def measure_summed(
        self, task: Task, shared: Any, per_client: Any, private: Any, evaluation: EvaluationData
    ) -> tuple[Upload, Any]:
        """Do the same under secure sums, with the spread of scores over clients."""
        upload, private = self.measure(task, shared, per_client, private, evaluation)
        return self._with_spread(task, upload), private

    @client(report=EVALUATION_SUMS, max_calls=lambda evaluation: 2, secure="replaced")
    def measure_unseen(
        self, task: Task, shared: Any, per_client: Any, private: Any, evaluation: EvaluationData
    ) -> tuple[Upload, Any]:
        """Do the same for an unseen client, which joins first."""
        data = self._choosing_data(evaluation)
        per_client, joined = self.method.join(task, shared, data)
        out = self.method.predict(task, shared, per_client, joined, data, evaluation.evaluated.x)
        return Upload({}, {}, sum_over_samples(task, out, evaluation.evaluated)), private

    @client(report=SECURE_SUMS, max_calls=lambda evaluation: 2, secure="only")
    def measure_unseen_summed(
        self, task: Task, shared: Any, per_client: Any, private: Any, evaluation: EvaluationData
    ) -> tuple[Upload, Any]:
        """Do the same for an unseen client under secure sums."""
        upload, private = self.measure_unseen(task, shared, per_client, private, evaluation)
        return self._with_spread(task, upload), private

    def _with_spread(self, task: Task, upload: Upload) -> Upload:
        return upload._replace(report=upload.report | spread_sums(task, upload.report))

    @client(report={"outputs": Report("outputs for rows that it was sent")})
    def outputs(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the client's outputs for the samples x that the server sends."""
        sent, x = shared
        out = self.method.predict(task, sent, per_client, private, data, x)
        return Upload({}, {}, {"outputs": out}), private

    @client(report={"interval": Report("an interval for rows that it was sent")})
    def interval(
        self,
        task: Task,
        shared: Any,
        per_client: Any,
        private: Any,
        data: Data,
        *,
        level: float,
    ) -> tuple[Upload, Any]:
        """Report prediction, low and high [n, 3] for the samples x that the server sends."""
        sent, x = shared
        out = self.method.predict(task, sent, per_client, private, data, x)
        ends = self.method.predict_interval(task, sent, per_client, private, data, x, level)
        return Upload({}, {}, {"interval": torch.cat([out[:, None], ends], 1)}), private

    @client(report={"errors": Finite("how many of its errors are how large", minimum=0)})
    def absolute_errors(
        self, task: Task, shared: Any, per_client: Any, private: Any, evaluation: EvaluationData
    ) -> tuple[Upload, Any]:
        """Report a histogram of the absolute errors on the evaluated samples."""
        rows = evaluation.evaluated
        data = self._choosing_data(evaluation)
        out = self.method.predict(task, shared, per_client, private, data, rows.x)
        size = (out - rows.y).abs().double()
        edges = error_edges(task.loss_unit).to(size.device)
        bins = torch.searchsorted(edges[1:], size).clamp(max=ERROR_BINS - 1)
        counts = torch.zeros(ERROR_BINS, dtype=torch.float64, device=size.device)
        counts = counts.scatter_add(0, bins, rows.mask.double())
        return Upload({}, {}, {"errors": counts}), private

    @client(weight=Weight())
    def personal_model(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Upload the model that the client predicts with."""
        model = self.method.model(task, shared, per_client, private, data)
        return Upload({"model": model}, torch.ones_like(data.size)[None], {}), private

    @client(weight=Weight())
    def unseen_model(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Upload the model of an unseen client, which joins first."""
        per_client, joined = self.method.join(task, shared, data)
        model = self.method.model(task, shared, per_client, joined, data)
        return Upload({"model": model}, torch.ones_like(data.size)[None], {}), private

    @client(report={"losses": Losses()})
    def losses(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the loss of the training samples under each centre [K], in the target's unit."""
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
        """Report the loss under each centre, and the confidence that each is the best.

        The samples are those of the evaluated split, which formed no cluster. On training samples
        the confidence would be too high: a client alone in its cluster would always have 1.
        """
        rows = data.all if isinstance(data, Data) else data.evaluated
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
        """Report a sketch of the client's model; sketches keep distances."""
        model = self.method.model(task, shared, per_client, private, data)
        return Upload({}, {}, {"model": sketch(model, SKETCH_BINS, 0)}), private
