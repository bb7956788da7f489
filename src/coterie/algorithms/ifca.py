"""IFCA: iterative federated clustering (Ghosh, Chung, Yin, Ramchandran, IEEE Trans. Inf. Theory 2022), Algorithm 2.

    paper       here             shape
    θ_j         centres          every leaf [K, ...]; [1, ...] for layers that all clusters share
    F_i(θ_j)    losses           [K]
    ĵ           cluster          int64
    s_i         Upload.weight    [K], one-hot
    M_t         ask.participants
    γ, τ        lr, local_steps

Ours, not the paper's:
* A cluster that nobody chose keeps its model (the paper leaves 0/0 open).
* The start. From random centres IFCA gets stuck with two groups in one cluster (docs/methods/ifca.md counts how often),
  so the default is `init="updates"`: in round 0 every participant trains one common model, reports a 256-number sketch
  of its update, k-means++ groups the sketches, and the centres are the groups' mean models. `start_steps` makes that
  training longer, which tells groups apart where rows are few. "random" is the paper's; "balanced" redraws until every
  cluster attracts clients, as the authors' CIFAR code does; `restarts` tries several random starts for `trial` rounds
  each and keeps the one of least training loss.
* `clusters="auto"` chooses K from the same sketches (clustering/choose.py); then it is fixed.
* Option I divides by the participants of the round (`divide="clients"`: by all clients, as printed). Its gradient is
  of all the client's rows, or of one batch where `batch` is set; local_steps and solver play no part in it.
* Once no identity changed for `patience` rounds a client is sent only its own centre; every `recheck` rounds it is
  sent all K again, for the paper does not say how a later drift would be noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.algorithms.grouped import how_many
from coterie.clustering import RULES, kmeans, sketch
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
    least_loss,
    least_of,
    setting,
)
from coterie.errors import CoterieError
from coterie.local import descend, each, gradient
from coterie.params import Params, argmin_finite, axpy, count, dot, minus, norm, one_hot, pick, repeated, unstack
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

    clusters: int | str = setting(..., "number of clusters K; auto: found in round 0", least=1, words=("auto",))
    auto_by: str = setting("gap", "how clusters=auto is found", choices=RULES)
    average: str = setting("models", "option II, or I: gradients", choices=("models", "gradients"))
    init: str = setting("updates", "how the centres start", choices=("updates", "random", "balanced"))
    restarts: int = setting(1, "random starts to try before one is kept", least=1)
    trial: int = setting(3, "rounds that each restart is tried for", least=1)
    share: tuple[str, ...] = setting((), "layers that all clusters share, such as 1 or conv1")
    patience: int | None = setting(None, "rounds without a change before only the own centre is sent", least=1)
    recheck: int = setting(10, "every so many rounds all centres are sent again", least=1)
    resample: int = setting(0, "T: cut each client's rows into 2T parts, a fresh pair a round; 0: use all", least=0)
    weighted: bool = setting(False, "average by the clients' numbers of rows")
    divide: str = setting("participants", "what option I divides by", choices=("participants", "clients"))
    l2_in_choice: bool = setting(False, "l2 counts in the loss that picks the cluster")
    start_steps: int | None = setting(
        None,
        "local steps of round 0 (init=updates); none: as in any round, with clusters=auto five times as many",
        least=1,
    )
    sketch_size: int = setting(256, "numbers in the sketch of an update (init=updates)", least=2)

    # ------------------------------------------------------------------------------ Algorithm 2, one client
    @client
    def train(self, task: Task, centres: Params, own: Any, private: Any, data: Data, t: int) -> tuple[Upload, Any]:
        rows = data.part(2 * t, 2 * self.resample) if self.resample else data.all
        j, losses = self.identity(task, centres, rows)  # ĵ = argmin_j F_i(θ_j)
        value = self.local_update(task, pick(centres, j), data, t)
        report = {"cluster": j, "losses": losses.nan_to_num(torch.inf, torch.inf)}
        return self.upload(value, one_hot(j, count(centres), task.dtype), data, report), private  # s_i, θ̃_i or g_i

    def identity(self, task: Task, centres: Params, rows: Batch) -> tuple[Tensor, Tensor]:
        models = unstack(centres)
        j, losses = least_loss(task, models, rows)
        if self.l2_in_choice:
            losses = losses + self.l2 / 2 * torch.stack([dot(m, m) for m in models])
            j = argmin_finite(losses)
        return j, losses

    def local_update(self, task: Task, w: Params, data: Data, t: int, steps: int = 0) -> Params:
        """The gradient at w (option I), or w after τ local steps (option II), or so many."""
        how = replace(self, local_steps=steps, local_epochs=None) if steps else self
        if self.resample:
            batches: Repeat | Iterator[Batch] = Repeat(data.part(2 * t + 1, 2 * self.resample), how.local_steps)
        else:
            batches = data.batches(how)
        if self.average == "gradients":
            return gradient(task, w, next(each(batches)), self)  # (stochastic) gradient: of the first batch
        return descend(task, w, batches, self)

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

    def ask_all(self, centres: Params, ask: Ask, clients: Tensor | None = None) -> Sums:
        """One exchange in which each client is sent all centres and trains the one it picks."""
        near = self.sent(centres)
        sums: Sums = ask(self.train, clients, shared=centres, static=self.turn(ask), stream="train", near=near)
        return sums

    def averaged(self, centres: Params, sums: Sums, clients: int) -> Params:
        if self.average == "models":  # θ_j ← Σ s_ij θ̃_i / Σ s_ij
            new = {**sums.mean("own", empty=centres), **sums.mean("all", empty=centres)}
        else:  # θ_j ← θ_j − (γ/m) Σ_{i∈S_j} g_i
            m = sums.mass["all"].sum().clamp(min=1) if self.divide == "participants" else clients
            new = axpy(-self.lr / m, {**sums.totals["own"], **sums.totals["all"]}, centres)
        return {k: new[k] for k in centres}

    # ------------------------------------------------------------------------------ evaluation
    def use(self, state: Clusters) -> tuple[Params, Any]:
        return state.centres, ()

    def model(self, task: Task, centres: Params, own: Any, private: Any, data: Data) -> Params:
        return pick(centres, self.identity(task, centres, data.all)[0])

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
            "own": {k: v for k, v in w.items() if not self.shared_by_all(k)},
            "all": {k: v for k, v in w.items() if self.shared_by_all(k)},
        }

    def upload(self, w: Params, s: Tensor, data: Data, report: dict[str, Tensor]) -> Upload:
        s = s * data.size if self.weighted else s
        return Upload(self.split(w), {"own": s, "all": s.sum()[None]}, report)

    def sent(self, centres: Params) -> dict[str, Params] | None:
        return self.split(centres) if self.average == "models" else None

    # ------------------------------------------------------------------------------ saving communication (section IV-C)
    def settled(self, state: Any, ask: Ask) -> tuple[Tensor, Tensor]:
        """Participants that are sent only their own centre, and the others."""
        quiet = self.patience is not None and int(state.still) >= self.patience and ask.round % self.recheck != 0
        known = (state.group[ask.participants] >= 0) & quiet
        return ask.participants[known], ask.participants[~known]

    def identities(self, state: Any, sums: Sums) -> tuple[Tensor, Tensor]:
        """(who is in which cluster now, rounds since that changed)"""
        now = state.group.index_copy(0, sums.ids, sums.report["cluster"])
        return now, state.still + 1 if torch.equal(now, state.group) else torch.zeros_like(state.still)

    @client
    def stay(
        self, task: Task, shared: Any, own: Any, private: Any, data: Data, t: int, steps: int = 0
    ) -> tuple[Upload, Any]:
        """Train the one centre that was sent."""
        centre, s = own
        return self.upload(self.local_update(task, centre, data, t, steps), s, data, {}), private

    def train_within(
        self, centres: Params, ids: Tensor, group: Tensor, ask: Ask, stream: str = "train", steps: int = 0
    ) -> Sums:
        """One exchange in which each client is sent only the centre of its group."""
        eye = torch.eye(count(centres), dtype=next(iter(centres.values())).dtype)
        own = Rows((centres, eye), group[ids])
        static = {"steps": steps, **self.turn(ask)}
        sums: Sums = ask(self.stay, ids, own=own, static=static, stream=stream, near=self.sent(centres))
        return sums

    def turn(self, ask: Ask) -> dict[str, int]:
        """Which pair of parts a round uses (`resample`)."""
        return {"t": (ask.round - 1) % self.resample if self.resample else 0}

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
        steps = self.start_steps or (5 * self.local_steps if self.clusters == "auto" else 0)
        static = {"seed": seed, "steps": steps, **self.turn(ask)}
        got = ask(self.first_update, shared=pick(state.centres, 0), static=static, stream="start")
        k = how_many(self.clusters, got.report["sketch"], ask, self.auto_by)
        found = kmeans(got.report["sketch"], k, ask.rng("k-means"))
        ask.note("start_sizes", found.labels.bincount(minlength=k))
        group = state.group.index_copy(0, got.ids, found.labels)
        centres = self.tied(repeated(pick(state.centres, 0), k))
        sums = self.train_within(centres, got.ids, group, ask, "start", steps)
        return state._replace(centres=self.averaged(centres, sums, len(group)), group=group)

    @client
    def first_update(
        self, task: Task, model: Params, own: Any, private: Any, data: Data, seed: int, t: int, steps: int
    ) -> tuple[Upload, Any]:
        value = self.local_update(task, model, data, t, steps)
        short = sketch(value if self.average == "gradients" else minus(value, model), self.sketch_size, seed)
        return Upload({}, {}, {"sketch": short / norm({"": short}).clamp(min=1e-12)}), private

    def best_of_restarts(self, state: Clusters, ask: Ask) -> Clusters:
        best, k = state, int(self.clusters)
        losses: list[float] = []
        for r in range(self.restarts):
            centres = self.tied(ask.task.inits(ask.seed, k, start=r * k))
            for _ in range(self.trial):
                sums = self.ask_all(centres, ask)
                centres = self.averaged(centres, sums, len(state.group))
            loss = float(sums.report["losses"].min(1).values.mean())
            if loss < min(losses, default=torch.inf):
                group = state.group.index_copy(0, sums.ids, sums.report["cluster"])
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
    def choose(self, task: Task, centres: Params, own: Any, private: Any, data: Data) -> tuple[Upload, Any]:
        j, losses = self.identity(task, centres, data.all)
        return Upload({}, {}, {"cluster": j, "loss": least_of(losses)}), private

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
