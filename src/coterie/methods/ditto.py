"""Ditto (Li, Hu, Beirami, Smith, ICML 2021), Algorithm 1.

    paper       here             shape
    w^t         model            every leaf [1, ...], the global model
    v_k         private          every leaf [...], the personal model
    λ           lam
    η, s        lr, local_steps

Differences from the paper:
* The global solver is FedAvg, weighted by n_k (`weighted=False`: unweighted), and the personal
  model takes as many steps, on the same batches, as the global one.
* v_k starts at w⁰, and only participants update theirs. The pull is towards w as it was received,
  not as it is after the client's own steps.
* A new client takes the personal steps of `join_rounds` rounds from w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.core.contract import Data, Scope, Upload, Weight, client, setting
from coterie.core.params import Params, pick
from coterie.core.task import Task
from coterie.methods.fedavg import FedAvg
from coterie.optim import descend, descend_from


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """FedAvg, plus a personal model per client that is pulled towards the global model.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.Ditto(lam=0.5), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al. 2021"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = (
        "a model for each site, trained beside the common one and pulled towards it"
    )

    lam: float = setting(0.5, "strength λ of the pull towards the global model", ge=0)
    join_rounds: int = setting(50, "rounds in whose steps a new client trains its model", ge=1)

    def start(self, task: Task, clients: int, seed: int) -> tuple[Any, Params]:
        state, _ = super().start(task, clients, seed)
        return state, task.init(seed)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> Params:
        return initial_payload

    @client(weight=Weight(rows="weighted"), rounds="later", trainings=2)
    def train(
        self, task: Task, model: Params, per_client: Any, v: Params, data: Data
    ) -> tuple[Upload, Params]:
        w = descend_from(task, model, 0, data.batches(self), self)
        new_v = self.train_personal(task, pick(model, 0), v, data)
        return Upload({"model": w}, self.weight(data), {}), new_v

    def train_personal(self, task: Task, w: Params, v: Params, data: Data) -> Params:
        """Take a round's steps on the personal model v, pulled towards the global model w."""
        # v − η(∇f(v) + λ(v − w))
        return descend(task, v, data.batches(self), self, pull=self.lam, towards=w)

    def model(
        self, task: Task, shared: Params, per_client: Any, private: Params, data: Data
    ) -> Params:
        return private

    def join(self, task: Task, shared: Params, data: Data) -> tuple[Any, Params]:
        w = pick(shared, 0)
        return (), self.for_rounds(self.join_rounds).train_personal(task, w, w, data)
