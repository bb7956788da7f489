"""CFL-MGD: clustered federated learning with momentum gradient descent (Zhao, Xie, Xing, Zhang,
Ma, Electronics 2023), Algorithm 1.

    paper       here               shape
    θ_j         centres            every leaf [K, ...]
    ū_j         momentum           every leaf [K, ...]
    u_i         Upload "momentum"  every leaf [...]
    ĵ           cluster            int64, the centre of least loss, as in IFCA
    β, η        beta, lr
    H           local_steps

Ours, not the paper's:
* Equation (4)'s order: the momentum first, with the current gradient. `order="model_first"` is
  the listing's: a local step moves the model by the momentum that was there before, and option I
  adds the gradient of the client's last turn (0 before its first), which it keeps.
* A client starts from the server's current ū of the cluster it picks, never from an older one.
  `momentum_of="client"` is the listing's: the server sends ū_j to the members of the round, who
  keep it as their own u_i. It is stale where a client was absent or picks another cluster; all
  else is the same, and K momenta fewer are sent to each, one more is.
* Option I divides by the participants of the round (`divide="clients"`: by all clients, as
  printed). Its gradient is of all the client's rows, or of one batch where `batch` is set;
  local_steps play no part in it.
* A cluster that nobody chose keeps its model and its momentum.
* The starts are IFCA's, without momentum; ū is 0 when round 1 begins. `resample`, `patience` and
  `recheck` are IFCA's; a settled client is sent its own centre and momentum. Layers cannot be
  shared: the paper shares none.

β = 0 is IFCA exactly. Option I is Polyak's θ_j ← θ_j − (η/m) Σ g_i + β(θ_j − θ_j^{t−1}),
equation (32), as long as each cluster's share of the participants stays the same from round to
round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.core.contract import (
    Ask,
    Data,
    Index,
    Losses,
    OneHot,
    Rows,
    SentWeight,
    Sums,
    Upload,
    client,
    setting,
)
from coterie.core.errors import CoterieError
from coterie.core.params import Params, axpy, count, one_hot, pick, zeros
from coterie.core.task import Batch, Task
from coterie.methods.ifca import IFCA
from coterie.methods.ifca_traffic import identities
from coterie.optim import each, gradient, heavy_ball, walk


class Moving(NamedTuple):
    centres: Params
    momentum: Params  # of each cluster
    group: Tensor  # int64 [N] last identity, −1: never asked
    still: Tensor  # rounds since an identity changed


class Kept(NamedTuple):
    """What a client keeps; empty where the settings need none of it."""

    momentum: Params  # u_i as it was last sent
    gradient: Params  # of its last turn


@dataclass(frozen=True, kw_only=True)
class CFLMGD(IFCA):
    """IFCA with heavy-ball momentum that belongs to the cluster."""

    name: ClassVar[str] = "cfl-mgd"
    paper: ClassVar[str] = "Zhao et al. 2023"

    beta: float = setting(0.9, "momentum β", ge=0, lt=1)
    order: str = setting(
        "momentum_first", "what a step updates first", choices=("momentum_first", "model_first")
    )
    momentum_of: str = setting(
        "cluster", "the momentum that a client goes on from", choices=("cluster", "client")
    )

    # ------------------------------------------------------------------ one client
    def enroll(self, task: Task, initial_payload: Any, data: Data) -> Kept:
        parameters = task.module.named_parameters()
        zero = {k: torch.zeros_like(v).detach() for k, v in parameters if v.requires_grad}
        keeps_gradient = self.order == "model_first" and self.average == "gradients"
        return Kept(
            momentum=zero if self.momentum_of == "client" else {},
            gradient=zero if keeps_gradient else {},
        )

    @client(
        weight=OneHot(rows="weighted"),
        report={"cluster": Index(), "losses": Losses()},
        rounds="later",
    )
    def roll(
        self, task: Task, shared: Any, per_client: Any, me: Kept, data: Data, pair: int
    ) -> tuple[Upload, Kept]:
        """Train the centre of least loss, with its momentum."""
        centres, momentum = shared
        choice = self.choice(task, centres, self.choosing_rows(data, pair))
        j, losses, _ = choice
        report = {"cluster": j, "losses": losses.nan_to_num(torch.inf, torch.inf)}
        s = one_hot(j, count(centres), task.dtype)
        outputs = self.start_outputs(choice)
        w, u = pick(centres, j), pick(momentum, j)
        values, me = self.rolled(task, w, u, me, data, pair, outputs=outputs)
        return Upload(values, self.weight(s, data), report), me

    @client(
        weight=SentWeight(place=2, rows="weighted"),
        when=lambda method: method.patience is not None,
        rounds="later",
    )
    def roll_on(
        self, task: Task, shared: Any, per_client: Any, me: Kept, data: Data, pair: int
    ) -> tuple[Upload, Kept]:
        """Train the one centre that was sent, with its momentum."""
        w, u, s = per_client
        values, me = self.rolled(task, w, u, me, data, pair)
        return Upload(values, self.weight(s, data), {}), me

    @property
    def trains_by_itself(self) -> bool:
        """Whether `train`, which knows no momentum, is asked for: to try several starts."""
        return self.restarts > 1

    def weight(self, s: Tensor, data: Data) -> Tensor:
        if self.weighted:
            return s * data.size
        return s

    def rolled(
        self,
        task: Task,
        w: Params,
        u: Params,
        me: Kept,
        data: Data,
        pair: int,
        *,
        outputs: Tensor | None = None,
    ) -> tuple[dict[str, Params], Kept]:
        """What the client sends, from the centre w and the momentum u; outputs: as in IFCA."""
        batches = self.training_batches(data, pair)
        if self.momentum_of == "client":
            u = me.momentum
        if self.average == "gradients":
            g = gradient(task, w, next(each(batches)), self)
            if self.order == "momentum_first":
                return {"momentum": axpy(self.beta, u, g)}, me  # u_i = β ū_ĵ + ∇f_i(θ_ĵ)
            return {"momentum": axpy(self.beta, u, me.gradient)}, me._replace(gradient=g)
        if self.order == "momentum_first":  # u ← β u + ∇f_i(w);  w ← w − η u,  H times
            w, u = heavy_ball(task, w, u, batches, self, self.beta, outputs=outputs)
        else:
            w, u = walk((w, u), batches, partial(self.model_first, task))
        return {"momentum": u, "model": w}, me

    def model_first(
        self, task: Task, now: tuple[Params, Params], rows: Batch
    ) -> tuple[Params, Params]:
        """w ← w − η u;  u ← β u + ∇f_i(w before)"""
        w, u = now
        return axpy(-self.lr, u, w), axpy(self.beta, u, gradient(task, w, rows, self))

    @client(when=lambda method: method.momentum_of == "client", rounds="later")
    def keep(
        self, task: Task, shared: Any, momentum: Params, me: Kept, data: Data
    ) -> tuple[Upload, Kept]:
        return Upload({}, {}, {}), me._replace(momentum=momentum)

    # ------------------------------------------------------------------ the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[Moving, Any]:  # type: ignore[override]
        state, initial_payload = super().start(task, clients, seed)
        return Moving(
            state.centres, zeros(state.centres), state.group, state.still
        ), initial_payload

    def begin(self, state: Moving, ask: Ask) -> Moving:  # type: ignore[override]
        centres, group = self.begun(state.centres, state.group, ask)
        if self.clusters == "auto":  # K is known only now
            state = state._replace(momentum=zeros(centres))
        return state._replace(centres=centres, group=group)

    def round(self, state: Moving, ask: Ask) -> Moving:  # type: ignore[override]
        settled, others = self.settled(state, ask)
        sent = state.momentum if self.momentum_of == "cluster" else {}
        started_from = {"model": state.centres} if self.average == "models" else None
        pair = self.pair_of(ask)
        sums = ask(
            self.roll,
            others,
            shared=(state.centres, sent),
            static=pair,
            stream="train",
            started_from=started_from,
        )
        group, still = identities(state, sums)
        if len(settled):
            one_hots = torch.eye(count(state.centres), dtype=sums.mass["momentum"].dtype)
            more = ask(
                self.roll_on,
                settled,
                per_client=Rows((state.centres, sent, one_hots), group[settled]),
                static=pair,
                stream="train",
                started_from=started_from,
            )
            sums = sums.plus(more)
        momentum = sums.mean("momentum", empty=state.momentum)  # ū_j ← mean of its members' u_i
        if self.momentum_of == "client":
            ask(self.keep, sums.ids, per_client=Rows(momentum, group[sums.ids]))
        return Moving(self.moved(state, sums), momentum, group, still)

    def moved(self, state: Moving, sums: Sums) -> Params:
        if self.average == "models":
            return sums.mean("model", empty=state.centres)
        if self.divide == "clients":
            m: float | Tensor = len(state.group)
        else:
            m = sums.mass["momentum"].sum().clamp(min=1)
        total = sums.totals["momentum"]
        return axpy(-self.lr / m, total, state.centres)  # θ_j ← θ_j − (η/m) Σ_{i∈S_j} u_i

    # ------------------------------------------------------------------ settings
    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.share:
            raise CoterieError(
                "cfl-mgd keeps one momentum per cluster and shares no layers: leave share."
            )
        if self.solver != "sgd":
            raise CoterieError(
                f"cfl-mgd takes heavy-ball steps with beta itself: leave solver, now {self.solver}."
            )
