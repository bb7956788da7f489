"""FedEM: federated expectation-maximisation (Marfoq, Neglia, Bellet, Kameni, Vidal, NeurIPS 2021),
Algorithm 1.

    paper       here                shape
    θ_m         centres             every leaf [K, ...]
    π_t         private             [K]; on the server shares [N, K], a row of zeros: never reported
    q_t(z = m)  q                   [n, K]
    M           clusters
    n_t         Upload.weight       [1]

Differences from the paper:
* The mean is over the clients that answered, by n_t; the released code averages over all clients.
* A row's loss times q is divided by the number of rows in the batch, not by Σ q, as in the released
  code.
* Regression, too, takes exp(−ℓ) as the likelihood, with ℓ the squared error, and predicts the mean
  of the outputs by π; classification predicts log Σ_m π_m softmax(outputs_m).
* Each π is clamped to at least `floor`, then normalised: where exp(−ℓ) underflows, a weight would
  stay 0. 0 is the paper's.
* Clients report π to the server for the cluster assignments; training does not need it. A client
  that never participated predicts with uniform weights.
* A new client takes `join_steps` E and M steps on π alone, on its own training rows.
* The released code uses momentum 0.9; here the solver is any of the local ones.

The default of three components is the released code's.
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
    MixtureShares,
    Upload,
    Weight,
    client,
    setting,
)
from coterie.core.errors import CoterieError
from coterie.core.params import Params, pick, unstack
from coterie.core.task import Task
from coterie.optim import descend_from, stack_models


class FedEMState(NamedTuple):
    """What the server keeps between rounds."""

    centres: Params  # θ_m
    shares: Tensor  # [N, K], the last reported π_t


@dataclass(frozen=True, kw_only=True)
class FedEM(Local, Algorithm):
    """Each client is a mixture of K models; each row trains the models that explain it.

    Args:
        clusters: Number of models in the mixture.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.FedEM(clusters=2, lr=0.05), fed, rounds=2)
        >>> result.weights.shape
        torch.Size([8, 2])
    """

    name: ClassVar[str] = "fedem"
    paper: ClassVar[str] = "Marfoq et al. 2021"

    clusters: int = setting(3, "number of models M in the mixture", ge=1)
    floor: float = setting(1e-6, "lower bound of mixture weights π", ge=0, lt=1)
    join_steps: int = setting(20, "E and M steps in which a new client finds its π", ge=1)

    # ------------------------------------------------------------------------------ one client
    def enroll(self, task: Task, initial_payload: Any, data: Data) -> Tensor:
        k = self.clusters
        return torch.full((k,), 1 / k, dtype=task.dtype, device=data.all.mask.device)

    def em_step(
        self, task: Task, models: list[Params], pi: Tensor, data: Data
    ) -> tuple[Tensor, Tensor]:
        """One E and one M step: the new q [n, K] and π [K]."""
        losses = torch.stack([task.losses(m, data.all) for m in models], -1)
        q = torch.softmax(pi.log() - losses, -1)  # E: q(z = m) ∝ π_m exp(−ℓ(θ_m; x, y))
        of_real_rows = torch.where(data.all.mask[:, None] > 0, q, 0)
        pi = of_real_rows.sum(0) / data.size  # M: π_m = mean of q(z = m)
        pi = pi.clamp(min=self.floor)
        return q, pi / pi.sum()

    @client(
        weight=Weight(rows=True),
        report={"share": MixtureShares(secure="summed", private="withheld")},
        rounds="later",
    )
    def train(
        self, task: Task, centres: Params, per_client: Any, pi: Tensor, data: Data
    ) -> tuple[Upload, Tensor]:
        models = unstack(centres)
        q, pi = self.em_step(task, models, pi, data)
        new = [
            descend_from(task, centres, m, data.weighted(q[:, m]).batches(self), self)
            for m in range(len(models))
        ]
        return Upload({"models": stack_models(new)}, data.size[None], {"share": pi}), pi

    # ------------------------------------------------------------------------------ the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[FedEMState, Any]:
        shares = torch.zeros(clients, self.clusters, dtype=task.dtype)
        return FedEMState(task.inits(seed, self.clusters), shares), ()

    def round(self, state: FedEMState, ask: Ask) -> FedEMState:
        sent = {k: v[None] for k, v in state.centres.items()}
        sums = ask(self.train, shared=state.centres, stream="train", started_from={"models": sent})
        centres = pick(sums.mean("models", empty=sent), 0)  # θ_m = Σ_t (n_t/n) θ_m,t
        if ask.is_private:
            return state._replace(centres=centres)
        if ask.is_secure:
            ask.note("sizes", sums.report["share"][0])
            return state._replace(centres=centres)
        return FedEMState(centres, state.shares.index_copy(0, sums.ids, sums.report["share"]))

    # ------------------------------------------------------------------------------ evaluation
    def use(self, state: FedEMState) -> tuple[Params, Any]:
        return state.centres, ()

    def predict(
        self, task: Task, centres: Params, per_client: Any, pi: Tensor, data: Data, x: Tensor
    ) -> Tensor:
        # log Σ_m π_m p_m, or Σ_m π_m θ_m(x) of numbers
        return task.target.mix([task.outputs(m, x) for m in unstack(centres)], pi)

    def join(self, task: Task, centres: Params, data: Data) -> tuple[Any, Tensor]:
        pi = self.enroll(task, (), data)
        models = unstack(centres)
        for _ in range(self.join_steps):
            _, pi = self.em_step(task, models, pi, data)
        return (), pi

    def centres(self, state: FedEMState) -> Params:
        return state.centres

    def groups(self, state: FedEMState) -> Tensor:
        return state.shares

    # ------------------------------------------------------------------------------ settings
    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.floor * self.clusters >= 1:
            raise CoterieError(
                f"floor is {self.floor}: with {self.clusters} models it must be below "
                f"{1 / self.clusters:.3g}, or nothing is left to learn."
            )
