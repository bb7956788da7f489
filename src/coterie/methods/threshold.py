"""PFL-TC and PDL-TC: personalised learning with threshold clustering (Werner, He, Karimireddy,
Jordan, Jaggi, FL-NeurIPS 2022), Algorithms 2 and 3; Algorithm 1 is clustering/threshold.py.

    paper       here                 shape
    x_i         private.model        every leaf [...], the client's own
    m_i         private.momentum     every leaf [...]
    g̃_i         local_update()       option 1: ∇f_i(x_i); option 2: (x_i − y_i)/η, y_i: x_i trained
    v_k         v                    every leaf [K, ...]
    τ, M        threshold, moves     one τ per centre and round of the clustering
    α, η        alpha, lr

Ours, not the paper's:
* m_i ← α g̃_i + (1−α) m_i, as in the text and the proofs (the listings print a minus, which only
  slows); m_i is 0 before, and a client's first momentum is its first gradient (α = 1).
* Option 2 is (x_i − y_i)/η: the printed sign climbs.
* Every member of a cluster moves by the thresholding's estimate v_k, not by the members' mean; a
  client in several balls or in none belongs to the nearest centre. How τ is set, the start from
  k-means and the stopping rule: see clustering/threshold.py.
* All clients start from one model. `init="per_client"` is the literal reading: a start of its
  own for each; then members keep their offsets for ever.
* Labels of consecutive rounds are matched so that most clients keep theirs.
* Export and newcomers need one model per cluster; a newcomer takes the one of least loss. The
  server knows every x_i, since each step is one that it sent, and keeps them: N models, and
  nothing more is sent. The K models are the means of k-means among them, numbered like the
  labels. A model holds the steps of all rounds; the labels of late rounds are noise, and a mean
  over these would mix clusters, above all where clients are absent.
* In PDL-TC all momenta go to all clients, N² messages, and each forms its v as a mix of these. The
  mix is worked out from the Gram matrix: in a simulation in one place, on real peers (`coterie
  network peers`) by each. No other centre bounds a ball, so τ is 0.99 × the 1/(2K)-quantile of
  the distances. Everyone takes part; a newcomer takes one round's local steps from the common
  start, alone.
* As gradients vanish so do the differences between groups: judge the groups in the first rounds,
  the models at the end.
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


class Member(NamedTuple):
    model: Params
    momentum: Params
    turns: Tensor  # how often it answered


class Clustered(NamedTuple):
    models: Params  # every leaf [N, ...]: x_i, as the client has it
    group: Tensor  # int64 [N], −1: never asked


@dataclass(frozen=True, kw_only=True)
class ThresholdMomenta(Local, Algorithm):
    """What both share: a client's momentum, and how balls are drawn."""

    clusters: int = setting(..., "number of clusters K", ge=1)
    alpha: float = setting(0.5, "share α of the new gradient in the momentum", gt=0, le=1)
    threshold: float | str = setting(
        "half",
        "τ, or the rule that sets it",
        ge=0,
        literals=("half", "quantile", "k-means", "gap", "theory"),
    )
    quantile: float | None = setting(None, "q of threshold=quantile; none: 1/(2K)", ge=0, le=1)
    moves: int = setting(50, "most moves M of a centre in one clustering", ge=1)
    sample: int | None = setting(
        None, "momenta drawn anew for each move (pdl-tc: by each client); none: all", ge=1
    )

    def enroll(self, task: Task, initial_payload: Params, data: Data) -> Member:
        return Member(initial_payload, zeros(initial_payload), torch.zeros_like(data.client_key))

    @client(weight=Weight(), rounds="later")
    def gather(
        self, task: Task, shared: Any, per_client: Any, me: Member, data: Data
    ) -> tuple[Upload, Member]:
        a = torch.where(me.turns == 0, torch.ones_like(data.size), self.alpha)
        m = mix(a, me.momentum, self.local_update(task, me.model, data))  # m_i ← α g̃_i + (1−α) m_i
        me = Member(me.model, m, me.turns + 1)
        return Upload({"momentum": m}, torch.ones_like(data.size)[None], {}), me

    def local_update(self, task: Task, x: Params, data: Data) -> Params:
        return gradient(task, x, next(each(data.batches(self))), self)

    def rule(self) -> Threshold:
        return Threshold(self.threshold, self.quantile, self.moves, self.sample)

    def model(
        self, task: Task, shared: Any, per_client: Any, private: Member, data: Data
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
    """The server finds balls among the clients' momenta; a client moves by its ball's estimate."""

    name: ClassVar[str] = "pfl-tc"
    paper: ClassVar[str] = "Werner et al. 2022"

    average: str = setting("gradients", "option 1, or 2: models", choices=("gradients", "models"))
    init: str = setting(
        "common", "one start for all, or one each", choices=("common", "per_client")
    )
    conditions: bool = setting(False, "note ρ, Δ, the proofs' conditions and τ of every move")

    def start(self, task: Task, clients: int, seed: int) -> tuple[Clustered, Params]:
        model = task.init(seed)
        return Clustered(repeated(model, clients), torch.full((clients,), -1)), model

    def begin(self, state: Clustered, ask: Ask) -> Clustered:
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

    @client(when=lambda method: method.init == "per_client", rounds="start")
    def place(
        self, task: Task, shared: Any, start: Params, me: Member, data: Data
    ) -> tuple[Upload, Member]:
        return Upload({}, {}, {}), me._replace(model=start)

    def local_update(self, task: Task, x: Params, data: Data) -> Params:
        if self.average == "gradients":
            return super().local_update(task, x, data)
        y = descend(task, x, data.batches(self), self)
        return scale(1 / self.lr, minus(x, y))  # g̃_i = (x_i − y_i)/η

    def round(self, state: Clustered, ask: Ask) -> Clustered:
        answers = ask(self.gather, reduce="stack", stream="train")
        if not len(answers.ids):
            return state
        momenta = answers.values["momentum"]
        m = flatten(momenta).cpu().double()
        balls = threshold_clusters(m, self.clusters, ask.rng("clustering"), self.rule())
        v = unflatten(balls.share @ m, pick(momenta, 0))
        moved = ask(self.move, answers.ids, per_client=Rows(v, balls.labels))
        before = state.group[answers.ids]
        to = match_clusters(-overlap_counts(before, balls.labels, self.clusters, len(balls.share)))
        self.note_balls(balls, ask)
        labels_of_moved = balls.labels[torch.isin(answers.ids, moved.ids)]
        models = {
            k: x.index_add(0, moved.ids.to(x.device), v[k][labels_of_moved].to(x), alpha=-self.lr)
            for k, x in state.models.items()
        }
        return Clustered(models, state.group.index_copy(0, answers.ids, to[balls.labels]))

    def note_balls(self, balls: Balls, ask: Ask) -> None:
        ask.note("radius", balls.radius)
        if not self.conditions:
            return
        ask.note("radii", balls.radii)
        if balls.start is not None and len(balls.radius) > 1:  # one cluster has no Δ
            ask.note("rho", balls.start.spread)
            ask.note("delta", balls.start.separation)
            ask.note("rounds_by_theorem_1", balls.start.rounds())
            ask.note("conditions", balls.start.conditions(balls.radius))

    @client(rounds="later")
    def move(
        self, task: Task, shared: Any, v: Params, me: Member, data: Data
    ) -> tuple[Upload, Member]:
        x = axpy(-self.lr, v, me.model)  # x_i ← x_i − η v_k
        return Upload({}, {}, {}), me._replace(model=x)

    def use(self, state: Clustered) -> tuple[Params, Any]:
        return self.centres(state), ()

    def join(self, task: Task, centres: Params, data: Data) -> tuple[Any, Member]:
        j, _ = best_by_loss(task, unstack(centres), data.all)
        return (), self.enroll(task, pick(centres, j), data)

    def centres(self, state: Clustered) -> Params:
        return mean_models(state.models, state.group, self.clusters)

    def groups(self, state: Clustered) -> Tensor:
        return state.group


# ------------------------------------------------------------------------------ Algorithm 3
@dataclass(frozen=True, kw_only=True)
class PDLTC(ThresholdMomenta):
    """No server: each client draws a ball around its own momentum among everyone's."""

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
        balls = balls_per_point(m, self.clusters, ask.rng("clustering"), self.rule())
        ask(self.move, answers.ids, shared=momenta, per_client=balls.share.to(m))
        ask.note("inside", balls.inside.sum(1))
        return start

    @client(rounds="later")
    def move(
        self, task: Task, momenta: Params, share: Tensor, me: Member, data: Data
    ) -> tuple[Upload, Member]:
        v = {k: torch.einsum("j,j...->...", share, m) for k, m in momenta.items()}
        x = axpy(-self.lr, v, me.model)  # x_i ← x_i − η v_i
        return Upload({}, {}, {}), me._replace(model=x)

    def join(self, task: Task, start: Params, data: Data) -> tuple[Any, Member]:
        return (), self.enroll(task, descend(task, start, data.batches(self), self), data)
