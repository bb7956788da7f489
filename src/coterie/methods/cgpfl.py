"""CGPFL: personalised federated learning with clustered generalisation (Tang, Guo, Guo, 2021),
and CGPFL-Heur.

    paper       here                 shape
    Ω_k         centres              every leaf [K, ...]
    ω_i         Upload.values        every leaf [...], the local model
    θ_i         private.model        every leaf [...], the personal model, which is evaluated
    P^t         group                int64 [N], −1: never participated
    λ, R, S     lam, outer, inner
    η           inner_lr             the step of θ_i; pFedMe's η is our lr
    β·2/N       pull
    α, μ        alpha, mu
    Q^t         note "transitions"   [K, K]: Q_jk = |C_j^t ∩ C_k^{t+1}| / |C_k^{t+1}|

Differences from the paper:
* Batch size and η are not in the paper: pFedMe's are the defaults (20 and 0.1). Its one learning
  rate, 0.005, is read as pFedMe's outer one; it may have meant η. The inner S steps use one
  mini-batch.
* θ_i continues from its last value, within a round and between rounds (the listing takes Θ⁰ as an
  input once); a client's first round starts at the ω_i it receives. `restart=True` starts every
  round there.
* β's value is printed nowhere. β·2/N is one setting, `pull`, by default lr·λ, so that K = 1 with
  restart=True is pFedMe; where pull is given, lr does not apply.
* All centres start from one common model: from different ones the first k-means would recover the
  arbitrary start. `start_from` gives Ω⁰; P⁰ is then the centre with the smallest loss for each
  client.
* k-means++ (best of 10 starts) in the first round, then k-means from the previous centres. A centre
  that no upload is nearest to stays, so that an absent cluster does not split another; with fewer
  uploads than K the others stay. While some centre has no client at all and uploads are enough,
  k-means++ runs again; `fresh=True` runs it in every round, which is the listing's wording.
* Clusters of consecutive rounds are matched by minimum-cost assignment before the α-mix, so that a
  label keeps its meaning.
* A client that never participated starts from the mean of the centres, not from cluster 0; it
  predicts with the centre of smallest loss on its training rows. A new client takes a round's local
  steps from that centre.
* Heur: K̂ = argmin √(dK/m · log(e·m/d)) + μ·Σ_i (m_i/m) min_k ‖ω_i − Ω_k‖² over K = 1..N/2 in the
  first round with answers, where N and m count the answering clients and their rows; then fixed.
  `heur_rounds` chooses again in each of the first rounds, as the text allows; if K̂ changes, all
  centres restart from their mean, and absent clients have no cluster until their next round. The
  paper's cost is over θ_i, but the server holds ω_i. μ="auto" minimises
  (√K−1)/(√N−1) + cost(K)/cost(1): both terms scaled to [0, 1] over K = 1..N, where the cost is 0
  (K = 1 if cost(1) = 0). Mini-batch noise of one round may look like structure, so the curve over
  all K is noted beside K̂. See clustering/choose.py for the cost with more than 40 clients.
* With robust aggregation a new cluster may consist of hostile clients: it is selected among 2K by
  the losses that clients report (clustering/hostile.py). In later rounds uploads join the nearest
  centre, once, and the quarter of them farthest from all centres keeps its cluster.
* Q's columns sum to 1 (0 where a cluster has no former client); its rows need not, whatever
  equation 3 says. It counts clients that had a cluster before; absent clients keep theirs.
* local_steps does not apply; decay acts on lr, and so on the default pull, but not on inner_lr or a
  given pull.
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
from coterie.methods.grouped import choose_number
from coterie.methods.pfedme import MoreauEnvelope, PersonalModel
from coterie.methods.start_from import load_centres


class CGPFLState(NamedTuple):
    """What the server keeps between rounds."""

    centres: Params  # Ω_k; one row until Heur has chosen K
    group: Tensor  # int64 [N], the last cluster of each client; −1: never participated


@dataclass(frozen=True, kw_only=True)
class CGPFL(MoreauEnvelope):
    """Personal models tied to their cluster's centre; uploads are clustered in every round.

    Args:
        clusters: K, or "auto" for Heur's K̂ of the first round.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.CGPFL(clusters=2, outer=2, inner=2), fed, rounds=1)
        >>> result.clusters[-1].shape
        (8,)
    """

    name: ClassVar[str] = "cgpfl"
    paper: ClassVar[str] = "Tang et al. 2021"

    clusters: int | str = setting(
        "auto", "number of clusters K; auto: Heur's K̂", ge=1, literals=("auto",)
    )
    lam: float = setting(12.0, "strength λ of the tie between personal and local model", gt=0)
    outer: int = setting(10, "local rounds R, each with a batch of its own", ge=1)
    restart: bool = setting(False, "the personal model starts each round at the received model")
    pull: float | None = setting(
        None, "β·2/N: how far the local model moves towards θ; none: lr·lam", gt=0, le=1
    )
    alpha: float = setting(1.0, "server's step α: Ω ← (1−α)·Ω + α·mean", gt=0)
    auto_by: str = setting("bound", "rule of clusters=auto", choices=RULES)
    mu: float | str = setting("auto", "Heur's weight μ of the cost", gt=0, literals=("auto",))
    heur_rounds: int = setting(1, "rounds in which clusters=auto is chosen again", ge=1)
    fresh: bool = setting(False, "run k-means++ in every round, not k-means from the last centres")
    start_from: str | None = setting(None, "folder of exported cluster models to start from")

    # ------------------------------------------------------------------ one client
    @client(
        weight=SentWeight(place=1),
        individual=True,
        report={"rows": RowCount()},
        rounds="later",
        sample_size=lambda method: method.batch,
    )
    def train(
        self, task: Task, shared: Any, per_client: Any, private: PersonalModel, data: Data
    ) -> tuple[Upload, PersonalModel]:
        """Solve the local problem; `per_client` is (received model, its mix of centres)."""
        received, share = per_client
        omega, theta = self.solve(task, received, self.initial_theta(received, private), data)
        me = PersonalModel(theta, {}, torch.ones_like(data.size))
        return Upload({"model": omega}, share, {"rows": data.size}), me

    @client(
        report={"cluster": Index(), "loss": Finite("its loss under that", minimum=0)},
        when=lambda method: method.start_from is not None,
        rounds="start",
    )
    def choose(
        self, task: Task, centres: Params, per_client: Any, private: PersonalModel, data: Data
    ) -> tuple[Upload, PersonalModel]:
        """Report the centre with the smallest loss; a NaN, which is rejected, if none is finite."""
        j, losses = best_by_loss(task, unstack(centres), data.all)
        return Upload({}, {}, {"cluster": j, "loss": min_finite(losses)}), private

    @client(report={"losses": Losses()}, rounds="later")
    def rate(
        self, task: Task, centres: Params, per_client: Any, private: PersonalModel, data: Data
    ) -> tuple[Upload, PersonalModel]:
        """Report the loss under each centre."""
        _, losses = best_by_loss(task, unstack(centres), data.all)
        return Upload({}, {}, {"losses": losses.nan_to_num(torch.inf, torch.inf)}), private

    def pull_fraction(self) -> float:
        if self.pull is None:
            return super().pull_fraction()
        return self.pull

    # ------------------------------------------------------------------ the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[CGPFLState, Params]:
        k = self.clusters if isinstance(self.clusters, int) else 1
        model = task.init(seed)
        return CGPFLState(repeated(model, k), torch.full((clients,), -1)), model

    def begin(self, state: CGPFLState, ask: Ask) -> CGPFLState:
        if self.start_from is None:
            return state
        centres = load_centres(self.start_from, self.clusters, ask)
        answers = ask(self.choose, ask.all_clients, shared=centres)
        group = state.group.index_copy(0, answers.ids, answers.report["cluster"])
        return CGPFLState(centres, group)

    def round(self, state: CGPFLState, ask: Ask) -> CGPFLState:
        answers = self.train_participants(state, ask)
        if not len(answers.ids):
            return state
        omega = answers.values["model"]
        centres, before = self.choose_size(state, omega, answers.report["rows"], ask)
        k = count(centres)
        if not ask.is_robust:
            labels = self.partition(centres, omega, before, ask)
        elif k > 1 and self.is_new_partition(before, k, len(answers.ids)):
            return self.select_clusters(centres, before, answers, ask)
        else:
            labels = assign_to_nearest(centres, omega, before[answers.ids], ask.hostile_share)
        group = before.index_copy(0, answers.ids, labels)
        note_transitions(before, group, k, ask)
        mean = ask.group_mean(omega, labels, torch.ones(len(labels)), empty=centres)
        return CGPFLState(mix(self.alpha, centres, mean), group)  # Ω ← (1−α)Ω + α mean_{i∈k} ω_i

    def train_participants(self, state: CGPFLState, ask: Ask) -> Stack:
        """Send each participant its cluster's centre, or the mean of all without a cluster.

        The mix of centres that was sent serves only as the reference of update norms.
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

    def choose_size(
        self, state: CGPFLState, omega: Params, rows: Tensor, ask: Ask
    ) -> tuple[Params, Tensor]:
        """(centres, clusters of clients), with K̂ centres if Heur chooses K in this round."""
        is_first = bool((state.group < 0).all())
        is_fixed = self.clusters != "auto" or self.start_from is not None
        if is_fixed or not (is_first or ask.round <= self.heur_rounds):
            return state.centres, state.group
        points = coordinates(flatten(omega))
        kept = inlier_indices(points, ask.hostile_share)
        bound = Bound(rows[kept], flatten(omega).shape[1], self.mu)
        k = choose_number("auto", points[kept], ask, self.auto_by, bound)
        if k == count(state.centres) and not is_first:
            return state.centres, state.group
        common = {n: v.mean(0) for n, v in state.centres.items()}
        return repeated(common, k), torch.full_like(state.group, -1)

    def partition(self, centres: Params, omega: Params, group: Tensor, ask: Ask) -> Tensor:
        """Cluster the uploads by k-means and match the clusters with the centres.

        Args:
            centres: Every leaf [K, ...].
            omega: Every leaf [uploads, ...].
            group: int64 [N], the clusters before.
            ask: This round.

        Returns:
            int64 [uploads], the new cluster of each upload.
        """
        k = count(centres)
        both = torch.cat([flatten(centres), flatten(omega)]).cpu().double()
        flat = both[:k]
        points = coordinates(both)  # of both together, so that distances agree
        old, new = points[:k], points[k:]
        # exactly equal centres take the coordinates of the first
        old = old[distances(flat, flat).argmin(1)]
        is_new = self.is_new_partition(group, k, len(new))
        result = kmeans(new, k, ask.rng("k-means"), init=None if is_new else old)
        ask.note("k_means_iterations", result.iterations)
        note_distance(new, ask)
        if not bool((group >= 0).any()):
            return result.labels
        cost = distances(old, result.centres) ** 2  # ‖Ω_j − Ω'_k‖²
        # far below any real cost: among equal centres cluster 0 takes the lowest, and so on
        g = len(result.centres)
        order = torch.outer(torch.arange(k), g - torch.arange(g)) * 1e-9 * cost.mean()
        return match_clusters(cost + order)[result.labels]

    def is_new_partition(self, group: Tensor, k: int, uploads: int) -> bool:
        """Whether k-means++ starts anew, not from the centres of the round before."""
        members = group[group >= 0].bincount(minlength=k)
        some_are_empty = bool((members == 0).any()) and uploads >= k
        return not bool(members.any()) or some_are_empty or self.fresh

    def select_clusters(
        self, centres: Params, before: Tensor, answers: Stack, ask: Ask
    ) -> CGPFLState:
        """Make new clusters and keep those that fit the clients best, since some may be hostile."""
        common = {n: v.mean(0) for n, v in centres.items()}
        omega = answers.values["model"]
        selected = find_centres(omega, answers.ids, common, count(centres), ask, self.rate)
        group = before.index_copy(0, selected.ids, selected.labels)
        return CGPFLState(mix(self.alpha, centres, selected.centres), group)

    # ------------------------------------------------------------------ evaluation
    def use(self, state: CGPFLState) -> tuple[Params, Any]:
        return state.centres, ()

    def model(
        self, task: Task, centres: Params, per_client: Any, private: PersonalModel, data: Data
    ) -> Params:
        best = self.best_centre(task, centres, data)
        answer: Params = where(private.asked > 0, private.model, best)
        return answer

    def best_centre(self, task: Task, centres: Params, data: Data) -> Params:
        """The centre with the smallest loss on the client's rows."""
        return pick(centres, best_by_loss(task, unstack(centres), data.all)[0])

    def join(self, task: Task, centres: Params, data: Data) -> tuple[Any, PersonalModel]:
        start = self.best_centre(task, centres, data)
        _, theta = self.solve(task, start, start, data)
        return (), PersonalModel(theta, {}, torch.ones_like(data.size))

    def centres(self, state: CGPFLState) -> Params:
        return state.centres

    def groups(self, state: CGPFLState) -> Tensor:
        return state.group

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.clusters == "auto" and not isinstance(self.mu, str):
            parameters = sum(v.numel() for v in task.init(0).values())
            log_rows_per_parameter(float(sizes.sum()), parameters, self.mu)


