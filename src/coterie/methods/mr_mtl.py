"""MR-MTL: mean-regularised multi-task learning (Liu, Hu, Wu, Smith, NeurIPS 2022), Algorithm A1.

    paper       here             shape
    w̄           model            every leaf [1, ...], the mean model
    w_k         private          every leaf [...], the client's own model
    λ           lam
    η           lr

The objective is Σ_k F_k(w_k) + (λ/2)‖w_k − w̄‖² with w̄ the mean of all w_k. Under record-level
differential privacy (`--dp rows`) λ limits the noise: a stronger pull averages it over clients.

Differences from the paper:
* w̄ is the mean of the participants' w_k, weighted by n_k as in the released code; there w̄ moves
  by the weighted mean of updates, which is the same if all clients participate.
* The released code clips the gradient of the proximal term together with that of each row. Here
  only the rows' gradients are clipped and noised, since w_k and w̄ are private already.
* w_k starts at w̄⁰. A new client takes the steps of `join_rounds` rounds from w̄.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.core.contract import Data, Scope, Upload, Weight, client, setting
from coterie.core.params import Params, pick
from coterie.core.task import Task
from coterie.methods.fedavg import FedAvg
from coterie.optim import descend


@dataclass(frozen=True, kw_only=True)
class MRMTL(FedAvg):
    """Each client trains its own model, which is pulled towards the mean of all models.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.MRMTL(lam=0.5), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "mr-mtl"
    paper: ClassVar[str] = "Liu et al. 2022"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "a model for each site, pulled towards the mean of all models"

    lam: float = setting(0.5, "strength λ of the pull towards the mean model", ge=0)
    join_rounds: int = setting(50, "rounds in whose steps a new client trains its model", ge=1)

    def start(self, task: Task, clients: int, seed: int) -> tuple[Any, Params]:
        state, _ = super().start(task, clients, seed)
        return state, task.init(seed)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> Params:
        return initial_payload

    @client(weight=Weight(rows="weighted"), rounds="later", trainings=1)
    def train(
        self, task: Task, model: Params, per_client: Any, w: Params, data: Data
    ) -> tuple[Upload, Params]:
        new = self.train_own(task, pick(model, 0), w, data)
        return Upload({"model": new}, self.weight(data), {}), new

    def train_own(self, task: Task, mean: Params, w: Params, data: Data) -> Params:
        """Take a round's steps on the client's model w, pulled towards the mean model."""
        # w_k ← w_k − η(∇F_k(w_k) + λ(w_k − w̄))
        return descend(task, w, data.batches(self), self, pull=self.lam, towards=mean)

    def model(
        self, task: Task, shared: Params, per_client: Any, private: Params, data: Data
    ) -> Params:
        return private

    def join(self, task: Task, shared: Params, data: Data) -> tuple[Any, Params]:
        mean = pick(shared, 0)
        return (), self.for_rounds(self.join_rounds).train_own(task, mean, mean, data)
