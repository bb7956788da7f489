"""CGPFL: personalised federated learning with clustered generalisation (Tang, Guo, Guo, 2021), and CGPFL-Heur.

    paper       here             shape
    Ω_k         centres          every leaf [K, ...]
    ω_i         Upload.values    every leaf [...]
    θ_i         private.model    every leaf [...], the personal model, which is evaluated
    P^t         group            int64 [N], −1: never seen
    λ, R, S     lam, outer, inner
    η           inner_lr         the step of θ_i; envelope.py's η is pFedMe's, our lr
    β·2/N       pull
    α, μ        alpha, mu
    Q^t         note "transitions", [K, K]: Q_jk = |C_j^t ∩ C_k^{t+1}| / |C_k^{t+1}|

Ours, not the paper's:
* The values of batch size and η are not in the paper: pFedMe's are the defaults (20 and 0.1). Its one learning rate,
  0.005, is read as pFedMe's outer one; it may have meant η. The inner S steps use one mini-batch.
* θ_i goes on from where it was, within a round and between rounds (the listing takes Θ⁰ as an input once); a client's
  first turn begins at the ω_i it is sent. `restart=True` begins every round there.
* β's value is printed nowhere. β·2/N is one setting, `pull`, by default lr·λ, so that K=1 with restart=True is pFedMe;
  where pull is given, lr plays no part.
* All centres start from one common model: from different ones the first k-means would recover the arbitrary start.
* k-means++ (best of 10 starts) in the first round, then k-means from the previous centres. A centre that nobody is
  nearest to stays, so that an absent group does not split another; with fewer uploads than K the spare centres stay.
  While some centre has no client at all and uploads are enough, k-means++ is drawn anew.
* Clusters of consecutive rounds are matched by minimum-cost assignment before the α-mix, so that a label keeps its
  meaning.
* A client never seen yet starts from the mean of the centres, not from group 0; it answers with the centre of least
  loss on its training rows. One that joins later takes a round's local steps from that centre.
* Heur: K̂ = argmin √(dK/m · log(e·m/d)) + μ·Σ_i (m_i/m) min_k ‖ω_i − Ω_k‖² over K = 1..N/2 in the first round that
  anybody answers, N and m those who did; then fixed. The paper's cost is over θ_i, but the server holds ω_i. μ="auto"
  minimises (√K−1)/(√N−1) + cost(K)/cost(1): both terms scaled to [0, 1] over K = 1..N, where the cost is 0 (K=1 if
  cost(1) = 0). One round's mini-batch noise may pass for structure, so the whole curve is noted beside K̂.
  k-means for every K up to N/2 would take hours with 1,000 clients: with more than 40 clients cost(K) is the lower of a
  cut of one tree of merges (Ward's) and, up to K = 20, of k-means (clustering/choose.py).
* Q's columns sum to 1 (0 where a cluster has no former client); its rows need not, whatever equation 3 says. It counts
  clients that had a cluster before; who is absent stays.
* local_steps plays no part; decay acts on lr, and so on the default pull, but not on inner_lr or a pull that is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.clustering import RULES, Bound, coordinates, few_rows, group_mean, kmeans, matched
from coterie.common.envelope import Envelope, Personal
from coterie.common.grouped import how_many
from coterie.common.losses import least_loss
from coterie.contract import Ask, Data, Rows, Stack, Upload, client, setting
from coterie.params import Params, count, flatten, mix, one_hot, pick, repeated, unstack, where
from coterie.task import Task


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Between rows, exactly 0 between equal ones."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


class Clusters(NamedTuple):
    centres: Params  # one row until Heur has chosen K
    group: Tensor  # int64 [N] last cluster, −1: never seen


@dataclass(frozen=True, kw_only=True)
class CGPFL(Envelope):
    """Personal models tied to the centre of their cluster; the server clusters the uploads anew in every round."""

    name: ClassVar[str] = "cgpfl"
    paper: ClassVar[str] = "Tang et al. 2021"

    clusters: int | str = setting(
        ..., "number of clusters K; auto: Heur's K̂", least=1, words=("auto",)
    )
    lam: float = setting(12.0, "strength λ of the tie between personal and local model", above=0)
    outer: int = setting(10, "local rounds R, each with a batch of its own", least=1)
    restart: bool = setting(False, "the personal model begins each round at the model received")
    pull: float | None = setting(
        None, "β·2/N: how far the local model goes to θ; none: lr·lam", above=0, most=1
    )
    alpha: float = setting(1.0, "server's step α: Ω ← (1−α)·Ω + α·mean", above=0)
    auto_by: str = setting("bound", "how clusters=auto is found", choices=RULES)
    mu: float | str = setting("auto", "Heur's weight μ of the cost", above=0, words=("auto",))

    # ------------------------------------------------------------------------------ one client
    @client
    def train(
        self, task: Task, shared: Any, per_client: Any, private: Personal, data: Data
    ) -> tuple[Upload, Personal]:
        received, share = per_client
        omega, theta = self.solve(task, received, self.theta_start(received, private), data)
        return Upload({"model": omega}, share, {"rows": data.size}), Personal(
            theta, {}, torch.ones_like(data.size)
        )

    def fraction(self) -> float:
        return super().fraction() if self.pull is None else self.pull

    # ------------------------------------------------------------------------------ the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[Clusters, Params]:
        k = self.clusters if isinstance(self.clusters, int) else 1
        model = task.init(seed)
        return Clusters(repeated(model, k), torch.full((clients,), -1)), model

    def round(self, state: Clusters, ask: Ask) -> Clusters:
        got = self.ask_all(state, ask)
        if not len(got.ids):
            return state
        centres, omega = state.centres, got.values["model"]
        if self.clusters == "auto" and bool((state.group < 0).all()):
            centres = repeated(pick(centres, 0), self.heur(flatten(omega), got.report["rows"], ask))
        labels = self.partition(centres, omega, state.group, ask)
        group = state.group.index_copy(0, got.ids, labels)
        self.note_transitions(state.group, group, count(centres), ask)
        mean = group_mean(omega, labels, torch.ones(len(labels)), empty=centres)
        return Clusters(mix(self.alpha, centres, mean), group)  # Ω ← (1−α)Ω + α mean_{i∈k} ω_i

    def ask_all(self, state: Clusters, ask: Ask) -> Stack:
        """Each is sent its cluster's centre, or the mean of all where it has none.

        With it go the centres' shares in what was sent, which only screening reads.
        """
        k, table = (
            count(state.centres),
            {n: torch.cat([v, v.mean(0, keepdim=True)]) for n, v in state.centres.items()},
        )
        share = torch.cat([torch.eye(k), torch.full((1, k), 1 / k)]).to(
            next(iter(table.values())).dtype
        )
        group = state.group[ask.participants]
        per_client, started_from = (
            Rows((table, share), torch.where(group < 0, k, group)),
            {"model": state.centres},
        )
        got: Stack = ask(
            self.train,
            per_client=per_client,
            reduce="stack",
            stream="train",
            started_from=started_from,
        )
        return got

    def partition(self, centres: Params, omega: Params, group: Tensor, ask: Ask) -> Tensor:
        """int64: the cluster of each upload."""
        k = count(centres)
        both = torch.cat([flatten(centres), flatten(omega)]).cpu().double()
        flat, points = both[:k], coordinates(both)  # together, so that distances agree
        old, new = points[:k], points[k:]
        old = old[
            distances(flat, flat).argmin(1)
        ]  # of exactly equal centres all take the coordinates of the first
        members = group[group >= 0].bincount(minlength=k)
        known, spare = bool(members.any()), bool((members == 0).any())
        anew = not known or (spare and len(new) >= k)
        found = kmeans(new, k, ask.rng("k-means"), init=None if anew else old)
        ask.note("k_means_iterations", found.iterations)
        if not known:
            return found.labels
        cost = distances(old, found.centres) ** 2
        g = len(
            found.centres
        )  # far below any real cost: among equal centres group 0 takes the lowest, and so on
        order = torch.outer(torch.arange(k), g - torch.arange(g)) * 1e-9 * cost.mean()
        return matched(cost + order)[found.labels]

    def heur(self, omega: Tensor, rows: Tensor, ask: Ask) -> int:
        """K̂"""
        return how_many(
            "auto", coordinates(omega), ask, self.auto_by, Bound(rows, omega.shape[1], self.mu)
        )

    def note_transitions(self, before: Tensor, now: Tensor, k: int, ask: Ask) -> None:
        both = before >= 0
        if bool(both.any()):
            a, b = (one_hot(g[both], k, torch.float64) for g in (before, now))
            ask.note(
                "transitions", (a.T @ b) / b.sum(0).clamp(min=1)
            )  # Q_jk = |C_j ∩ C_k'| / |C_k'|

    # ------------------------------------------------------------------------------ evaluation
    def use(self, state: Clusters) -> tuple[Params, Any]:
        return state.centres, ()

    def model(
        self, task: Task, centres: Params, per_client: Any, private: Personal, data: Data
    ) -> Params:
        answer: Params = where(private.asked > 0, private.model, self.best(task, centres, data))
        return answer

    def best(self, task: Task, centres: Params, data: Data) -> Params:
        return pick(centres, least_loss(task, unstack(centres), data.all)[0])

    def join(self, task: Task, centres: Params, data: Data) -> tuple[Any, Personal]:
        start = self.best(task, centres, data)
        return (), Personal(self.solve(task, start, start, data)[1], {}, torch.ones_like(data.size))

    def centres(self, state: Clusters) -> Params:
        return state.centres

    def groups(self, state: Clusters) -> Tensor:
        return state.group

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.clusters == "auto" and not isinstance(self.mu, str):
            few_rows(float(sizes.sum()), sum(v.numel() for v in task.init(0).values()), self.mu)


@dataclass(frozen=True, kw_only=True)
class CGPFLHeur(CGPFL):
    """CGPFL that finds the number of clusters in the first round."""

    name: ClassVar[str] = "cgpfl-heur"

    clusters: ClassVar[str] = "auto"  # type: ignore[misc]  # no flag: `compare --clusters 4` is for the others
