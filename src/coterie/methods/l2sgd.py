"""L2SGD: loopless local gradient descent for a mixture of local and global models (Hanzely,
Richtárik, 2020), Algorithm 1.

    paper       here                 shape
    x_i         private              every leaf [...], the client's own model
    x̄           L2SGDState.mean      every leaf [1, ...], the mean of all N of them
    N           L2SGDState.clients   int64 []
    η, λ, p     lr, lam, p
    ξ           coins                one per iteration, for all clients

    with probability 1 − p   x_i ← x_i − η/(N(1 − p)) ∇f_i(x_i)
    else                     x_i ← x_i − ηλ/(Np) (x_i − x̄)

Differences from the paper:
* A round is `local_steps` iterations, whose coins the server draws. Successive mixings and the
  local steps after them are one exchange: mixing does not change x̄ with full participation.
* With absent clients x̄ still averages all N models, theirs as of their last round, and stays
  constant during the mixings of an exchange.
* With `batch` a local step uses a new batch. ηλ/(Np) must be ≤ 1, or mixing overshoots x̄; with p =
  0 λ does not apply.
* A new client takes one round's expected steps, of η/N on f + (λ/2)‖x − x̄‖², from x̄.
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
    Drawn,
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
from coterie.core.params import Params, axpy, minus, mix, pick
from coterie.core.settings import STABILITY_LIMIT
from coterie.core.task import Batch, Task
from coterie.optim import gradient, sgd, walk


class L2SGDState(NamedTuple):
    """What the server keeps between rounds."""

    mean: Params  # x̄
    clients: Tensor  # N


def group_iterations(coins: list[bool]) -> list[tuple[int, int]]:
    """Divide iterations into exchanges.

    Args:
        coins: True for a mixing, False for a local step.

    Returns:
        (mixings, local steps after them) of each exchange.
    """
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
    """Each client trains its own model; at random times all move towards their mean.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.L2SGD(lam=1.0, p=0.2), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "l2sgd"
    paper: ClassVar[str] = "Hanzely and Richtárik 2020"
    scope: ClassVar[Scope] = "personal"
    summary: ClassVar[str] = "a model for each site, moved towards their mean from time to time"

    lr: float = setting(
        TunableDefault(1.0),
        "η: a local step has size η/(N(1 − p)); fitted to the rows for linear models on tables",
        gt=0,
    )
    lam: float = setting(1.0, "strength λ of the pull towards the mean", ge=0)
    p: float = setting(0.2, "probability p that an iteration mixes", ge=0, lt=1)

    def fit_step_sizes(self, curvature: float, clients: int) -> Self:
        method = super().fit_step_sizes(curvature, clients)
        if not isinstance(self.lr, TunableDefault):
            return method
        lr = method.lr * clients * (1 - self.p)
        if self.lam * self.p:
            lr = min(lr, clients * self.p / self.lam)  # mixing must not overshoot the mean
        return replace(method, lr=lr)

    def max_curvature(self, clients: int) -> float:
        return STABILITY_LIMIT * clients * (1 - self.p) / self.lr - self.l2

    def start(self, task: Task, clients: int, seed: int) -> tuple[L2SGDState, Params]:
        return L2SGDState(task.inits(seed, 1), torch.tensor(clients)), task.init(seed)

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> Params:
        return initial_payload

    @client(weight=Weight(), rounds="later", max_calls=lambda method: method.local_steps + 1)
    def take_step(
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
            new = mix(1 - left, x, pick(mean, 0))  # x − ηλ/(Np) (x − x̄), once per mixing
        how = replace(self, lr=self.lr / (n * (1 - self.p)))
        new = sgd(task, new, self.fresh_batches(data, done, steps), how)  # x − η/(N(1 − p)) ∇f(x)
        return Upload({"change": minus(new, x)}, torch.ones_like(data.size)[None], {}), new

    def fresh_batches(self, data: Data, done: Tensor, steps: int) -> Repeat | Drawn:
        """The batches of `steps` local steps, after `done` earlier ones in this round."""
        size = self.batch
        if size is None:
            return data.repeated(steps)
        return data.samples(size, [done + t for t in range(steps)])

    def round(self, state: L2SGDState, ask: Ask) -> L2SGDState:
        coins = (torch.rand(self.local_steps, generator=ask.rng("coins")) < self.p).tolist()
        ask.note("mixings", sum(coins))
        n = int(state.clients)
        mean = state.mean
        done = 0  # local steps so far
        for mixings, steps in group_iterations(coins):
            static = {"n": n, "mixings": mixings, "steps": steps}
            sums = ask(
                self.take_step, shared=(mean, torch.tensor(done)), static=static, stream="train"
            )
            mean = axpy(1 / n, sums.totals["change"], mean)  # of all N models
            done += steps
        return state._replace(mean=mean)

    def model(
        self, task: Task, shared: L2SGDState, per_client: Any, private: Params, data: Data
    ) -> Params:
        return private

    def join(self, task: Task, shared: L2SGDState, data: Data) -> tuple[Any, Params]:
        mean = pick(shared.mean, 0)
        lam = self.lam if self.p else 0.0
        size = self.lr / shared.clients.to(task.dtype)

        def expected(x: Params, batch: Batch) -> Params:
            g = axpy(lam, minus(x, mean), gradient(task, x, batch, self))
            return axpy(-size, g, x)  # x − (η/N) (∇f(x) + λ(x − x̄))

        return (), walk(mean, data.batches(self), expected)

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        step = self.lr * self.lam / (len(sizes) * self.p) if self.p else 0.0
        if step > 1:
            raise CoterieError(
                f"lr·lam/(N·p) is {step:.3g} for {len(sizes)} clients: mixing would overshoot "
                f"the mean. Use lr ≤ {len(sizes) * self.p / self.lam:.3g}, so that it is at most 1."
            )
        if self.local_epochs is not None or self.solver != "sgd":
            raise CoterieError(
                "l2sgd takes local_steps plain gradient steps a round: "
                "leave out local_epochs and solver."
            )
