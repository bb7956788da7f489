"""APFL: adaptive personalised federated learning (Deng, Kamani, Mahdavi, 2020), Algorithm 1.

    paper       here                     shape
    w           model                    every leaf [1, ...], the global model
    w_i         APFLClientState.w        every leaf [...], the client's version of it
    v_i         APFLClientState.v        every leaf [...], the client's local model
    α_i         APFLClientState.alpha    []
    v̄_i         APFLClientState.blend()  every leaf [...], the personal model
    η, τ        lr, local_steps

Differences from the paper:
* Implementations disagree on the updates. Here v descends along the gradient at the mixture v̄, and
  w along its own. A step computes the new w, v and α from the old ones, with one batch.
* α_i is updated in every local step and kept in [0, 1]; its mean and range are noted each round.
  `adaptive=False` keeps it constant.
* Only w is averaged, unweighted as in the paper (`weighted=True`: by rows). v̄ is evaluated, with
  the client's own last w_i.
* A new client takes one round's steps from v = w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.core.contract import Ask, Data, Fraction, Scope, Upload, Weight, client, setting
from coterie.core.errors import CoterieError
from coterie.core.params import Params, axpy, dot, minus, mix, pick
from coterie.core.task import Batch, Task
from coterie.methods.fedavg import FedAvg
from coterie.optim import gradient, walk


class APFLClientState(NamedTuple):
    """What a client keeps."""

    w: Params  # its version of the global model
    v: Params  # its local model
    alpha: Tensor  # [], weight of the local model in the mixture

    def blend(self) -> Params:
        """The personal model."""
        return mix(self.alpha, self.w, self.v)  # v̄ = α v + (1 − α) w


@dataclass(frozen=True, kw_only=True)
class APFL(FedAvg):
    """Each client mixes the global model with a local one, and learns the mixing weight α.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.APFL(alpha=0.5), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "apfl"
    paper: ClassVar[str] = "Deng et al. 2020"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "a model for each site that mixes the common one with its own"

    weighted: bool = setting(False, "weight clients by their numbers of rows")
    alpha: float = setting(0.5, "initial weight α of the local model", ge=0, le=1)
    adaptive: bool = setting(True, "each client learns its α")

    def start(self, task: Task, clients: int, seed: int) -> tuple[Params, Params]:
        return task.inits(seed, 1), task.init(seed)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> APFLClientState:
        alpha = torch.tensor(self.alpha, dtype=task.dtype, device=task.device)
        return APFLClientState(initial_payload, initial_payload, alpha)

    @client(
        weight=Weight(rows="weighted"),
        report={"alpha": Fraction("its α", secure="withheld")},
        rounds="later",
    )
    def train(
        self, task: Task, model: Params, per_client: Any, me: APFLClientState, data: Data
    ) -> tuple[Upload, APFLClientState]:
        me = self.train_local(task, me._replace(w=pick(model, 0)), data)
        return Upload({"model": me.w}, self.weight(data), {"alpha": me.alpha}), me

    def train_local(self, task: Task, me: APFLClientState, data: Data) -> APFLClientState:
        """Take a round's local steps on w, v and α."""

        def step(me: APFLClientState, batch: Batch) -> APFLClientState:
            g = gradient(task, me.blend(), batch, self)  # ∇f(v̄)
            w = axpy(-self.lr, gradient(task, me.w, batch, self), me.w)  # w − η ∇f(w)
            v = axpy(-self.lr * me.alpha, g, me.v)  # v − η α ∇f(v̄)
            if not self.adaptive:
                return APFLClientState(w, v, me.alpha)
            alpha = me.alpha - self.lr * dot(minus(me.v, me.w), g)  # α − η ⟨v − w, ∇f(v̄)⟩
            return APFLClientState(w, v, alpha.clamp(0, 1))

        return walk(me, data.batches(self), step)

    def round(self, model: Params, ask: Ask) -> Params:  # type: ignore[override]
        sums = ask(self.train, shared=model, stream="train", started_from={"model": model})
        if "alpha" in sums.report and len(sums.ids):
            a = sums.report["alpha"]
            summary = {"least": float(a.min()), "mean": float(a.mean()), "most": float(a.max())}
            ask.note("alpha", summary)
        return sums.mean("model", empty=model)

    def model(
        self, task: Task, shared: Params, per_client: Any, private: APFLClientState, data: Data
    ) -> Params:
        return private.blend()

    def join(self, task: Task, shared: Params, data: Data) -> tuple[Any, APFLClientState]:
        return (), self.train_local(task, self.enroll(task, pick(shared, 0), data), data)

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.solver != "sgd":
            raise CoterieError(
                f"solver is {self.solver!r}, and apfl takes plain gradient steps: use solver='sgd'."
            )
