"""pFedMe: personalised federated learning with Moreau envelopes (T. Dinh, Tran, Nguyen, NeurIPS
2020), Algorithm 1.

    paper       here             shape
    w           model            every leaf [1, ...], the global model
    w_i         Upload.values    every leaf [...], the local model
    θ̃_i         private.model    every leaf [...], the personal model (PM)
    λ, η        lam, lr          w_i ← w_i − ηλ(w_i − θ̃_i)
    R, K        outer, inner     local rounds, and gradient steps towards θ̃_i in each
    |D|, β      batch, beta

Differences from the paper:
* θ̃_i starts each round at the received w, as in the released code; `restart=False` continues from
  the last θ̃_i.
* The inner problem is solved by `inner` steps of inner_lr on one mini-batch; l2 applies only there,
  and is 0 by default (the released code takes 0.001).
* Only participants train, and their w_i are averaged unweighted, as the paper writes it (the
  released code trains all clients and averages the sampled ones by size).
* The released code stores w_i as the personal model, so published numbers may be of w_i. Here θ̃_i
  is stored and evaluated; `evaluate="local"` measures w_i and "global" measures w.
* A client that never participated predicts with w; a new client takes a round's local steps from w.
* local_steps does not apply; decay acts on η alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from coterie.core.contract import (
    Algorithm,
    Ask,
    Data,
    Local,
    Repeat,
    Scope,
    TunableDefault,
    Upload,
    Weight,
    client,
    setting,
)
from coterie.core.errors import CoterieError
from coterie.core.params import Params, mix, pick, where
from coterie.core.settings import STABILITY_LIMIT
from coterie.core.task import Task
from coterie.optim import descend


class PersonalModel(NamedTuple):
    """What a client of pFedMe or CGPFL keeps."""

    model: Params  # θ
    local: Params  # w as it was uploaded, where it is evaluated; else empty
    asked: Tensor  # [], 0 until the client has trained


@dataclass(frozen=True, kw_only=True)
class MoreauEnvelope(Local, Algorithm):
    """Local training of pFedMe and CGPFL: a personal model θ and a local model w take turns.

    w follows the gradient of the Moreau envelope min_θ f(θ) + (λ/2)‖θ − w‖², which is λ(w − θ).
    `outer` and `inner` replace local_steps.
    """

    lr: float = setting(
        0.005, "step size η of the local model, as in pFedMe: it moves by η·λ·(θ − w)", gt=0
    )
    batch: int | None = setting(20, "rows per inner solve; none: all the client's rows", ge=1)
    lam: float = setting(15.0, "strength λ of the tie between personal and local model", gt=0)
    outer: int = setting(20, "local rounds R, each with a batch of its own", ge=1)
    inner: int = setting(5, "gradient steps on the personal model in each", ge=1)
    inner_lr: float = setting(
        TunableDefault(0.1),
        "step size of the personal model θ, without decay; fitted to the rows for linear models on "
        "tables",
        gt=0,
    )
    restart: bool = setting(True, "the personal model starts each round at the received model")

    def pull_fraction(self) -> float:
        """How far w moves towards θ after each inner solve: pFedMe's ηλ."""
        return self.lr * self.lam

    def solve(self, task: Task, w: Params, theta: Params, data: Data) -> tuple[Params, Params]:
        """Run R local rounds.

        Args:
            w: The received model.
            theta: The initial personal model.

        Returns:
            The new (w, θ).
        """
        how = replace(self, lr=self.inner_lr)
        for r in range(self.outer):
            batch = data.all if self.batch is None else data.sample(self.batch, r)
            steps = Repeat(batch, self.inner)
            # θ ≈ argmin f(θ) + (λ/2)‖θ − w‖²
            theta = descend(task, theta, steps, how, pull=self.lam, towards=w)
            w = mix(self.pull_fraction(), w, theta)  # w ← w − ηλ(w − θ); CGPFL: β·2/N
        return w, theta

    def initial_theta(self, received: Params, private: PersonalModel) -> Params:
        """The received model, or with `restart=False` the last θ of a client that has trained."""
        if self.restart:
            return received
        return where(private.asked > 0, private.model, received)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> PersonalModel:
        return PersonalModel(initial_payload, {}, torch.zeros_like(data.size))

    def fit_step_sizes(self, curvature: float, clients: int) -> Self:
        method = super().fit_step_sizes(curvature, clients)
        if isinstance(self.inner_lr, TunableDefault) and self.solver != "adam":
            return replace(method, inner_lr=1 / (curvature + self.lam))
        return method

    def max_curvature(self, clients: int) -> float:
        return STABILITY_LIMIT / self.inner_lr - self.lam - self.l2

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.local_epochs is not None:
            raise CoterieError(
                f"{self.name} draws `outer` batches a round, not epochs: leave out local_epochs."
            )
        if self.pull_fraction() > 1:
            raise CoterieError(
                f"lr·lam is {self.pull_fraction():g}, so the local model would overshoot the "
                "personal one: lower lr or lam until lr·lam is at most 1."
            )
        if self.solver == "sgd" and self.clip is None and self.inner_lr * self.lam >= 2:
            raise CoterieError(
                f"inner_lr·lam is {self.inner_lr * self.lam:g}, and from 2 on the inner steps "
                f"diverge: use inner_lr < {2 / self.lam:.3g}."
            )


@dataclass(frozen=True, kw_only=True)
class PFedMe(MoreauEnvelope):
    """Personal models tied to a global model, which follows the gradient of Moreau envelopes.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.PFedMe(outer=2, inner=2), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "pfedme"
    paper: ClassVar[str] = "T. Dinh et al. 2020"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "a model for each site, tied to a common one"

    beta: float = setting(1.0, "server's step β: w ← (1−β)·w + β·mean", gt=0)
    evaluate: str = setting(
        "personal", "the model to evaluate", choices=("personal", "local", "global")
    )

    def start(self, task: Task, clients: int, seed: int) -> tuple[Params, Params]:
        return task.inits(seed, 1), task.init(seed)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> PersonalModel:
        private = super().enroll(task, initial_payload, data)
        return private._replace(local=self.stored_local(initial_payload))

    def stored_local(self, w: Params) -> Params:
        """The local model if it is evaluated, else nothing."""
        if self.evaluate == "local":
            return w
        return {}

    @client(weight=Weight(), rounds="later", sample_size=lambda method: method.batch)
    def train(
        self, task: Task, model: Params, per_client: Any, private: PersonalModel, data: Data
    ) -> tuple[Upload, PersonalModel]:
        received = pick(model, 0)
        one = torch.ones_like(data.size)
        w, theta = self.solve(task, received, self.initial_theta(received, private), data)
        return Upload({"model": w}, one[None], {}), PersonalModel(theta, self.stored_local(w), one)

    def round(self, model: Params, ask: Ask) -> Params:
        sums = ask(self.train, shared=model, stream="train", started_from={"model": model})
        return mix(self.beta, model, sums.mean("model", empty=model))  # w ← (1−β)w + β Σ w_i / S

    def model(
        self, task: Task, shared: Params, per_client: Any, private: PersonalModel, data: Data
    ) -> Params:
        w = pick(shared, 0)
        if self.evaluate == "global":
            return w
        mine = private.local if self.evaluate == "local" else private.model
        return where(private.asked > 0, mine, w)

    def join(self, task: Task, shared: Params, data: Data) -> tuple[Any, PersonalModel]:
        w, theta = self.solve(task, pick(shared, 0), pick(shared, 0), data)
        return (), PersonalModel(theta, self.stored_local(w), torch.ones_like(data.size))
