"""IFCA: iterative federated clustering (Ghosh, Chung, Yin, Ramchandran, IEEE Trans. Inf. Theory
2022), Algorithm 2.

    paper       here               shape
    θ_j         centres            every leaf [K, ...]; [1, ...] for layers that all clusters share
    F_i(θ_j)    losses             [K]
    ĵ           cluster            int64 [], the client's "cluster identity"
    s_i         Upload.weight      [K], one-hot; times n_i if `weighted`
    M_t         ask.participants   int64 [|M_t|]
    γ, τ        lr, local_steps

Differences from the paper:
* A cluster that no client chose keeps its model (the paper leaves 0/0 open).
* The start. From random centres IFCA often ends with two groups in one cluster
  (docs/methods/ifca.md counts how often), so the default is `init="updates"`, which clusters the
  first updates of one common model. "random" is the paper's. See ifca_starts.py for all starts.
* Option I divides by the participants of the round (`divide="clients"`: by all clients, as
  printed). Its gradient is over all rows of the client, or over one batch where `batch` is set;
  local_steps and solver do not apply.
* Section IV-C sends clients only their own centre late in training. Here that begins once no client
  has changed cluster for `patience` rounds, and every `recheck` rounds all K are sent again, since
  the paper does not say how a later drift would be noticed. With partial participation only
  participants can change cluster.
* `resample` (section V) starts over after T rounds; round 0 uses the last pair of parts.
* Under secure sums a client remembers its cluster; see ifca_sums.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering import RULES, sketch
from coterie.clustering.losses import Choice, choose_by_loss, choose_privately, min_finite
from coterie.core.contract import (
    Algorithm,
    Ask,
    Data,
    Direction,
    Drawn,
    Finite,
    Index,
    Local,
    Losses,
    OneHot,
    PoissonBatches,
    Repeat,
    Rows,
    SentWeight,
    Sums,
    Upload,
    client,
    setting,
)
from coterie.core.errors import CoterieError
from coterie.core.layers import check_layer_names, is_named
from coterie.core.params import (
    Params,
    argmin_finite,
    axpy,
    count,
    decayed_square,
    minus,
    one_hot,
    pick,
    unstack,
)
from coterie.core.task import Batch, Task
from coterie.methods import held_out, held_out_sums, ifca_sums, sketch_sums
from coterie.methods.ifca_starts import INITS, MAX_DRAWS, find_start, initial_centres
from coterie.methods.sketch_sums import SecureClientState as SecureClientState
from coterie.optim import descend, descend_from, each, gradient
from coterie.optim.server import ServerOptimizer, ServerSlots, takes_server_step


class IFCAState(NamedTuple):
    """What the server keeps between rounds."""

    centres: Params  # θ_j
    group: Tensor  # int64 [N], the last cluster of each client; −1 before its first round
    rounds_unchanged: Tensor  # int64 [], rounds since the last client changed cluster
    slots: ServerSlots | tuple[()] = ()  # of the server optimizer, if there is one


@dataclass(frozen=True, kw_only=True)
class IFCA(ServerOptimizer, Local, Algorithm):
    """Each client trains the cluster model with the smallest loss on its rows.

    A cluster model is the mean over the clients that chose it.

    Args:
        clusters: K, or "auto" to choose it in round 0.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.IFCA(clusters=2, lr=0.05), fed, rounds=1)
        >>> result.clusters[-1].shape
        (8,)
    """

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = "Ghosh et al. 2022"
    choices_to_predict: ClassVar[int | None] = 1

    clusters: int | str = setting(
        "auto", "number of clusters K; auto: chosen in round 0", ge=1, literals=("auto",)
    )
    auto_by: str = setting(held_out.RULE, "rule of clusters=auto", choices=(held_out.RULE, *RULES))
    average: str = setting(
        "models",
        "what clients send: models (option II) or gradients (option I)",
        choices=("models", "gradients"),
    )
    init: str = setting("updates", "initial centres", choices=INITS, paper="random")
    start_from: str | None = setting(None, "folder of exported cluster models to start from")
    start_steps: int | None = setting(
        None,
        "local steps of round 0 (init=updates); none: local_steps, or for auto 5 times that unless "
        "step sizes are fitted to the data",
        ge=1,
    )
    sketch_size: int = setting(256, "length of the sketch of an update (init=updates)", ge=2)
    restarts: int = setting(1, "random starts to try; the best is kept", ge=1)
    trial: int = setting(3, "rounds that each restart is tried for", ge=1)
    share: tuple[str, ...] = setting((), "layers that all clusters share, such as 1 or conv1")
    patience: int | None = setting(
        None, "send only the client's own centre after this many rounds without changes", ge=1
    )
    recheck: int = setting(
        10, "with patience: number of rounds after which all centres are sent again", ge=1
    )
    resample: int = setting(
        0, "T: divide the rows into 2T parts and use a new pair each round; 0: all rows", ge=0
    )
    weighted: bool = setting(False, "weight clients by their numbers of rows")
    divide: str = setting(
        "participants", "what option I divides by", choices=("participants", "clients")
    )
    l2_in_choice: bool = setting(False, "add the l2 term to the loss that picks the cluster")

    # ------------------------------------------------------------------ Algorithm 2, one client
    @client(
        weight=OneHot(rows="weighted"),
        report={"cluster": Index(), "losses": Losses()},
        secure="replaced",
        when=lambda method: method.calls_train,
        max_calls=lambda method: method.restarts * method.trial if method.restarts > 1 else 1,
        trainings=1,
        choices=1,
    )
    def train(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data, pair: int
    ) -> tuple[Upload, Any]:
        """Train the centre with the smallest loss; pair: see `resampled_pair`."""
        if data.is_private:
            choice = choose_privately(task, unstack(centres), data)
        else:
            choice = self.choose_cluster(task, centres, self.choice_batch(data, pair))
        cluster, losses, _ = choice  # ĵ = argmin_j F_i(θ_j)
        if self.average == "gradients":
            value = self.local_update(task, pick(centres, cluster), data, pair)
        else:
            # as local_update, but reuses the first-layer outputs of the choice
            batches = self.training_batches(data, pair)
            outputs = self.start_outputs(choice)
            value = descend_from(task, centres, cluster, batches, self, outputs=outputs)  # θ̃_i
        s = one_hot(cluster, count(centres), task.dtype)
        # report the loss of a diverged centre as infinite: a NaN would get the upload rejected
        report = {"cluster": cluster, "losses": losses.nan_to_num(torch.inf, torch.inf)}
        return self.make_upload(value, s, data, report), private

    @property
    def calls_train(self) -> bool:
        """Whether the server ever calls `train`; CFL-MGD, a subclass, does so only for restarts."""
        return True

    @client(
        weight=SentWeight(place=1, rows="weighted"),
        secure="replaced",
        when=lambda method: method.starts_from_updates or method.patience is not None,
    )
    def train_sent(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data,
        pair: int, start: bool,
    ) -> tuple[Upload, Any]:  # fmt: skip
        """Train the one centre that was sent."""
        centre, s = per_client
        value = self.local_update(task, centre, data, pair, start=start, only_upload=True)
        return self.make_upload(value, s, data, {}), private

    def choose_cluster(self, task: Task, centres: Params, batch: Batch) -> Choice:
        """Evaluate all centres on a batch and choose the one with the smallest loss."""
        models = unstack(centres)
        choice = choose_by_loss(task, models, batch)
        if not self.l2_in_choice:
            return choice
        losses = choice.losses + self.l2 / 2 * torch.stack([decayed_square(m) for m in models])
        return choice._replace(centre=argmin_finite(losses), losses=losses)

    def start_outputs(self, choice: Choice) -> Tensor | None:
        """First-layer outputs to reuse in training, unless it uses other rows."""
        if self.resample:
            return None
        return choice.start_outputs()

    def local_update(
        self,
        task: Task,
        w: Params,
        data: Data,
        pair: int,
        *,
        start: bool = False,
        only_upload: bool = False,
    ) -> Params:
        """g_i = ∇F_i(w) (option I), or θ̃_i: w after τ local steps (option II).

        Args:
            start: Whether this is round 0.
            only_upload: Whether the result is only uploaded, which permits a compact form.
        """
        how = self.start_training() if start else self
        batches = how.training_batches(data, pair)
        if self.average == "gradients":
            return gradient(task, w, next(each(batches)), how)
        if only_upload:
            return descend_from(task, {k: v[None] for k, v in w.items()}, 0, batches, how)
        return descend(task, w, batches, how)

    def make_upload(
        self, value: Params, s: Tensor, data: Data, report: dict[str, Tensor]
    ) -> Upload:
        """An upload for one cluster, given as one-hot s [K]; shared layers count every client."""
        if self.weighted:
            s = s * data.size
        return Upload(self.split_layers(value), {"apart": s, "common": s.sum()[None]}, report)

    # ------------------------------------------------------------------ Algorithm 2, the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[IFCAState, Any]:
        centres = initial_centres(self, task, seed)
        slots = self.server_slots(centres)
        return IFCAState(centres, torch.full((clients,), -1), torch.tensor(0), slots), ()

    def start_secure(self, task: Task, clients: int, seed: int) -> tuple[Any, Any]:
        if self.clusters == "auto" and self.auto_by != held_out.RULE:
            raise CoterieError(
                f"auto_by={self.auto_by} needs the sketch of each client, and with secure only "
                f"sums leave them: use auto_by={held_out.RULE}, or give the number of clusters."
            )
        state, inner = self.start(task, clients, seed)
        return state, ifca_sums.initial_payload(self, task, inner)

    def enroll(self, task: Task, initial_payload: Any, data: Data) -> Any:
        return initial_payload

    def begin(self, state: IFCAState, ask: Ask) -> IFCAState:
        if ask.is_secure:
            centres = ifca_sums.find_start_from_sums(self, state.centres, len(state.group), ask)
            return state._replace(centres=centres, slots=self.server_slots(centres))
        centres, group = find_start(self, state.centres, state.group, ask)
        return state._replace(centres=centres, group=group, slots=self.server_slots(centres))

    @takes_server_step
    def round(self, state: IFCAState, ask: Ask) -> IFCAState:
        if ask.is_secure:
            return self.round_from_sums(state, ask)
        settled, others = self.split_settled(state.group, state.rounds_unchanged, ask)
        sums = self.train_all(state.centres, ask, others)
        group, rounds_unchanged = update_groups(state.group, state.rounds_unchanged, sums)
        if len(settled):
            sums = sums.plus(self.train_assigned(state.centres, settled, group, ask))
        centres, slots = self.follow(state, sums, ask)
        return IFCAState(centres, group, rounds_unchanged, slots)

    def round_from_sums(self, state: IFCAState, ask: Ask) -> IFCAState:
        """`round` under secure sums: only the client knows its cluster."""
        sums = ask(
            self.train_own,
            shared=state.centres,
            static={
                "settled": ifca_sums.is_settled(self, state.rounds_unchanged, ask),
                **self.resampled_pair(ask),
            },
            stream="train",
            started_from=self.started_from(state.centres),
        )
        unchanged = ifca_sums.note_choices(sums, state.rounds_unchanged, ask)
        centres, slots = self.follow(state, sums, ask)
        return IFCAState(centres, state.group, unchanged, slots)

    def follow(
        self, state: IFCAState, sums: Sums, ask: Ask
    ) -> tuple[Params, ServerSlots | tuple[()]]:
        """The centres after a round's uploads, and the state of the server optimizer."""
        means = self.update_centres(state.centres, sums, len(state.group))
        mass = {
            name: sums.mass[part]
            for part, layers in self.split_layers(state.centres).items()
            for name in layers
        }
        return self.server_step(ask.task, state.centres, means, state.slots, mass)

    train_own = ifca_sums.train_own

    def train_all(
        self, centres: Params, ask: Ask, clients: Tensor | None = None, stream: str = "train"
    ) -> Sums:
        """Send all centres to each client, which trains the one it chooses."""
        return ask(
            self.train,
            clients,
            shared=centres,
            static=self.resampled_pair(ask),
            stream=stream,
            started_from=self.started_from(centres),
        )

    def train_assigned(
        self, centres: Params, ids: Tensor, group: Tensor, ask: Ask, start: bool = False
    ) -> Sums:
        """Send each client only the centre of its cluster."""
        one_hots = torch.eye(count(centres), dtype=next(iter(centres.values())).dtype)
        return ask(
            self.train_sent,
            ids,
            per_client=Rows((centres, one_hots), group[ids]),
            static={"start": start, **self.resampled_pair(ask)},
            stream="start" if start else "train",
            started_from=self.started_from(centres),
        )

    def update_centres(self, centres: Params, sums: Sums, clients: int) -> Params:
        """The centres after one round of uploads; `clients` is m, the number of all clients."""
        if self.average == "models":  # θ_j ← Σ s_ij θ̃_i / Σ s_ij
            apart = sums.mean("apart", empty=centres)
            return {**centres, **apart, **sums.mean("common", empty=centres)}
        m: float | Tensor = clients
        if self.divide == "participants":
            m = sums.mass["common"].sum().clamp(min=1)  # participants, or their rows if weighted
        total = {**sums.totals["apart"], **sums.totals["common"]}
        return axpy(-self.lr / m, total, centres)  # θ_j ← θ_j − (γ/m) Σ_{i∈S_j} g_i

    # ------------------------------------------------------------------ evaluation
    def use(self, state: IFCAState) -> tuple[Params, Any]:
        return state.centres, ()

    def model(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> Params:
        if data.is_private:
            return pick(centres, choose_privately(task, unstack(centres), data).centre)
        return pick(centres, self.choose_cluster(task, centres, data.all).centre)

    def centres(self, state: IFCAState) -> Params:
        return state.centres

    def groups(self, state: IFCAState) -> Tensor:
        return state.group

    # ------------------------------------------------------------------ layers that clusters share
    def split_layers(self, w: Params) -> dict[str, Params]:
        """Divide layers into those that each cluster has apart and the common ones (figure 2)."""
        return {
            "apart": {k: v for k, v in w.items() if not is_named(k, self.share)},
            "common": {k: v for k, v in w.items() if is_named(k, self.share)},
        }

    def tie(self, centres: Params) -> Params:
        """The centres with a single copy of each shared layer."""
        return {k: v[:1] if is_named(k, self.share) else v for k, v in centres.items()}

    def started_from(self, centres: Params) -> dict[str, Params] | None:
        """The reference of update norms; gradients have none."""
        if self.average == "gradients":
            return None
        return self.split_layers(centres)

    # ------------------------------------------------------------------ saved traffic, section IV-C
    def split_settled(
        self, group: Tensor, rounds_unchanged: Tensor, ask: Ask
    ) -> tuple[Tensor, Tensor]:
        """(participants that get only their own centre, the other participants)"""
        is_recheck = ask.round % self.recheck == 0
        if self.patience is None or int(rounds_unchanged) < self.patience or is_recheck:
            return ask.participants[:0], ask.participants
        known = group[ask.participants] >= 0
        return ask.participants[known], ask.participants[~known]

    # ------------------------------------------------------------------ resampling, section V
    def resampled_pair(self, ask: Ask) -> dict[str, int]:
        """The pair of parts that a round uses, as a static argument; round 0 uses the last."""
        if not self.resample:
            return {"pair": 0}
        return {"pair": (ask.round - 1) % self.resample}

    def choice_batch(self, data: Data, pair: int) -> Batch:
        """The rows that choose the cluster."""
        if not self.resample:
            return data.all
        return data.part(2 * pair, 2 * self.resample)

    def training_batches(self, data: Data, pair: int) -> Repeat | Drawn | PoissonBatches:
        """The batches of local training."""
        if not self.resample:
            return data.batches(self)
        return Repeat(data.part(2 * pair + 1, 2 * self.resample), self.local_steps)

    # ------------------------------------------------------------------ round 0
    # client functions that choose K for clusters=auto; see held_out.py
    sketch_fold = held_out.sketch_fold
    average_fold = held_out.average_fold
    train_fold = held_out.train_fold
    # the same under secure sums; see sketch_sums.py, held_out_sums.py and ifca_sums.py
    assign_sketch = sketch_sums.assign_sketch
    sum_sketches = held_out_sums.sum_sketches
    average_own_fold = held_out_sums.average_own_fold
    train_own_fold = held_out_sums.train_own_fold
    sum_losses = held_out_sums.sum_losses
    sum_first_updates = ifca_sums.sum_first_updates
    average_own = ifca_sums.average_own

    @property
    def weighs_rows(self) -> bool:
        """For `held_out`: whether clients are weighted by their numbers of rows."""
        return self.weighted

    @property
    def starts_from_updates(self) -> bool:
        """Whether the initial centres come from the first updates."""
        return self.init == "updates" and self.restarts == 1 and self.start_from is None

    def start_training(self) -> Self:
        """The method with the local training of round 0."""
        if self.start_steps is not None:
            return replace(self, local_steps=self.start_steps, local_epochs=None)
        if self.clusters != "auto":
            return self
        if self.local_epochs is not None:
            return replace(self, local_epochs=5 * self.local_epochs)
        return replace(self, local_steps=5 * self.local_steps)

    def fit_step_sizes(self, curvature: float, clients: int) -> Self:
        """Fit the step sizes and keep round 0 short.

        With step sizes that fit the data no longer training is needed, and sketches of longer
        training contain more of what is particular to a client's few rows.
        """
        method = super().fit_step_sizes(curvature, clients)
        uses_steps = self.starts_from_updates and self.average == "models"
        is_given = self.start_steps is not None or self.local_epochs is not None
        if self.clusters == "auto" and uses_steps and not is_given:
            return replace(method, start_steps=self.local_steps)
        return method

    @client(
        report={"sketch": Direction()},
        secure="replaced",
        when=lambda method: method.starts_from_updates,
        rounds="start",
    )
    def first_update(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data,
        pair: int, seed: int,
    ) -> tuple[Upload, Any]:  # fmt: skip
        """Report a sketch of the direction of the first update of the common model."""
        value = self.local_update(task, model, data, pair, start=True)
        if self.average == "models":
            value = minus(value, model)
        direction = F.normalize(sketch(value, self.sketch_size, seed), dim=-1, eps=1e-12)
        return Upload({}, {}, {"sketch": direction}), private

    @client(
        report={"losses": Losses()},
        secure="replaced",
        when=lambda method: method.starts_from_updates,
        rounds="start",
    )
    def rate(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the loss under each centre."""
        losses = self.choose_cluster(task, centres, data.all).losses
        return Upload({}, {}, {"losses": losses.nan_to_num(torch.inf, torch.inf)}), private

    @client(
        report={"cluster": Index(), "loss": Finite("its loss under that", minimum=0)},
        when=lambda method: method.restarts > 1 or method.init == "balanced",
        rounds="start",
        max_calls=lambda method: max(method.restarts, MAX_DRAWS),
    )
    def choose(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the chosen cluster and its loss; a NaN, which is rejected, if none is finite."""
        cluster, losses, _ = self.choose_cluster(task, centres, data.all)
        return Upload({}, {}, {"cluster": cluster, "loss": min_finite(losses)}), private

    # ------------------------------------------------------------------ settings
    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        self.check_server_optimizer()
        self._check_start()
        names = list(task.init(0))
        check_layer_names("share", self.share, names)
        if all(is_named(name, self.share) for name in names):
            raise CoterieError(
                f"share names all layers ({', '.join(names)}), so that clusters would not differ: "
                "name fewer, or use fedavg."
            )
        if self.resample and (self.batch is not None or self.local_epochs is not None):
            raise CoterieError(
                "resample divides the rows itself and takes full-batch local_steps: "
                "leave out batch and local_epochs."
            )
        fewest = int(sizes.min())
        if fewest < 2 * self.resample:
            raise CoterieError(
                f"resample={self.resample} divides the rows of each client into "
                f"{2 * self.resample} parts, and a client has only {fewest} rows: "
                f"use at most {fewest // 2}."
            )
        if self.weighted and self.average == "gradients" and self.divide == "clients":
            raise CoterieError(
                "weighted gradients are divided by the participants' rows, not by clients: "
                "leave out divide or weighted."
            )

    def _check_start(self) -> None:
        has_random_start = self.restarts > 1 or self.init != "updates"
        if self.start_from is not None and has_random_start:
            raise CoterieError("start_from gives the initial centres: leave out init and restarts.")
        if self.clusters == "auto" and has_random_start:
            raise CoterieError(
                "clusters='auto' needs init='updates' and restarts=1: give the number of "
                "clusters, or leave out init and restarts."
            )
        if self.restarts > 1 and self.init == "balanced":
            raise CoterieError(
                "restarts and init='balanced' both search for a random start: leave out one."
            )
        if self.start_steps and not (self.starts_from_updates and self.average == "models"):
            raise CoterieError(
                "start_steps needs init='updates', average='models', restarts=1 and no "
                "start_from: leave it out."
            )


def update_groups(group: Tensor, rounds_unchanged: Tensor, sums: Sums) -> tuple[Tensor, Tensor]:
    """Update the clusters of clients after a round.

    Args:
        group: int64 [N], the clusters before.
        rounds_unchanged: int64 [], rounds since one changed; rounds without answers do not count.
        sums: The answers, which report "cluster".

    Returns:
        The new values of both.
    """
    new = group.index_copy(0, sums.ids, sums.report["cluster"])
    if not torch.equal(new, group):
        return new, torch.zeros_like(rounds_unchanged)
    return new, rounds_unchanged + int(len(sums.ids) > 0)
