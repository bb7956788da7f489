"""FedAvg: federated averaging (McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017),
Algorithm 1.

    paper       here             shape
    w           model            every leaf [1, ...]
    n_k         Upload.weight    [1]
    η           lr
    E, B        local_epochs, batch

Differences from the paper: `weighted=False` averages clients instead of samples, as IFCA does. The
method `fedavg-ft` evaluates the global model after some more local steps on the client's training
rows. `server_optimizer` follows the mean update by Adam and the like (optim/server.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.core.contract import (
    Algorithm,
    Ask,
    Data,
    Local,
    Scope,
    Upload,
    Weight,
    client,
    setting,
)
from coterie.core.params import Params, pick
from coterie.core.task import Task
from coterie.optim import descend, descend_from
from coterie.optim.server import ServerOptimizer, ServerSlots, takes_server_step


class OptimizedModel(NamedTuple):
    """The server's state with a server optimizer; without one it is the model alone."""

    model: Params
    slots: ServerSlots


@dataclass(frozen=True, kw_only=True)
class FedAvg(ServerOptimizer, Local, Algorithm):
    """One global model: local steps on every client, then the mean of their models.

    Args:
        weighted: Weight clients by their numbers of rows, n_k.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.FedAvg(lr=0.05, local_steps=5), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al. 2017"
    scope: ClassVar[Scope] = "global"
    summary: ClassVar[str] = "one model for all sites"

    weighted: bool = setting(True, "weight clients by their numbers of rows, n_k")

    def start(self, task: Task, clients: int, seed: int) -> tuple[Params | OptimizedModel, Any]:
        model = task.inits(seed, 1)
        slots = self.server_slots(model)
        return OptimizedModel(model, slots) if slots else model, ()

    @client(weight=Weight(rows="weighted"), rounds="later", trainings=1)
    def train(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        w = descend_from(task, model, 0, data.batches(self), self)
        return Upload({"model": w}, self.weight(data), {}), private

    def weight(self, data: Data) -> Tensor:
        """The client's weight in the mean, [1]."""
        if self.weighted:
            return data.size[None]
        return torch.ones_like(data.size)[None]

    @takes_server_step
    def round(self, state: Params | OptimizedModel, ask: Ask) -> Params | OptimizedModel:
        model = model_of(state)
        sums = ask(self.train, shared=model, stream="train", started_from={"model": model})
        mean = sums.mean("model", empty=model)  # Σ (n_k/n) w_k
        slots = state.slots if isinstance(state, OptimizedModel) else self.server_slots(model)
        mass = dict.fromkeys(model, sums.mass["model"])
        model, slots = self.server_step(ask.task, model, mean, slots, mass)
        return OptimizedModel(model, slots) if slots else model

    def use(self, state: Params | OptimizedModel) -> tuple[Any, Any]:
        return model_of(state), ()

    def model(
        self, task: Task, shared: Params, per_client: Any, private: Any, data: Data
    ) -> Params:
        return pick(shared, 0)

    def centres(self, state: Params | OptimizedModel) -> Params | None:
        """The global model as a single cluster; None for subclasses with personal models."""
        if type(self).model is not FedAvg.model:
            return None
        return model_of(state)

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        self.check_server_optimizer()


def model_of(state: Params | OptimizedModel) -> Params:
    """The global model of a server state."""
    if isinstance(state, OptimizedModel):
        return state.model
    return state


@dataclass(frozen=True, kw_only=True)
class FineTuned(FedAvg):
    """FedAvg, fine-tuned by each client on its own rows.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.FineTuned(finetune=5), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "fedavg-ft"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "one model for all sites, which each then adapts to its own rows"
    choices_to_predict: ClassVar[int | None] = None

    finetune: int = setting(10, "full-batch steps on the client's own training rows", ge=1)

    def model(
        self, task: Task, shared: Params, per_client: Any, private: Any, data: Data
    ) -> Params:
        return descend(task, pick(shared, 0), data.repeated(self.finetune), self)
