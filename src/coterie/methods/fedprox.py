"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020), Algorithm 2.

    paper       here             shape
    w^t         model            every leaf [1, ...]
    h_k(w)      f_k(w) + (μ/2)‖w − w^t‖²
    μ           mu
    E           local_epochs, or local_steps without it

Differences from the paper:
* Clients are drawn uniformly and averaged by n_k, as in FedAvg, so that μ = 0 is FedAvg.
* In the paper an exact fraction of each round's clients are stragglers, which run 1 to E epochs,
  drawn uniformly. Here each participant is a straggler with probability `stragglers`, and draws its
  number of epochs (or steps) itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from coterie.core.contract import (
    Data,
    Drawn,
    PoissonBatches,
    Repeat,
    Scope,
    Upload,
    Weight,
    client,
    setting,
)
from coterie.core.params import Params
from coterie.core.task import Task
from coterie.methods.fedavg import FedAvg
from coterie.optim import descend_from


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose local steps are pulled towards the global model.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.FedProx(mu=0.1), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al. 2020"
    scope: ClassVar[Scope] = "global"
    summary: ClassVar[str] = "one model for all sites"

    mu: float = setting(0.1, "strength μ of the pull towards the global model", ge=0)
    stragglers: float = setting(
        0.0,
        "probability that a client stops early, after 1 to all of its steps or epochs",
        ge=0,
        le=1,
    )

    @client(weight=Weight(rows="weighted"), rounds="later", trainings=1)
    def train(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        w = descend_from(
            task, model, 0, self.available_batches(data), self, pull=self.mu
        )  # ∇f + μ(w − w^t)
        return Upload({"model": w}, self.weight(data), {}), private

    def available_batches(self, data: Data) -> Repeat | Drawn | PoissonBatches:
        """The batches before the client stops."""
        if not self.stragglers:
            return data.batches(self)
        everything = self.local_epochs or self.local_steps
        some = 1 + (data.uniform("work") * everything).floor()  # 1 … E, each as likely
        is_straggler = data.uniform("straggler") < self.stragglers
        return data.first_batches(self, torch.where(is_straggler, some, everything))
