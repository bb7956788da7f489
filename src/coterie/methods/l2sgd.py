"""L2SGD: loopless local gradient descent for a mixture of local and global models (Hanzely,
Richtárik, 2020), Algorithm 1.

    paper       here             shape
    x_i         private          every leaf [...], the client's own model
    x̄           Loopless.mean    every leaf [1, ...], the mean of all N of them
    N           Loopless.clients  int64 []
    η, λ, p     lr, lam, p
    ξ           coins            one per iteration, for all clients

    with probability 1 − p   x_i ← x_i − η/(N(1 − p)) ∇f_i(x_i)
    else                     x_i ← x_i − ηλ/(Np) (x_i − x̄)

Ours, not the paper's: a round is `local_steps` iterations, whose coins the server draws. Successive
mixings and the local steps after them are one exchange: mixing moves no x̄ when all take part. When
some are absent x̄ still counts all N models, theirs as they were last, and stays as it was sent for
all mixings of an exchange. With `batch` a local step sees a fresh batch. ηλ/(Np) must be ≤ 1, or
mixing overshoots x̄; with p = 0 λ plays no part. A client that joins later takes one round's
expected steps, of η/N on f + (λ/2)‖x − x̄‖², from x̄.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.core.contract import (
    Algorithm,
    Ask,
    Data,
    Drawn,
    Local,
    Repeat,
    TunableDefault,
    Upload,
    Weight,
    client,
    setting,
)
from coterie.core.errors import CoterieError
from coterie.core.params import Params, axpy, minus, mix, pick
from coterie.core.settings import STABILITY_LIMIT
from coterie.core.task import Batch, Task
from coterie.optim import gradient, sgd, walk


class Loopless(NamedTuple):
    """What the server keeps."""

    mean: Params  # x̄
    clients: Tensor  # N


def runs(coins: list[bool]) -> list[tuple[int, int]]:
    """The iterations as exchanges: (mixings, then local steps) of each; a coin says "mix"."""
    exchanges = []
    mixings = steps = 0
    for mixes in coins:
        if not mixes:
            steps += 1
        elif not steps:
            mixings += 1
        else:  # a mixing after local steps needs the new mean
            exchanges.append((mixings, steps))
            mixings, steps = 1, 0
    return [*exchanges, (mixings, steps)]


@dataclass(frozen=True, kw_only=True)
class L2SGD(Local, Algorithm):
    """Each client trains its own model; now and then all of them move towards their mean."""

    name: ClassVar[str] = "l2sgd"
    paper: ClassVar[str] = "Hanzely and Richtárik 2020"

    lr: float = setting(
        TunableDefault(1.0),
        "η: a local step has size η/(N(1 − p)); linear models on tables: what the rows allow",
        gt=0,
    )
    lam: float = setting(1.0, "strength λ of the pull towards the mean", ge=0)
    p: float = setting(0.2, "chance p that an iteration mixes", ge=0, lt=1)

    def fit_step_sizes(self, curvature: float, clients: int) -> L2SGD:
        method = super().fit_step_sizes(curvature, clients)
        if not isinstance(self.lr, TunableDefault):
            return method
        lr = method.lr * clients * (1 - self.p)
        if self.lam * self.p:
            lr = min(lr, clients * self.p / self.lam)  # mixing goes to the mean, not beyond
        return replace(method, lr=lr)

    def max_curvature(self, clients: int) -> float:
        return STABILITY_LIMIT * clients * (1 - self.p) / self.lr - self.l2

    def start(self, task: Task, clients: int, seed: int) -> tuple[Loopless, Params]:
        return Loopless(task.inits(seed, 1), torch.tensor(clients)), task.init(seed)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> Params:
        return initial_payload

    @client(weight=Weight(), rounds="later", max_calls=lambda method: method.local_steps + 1)
    def move(
        self,
        task: Task,
        shared: Any,
        per_client: Any,
        x: Params,
        data: Data,
        n: int,
        mixings: int,
        steps: int,
    ) -> tuple[Upload, Params]:
        mean, done = shared
        new = x
        if mixings:
            left = (1 - self.lr * self.lam / (n * self.p)) ** mixings
            new = mix(1 - left, x, pick(mean, 0))  # x − ηλ/(Np) (x − x̄), as often as the coins say
        how = replace(self, lr=self.lr / (n * (1 - self.p)))
        new = sgd(task, new, self.fresh_batches(data, done, steps), how)  # x − η/(N(1 − p)) ∇f(x)
        return Upload({"change": minus(new, x)}, torch.ones_like(data.size)[None], {}), new

    def fresh_batches(self, data: Data, done: Tensor, steps: int) -> Repeat | Drawn:
        """The batches of `steps` local steps, after `done` others in this round."""
        size = self.batch
        if size is None:
            return data.repeated(steps)
        return data.samples(size, [done + t for t in range(steps)])

    def round(self, state: Loopless, ask: Ask) -> Loopless:
        coins = (torch.rand(self.local_steps, generator=ask.rng("coins")) < self.p).tolist()
        ask.note("mixings", sum(coins))
        n = int(state.clients)
        mean = state.mean
        done = 0  # local steps so far
        for mixings, steps in runs(coins):
            static = {"n": n, "mixings": mixings, "steps": steps}
            sums = ask(self.move, shared=(mean, torch.tensor(done)), static=static, stream="train")
            mean = axpy(1 / n, sums.totals["change"], mean)  # of all N models
            done += steps
        return state._replace(mean=mean)

    def model(
        self, task: Task, shared: Loopless, per_client: Any, private: Params, data: Data
    ) -> Params:
        return private

    def join(self, task: Task, shared: Loopless, data: Data) -> tuple[Any, Params]:
        mean = pick(shared.mean, 0)
        lam = self.lam if self.p else 0.0
        size = self.lr / shared.clients.to(task.dtype)

        def expected(x: Params, batch: Batch) -> Params:
            g = axpy(lam, minus(x, mean), gradient(task, x, batch, self))
            return axpy(-size, g, x)  # x − (η/N) (∇f(x) + λ(x − x̄))

        return (), walk(mean, data.batches(self), expected)

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        share = self.lr * self.lam / (len(sizes) * self.p) if self.p else 0.0
        if share > 1:
            raise CoterieError(
                f"lr·lam/(N·p) is {share:.3g} for {len(sizes)} clients: mixing would overshoot "
                f"the mean, so make it ≤ 1, with lr ≤ {len(sizes) * self.p / self.lam:.3g}, say."
            )
        if self.local_epochs is not None or self.solver != "sgd":
            raise CoterieError(
                "l2sgd takes local_steps plain gradient steps a round: "
                "leave local_epochs and solver."
            )
