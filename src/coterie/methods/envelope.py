"""What pFedMe and CGPFL share: on a client a personal model θ and a local model w take turns.

w follows the gradient of the Moreau envelope min_θ f(θ) + (λ/2)‖θ − w‖², which is λ(w − θ).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.core.contract import Algorithm, Data, Local, Repeat, TunableDefault, setting
from coterie.core.errors import CoterieError
from coterie.core.params import Params, mix, where
from coterie.core.settings import STABILITY_LIMIT
from coterie.core.task import Task
from coterie.optim import descend

E = TypeVar("E", bound="Envelope")


class Personal(NamedTuple):
    """What a client keeps."""

    model: Params  # θ
    local: Params  # w as it was uploaded, where it is evaluated; else empty
    asked: Tensor  # 0 until the client has trained


@dataclass(frozen=True, kw_only=True)
class Envelope(Local, Algorithm):
    """Fields and the one loop; local_steps plays no part, `outer` and `inner` count instead."""

    lr: float = setting(
        0.005, "step size η of the local model, as in pFedMe: it goes η·λ of the way to θ", gt=0
    )
    batch: int | None = setting(20, "rows per inner solve; none: all the client's rows", ge=1)
    lam: float = setting(15.0, "strength λ of the tie between personal and local model", gt=0)
    outer: int = setting(20, "local rounds R, each with a batch of its own", ge=1)
    inner: int = setting(5, "gradient steps on the personal model in each", ge=1)
    inner_lr: float = setting(
        TunableDefault(0.1),
        "step size of the personal model θ; decay leaves it; linear models on tables: what the "
        "rows allow",
        gt=0,
    )
    restart: bool = setting(True, "the personal model begins each round at the model received")

    def fit_step_sizes(self: E, curvature: float, clients: int) -> E:
        method = super().fit_step_sizes(curvature, clients)
        if isinstance(self.inner_lr, TunableDefault) and self.solver != "adam":
            return replace(method, inner_lr=1 / (curvature + self.lam))
        return method

    def max_curvature(self, clients: int) -> float:
        return STABILITY_LIMIT / self.inner_lr - self.lam - self.l2

    def fraction(self) -> float:
        """How much of the way to the personal model the local one goes."""
        return self.lr * self.lam

    def solve(self, task: Task, w: Params, theta: Params, data: Data) -> tuple[Params, Params]:
        """(w, θ) after R local rounds."""
        how = replace(self, lr=self.inner_lr)
        for r in range(self.outer):
            batch = data.all if self.batch is None else data.sample(self.batch, r)
            steps = Repeat(batch, self.inner)
            # ≈ argmin f(θ) + (λ/2)‖θ − w‖²
            theta = descend(task, theta, steps, how, pull=self.lam, towards=w)
            w = mix(self.fraction(), w, theta)  # w ← w − fraction·(w − θ); pFedMe: ηλ, CGPFL: β·2/N
        return w, theta

    def theta_start(self, received: Params, private: Personal) -> Params:
        """Where θ begins a round: at the model received, or where it was if it was ever trained."""
        if self.restart:
            return received
        return where(private.asked > 0, private.model, received)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> Personal:
        return Personal(initial_payload, {}, torch.zeros_like(data.size))

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.local_epochs is not None:
            raise CoterieError(
                f"{self.name} draws `outer` batches a round, not passes: leave local_epochs."
            )
        if self.fraction() > 1:
            raise CoterieError(
                f"lr·lam is {self.fraction():g}, so that the local model would jump beyond the "
                "personal one: lower lr or lam until it is at most 1."
            )
        if self.solver == "sgd" and self.clip is None and self.inner_lr * self.lam >= 2:
            raise CoterieError(
                f"inner_lr·lam is {self.inner_lr * self.lam:g}, and from 2 on the inner steps "
                f"diverge: use inner_lr < {2 / self.lam:.3g}."
            )
