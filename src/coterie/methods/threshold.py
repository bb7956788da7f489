"""PFL-TC and PDL-TC: personalised learning with threshold clustering (Werner, He, Karimireddy,
Jordan, Jaggi, FL-NeurIPS 2022), Algorithms 2 and 3; Algorithm 1 is clustering/threshold.py.

    paper       here                 shape
    x_i         private.model        every leaf [...], the client's own
    m_i         private.momentum     every leaf [...]
    g̃_i         local_update()       option 1: ∇f_i(x_i); option 2: (x_i − y_i)/η, y_i: x_i trained
    v_k         v                    every leaf [K, ...]
    τ, M        threshold, moves     one τ per centre and round of the clustering
    α, η        alpha, lr

Differences from the paper:
* m_i ← α g̃_i + (1−α) m_i, as in the text and the proofs (the listings print a minus, which only
  slows training); m_i starts at 0, and a client's first momentum is its first gradient (α = 1).
* Option 2 is (x_i − y_i)/η: with the printed sign it ascends.
* Every member of a cluster steps by the thresholding's estimate v_k, not by the members' mean; a
  client in several balls or in none belongs to the nearest centre. For τ, the start from k-means
  and the stopping rule see clustering/threshold.py.
* All clients start from one model. `init="per_client"` is the literal reading, with a start for
  each; then members keep their offsets for ever.
* Labels of consecutive rounds are matched so that most clients keep theirs.
* Export and new clients need one model per cluster; a new client takes the one with the smallest
  loss. The server knows every x_i, since it sent each step, and stores them: N models, without
  further messages. The K models are the means of k-means among them, numbered like the labels. An
  x_i sums the steps of all rounds; the labels of late rounds are noise, and a mean over these would
  mix clusters, above all with absent clients.
* In PDL-TC all momenta go to all clients, N² messages, and each forms its v as a mix of these. The
  mix is computed from the Gram matrix: once in a simulation, by each of real peers (`coterie
  network peers`). No other centre bounds a ball, so τ is 0.99 × the 1/(2K)-quantile of the
  distances. All clients participate; a new client takes one round's local steps from the common
  start, alone.
* As gradients vanish so do the differences between clusters: judge the clusters by the first
  rounds, the models by the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.clustering import (
    Balls,
    Threshold,
    balls_per_point,
    match_clusters,
    mean_models,
    overlap_counts,
    threshold_clusters,
)
from coterie.clustering.losses import best_by_loss
from coterie.core.contract import Algorithm, Ask, Data, Local, Rows, Upload, Weight, client, setting
from coterie.core.errors import CoterieError
from coterie.core.params import (
    Params,
    axpy,
    flatten,
    minus,
    mix,
    pick,
    repeated,
    scale,
    unflatten,
    unstack,
    zeros,
)
from coterie.core.task import Task
from coterie.optim import descend, each, gradient


class MomentumClientState(NamedTuple):
    """What a client keeps."""

    model: Params
    momentum: Params
    turns: Tensor  # int64 [], number of uploads


class PFLTCState(NamedTuple):
    """What the server keeps between rounds."""

    models: Params  # every leaf [N, ...]: x_i
    group: Tensor  # int64 [N], −1: never participated


@dataclass(frozen=True, kw_only=True)
class ThresholdMomenta(Local, Algorithm):
    """The common part of both: a client's momentum and the settings of the clustering."""

    clusters: int = setting(..., "number of clusters K, such as 4", ge=1)
    alpha: float = setting(0.5, "weight α of the new gradient in the momentum", gt=0, le=1)
    threshold: float | str = setting(
        "half",
        "τ, or the rule that sets it",
        ge=0,
        literals=("half", "quantile", "k-means", "gap", "theory"),
    )
    quantile: float | None = setting(None, "q of threshold=quantile; none: 1/(2K)", ge=0, le=1)
    moves: int = setting(50, "upper bound M of the updates of a centre in one clustering", ge=1)
    sample: int | None = setting(
        None, "size of the sample of momenta in each update of a centre; none: all", ge=1
    )

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> MomentumClientState:
        return MomentumClientState(
            initial_payload, zeros(initial_payload), torch.zeros_like(data.client_key)
        )

    @client(weight=Weight(), rounds="later", individual=True)
    def gather(
        self, task: Task, shared: Any, per_client: Any, me: MomentumClientState, data: Data
    ) -> tuple[Upload, MomentumClientState]:
        """Upload the new momentum."""
        a = torch.where(me.turns == 0, torch.ones_like(data.size), self.alpha)
        m = mix(a, me.momentum, self.local_update(task, me.model, data))  # m_i ← α g̃_i + (1−α) m_i
        me = MomentumClientState(me.model, m, me.turns + 1)
        return Upload({"momentum": m}, torch.ones_like(data.size)[None], {}), me

    def local_update(self, task: Task, x: Params, data: Data) -> Params:
        """g̃_i at x."""
        return gradient(task, x, next(each(data.batches(self))), self)

    def threshold_options(self) -> Threshold:
        """The settings of the clustering."""
        return Threshold(self.threshold, self.quantile, self.moves, self.sample)

    def model(
        self, task: Task, shared: Any, per_client: Any, private: MomentumClientState, data: Data
    ) -> Params:
        return private.model

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.quantile is not None and self.threshold != "quantile":
            raise CoterieError(
                f"quantile={self.quantile} needs threshold='quantile', and threshold is "
                f"{self.threshold!r}."
            )


