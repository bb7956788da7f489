"""CFL-MGD: clustered federated learning with momentum gradient descent (Zhao, Xie, Xing, Zhang, Ma,
Electronics 2023), Algorithm 1.

    paper       here               shape
    θ_j         centres            every leaf [K, ...]
    ū_j         momentum           every leaf [K, ...]
    u_i         Upload "momentum"  every leaf [...]
    ĵ           cluster            int64, the centre of least loss, as in IFCA
    β, η        beta, lr
    H           local_steps

Ours, not the paper's:
* The listing updates the model before the momentum and indexes the gradient by t−1; equation (4)'s order is used:
  momentum first, with the current gradient.
* A client always starts from the server's current ū of the cluster it picks, never from an older u_i of its own.
* Option I divides by the participants of the round (`divide="clients"`: by all clients, as printed). Its gradient is
  of all the client's rows, or of one batch where `batch` is set; local_steps play no part in it.
* A cluster that nobody chose keeps its model and its momentum.
* The starts are IFCA's, without momentum; ū is 0 when round 1 begins. `resample`, `patience` and `recheck` are
  IFCA's; a settled client is sent its own centre and momentum. Layers cannot be shared: the paper shares none.

β = 0 is IFCA exactly. Option I is Polyak's θ_j ← θ_j − (η/m) Σ g_i + β(θ_j − θ_j^{t−1}), equation (32), as long as each
cluster's share of the participants stays the same from round to round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms.ifca import IFCA
from coterie.contract import Ask, Data, Repeat, Rows, Sums, Upload, client, setting
from coterie.errors import CoterieError
from coterie.local import each, gradient, heavy_ball
from coterie.params import Params, axpy, count, one_hot, pick, zeros
from coterie.task import Task


class Moving(NamedTuple):
    centres: Params
    momentum: Params  # of each cluster
    group: Tensor  # int64 [N] last identity, −1: never seen
    still: Tensor  # rounds since an identity changed


@dataclass(frozen=True, kw_only=True)
class CFLMGD(IFCA):
    """IFCA with heavy-ball momentum that belongs to the cluster."""

    name: ClassVar[str] = "cfl-mgd"
    paper: ClassVar[str] = "Zhao et al. 2023"

    beta: float = setting(0.9, "momentum β", least=0, below=1)

    # ------------------------------------------------------------------------------ one client
    @client
    def roll(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data, pair: int
    ) -> tuple[Upload, Any]:
        centres, momentum = shared
        rows = data.part(2 * pair, 2 * self.resample) if self.resample else data.all
        j, losses = self.estimate(task, centres, rows)  # ĵ = argmin_j F_i(θ_j)
        report = {"cluster": j, "losses": losses.nan_to_num(torch.inf, torch.inf)}
        s = one_hot(j, count(centres), task.dtype)
        return self.answer(
            task, pick(centres, j), pick(momentum, j), s, data, pair, report
        ), private

    @client
    def roll_on(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data, pair: int
    ) -> tuple[Upload, Any]:
        """Train the one centre that was sent, with its momentum."""
        w, u, s = per_client
        return self.answer(task, w, u, s, data, pair, {}), private

    def answer(
        self,
        task: Task,
        w: Params,
        u: Params,
        s: Tensor,
        data: Data,
        pair: int,
        report: dict[str, Tensor],
    ) -> Upload:
        s = s * data.size if self.weighted else s
        parts = 2 * self.resample
        batches = (
            Repeat(data.part(2 * pair + 1, parts), self.local_steps)
            if parts
            else data.batches(self)
        )
        if self.average == "gradients":
            u = axpy(
                self.beta, u, gradient(task, w, next(each(batches)), self)
            )  # u_i = β ū_ĵ + ∇f_i(θ_ĵ)
            return Upload({"momentum": u}, s, report)
        w, u = heavy_ball(
            task, w, u, batches, self, self.beta
        )  # u ← β u + ∇f_i(w);  w ← w − η u,  H times
        return Upload({"momentum": u, "model": w}, s, report)

    # ------------------------------------------------------------------------------ the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[Moving, Any]:  # type: ignore[override]
        state, welcome = super().start(task, clients, seed)
        return Moving(state.centres, zeros(state.centres), state.group, state.still), welcome

    def begin(self, state: Moving, ask: Ask) -> Moving:  # type: ignore[override]
        begun = super().begin(state, ask)  # type: ignore[arg-type]
        momentum = (
            zeros(begun.centres) if self.clusters == "auto" else state.momentum
        )  # K is known only now
        return Moving(begun.centres, momentum, begun.group, begun.still)

    def round(self, state: Moving, ask: Ask) -> Moving:  # type: ignore[override]
        settled, others = self.settled(state, ask)
        how: dict[str, Any] = {"static": self.pair_of(ask), "stream": "train"}
        if self.average == "models":
            how["started_from"] = {"model": state.centres}
        sums = ask(self.roll, others, shared=(state.centres, state.momentum), **how)
        group, still = self.identities(state, sums)
        if len(settled):
            eye = torch.eye(count(state.centres), dtype=sums.mass["momentum"].dtype)
            per_client = Rows((state.centres, state.momentum, eye), group[settled])
            sums = sums.plus(ask(self.roll_on, settled, per_client=per_client, **how))
        momentum = sums.mean("momentum", empty=state.momentum)  # ū_j ← mean of its members' u_i
        return Moving(self.moved(state, sums), momentum, group, still)

    def moved(self, state: Moving, sums: Sums) -> Params:
        if self.average == "models":
            return sums.mean("model", empty=state.centres)
        m = (
            sums.mass["momentum"].sum().clamp(min=1)
            if self.divide == "participants"
            else len(state.group)
        )
        return axpy(
            -self.lr / m, sums.totals["momentum"], state.centres
        )  # θ_j ← θ_j − (η/m) Σ_{i∈S_j} u_i

    # ------------------------------------------------------------------------------ settings
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
