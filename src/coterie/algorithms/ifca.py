"""IFCA: iterative federated clustering (Ghosh, Chung, Yin, Ramchandran, IEEE Trans. Inf. Theory 2022), Algorithm 2.

    paper       here             shape
    θ_j         centres          every leaf [K, ...]; [1, ...] for layers that all clusters share
    F_i(θ_j)    losses           [K]
    ĵ           cluster          int64
    s_i         Upload.weight    [K], one-hot (times n_i if weighted), of the layers that each cluster has apart
    M_t         ask.participants
    γ, τ        lr, local_steps

Ours, not the paper's:
* A cluster that nobody chose keeps its model (the paper leaves 0/0 open).
* The start. From random centres IFCA gets stuck with two groups in one cluster (docs/methods/ifca.md counts how often),
  so the default is `init="updates"`: in round 0 every participant trains one common model, reports a 256-number sketch
  of its update's direction, k-means++ groups the sketches, and the centres are the groups' mean models (option I: one
  step with each group's gradients). `start_steps` makes that training longer, which tells groups apart where rows are
  few. "random" is the paper's; "balanced" redraws until every cluster attracts clients, as the authors' CIFAR code
  does; `restarts` tries several random starts for `trial` rounds each and keeps the one of least training loss.
* `clusters="auto"` chooses K from the same sketches (clustering/choose.py), after five times the usual local training
  unless start_steps says otherwise; then it is fixed.
* Option I divides by the participants of the round (`divide="clients"`: by all clients, as printed). Its gradient is
  of all the client's rows, or of one batch where `batch` is set; local_steps and solver play no part in it.
* Once no identity changed for `patience` rounds a client is sent only its own centre; every `recheck` rounds it is
  sent all K again, for the paper does not say how a later drift would be noticed. With partial participation a quiet
  round is one in which nobody who answered changed.
* `resample` begins again after T rounds; where round 0 trains, it uses the last pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering import RULES, kmeans, sketch
from coterie.common.grouped import how_many
from coterie.common.losses import least_finite, least_loss
from coterie.contract import (
    Algorithm,
    Ask,
    Data,
    Local,
    Repeat,
    Rows,
    Sums,
    Upload,
    client,
    setting,
)
from coterie.errors import CoterieError
from coterie.local import descend, each, gradient
from coterie.params import (
    Params,
    argmin_finite,
    axpy,
    count,
    dot,
    minus,
    one_hot,
    pick,
    repeated,
    unstack,
)
from coterie.task import Batch, Task


class Clusters(NamedTuple):
    centres: Params
    group: Tensor  # int64 [N] last identity, −1: never seen
    still: Tensor  # rounds since an identity changed


@dataclass(frozen=True, kw_only=True)
class IFCA(Local, Algorithm):
    """Each client picks the centre of least loss and trains it; each centre is the mean over those who picked it."""

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = "Ghosh et al. 2022"

    clusters: int | str = setting(
        ..., "number of clusters K; auto: found in round 0", least=1, words=("auto",)
    )
    auto_by: str = setting("careful", "how clusters=auto is found", choices=RULES)
    average: str = setting("models", "option II, or I: gradients", choices=("models", "gradients"))
    init: str = setting(
        "updates", "how the centres start", choices=("updates", "random", "balanced")
    )
    restarts: int = setting(1, "random starts to try before one is kept", least=1)
    trial: int = setting(3, "rounds that each restart is tried for", least=1)
    share: tuple[str, ...] = setting((), "layers that all clusters share, such as 1 or conv1")
    patience: int | None = setting(
        None, "rounds without a change before only the own centre is sent", least=1
    )
    recheck: int = setting(10, "every so many rounds all centres are sent again", least=1)
    resample: int = setting(
        0, "T: cut each client's rows into 2T parts, a fresh pair a round; 0: use all", least=0
    )
    weighted: bool = setting(False, "average by the clients' numbers of rows")
    divide: str = setting(
        "participants", "what option I divides by", choices=("participants", "clients")
    )
    l2_in_choice: bool = setting(False, "l2 counts in the loss that picks the cluster")
    start_steps: int | None = setting(
        None,
        "local steps of round 0 (init=updates); none: as in any round, with clusters=auto five times as many",
        least=1,
    )
    sketch_size: int = setting(256, "numbers in the sketch of an update (init=updates)", least=2)

    # ------------------------------------------------------------------------------ Algorithm 2, one client
    @client
    def train(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data, pair: int
    ) -> tuple[Upload, Any]:
        rows = data.part(2 * pair, 2 * self.resample) if self.resample else data.all
        j, losses = self.estimate(task, centres, rows)  # ĵ = argmin_j F_i(θ_j)
        value = self.local_update(task, pick(centres, j), data, pair)
        report = {
            "cluster": j,
            "losses": losses.nan_to_num(torch.inf, torch.inf),
        }  # NaN would have it refused
        return self.upload(
            value, one_hot(j, count(centres), task.dtype), data, report
        ), private  # s_i, θ̃_i or g_i

    def estimate(self, task: Task, centres: Params, rows: Batch) -> tuple[Tensor, Tensor]:
        """(cluster identity, all losses [K])"""
        models = unstack(centres)
        j, losses = least_loss(task, models, rows)
        if self.l2_in_choice:
            losses = losses + self.l2 / 2 * torch.stack([dot(m, m) for m in models])
            j = argmin_finite(losses)
        return j, losses

    def local_update(
        self, task: Task, w: Params, data: Data, pair: int, start: bool = False
    ) -> Params:
        """The gradient at w (option I), or w after τ local steps (option II)."""
        how = self.at_start() if start else self
        if self.resample:
            batches: Repeat | Iterator[Batch] = Repeat(
                data.part(2 * pair + 1, 2 * self.resample), how.local_steps
            )
        else:
            batches = data.batches(how)
        if self.average == "gradients":
            return gradient(
                task, w, next(each(batches)), how
            )  # (stochastic) gradient: of the first batch
        return descend(task, w, batches, how)

    # ------------------------------------------------------------------------------ Algorithm 2, the centre machine
    def start(self, task: Task, clients: int, seed: int) -> tuple[Clusters, Any]:
        k = 1 if self.clusters == "auto" else int(self.clusters)
        alike = self.init == "updates" and self.restarts == 1
        centres = repeated(task.init(seed), k) if alike else task.inits(seed, k)
        return Clusters(self.tied(centres), torch.full((clients,), -1), torch.tensor(0)), ()

    def round(self, state: Clusters, ask: Ask) -> Clusters:
        settled, others = self.settled(state, ask)
        sums = self.ask_all(state.centres, ask, others)
        group, still = self.identities(state, sums)
        if len(settled):
            sums = sums.plus(self.train_within(state.centres, settled, group, ask))
        return Clusters(self.averaged(state.centres, sums, len(group)), group, still)

    def ask_all(
        self, centres: Params, ask: Ask, clients: Tensor | None = None, stream: str = "train"
    ) -> Sums:
        """One exchange in which each client is sent all centres and trains the one it picks."""
        started_from = self.started_from(centres)
        sums: Sums = ask(
            self.train,
            clients,
            shared=centres,
            static=self.pair_of(ask),
            stream=stream,
            started_from=started_from,
        )
        return sums

    def averaged(self, centres: Params, sums: Sums, clients: int) -> Params:
        if self.average == "models":  # θ_j ← Σ s_ij θ̃_i / Σ s_ij
            return {
                **centres,
                **sums.mean("apart", empty=centres),
                **sums.mean("common", empty=centres),
            }
        # mass["common"] counts every participant once (its rows, if weighted), also where no layer is shared
        m = sums.mass["common"].sum().clamp(min=1) if self.divide == "participants" else clients
        total = {**sums.totals["apart"], **sums.totals["common"]}
        return axpy(
            -self.lr / m, {k: total[k] for k in centres}, centres
        )  # θ_j ← θ_j − (γ/m) Σ_{i∈S_j} g_i

    # ------------------------------------------------------------------------------ evaluation
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

    # ------------------------------------------------------------------------------ weight sharing (figure 2)
    def shared_by_all(self, name: str) -> bool:
        return any(name == s or name.startswith(f"{s}.") for s in self.share)

    def tied(self, centres: Params) -> Params:
        """Layers that all clusters share are kept and sent once."""
        return {k: v[:1] if self.shared_by_all(k) else v for k, v in centres.items()}

    def split(self, w: Params) -> dict[str, Params]:
        return {
            "apart": {k: v for k, v in w.items() if not self.shared_by_all(k)},
            "common": {k: v for k, v in w.items() if self.shared_by_all(k)},
        }

    def upload(self, w: Params, s: Tensor, data: Data, report: dict[str, Tensor]) -> Upload:
        s = s * data.size if self.weighted else s
        return Upload(self.split(w), {"apart": s, "common": s.sum()[None]}, report)

    def started_from(self, centres: Params) -> dict[str, Params] | None:
        """What screening compares uploads with; gradients with nothing."""
        return self.split(centres) if self.average == "models" else None

    # ------------------------------------------------------------------------------ saving communication (section IV-C)
    def settled(self, state: Any, ask: Ask) -> tuple[Tensor, Tensor]:
        """Participants that are sent only their own centre, and the others."""
        quiet = (
            self.patience is not None
            and int(state.still) >= self.patience
            and ask.round % self.recheck != 0
        )
        known = (state.group[ask.participants] >= 0) & quiet
        return ask.participants[known], ask.participants[~known]

    def identities(self, state: Any, sums: Sums) -> tuple[Tensor, Tensor]:
        """(who is in which cluster now, rounds since that changed); a round without answers does not count."""
        now = state.group.index_copy(0, sums.ids, sums.report["cluster"])
        same = torch.equal(now, state.group)
        return now, state.still + int(len(sums.ids) > 0) if same else torch.zeros_like(state.still)

    @client
    def train_sent(
        self,
        task: Task,
        shared: Any,
        per_client: Any,
        private: Any,
        data: Data,
        pair: int,
        start: bool,
    ) -> tuple[Upload, Any]:
        """Train the one centre that was sent."""
        centre, s = per_client
        return self.upload(self.local_update(task, centre, data, pair, start), s, data, {}), private

    def train_within(
        self, centres: Params, ids: Tensor, group: Tensor, ask: Ask, start: bool = False
    ) -> Sums:
        """One exchange in which each client is sent only the centre of its group."""
        eye = torch.eye(count(centres), dtype=next(iter(centres.values())).dtype)
        per_client, static = Rows((centres, eye), group[ids]), {"start": start, **self.pair_of(ask)}
        stream = "start" if start else "train"
        sums: Sums = ask(
            self.train_sent,
            ids,
            per_client=per_client,
            static=static,
            stream=stream,
            started_from=self.started_from(centres),
        )
        return sums

    def pair_of(self, ask: Ask) -> dict[str, int]:
        """Which pair of parts a round uses (`resample`); round 0 the last."""
        return {"pair": (ask.round - 1) % self.resample if self.resample else 0}

    # ------------------------------------------------------------------------------ starts
    def begin(self, state: Clusters, ask: Ask) -> Clusters:
        if self.restarts > 1:
            return self.best_of_restarts(state, ask)
        if self.init == "updates" and self.clusters != 1:
            return self.from_updates(state, ask)
        return self.balanced(state, ask) if self.init == "balanced" else state

    def from_updates(self, state: Clusters, ask: Ask) -> Clusters:
        """Sketches of the first updates are clustered; then the same updates are averaged per group.

        Both exchanges see the same randomness, so that what is averaged is what was clustered, and no model is kept.
        """
        seed = int(torch.randint(2**62, (), generator=ask.rng("sketch")))
        static = {"seed": seed, **self.pair_of(ask)}
        got = ask(self.first_update, shared=pick(state.centres, 0), static=static, stream="start")
        k = how_many(self.clusters, got.report["sketch"], ask, self.auto_by)
        found = kmeans(got.report["sketch"], k, ask.rng("k-means"))
        ask.note("start_sizes", found.labels.bincount(minlength=k))
        group = state.group.index_copy(0, got.ids, found.labels)
        centres = self.tied(repeated(pick(state.centres, 0), k))
        sums = self.train_within(centres, got.ids, group, ask, start=True)
        return state._replace(centres=self.averaged(centres, sums, len(group)), group=group)

    @client
    def first_update(
        self,
        task: Task,
        model: Params,
        per_client: Any,
        private: Any,
        data: Data,
        seed: int,
        pair: int,
    ) -> tuple[Upload, Any]:
        value = self.local_update(task, model, data, pair, start=True)
        short = sketch(
            value if self.average == "gradients" else minus(value, model), self.sketch_size, seed
        )
        return Upload({}, {}, {"sketch": F.normalize(short, dim=-1, eps=1e-12)}), private

    def at_start(self) -> IFCA:
        """How clients train in round 0."""
        if self.start_steps is not None:
            return replace(self, local_steps=self.start_steps, local_epochs=None)
        if self.clusters == "auto":
            epochs = None if self.local_epochs is None else 5 * self.local_epochs
            return replace(self, local_steps=5 * self.local_steps, local_epochs=epochs)
        return self

    def best_of_restarts(self, state: Clusters, ask: Ask) -> Clusters:
        best, k = state, int(self.clusters)
        losses: list[float] = []
        for r in range(self.restarts):
            centres = self.tied(ask.task.inits(ask.seed, k, start=r * k))
            for n in range(self.trial):
                sums = self.ask_all(centres, ask, stream=f"trial {n}")
                centres = self.averaged(centres, sums, len(state.group))
            got = ask(self.choose, shared=centres)
            loss = float(got.report["loss"].mean())
            if loss < min(losses, default=torch.inf):
                group = state.group.index_copy(0, got.ids, got.report["cluster"])
                best = state._replace(centres=centres, group=group)
            losses.append(loss)
        ask.note("restart_losses", losses)
        return best

    def balanced(self, state: Clusters, ask: Ask, tries: int = 50) -> Clusters:
        """Random centres, redrawn until each attracts 0.7/K of the clients (for K=2 the authors' 35 %), at best."""
        best, most, k = state.centres, -1.0, int(self.clusters)
        for r in range(tries):
            centres = self.tied(ask.task.inits(ask.seed, k, start=r * k))
            picked = ask(self.choose, shared=centres).report["cluster"]
            least = float(picked.bincount(minlength=k).min()) / max(len(picked), 1)
            if least > most:
                best, most = centres, least
            if most >= 0.7 / k:
                break
        ask.note("start_draws", r + 1)
        return state._replace(centres=best)

    @client
    def choose(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        j, losses = self.estimate(task, centres, data.all)
        return Upload(
            {}, {}, {"cluster": j, "loss": least_finite(losses)}
        ), private  # NaN, if none is finite: refused

    # ------------------------------------------------------------------------------ settings
    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        names = list(task.init(0))
        for layer in self.share:
            if not any(n == layer or n.startswith(f"{layer}.") for n in names):
                raise CoterieError(
                    f"share names the layer {layer!r}, which the model lacks; it has {', '.join(names)}."
                )
        if self.clusters == "auto" and (self.init != "updates" or self.restarts > 1):
            raise CoterieError(
                "clusters='auto' is found from the first updates: leave init at 'updates' and restarts at 1."
            )
        if self.restarts > 1 and self.init == "balanced":
            raise CoterieError(
                "restarts tries random starts, and init='balanced' is another way: leave one of them."
            )
        if self.start_steps and (
            self.average == "gradients" or self.init != "updates" or self.restarts > 1
        ):
            raise CoterieError(
                "start_steps is for init='updates' with average='models' and restarts=1: leave it."
            )
        if self.weighted and self.average == "gradients" and self.divide == "clients":
            raise CoterieError(
                "weighted gradients are divided by the participants' rows, not by clients: leave divide or weighted."
            )
        if self.resample and (self.batch is not None or self.local_epochs is not None):
            raise CoterieError(
                "resample cuts the rows itself and takes full-batch local_steps: leave batch and local_epochs."
            )
        if int(sizes.min()) < 2 * self.resample:
            raise CoterieError(
                f"resample={self.resample} cuts the rows of each client into {2 * self.resample} parts, and a client "
                f"has only {int(sizes.min())} rows: use at most {int(sizes.min()) // 2}."
            )
