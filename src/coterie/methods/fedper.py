"""FedPer: federated learning with personalization layers (Arivazhagan, Aggarwal, Singh, Choudhary,
2019), Algorithms 1 and 2.

    paper       here             shape
    W_B         Upload "base"    every leaf [...], the layers that all clients share
    W_Pj        private          every leaf [...], the layers that client j keeps
    K_P         own              names of layers, where the paper has the number of last layers
    γ_j         Upload.weight    [1], n_j before it is divided by n
    η_j, e, b   lr, local_epochs, batch

Differences from the paper:
* A linear model keeps only its bias by default, so that all clients share the slopes and each has
  an intercept; other models keep their last layer.
* The clients' own layers start equal (in the paper each draws its own), and only participants
  update theirs.
* The server sends whole models, in which the clients' own layers stay at the start; clients never
  send these back.
* `weighted=False` averages clients instead of samples.
* A new client trains its own layers from that start, in `join_steps` steps, with the shared layers
  fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from coterie.core.contract import Ask, Data, Scope, Upload, Weight, client, setting
from coterie.core.errors import CoterieError
from coterie.core.layers import check_layer_names, is_named
from coterie.core.params import Params, is_bias, pick
from coterie.core.task import Task
from coterie.methods.fedavg import FedAvg
from coterie.optim import descend


@dataclass(frozen=True, kw_only=True)
class FedPer(FedAvg):
    """FedAvg in which each client keeps some layers, such as the intercept, for itself.

    Args:
        own: Names of the layers that clients keep.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.FedPer(), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "fedper"
    paper: ClassVar[str] = "Arivazhagan et al. 2019"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "one model for all sites except for some layers that each keeps"

    own: tuple[str, ...] = setting(
        (), "layers each client keeps; none: the bias of a linear model, else the last layer"
    )
    join_steps: int = setting(
        100, "full-batch steps in which a new client trains its own layers", ge=1
    )

    def start(self, task: Task, clients: int, seed: int) -> tuple[Params, Params]:
        return task.inits(seed, 1), task.init(seed)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> Params:
        own, _ = self.split(task, initial_payload)
        return own

    @client(weight=Weight(rows="weighted"), rounds="later", trainings=1)
    def train(
        self, task: Task, model: Params, per_client: Any, own: Params, data: Data
    ) -> tuple[Upload, Params]:
        w = descend(task, {**pick(model, 0), **own}, data.batches(self), self)  # SGD(W_B, W_Pj)
        new_base = {k: v for k, v in w.items() if k not in own}
        new_own = {k: w[k] for k in own}
        return Upload({"base": new_base}, self.weight(data), {}), new_own

    def round(self, model: Params, ask: Ask) -> Params:  # type: ignore[override]
        _, base = self.split(ask.task, model)
        sums = ask(self.train, shared=model, stream="train", started_from={"base": base})
        return {**model, **sums.mean("base", empty=base)}  # W_B = Σ γ_j W_Bj

    def model(
        self, task: Task, shared: Params, per_client: Any, private: Params, data: Data
    ) -> Params:
        return {**pick(shared, 0), **private}

    def join(self, task: Task, shared: Params, data: Data) -> tuple[Any, Params]:
        own, base = self.split(task, pick(shared, 0))
        steps = data.repeated(self.join_steps)
        return (), descend(task.with_fixed(base), own, steps, self)

    # ------------------------------------------------------------------ which layers
    def split(self, task: Task, model: Params) -> tuple[Params, Params]:
        """(layers that each client keeps, layers that all share)"""
        names = self.own_parameters(task, list(model))
        own = {k: v for k, v in model.items() if k in names}
        base = {k: v for k, v in model.items() if k not in names}
        return own, base

    def own_parameters(self, task: Task, names: list[str]) -> list[str]:
        """Names of the parameters that each client keeps."""
        if self.own:
            return [k for k in names if is_named(k, self.own)]
        if task.is_linear:
            return [k for k in names if is_bias(k)]
        last = layer_of(names[-1])
        return [k for k in names if layer_of(k) == last]

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        names = list(task.init(0))
        check_layer_names("own", self.own, names)
        kept = self.own_parameters(task, names)
        if not kept:
            raise CoterieError(
                "fedper keeps the bias of a linear model at each client, and this model has none: "
                "use a model with a bias, or fedavg."
            )
        if len(kept) == len(names):
            raise CoterieError(
                f"each client would keep the entire model ({', '.join(names)}) and share nothing: "
                "name fewer layers in own, or use the method local."
            )


def layer_of(parameter: str) -> str:
    """The name of the layer that a parameter belongs to."""
    return parameter.rpartition(".")[0]
