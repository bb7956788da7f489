"""FedBCD: federated block coordinate descent (Wu, Scaglione, Wai, Karakoç, Hreinsson, Ma, AAAI
2021).

    paper       here                shape
    z           FedBCDState.z       every leaf [1, ...], the global model
    x_i         private             every leaf [...], the personal model
                FedBCDState.mean    every leaf [1, ...], the mean of all x_i, absent clients
                included
    ρ           rho                 of the term ρ‖x − z‖², whose gradient is 2ρ(x − z)
    a           mixing

Horizontal: clients hold rows, not features; another method of the same name splits features. In
    each
round a participant takes between 1 and `local_steps` steps on f_i(x) + ρ‖x − z‖² from its own x_i;
then z ← z − a(z − mean of x_i).

Differences from the paper:
* The server draws the numbers of steps, and updates the mean over ALL clients by the changes it
  receives, so that it stores no client's model.
* l2 acts on weights only, not on biases, as in all methods here.
* Momentum restarts in each round. A round without answers changes nothing.
* A new client takes `local_steps` steps from z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.core.contract import (
    SOLVERS,
    Algorithm,
    Ask,
    Data,
    Drawn,
    Local,
    PoissonBatches,
    Repeat,
    Scope,
    TunableDefault,
    Upload,
    Weight,
    client,
    setting,
)
from coterie.core.errors import CoterieError
from coterie.core.params import Params, axpy, minus, mix, pick
from coterie.core.task import Task
from coterie.optim import descend


class FedBCDState(NamedTuple):
    """What the server keeps between rounds."""

    z: Params  # the global model
    mean: Params  # of all clients' last personal models


@dataclass(frozen=True, kw_only=True)
class FedBCD(Local, Algorithm):
    """Personal models and a global one pull each other; clients take random numbers of steps.

    `l2` acts on weights only, not on biases.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.FedBCD(rho=1.0, local_steps=3), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "fedbcd"
    paper: ClassVar[str] = "Wu et al. 2021"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "a model for each site and a common one that pull each other"

    lr: float = setting(
        TunableDefault(0.005), "step size; fitted to the rows for linear models on tables", gt=0
    )
    local_steps: int = setting(
        5, "upper bound of the local steps per round, which are drawn from 1 on", ge=1
    )
    batch: int | None = setting(32, "rows per step; none: all the client's rows", ge=1)
    l2: float = setting(1e-4, "weight decay in local steps, not on biases", ge=0)
    solver: str = setting("heavy_ball", "the local optimiser", choices=SOLVERS)
    rho: float = setting(1.0, "strength ρ of ρ‖x − z‖²", ge=0)
    mixing: float = setting(1.0, "a: step of z towards the mean of the personal models", gt=0, le=1)

    def start(self, task: Task, clients: int, seed: int) -> tuple[FedBCDState, Params]:
        return FedBCDState(task.inits(seed, 1), task.inits(seed, 1)), task.init(seed)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> Params:
        return initial_payload

    @client(weight=Weight(), rounds="later")
    def train(
        self, task: Task, z: Params, steps: Tensor, x: Params, data: Data
    ) -> tuple[Upload, Params]:
        new = self.solve(task, x, z, data.first_batches(self, steps))
        return Upload({"update": minus(new, x)}, torch.ones_like(data.size)[None], {}), new

    def solve(
        self, task: Task, x: Params, z: Params, batches: Repeat | Drawn | PoissonBatches
    ) -> Params:
        """Take steps on f(x) + ρ‖x − z‖²."""
        # ∇f(x) + 2ρ(x − z)
        return descend(task, x, batches, self, pull=2 * self.rho, towards=pick(z, 0))

    def round(self, state: FedBCDState, ask: Ask) -> FedBCDState:
        n = len(ask.all_clients)
        drawn = torch.randint(1, self.local_steps + 1, (n,), generator=ask.rng("steps"))
        steps = torch.empty_like(drawn).index_copy(0, ask.all_clients, drawn)
        sums = ask(self.train, shared=state.z, per_client=steps[ask.participants], stream="train")
        if not len(sums.ids):
            return state
        mean = axpy(1 / n, sums.totals["update"], state.mean)  # (1/N) Σ x_i over all clients
        return FedBCDState(mix(self.mixing, state.z, mean), mean)  # z − a(z − mean)

    def use(self, state: FedBCDState) -> tuple[Params, Any]:
        return state.z, ()

    def model(
        self, task: Task, shared: Params, per_client: Any, private: Params, data: Data
    ) -> Params:
        return private

    def join(self, task: Task, shared: Params, data: Data) -> tuple[Any, Params]:
        return (), self.solve(task, pick(shared, 0), shared, data.batches(self))

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.local_epochs is not None:
            raise CoterieError(
                "fedbcd draws each client's number of steps from 1 to local_steps: "
                "leave out local_epochs."
            )
