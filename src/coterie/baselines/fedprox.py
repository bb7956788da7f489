"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020), Algorithm 2.

    paper       here             shape
    w^t         model            every leaf [1, ...]
    h_k(w)      f_k(w) + (μ/2)‖w − w^t‖²
    μ           mu

Ours, not the paper's: clients are drawn uniformly and averaged by n_k, as in FedAvg, so that μ = 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.baselines.fedavg import FedAvg
from coterie.contract import Data, Upload, client, setting
from coterie.local import descend
from coterie.params import Params, pick
from coterie.task import Task


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose local steps are pulled towards the global model."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al. 2020"

    mu: float = setting(0.1, "strength μ of the pull towards the global model", least=0)

    @client
    def train(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        received = pick(model, 0)
        w = descend(
            task, received, data.batches(self), self, pull=self.mu, towards=received
        )  # ∇f + μ(w − w^t)
        return Upload({"model": w}, self.weight(data), {}), private