# ------------------------------------------------------------------------------ Algorithm 2
@dataclass(frozen=True, kw_only=True)
class PFLTC(ThresholdMomenta):
    """The server clusters the clients' momenta; a client steps by its cluster's estimate.

    Args:
        clusters: K.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.PFLTC(clusters=2), fed, rounds=1)
        >>> result.clusters[-1].shape
        (8,)
    """

    name: ClassVar[str] = "pfl-tc"
    paper: ClassVar[str] = "Werner et al. 2022"

    average: str = setting("gradients", "option 1, or 2: models", choices=("gradients", "models"))
    init: str = setting(
        "common", "one start for all, or one each", choices=("common", "per_client")
    )
    conditions: bool = setting(False, "note ρ, Δ, the proofs' conditions and every τ")

    def start(self, task: Task, clients: int, seed: int) -> tuple[PFLTCState, Params]:
        model = task.init(seed)
        return PFLTCState(repeated(model, clients), torch.full((clients,), -1)), model

    def begin(self, state: PFLTCState, ask: Ask) -> PFLTCState:
        if self.init == "common":
            return state
        starts = ask.task.inits(ask.seed, len(ask.all_clients), start=1)
        placed = ask(self.place, ask.all_clients, per_client=starts)
        arrived = torch.isin(ask.all_clients, placed.ids)
        models = {
            k: x.index_copy(0, placed.ids.to(x.device), starts[k][arrived].to(x))
            for k, x in state.models.items()
        }
        return state._replace(models=models)

    @client(when=lambda method: method.init == "per_client", rounds="start", individual=True)
    def place(
        self, task: Task, shared: Any, start: Params, me: MomentumClientState, data: Data
    ) -> tuple[Upload, MomentumClientState]:
        """Store the client's own start."""
        return Upload({}, {}, {}), me._replace(model=start)

    def local_update(self, task: Task, x: Params, data: Data) -> Params:
        if self.average == "gradients":
            return super().local_update(task, x, data)
        y = descend(task, x, data.batches(self), self)
        return scale(1 / self.lr, minus(x, y))  # g̃_i = (x_i − y_i)/η

    def round(self, state: PFLTCState, ask: Ask) -> PFLTCState:
        answers = ask(self.gather, reduce="stack", stream="train")
        if not len(answers.ids):
            return state
        momenta = answers.values["momentum"]
        m = flatten(momenta).cpu().double()
        balls = threshold_clusters(
            m, self.clusters, ask.rng("clustering"), self.threshold_options()
        )
        v = unflatten(balls.share @ m, pick(momenta, 0))
        moved = ask(self.take_step, answers.ids, per_client=Rows(v, balls.labels))
        before = state.group[answers.ids]
        to = match_clusters(-overlap_counts(before, balls.labels, self.clusters, len(balls.share)))
        self.note_balls(balls, ask)
        labels_of_moved = balls.labels[torch.isin(answers.ids, moved.ids)]
        models = {
            k: x.index_add(0, moved.ids.to(x.device), v[k][labels_of_moved].to(x), alpha=-self.lr)
            for k, x in state.models.items()
        }
        return PFLTCState(models, state.group.index_copy(0, answers.ids, to[balls.labels]))

    def note_balls(self, balls: Balls, ask: Ask) -> None:
        """Note the radii, and with `conditions` what theorem 1 is about."""
        ask.note("radius", balls.radius)
        if not self.conditions:
            return
        ask.note("radii", balls.radii)
        if balls.start is not None and len(balls.radius) > 1:  # one cluster has no Δ
            ask.note("rho", balls.start.spread)
            ask.note("delta", balls.start.separation)
            ask.note("rounds_by_theorem_1", balls.start.rounds())
            ask.note("conditions", balls.start.conditions(balls.radius))

    @client(rounds="later", individual=True)
    def take_step(
        self, task: Task, shared: Any, v: Params, me: MomentumClientState, data: Data
    ) -> tuple[Upload, MomentumClientState]:
        """Step by the estimate of the client's cluster."""
        x = axpy(-self.lr, v, me.model)  # x_i ← x_i − η v_k
        return Upload({}, {}, {}), me._replace(model=x)

    def use(self, state: PFLTCState) -> tuple[Params, Any]:
        return self.centres(state), ()

    def join(self, task: Task, centres: Params, data: Data) -> tuple[Any, MomentumClientState]:
        j, _ = best_by_loss(task, unstack(centres), data.all)
        return (), self.enroll(task, pick(centres, j), data)

    def centres(self, state: PFLTCState) -> Params:
        return mean_models(state.models, state.group, self.clusters)

    def groups(self, state: PFLTCState) -> Tensor:
        return state.group