@dataclass(frozen=True, kw_only=True)
class CGPFLHeur(CGPFL):
    """CGPFL that always chooses the number of clusters in the first round.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.CGPFLHeur(outer=2, inner=2), fed, rounds=2)
        >>> "clusters" in result.history[1]["notes"]
        True
    """

    name: ClassVar[str] = "cgpfl-heur"

    # not a setting: `compare --clusters 4` is for the other methods
    clusters: ClassVar[str] = "auto"  # type: ignore[misc]

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.start_from is not None:
            raise CoterieError(
                "start_from gives the centres, and cgpfl-heur finds their number: use cgpfl."
            )


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Distances between the rows of a [n, d] and b [m, d], exactly 0 between equal ones."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def assign_to_nearest(centres: Params, omega: Params, before: Tensor, fraction: float) -> Tensor:
    """Assign each upload to its nearest centre; outliers keep their cluster.

    Otherwise hostile uploads far from everything could all join one cluster and dominate it.

    Args:
        centres: Every leaf [K, ...].
        omega: Every leaf [uploads, ...].
        before: int64 [uploads], the clusters before; −1 for none.
        fraction: Fraction of the uploads that count as outliers.

    Returns:
        int64 [uploads].
    """
    far = distances(flatten(omega), flatten(centres))
    moves = inlier_mask(far.amin(1), fraction) | (before < 0)
    return torch.where(moves, far.argmin(1).cpu(), before)


def note_distance(models: Tensor, ask: Ask) -> None:
    """Note √mean ‖ω_i − ω_j‖² over all pairs of uploads."""
    if len(models) > 1:
        squares = 2 * models.var(0).sum()  # the mean over pairs of different uploads
        ask.note("distance_between_models", float(squares.sqrt()))


def note_transitions(before: Tensor, now: Tensor, k: int, ask: Ask) -> None:
    """Note Q, how clients move between clusters."""
    both = before >= 0
    if bool(both.any()):
        a, b = (one_hot(g[both], k, torch.float64) for g in (before, now))
        q = (a.T @ b) / b.sum(0).clamp(min=1)  # Q_jk = |C_j ∩ C_k'| / |C_k'| (3)
        ask.note("transitions", q)
