"""IFCA: iterative federated clustering (Ghosh, Chung, Yin, Ramchandran, IEEE Trans. Inf. Theory
2022), Algorithm 2.

    paper       here             shape
    θ_j         centres          every leaf [K, ...]; [1, ...] for layers that all clusters share
    F_i(θ_j)    losses           [K]
    ĵ           cluster          int64
    s_i         Upload.weight    [K], one-hot (times n_i if weighted), of the layers not shared
    M_t         ask.participants
    γ, τ        lr, local_steps

Ours, not the paper's:
* A cluster that nobody chose keeps its model (the paper leaves 0/0 open).
* The start. From random centres IFCA gets stuck with two groups in one cluster
  (docs/methods/ifca.md counts how often), so the default is `init="updates"`: the first updates of
  one common model are clustered. "random" is the paper's. All starts stand in ifca_starts.py.
* Option I divides by the participants of the round (`divide="clients"`: by all clients, as
  printed). Its gradient is of all the client's rows, or of one batch where `batch` is set;
  local_steps and solver play no part in it.
* Once no identity changed for `patience` rounds a client is sent only its own centre; every
  `recheck` rounds it is sent all K again, for the paper does not say how a later drift would be
  noticed. With partial participation a quiet round is one in which nobody who answered changed.
* `resample` begins again after T rounds; where round 0 trains, it uses the last pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.clustering import RULES
from coterie.clustering.losses import Choice, choose
from coterie.core.contract import Ask, Data, Index, Losses, OneHot, Sums, Upload, client, setting
from coterie.core.errors import CoterieError
from coterie.core.params import (
    Params,
    argmin_finite,
    axpy,
    count,
    decayed_square,
    one_hot,
    pick,
    unstack,
)
from coterie.core.task import Batch, Task
from coterie.methods.held_out import RULE as HELD_OUT
from coterie.methods.ifca_starts import KINDS, Starts
from coterie.methods.ifca_traffic import identities
from coterie.optim import descend, descend_from, each, gradient


class Clusters(NamedTuple):
    centres: Params
    group: Tensor  # int64 [N] last identity, −1: never asked
    still: Tensor  # rounds since an identity changed


@dataclass(frozen=True, kw_only=True)
class IFCA(Starts):
    """Each client trains the centre of least loss; a centre is the mean over its clients."""

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = "Ghosh et al. 2022"

    clusters: int | str = setting(
        ..., "number of clusters K; auto: chosen in round 0", ge=1, literals=("auto",)
    )
    auto_by: str = setting(HELD_OUT, "how clusters=auto is chosen", choices=(HELD_OUT, *RULES))
    average: str = setting("models", "option II, or I: gradients", choices=("models", "gradients"))
    init: str = setting("updates", "how the centres start", choices=KINDS, paper="random")
    start_from: str | None = setting(
        None, "folder of exported group models; the centres start there"
    )
    start_steps: int | None = setting(
        None, "local steps of round 0 (init=updates); none: as usual, for auto 5 times", ge=1
    )
    sketch_size: int = setting(256, "numbers in the sketch of an update (init=updates)", ge=2)
    restarts: int = setting(1, "random starts to try before one is kept", ge=1)
    trial: int = setting(3, "rounds that each restart is tried for", ge=1)
    share: tuple[str, ...] = setting((), "layers that all clusters share, such as 1 or conv1")
    patience: int | None = setting(None, "quiet rounds before only the own centre is sent", ge=1)
    recheck: int = setting(10, "every so many rounds all centres are sent again", ge=1)
    resample: int = setting(0, "T: rows in 2T parts, a fresh pair each round; 0: use all", ge=0)
    weighted: bool = setting(False, "average by the clients' numbers of rows")
    divide: str = setting(
        "participants", "what option I divides by", choices=("participants", "clients")
    )
    l2_in_choice: bool = setting(False, "l2 counts in the loss that picks the cluster")

    # ------------------------------------------------------------------ Algorithm 2, one client
    @client(
        weight=OneHot(rows="weighted"),
        report={"cluster": Index(), "losses": Losses()},
        when=lambda method: method.trains_by_itself,
        max_calls=lambda method: method.restarts * method.trial,
    )
    def train(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data, pair: int
    ) -> tuple[Upload, Any]:
        """Train the centre of least loss."""
        choice = self.choice(task, centres, self.choosing_rows(data, pair))
        j, losses, _ = choice
        if self.average == "gradients":
            value = self.local_update(task, pick(centres, j), data, pair)
        else:
            batches = self.training_batches(data, pair)
            outputs = self.start_outputs(choice)
            value = descend_from(task, centres, j, batches, self, outputs=outputs)
        s = one_hot(j, count(centres), task.dtype)
        # a diverged centre's loss is reported as infinite: NaN would have the upload refused
        report = {"cluster": j, "losses": losses.nan_to_num(torch.inf, torch.inf)}
        return self.upload(value, s, data, report), private

    @property
    def trains_by_itself(self) -> bool:
        """Whether `train` is asked for at all."""
        return True

    def estimate(self, task: Task, centres: Params, rows: Batch) -> tuple[Tensor, Tensor]:
        """(ĵ = argmin_j F_i(θ_j), all losses [K])"""
        j, losses, _ = self.choice(task, centres, rows)
        return j, losses

    def choice(self, task: Task, centres: Params, rows: Batch) -> Choice:
        """The same, with what the first layer gave on the way."""
        models = unstack(centres)
        choice = choose(task, models, rows)
        if not self.l2_in_choice:
            return choice
        losses = choice.losses + self.l2 / 2 * torch.stack([decayed_square(m) for m in models])
        return choice._replace(centre=argmin_finite(losses), losses=losses)

    def start_outputs(self, choice: Choice) -> Tensor | None:
        """What the first layer gave under the chosen centre, unless training has other rows."""
        if self.resample:
            return None
        return choice.start_outputs()

    def local_update(
        self,
        task: Task,
        w: Params,
        data: Data,
        pair: int,
        start: bool = False,
        goes_out: bool = False,
    ) -> Params:
        """g_i = ∇F_i(w) (option I), or θ̃_i: w after τ local steps (option II).

        goes_out: nothing is done with it but uploading.
        """
        how = self.at_start() if start else self
        batches = how.training_batches(data, pair)
        if self.average == "gradients":
            return gradient(task, w, next(each(batches)), how)
        if goes_out:
            return descend_from(task, {k: v[None] for k, v in w.items()}, 0, batches, how)
        return descend(task, w, batches, how)

    # ------------------------------------------------------------------ Algorithm 2, the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[Clusters, Any]:
        return Clusters(
            self.first_centres(task, seed), torch.full((clients,), -1), torch.tensor(0)
        ), ()

    def begin(self, state: Clusters, ask: Ask) -> Clusters:
        centres, group = self.begun(state.centres, state.group, ask)
        return state._replace(centres=centres, group=group)

    def round(self, state: Clusters, ask: Ask) -> Clusters:
        settled, others = self.settled(state, ask)
        sums = self.ask_all(state.centres, ask, others)
        group, still = identities(state, sums)
        if len(settled):
            sums = sums.plus(self.train_within(state.centres, settled, group, ask))
        return Clusters(self.averaged(state.centres, sums, len(group)), group, still)

    def ask_all(
        self, centres: Params, ask: Ask, clients: Tensor | None = None, stream: str = "train"
    ) -> Sums:
        """One exchange in which each client is sent all centres and trains the one it picks."""
        return ask(
            self.train,
            clients,
            shared=centres,
            static=self.pair_of(ask),
            stream=stream,
            started_from=self.started_from(centres),
        )

    def averaged(self, centres: Params, sums: Sums, clients: int) -> Params:
        if self.average == "models":  # θ_j ← Σ s_ij θ̃_i / Σ s_ij
            apart = sums.mean("apart", empty=centres)
            return {**centres, **apart, **sums.mean("common", empty=centres)}
        if self.divide == "clients":
            m: float | Tensor = clients
        else:  # mass["common"] counts every participant once, also where no layer is shared
            m = sums.mass["common"].sum().clamp(min=1)
        total = {**sums.totals["apart"], **sums.totals["common"]}
        return axpy(-self.lr / m, total, centres)  # θ_j ← θ_j − (γ/m) Σ_{i∈S_j} g_i

    # ------------------------------------------------------------------ evaluation
    def use(self, state: Clusters) -> tuple[Params, Any]:
        return state.centres, ()

    def model(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> Params:
        return pick(centres, self.estimate(task, centres, data.all)[0])

    def centres(self, state: Clusters) -> Params:
        return state.centres

    def groups(self, state: Clusters) -> Tensor:
        return state.group

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.weighted and self.average == "gradients" and self.divide == "clients":
            raise CoterieError(
                "weighted gradients are divided by the participants' rows, not by clients: "
                "leave divide or weighted."
            )