# ------------------------------------------------------------------------------ Algorithm 3
@dataclass(frozen=True, kw_only=True)
class PDLTC(ThresholdMomenta):
    """Without a server: each client thresholds all momenta around its own.

    Args:
        clusters: The expected number of clusters, which sets the radius.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.PDLTC(clusters=2), fed, rounds=1)
        >>> len(result.history)
        2
    """

    name: ClassVar[str] = "pdl-tc"
    paper: ClassVar[str] = "Werner et al. 2022"
    needs_all_clients: ClassVar[bool] = True
    is_decentralised: ClassVar[bool] = True

    threshold: float | str = setting(
        "quantile", "τ, or the rule that sets it", ge=0, literals=("quantile", "k-means", "gap")
    )

    def start(self, task: Task, clients: int, seed: int) -> tuple[Params, Params]:
        model = task.init(seed)
        return model, model

    def round(self, start: Params, ask: Ask) -> Params:
        answers = ask(self.gather, reduce="stack", stream="train")
        if not len(answers.ids):
            return start
        momenta = answers.values["momentum"]
        m = flatten(momenta)
        balls = balls_per_point(m, self.clusters, ask.rng("clustering"), self.threshold_options())
        ask(self.take_step, answers.ids, shared=momenta, per_client=balls.share.to(m))
        ask.note("inside", balls.inside.sum(1))
        return start

    @client(rounds="later", individual=True)
    def take_step(
        self, task: Task, momenta: Params, share: Tensor, me: MomentumClientState, data: Data
    ) -> tuple[Upload, MomentumClientState]:
        """Step by the client's own mix of all momenta."""
        v = {k: torch.einsum("j,j...->...", share, m) for k, m in momenta.items()}
        x = axpy(-self.lr, v, me.model)  # x_i ← x_i − η v_i
        return Upload({}, {}, {}), me._replace(model=x)

    def join(self, task: Task, start: Params, data: Data) -> tuple[Any, MomentumClientState]:
        return (), self.enroll(task, descend(task, start, data.batches(self), self), data)
