"""CGPFL: personalised federated learning with clustered generalisation (Tang, Guo, Guo, 2021),
and CGPFL-Heur.

    paper       here             shape
    Ω_k         centres          every leaf [K, ...]
    ω_i         Upload.values    every leaf [...]
    θ_i         private.model    every leaf [...], the personal model, which is evaluated
    P^t         group            int64 [N], −1: never asked
    λ, R, S     lam, outer, inner
    η           inner_lr         the step of θ_i; envelope.py's η is pFedMe's, our lr
    β·2/N       pull
    α, μ        alpha, mu
    Q^t         note "transitions", [K, K]: Q_jk = |C_j^t ∩ C_k^{t+1}| / |C_k^{t+1}|

Ours, not the paper's:
* The values of batch size and η are not in the paper: pFedMe's are the defaults (20 and 0.1).
  Its one learning rate, 0.005, is read as pFedMe's outer one; it may have meant η. The inner S
  steps use one mini-batch.
* θ_i goes on from where it was, within a round and between rounds (the listing takes Θ⁰ as an
  input once); a client's first turn begins at the ω_i it is sent. `restart=True` begins every
  round there.
* β's value is printed nowhere. β·2/N is one setting, `pull`, by default lr·λ, so that K=1 with
  restart=True is pFedMe; where pull is given, lr plays no part.
* All centres start from one common model: from different ones the first k-means would recover
  the arbitrary start. `start_from` gives Ω⁰; P⁰ is then the centre of least loss for each
  client.
* k-means++ (best of 10 starts) in the first round, then k-means from the previous centres. A
  centre that nobody is nearest to stays, so that an absent group does not split another; with
  fewer uploads than K the spare centres stay. While some centre has no client at all and uploads
  are enough, k-means++ is drawn anew; `fresh=True` draws it anew in every round, which is the
  listing's wording.
* Clusters of consecutive rounds are matched by minimum-cost assignment before the α-mix, so that
  a label keeps its meaning.
* A client never asked yet starts from the mean of the centres, not from group 0; it answers with
  the centre of least loss on its training rows. One that joins later takes a round's local steps
  from that centre.
* Heur: K̂ = argmin √(dK/m · log(e·m/d)) + μ·Σ_i (m_i/m) min_k ‖ω_i − Ω_k‖² over K = 1..N/2 in
  the first round that anybody answers, N and m those who did; then fixed. `heur_rounds` looks
  again in each of the first rounds, as the text allows; where K̂ changes, all centres start from
  their mean, and absent clients have no cluster until their next turn. The paper's cost is over
  θ_i, but the server holds ω_i. μ="auto" minimises (√K−1)/(√N−1) + cost(K)/cost(1): both terms
  scaled to [0, 1] over K = 1..N, where the cost is 0 (K=1 if cost(1) = 0). One round's
  mini-batch noise may pass for structure, so the curve over all K is noted beside K̂. k-means
  for every K up to N/2 would take hours with 1,000 clients: with more than 40 clients cost(K) is
  the lower of a cut of one tree of merges (Ward's) and, up to K = 20, of k-means
  (clustering/choose.py).
* Where means are robust, no cluster drawn anew is trusted, for hostile clients may be one: it is
  chosen among 2K by the losses that clients report (clustering/serving.py). In the rounds after
  it uploads join the nearest centre, once, and the quarter of them that is farthest from all
  centres stays where it was.
* Q's columns sum to 1 (0 where a cluster has no former client); its rows need not, whatever
  equation 3 says. It counts clients that had a cluster before; who is absent stays.
* local_steps plays no part; decay acts on lr, and so on the default pull, but not on inner_lr or
  a pull that is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.clustering import (
    RULES,
    Bound,
    coordinates,
    find_centres,
    hostile_share,
    inlier_indices,
    inlier_mask,
    kmeans,
    log_rows_per_parameter,
    match_clusters,
)
from coterie.clustering.losses import best_by_loss, min_finite
from coterie.core.contract import (
    Ask,
    Data,
    Finite,
    Index,
    Losses,
    RowCount,
    Rows,
    SentWeight,
    Stack,
    Upload,
    client,
    setting,
)
from coterie.core.errors import CoterieError
from coterie.core.params import Params, count, flatten, mix, one_hot, pick, repeated, unstack, where
from coterie.core.task import Task
from coterie.methods.envelope import Envelope, Personal
from coterie.methods.given import given_centres
from coterie.methods.grouped import how_many


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Between rows, exactly 0 between equal ones."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def joined(centres: Params, omega: Params, before: Tensor, share: float) -> Tensor:
    """int64: the nearest centre of each upload; the one before for those far from all centres.

    share: how many count as far. Hostile uploads that are far from everything could else all join
    one cluster, and be most of it.
    """
    far = distances(flatten(omega), flatten(centres))
    moves = inlier_mask(far.amin(1), share) | (before < 0)
    return torch.where(moves, far.argmin(1).cpu(), before)


def note_distance(models: Tensor, ask: Ask) -> None:
    """Note how far apart two uploads are: the root of the mean of ‖ω_i − ω_j‖² over all pairs."""
    if len(models) > 1:
        squares = 2 * models.var(0).sum()  # the mean over pairs of different uploads
        ask.note("distance_between_models", float(squares.sqrt()))


class Clusters(NamedTuple):
    centres: Params  # one row until Heur has chosen K
    group: Tensor  # int64 [N] last cluster, −1: never asked


@dataclass(frozen=True, kw_only=True)
class CGPFL(Envelope):
    """Personal models tied to their cluster's centre; uploads are clustered anew in every round."""

    name: ClassVar[str] = "cgpfl"
    paper: ClassVar[str] = "Tang et al. 2021"

    clusters: int | str = setting(
        ..., "number of clusters K; auto: Heur's K̂", ge=1, literals=("auto",)
    )
    lam: float = setting(12.0, "strength λ of the tie between personal and local model", gt=0)
    outer: int = setting(10, "local rounds R, each with a batch of its own", ge=1)
    restart: bool = setting(False, "the personal model begins each round at the model received")
    pull: float | None = setting(
        None, "β·2/N: how far the local model goes to θ; none: lr·lam", gt=0, le=1
    )
    alpha: float = setting(1.0, "server's step α: Ω ← (1−α)·Ω + α·mean", gt=0)
    auto_by: str = setting("bound", "how clusters=auto is chosen", choices=RULES)
    mu: float | str = setting("auto", "Heur's weight μ of the cost", gt=0, literals=("auto",))
    heur_rounds: int = setting(
        1, "first rounds in each of which clusters=auto is chosen anew", ge=1
    )
    fresh: bool = setting(False, "k-means++ anew each round, not from the centres before it")
    start_from: str | None = setting(
        None, "folder of exported group models; the centres start there"
    )

    # ------------------------------------------------------------------------------ one client
    @client(
        weight=SentWeight(place=1),
        report={"rows": RowCount()},
        rounds="later",
        sample_size=lambda method: method.batch,
    )
    def train(
        self, task: Task, shared: Any, per_client: Any, private: Personal, data: Data
    ) -> tuple[Upload, Personal]:
        received, share = per_client
        omega, theta = self.solve(task, received, self.theta_start(received, private), data)
        me = Personal(theta, {}, torch.ones_like(data.size))
        return Upload({"model": omega}, share, {"rows": data.size}), me

    @client(
        report={"cluster": Index(), "loss": Finite("its loss under that", minimum=0)},
        when=lambda method: method.start_from is not None,
        rounds="start",
    )
    def choose(
        self, task: Task, centres: Params, per_client: Any, private: Personal, data: Data
    ) -> tuple[Upload, Personal]:
        """Report the centre of least loss; a NaN, which is refused, if none is finite."""
        j, losses = best_by_loss(task, unstack(centres), data.all)
        return Upload({}, {}, {"cluster": j, "loss": min_finite(losses)}), private

    def fraction(self) -> float:
        if self.pull is None:
            return super().fraction()
        return self.pull

    # ------------------------------------------------------------------ the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[Clusters, Params]:
        k = self.clusters if isinstance(self.clusters, int) else 1
        model = task.init(seed)
        return Clusters(repeated(model, k), torch.full((clients,), -1)), model

    def begin(self, state: Clusters, ask: Ask) -> Clusters:
        if self.start_from is None:
            return state
        centres = given_centres(self.start_from, int(self.clusters), pick(state.centres, 0))
        answers = ask(self.choose, ask.all_clients, shared=centres)
        group = state.group.index_copy(0, answers.ids, answers.report["cluster"])
        return Clusters(centres, group)

    def round(self, state: Clusters, ask: Ask) -> Clusters:
        answers = self.ask_all(state, ask)
        if not len(answers.ids):
            return state
        omega = answers.values["model"]
        centres, before = self.sized(state, omega, answers.report["rows"], ask)
        if not ask.is_robust:
            labels = self.partition(centres, omega, before, ask)
        elif count(centres) > 1 and self.is_anew(before, count(centres), len(answers.ids)):
            return self.served(centres, before, answers, ask)
        else:
            labels = joined(centres, omega, before[answers.ids], hostile_share(ask))
        group = before.index_copy(0, answers.ids, labels)
        self.note_transitions(before, group, count(centres), ask)
        mean = ask.group_mean(omega, labels, torch.ones(len(labels)), empty=centres)
        return Clusters(mix(self.alpha, centres, mean), group)  # Ω ← (1−α)Ω + α mean_{i∈k} ω_i

    def served(self, centres: Params, before: Tensor, answers: Stack, ask: Ask) -> Clusters:
        """Clusters made anew of which none is believed before the clients have rated it."""
        common = {n: v.mean(0) for n, v in centres.items()}
        omega = answers.values["model"]
        result = find_centres(omega, answers.ids, common, count(centres), ask, self.rate)
        group = before.index_copy(0, result.ids, result.labels)
        return Clusters(mix(self.alpha, centres, result.centres), group)

    @client(report={"losses": Losses()}, rounds="later")
    def rate(
        self, task: Task, centres: Params, per_client: Any, private: Personal, data: Data
    ) -> tuple[Upload, Personal]:
        """Report the loss under each centre."""
        _, losses = best_by_loss(task, unstack(centres), data.all)
        return Upload({}, {}, {"losses": losses.nan_to_num(torch.inf, torch.inf)}), private

    def ask_all(self, state: Clusters, ask: Ask) -> Stack:
        """Send each its cluster's centre, or the mean of all where it has none.

        With it go the centres' shares in what was sent, which only screening reads.
        """
        k = count(state.centres)
        table = {n: torch.cat([v, v.mean(0, keepdim=True)]) for n, v in state.centres.items()}
        share = torch.cat([torch.eye(k), torch.full((1, k), 1 / k)])
        share = share.to(next(iter(table.values())).dtype)
        group = state.group[ask.participants]
        return ask(
            self.train,
            per_client=Rows((table, share), torch.where(group < 0, k, group)),
            reduce="stack",
            stream="train",
            started_from={"model": state.centres},
        )

    def sized(
        self, state: Clusters, omega: Params, rows: Tensor, ask: Ask
    ) -> tuple[Params, Tensor]:
        """(centres, the cluster of each client) with K̂ of each, where Heur looks at this round."""
        nobody_yet = bool((state.group < 0).all())
        if self.clusters != "auto" or not (nobody_yet or ask.round <= self.heur_rounds):
            return state.centres, state.group
        points = coordinates(flatten(omega))
        counted = inlier_indices(points, hostile_share(ask))
        bound = Bound(rows[counted], flatten(omega).shape[1], self.mu)
        k = how_many("auto", points[counted], ask, self.auto_by, bound)
        if k == count(state.centres) and not nobody_yet:
            return state.centres, state.group
        common = {n: v.mean(0) for n, v in state.centres.items()}
        return repeated(common, k), torch.full_like(state.group, -1)

    def partition(self, centres: Params, omega: Params, group: Tensor, ask: Ask) -> Tensor:
        """int64: the cluster of each upload."""
        k = count(centres)
        both = torch.cat([flatten(centres), flatten(omega)]).cpu().double()
        flat = both[:k]
        points = coordinates(both)  # of both together, so that distances agree
        old, new = points[:k], points[k:]
        # of exactly equal centres all take the coordinates of the first
        old = old[distances(flat, flat).argmin(1)]
        anew = self.is_anew(group, k, len(new))
        result = kmeans(new, k, ask.rng("k-means"), init=None if anew else old)
        ask.note("k_means_iterations", result.iterations)
        note_distance(new, ask)
        if not bool((group >= 0).any()):
            return result.labels
        cost = distances(old, result.centres) ** 2
        # far below any real cost: among equal centres group 0 takes the lowest, and so on
        g = len(result.centres)
        order = torch.outer(torch.arange(k), g - torch.arange(g)) * 1e-9 * cost.mean()
        return match_clusters(cost + order)[result.labels]

    def is_anew(self, group: Tensor, k: int, uploads: int) -> bool:
        """Whether clusters are drawn anew, not from the centres of the round before."""
        members = group[group >= 0].bincount(minlength=k)
        some_are_empty = bool((members == 0).any()) and uploads >= k
        return not bool(members.any()) or some_are_empty or self.fresh

    def note_transitions(self, before: Tensor, now: Tensor, k: int, ask: Ask) -> None:
        both = before >= 0
        if bool(both.any()):
            a, b = (one_hot(g[both], k, torch.float64) for g in (before, now))
            q = (a.T @ b) / b.sum(0).clamp(min=1)  # Q_jk = |C_j ∩ C_k'| / |C_k'|
            ask.note("transitions", q)

    # ------------------------------------------------------------------------------ evaluation
    def use(self, state: Clusters) -> tuple[Params, Any]:
        return state.centres, ()

    def model(
        self, task: Task, centres: Params, per_client: Any, private: Personal, data: Data
    ) -> Params:
        answer: Params = where(private.asked > 0, private.model, self.best(task, centres, data))
        return answer

    def best(self, task: Task, centres: Params, data: Data) -> Params:
        return pick(centres, best_by_loss(task, unstack(centres), data.all)[0])

    def join(self, task: Task, centres: Params, data: Data) -> tuple[Any, Personal]:
        start = self.best(task, centres, data)
        return (), Personal(self.solve(task, start, start, data)[1], {}, torch.ones_like(data.size))

    def centres(self, state: Clusters) -> Params:
        return state.centres

    def groups(self, state: Clusters) -> Tensor:
        return state.group

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.clusters == "auto" and self.start_from is not None:
            raise CoterieError(
                "start_from gives the centres, and clusters='auto' finds their number: leave one."
            )
        if self.clusters == "auto" and not isinstance(self.mu, str):
            log_rows_per_parameter(
                float(sizes.sum()), sum(v.numel() for v in task.init(0).values()), self.mu
            )


@dataclass(frozen=True, kw_only=True)
class CGPFLHeur(CGPFL):
    """CGPFL that finds the number of clusters in the first round."""

    name: ClassVar[str] = "cgpfl-heur"

    clusters: ClassVar[str] = "auto"  # type: ignore[misc]  # no flag: `compare --clusters 4` is for the others
