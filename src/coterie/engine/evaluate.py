"""Evaluation is an exchange like any other, written once and mapped by every engine; its bytes are counted apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.contract import Algorithm, Data, Upload, client
from coterie.engine.call import Exam
from coterie.task import Batch, Task


@dataclass(frozen=True)
class Evaluation:
    """The method chooses and adapts on a client's training part; only the measuring sees the test part.

    choose_on="test" is the protocol of some papers: then the method sees the rows it is measured on.
    """

    method: Algorithm
    choose_on: str = "train"

    def _seen(self, exam: Exam) -> Data:
        return exam.train if self.choose_on == "train" else exam.train._replace(all=exam.test)

    @client
    def measure(
        self, task: Task, shared: Any, per_client: Any, private: Any, exam: Exam
    ) -> tuple[Upload, Any]:
        out = self.method.predict(task, shared, per_client, private, self._seen(exam), exam.test.x)
        return Upload({}, {}, facts(task, out, exam.test)), private

    @client
    def measure_newcomer(
        self, task: Task, shared: Any, per_client: Any, private: Any, exam: Exam
    ) -> tuple[Upload, Any]:
        """A client that was never trained joins first."""
        data = self._seen(exam)
        per_client, joined = self.method.join(task, shared, data)
        out = self.method.predict(task, shared, per_client, joined, data, exam.test.x)
        return Upload({}, {}, facts(task, out, exam.test)), private


def facts(task: Task, out: Tensor, batch: Batch) -> dict[str, Tensor]:
    """What every metric can be computed from, per client: sums over its rows, never the rows."""
    losses = torch.where(batch.mask > 0, task.measure(out, batch.y), 0.0)
    report = {"n": batch.mask.sum(), "loss": losses.sum().nan_to_num(torch.inf, torch.inf)}
    if task.kind == "regression":
        y = batch.y.double() * batch.mask
        return {**report, "y": y.sum(), "y2": (y * y).sum()}
    classes = torch.arange(out.shape[-1], device=out.device)
    real = batch.mask[:, None] > 0
    truth, guess = (batch.y[:, None] == classes) & real, (out.argmax(-1)[:, None] == classes) & real
    hits = {"hit": truth & guess, "true": truth, "guessed": guess}
    return {**report, **{k: v.sum(0) for k, v in hits.items()}}
