"""CFL-MGD: clustered federated learning with momentum gradient descent (Zhao, Xie, Xing, Zhang,
Ma, Electronics 2023), Algorithm 1.

    paper       here               shape
    θ_j         centres            every leaf [K, ...]
    ū_j         momentum           every leaf [K, ...]
    u_i         Upload "momentum"  every leaf [...]
    ĵ           cluster            int64 [], the centre with the smallest loss, as in IFCA
    β, η        beta, lr
    H           local_steps

Differences from the paper:
* The order of equation (4): the momentum first, with the current gradient. `order="model_first"` is
  the listing's: a local step subtracts the momentum from before, and option I adds the gradient of
  the client's previous round (0 before its first), which the client stores.
* A client starts from the server's current ū of the cluster it chooses. `momentum_of="client"` is
  the listing's: the server sends ū_j to the members of the round, who store it as their u_i. It is
  stale where a client was absent or changes its cluster; it sends each client K momenta fewer and
  one more.
* Option I divides by the participants of the round (`divide="clients"`: by all clients, as
  printed). Its gradient is over all rows of the client, or over one batch where `batch` is set;
  local_steps does not apply.
* A cluster that no client chose keeps its model and its momentum.
* Starts are IFCA's, without momentum; ū is 0 when round 1 begins. `resample`, `patience` and
  `recheck` are IFCA's; a settled client gets its own centre and momentum. Clusters cannot share
  layers: the paper shares none.

β = 0 is IFCA exactly. Option I is Polyak's θ_j ← θ_j − (η/m) Σ g_i + β(θ_j − θ_j^{t−1}),
equation (32), as long as each cluster's fraction of the participants is constant.
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
from coterie.methods import ifca_sums
from coterie.methods.ifca import IFCA, update_groups
from coterie.methods.ifca_starts import find_start
from coterie.methods.sketch_sums import SecureClientState
from coterie.optim import each, gradient, heavy_ball, walk


class CFLMGDState(NamedTuple):
    """What the server keeps between rounds."""

    centres: Params  # θ_j
    momentum: Params  # ū_j
    group: Tensor  # int64 [N], the last cluster of each client; −1 before its first round
    rounds_unchanged: Tensor  # int64 [], rounds since the last client changed cluster


class CFLMGDClientState(NamedTuple):
    """What a client keeps; empty where the settings do not need it."""

    momentum: Params  # u_i as it was last received
    gradient: Params  # of its previous round


@dataclass(frozen=True, kw_only=True)
class CFLMGD(IFCA):
    """IFCA with heavy-ball momentum that belongs to the cluster.

    Args:
        clusters: K, or "auto" to choose it in round 0, as in IFCA.
        beta: The momentum coefficient β.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.CFLMGD(clusters=2, lr=0.1), fed, rounds=1)
        >>> result.clusters[-1].shape
        (8,)
    """

    name: ClassVar[str] = "cfl-mgd"
    paper: ClassVar[str] = "Zhao et al. 2023"

    beta: float = setting(0.9, "momentum β", ge=0, lt=1)
    order: str = setting(
        "momentum_first", "what a step updates first", choices=("momentum_first", "model_first")
    )
    momentum_of: str = setting(
        "cluster", "where a client's initial momentum comes from", choices=("cluster", "client")
    )

    # ------------------------------------------------------------------ one client
    def enroll(self, task: Task, initial_payload: Any, data: Data) -> Any:
        if isinstance(initial_payload, SecureClientState):
            inner = self.enroll(task, initial_payload.inner, data)
            return initial_payload._replace(inner=inner)
        zero = zeros(task.travelling(task.module))
        keeps_gradient = self.order == "model_first" and self.average == "gradients"
        return CFLMGDClientState(
            momentum=zero if self.momentum_of == "client" else {},
            gradient=zero if keeps_gradient else {},
        )

    @client(
        weight=OneHot(rows="weighted"),
        report={"cluster": Index(), "losses": Losses()},
        secure="replaced",
        rounds="later",
    )
    def roll(
        self, task: Task, shared: Any, per_client: Any, me: CFLMGDClientState, data: Data, pair: int
    ) -> tuple[Upload, CFLMGDClientState]:
        """Train the centre with the smallest loss, with its momentum."""
        centres, momentum = shared
        choice = self.choose_cluster(task, centres, self.choice_batch(data, pair))
        j, losses, _ = choice
        report = {"cluster": j, "losses": losses.nan_to_num(torch.inf, torch.inf)}
        s = one_hot(j, count(centres), task.dtype)
        w, u = pick(centres, j), pick(momentum, j)
        outputs = self.start_outputs(choice)
        values, me = self.train_momentum(task, w, u, me, data, pair, outputs=outputs)
        return Upload(values, self.client_weight(s, data), report), me

    @client(weight=OneHot(rows="weighted"), report=ifca_sums.CHOICE, secure="only", rounds="later")
    def roll_own(
        self, task: Task, shared: Any, per_client: Any, private: SecureClientState, data: Data,
        pair: int, settled: bool,
    ) -> tuple[Upload, SecureClientState]:  # fmt: skip
        """As `roll` under secure sums: the client remembers its cluster."""
        centres, momentum = shared
        choice, report, private = ifca_sums.choose_own(
            self, task, centres, private, data, pair=pair, settled=settled
        )
        s = one_hot(choice.centre, count(centres), task.dtype)
        w, u = pick(centres, choice.centre), pick(momentum, choice.centre)
        outputs = None if settled else self.start_outputs(choice)
        values, me = self.train_momentum(task, w, u, private.inner, data, pair, outputs=outputs)
        return Upload(values, self.client_weight(s, data), report), private._replace(inner=me)

    @client(
        weight=SentWeight(place=2, rows="weighted"),
        secure="replaced",
        when=lambda method: method.patience is not None,
        rounds="later",
    )
    def roll_on(
        self, task: Task, shared: Any, per_client: Any, me: CFLMGDClientState, data: Data, pair: int
    ) -> tuple[Upload, CFLMGDClientState]:
        """Train the one centre that was sent, with its momentum."""
        w, u, s = per_client
        values, me = self.train_momentum(task, w, u, me, data, pair)
        return Upload(values, self.client_weight(s, data), {}), me

    @client(when=lambda method: method.momentum_of == "client", rounds="later", individual=True)
    def keep(
        self, task: Task, shared: Any, momentum: Params, me: CFLMGDClientState, data: Data
    ) -> tuple[Upload, CFLMGDClientState]:
        """Store the momentum of the client's cluster."""
        return Upload({}, {}, {}), me._replace(momentum=momentum)

    @property
    def calls_train(self) -> bool:
        """Whether the server calls IFCA's `train`, without momentum: to try several starts."""
        return self.restarts > 1

    def client_weight(self, s: Tensor, data: Data) -> Tensor:
        """The client's weight in the clusters s [K], one-hot."""
        if self.weighted:
            return s * data.size
        return s

    def train_momentum(
        self,
        task: Task,
        w: Params,
        u: Params,
        me: CFLMGDClientState,
        data: Data,
        pair: int,
        *,
        outputs: Tensor | None = None,
    ) -> tuple[dict[str, Params], CFLMGDClientState]:
        """Train from the centre w and the momentum u.

        Args:
            outputs: First-layer outputs under w, if known.

        Returns:
            The values to upload, and the new client state.
        """
        batches = self.training_batches(data, pair)
        if self.momentum_of == "client":
            u = me.momentum
        if self.average == "gradients":
            g = gradient(task, w, next(each(batches)), self)
            if self.order == "momentum_first":
                return {"momentum": axpy(self.beta, u, g)}, me  # u_i = β ū_ĵ + ∇f_i(θ_ĵ)
            return {"momentum": axpy(self.beta, u, me.gradient)}, me._replace(gradient=g)
        if self.order == "momentum_first":  # u ← β u + ∇f_i(w);  w ← w − η u,  H times (4)
            w, u = heavy_ball(task, w, u, batches, self, self.beta, outputs=outputs)
        else:
            w, u = walk((w, u), batches, partial(self.model_first_step, task))
        return {"momentum": u, "model": w}, me

    def model_first_step(
        self, task: Task, now: tuple[Params, Params], batch: Batch
    ) -> tuple[Params, Params]:
        """w ← w − η u;  u ← β u + ∇f_i(w before)"""
        w, u = now
        return axpy(-self.lr, u, w), axpy(self.beta, u, gradient(task, w, batch, self))

    # ------------------------------------------------------------------ the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[CFLMGDState, Any]:  # type: ignore[override]
        at, payload = super().start(task, clients, seed)
        return CFLMGDState(at.centres, zeros(at.centres), at.group, at.rounds_unchanged), payload

    def begin(self, state: CFLMGDState, ask: Ask) -> CFLMGDState:  # type: ignore[override]
        if ask.is_secure:
            group = state.group
            centres = ifca_sums.find_start_from_sums(self, state.centres, len(group), ask)
        else:
            centres, group = find_start(self, state.centres, state.group, ask)
        if self.clusters == "auto":  # K is known only now
            state = state._replace(momentum=zeros(centres))
        return state._replace(centres=centres, group=group)

    def round(self, state: CFLMGDState, ask: Ask) -> CFLMGDState:  # type: ignore[override]
        if ask.is_secure:
            return self.roll_from_sums(state, ask)
        settled, others = self.split_settled(state.group, state.rounds_unchanged, ask)
        sent = state.momentum if self.momentum_of == "cluster" else {}
        started_from = {"model": state.centres} if self.average == "models" else None
        pair = self.resampled_pair(ask)
        sums = ask(
            self.roll,
            others,
            shared=(state.centres, sent),
            static=pair,
            stream="train",
            started_from=started_from,
        )
        group, rounds_unchanged = update_groups(state.group, state.rounds_unchanged, sums)
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
        centres = self.step_centres(state, sums)
        return CFLMGDState(centres, momentum, group, rounds_unchanged)

    def roll_from_sums(self, state: CFLMGDState, ask: Ask) -> CFLMGDState:
        """`round` under secure sums: nobody but the client knows its cluster."""
        sums = ask(
            self.roll_own,
            shared=(state.centres, state.momentum),
            static={
                "settled": ifca_sums.is_settled(self, state.rounds_unchanged, ask),
                **self.resampled_pair(ask),
            },
            stream="train",
            started_from={"model": state.centres} if self.average == "models" else None,
        )
        return CFLMGDState(
            centres=self.step_centres(state, sums),
            momentum=sums.mean("momentum", empty=state.momentum),
            group=state.group,
            rounds_unchanged=ifca_sums.note_choices(sums, state.rounds_unchanged, ask),
        )

    def step_centres(self, state: CFLMGDState, sums: Sums) -> Params:
        """The centres after a round."""
        if self.average == "models":
            return sums.mean("model", empty=state.centres)
        m: float | Tensor = len(state.group)
        if self.divide == "participants":
            m = sums.mass["momentum"].sum().clamp(min=1)
        total = sums.totals["momentum"]
        return axpy(-self.lr / m, total, state.centres)  # θ_j ← θ_j − (η/m) Σ_{i∈S_j} u_i

    # ------------------------------------------------------------------ settings
    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.share:
            raise CoterieError(
                "cfl-mgd keeps one momentum per cluster and shares no layers: leave out share."
            )
        if self.solver != "sgd":
            raise CoterieError(
                f"cfl-mgd takes heavy-ball steps with beta: leave out solver, now {self.solver}."
            )
