"""One-shot clustering (Ghosh, Chung, Yin, Ramchandran, IEEE Trans. Inf. Theory 2022), Algorithm
1.

    paper       here             shape
    θ̃_i         the solved models, stacked: every leaf [N, ...]
    S_j         state.group      int64 [N]
    k           clusters

Round 0 is lines 1 and 2: each client solves its own problem, the server runs k-means on the
solutions. The counted rounds are line 3: federated averaging inside each cluster, identities
fixed.

Ours, not the paper's: all clients start from one common model, since networks trained apart
differ by permuted hidden units (the paper's own warning); "to its own minimum" is a budget of
steps; a client that missed round 0 joins the cluster of least loss at its first turn. Line 2
leaves the clustering open: `cluster_by` takes k-means, which the paper names and uses, Ward's
agglomerative clustering, or threshold clustering (clustering/threshold.py). `clusters="auto"`
tries numbers of clusters on held-out rows (methods/held_out.py), or chooses k from the directions
in which the models moved (clustering/choose.py).

Where means are robust, no cluster of models is trusted, for hostile clients may be one: the server
makes 2k clusters, every client reports its loss under the mean of each, and the k are kept that
serve the clients best (clustering/serving.py). Each client is in the one of least loss, whatever
`cluster_by` says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from coterie.clustering import (
    RULES,
    coordinates,
    find_centres,
    hostile_share,
    inlier_indices,
    kmeans,
    threshold_clusters,
    update_directions,
)
from coterie.clustering.losses import best_by_loss
from coterie.core.contract import Ask, Data, Losses, Repeat, Upload, Weight, client, setting
from coterie.core.params import Params, flatten, pick, repeated, unstack
from coterie.core.task import Task
from coterie.methods.grouped import Grouped, WithinGroups, how_many
from coterie.methods.held_out import RULE as HELD_OUT
from coterie.methods.held_out import HeldOut
from coterie.optim import descend


def agglomerative(points: Tensor, k: int) -> Tensor:
    """int64 [N]: the k clusters that Ward's merges leave; fewer, where there are fewer points."""
    from sklearn.cluster import AgglomerativeClustering

    if len(points) < 2:
        return torch.zeros(len(points), dtype=torch.long)
    tree = AgglomerativeClustering(min(k, len(points)), linkage="ward")
    return torch.from_numpy(tree.fit_predict(points.numpy())).long()


@dataclass(frozen=True, kw_only=True)
class OneShot(WithinGroups, HeldOut):
    """Clients train alone, k-means groups their models once, then FedAvg inside each group."""

    name: ClassVar[str] = "one-shot"
    paper: ClassVar[str] = "Ghosh et al. 2022"

    clusters: int | str = setting(
        ..., "number of clusters k; auto: chosen in round 0", ge=1, literals=("auto",)
    )
    auto_by: str = setting(HELD_OUT, "how clusters=auto is chosen", choices=(HELD_OUT, *RULES))
    cluster_by: str = setting(
        "k-means", "how the models are clustered", choices=("k-means", "agglomerative", "threshold")
    )
    solve_steps: int = setting(
        100, "full-batch steps each client takes before the clustering", ge=1
    )

    def start(self, task: Task, clients: int, seed: int) -> tuple[Grouped, Any]:
        k = 1 if self.clusters == "auto" else int(self.clusters)
        return Grouped(repeated(task.init(seed), k), torch.full((clients,), -1)), ()

    @client(weight=Weight(), rounds="start")
    def solve(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        w = descend(task, model, Repeat(data.all, self.solve_steps), self)
        return Upload({"model": w}, torch.ones_like(data.size)[None], {}), private

    def begin(self, state: Grouped, ask: Ask) -> Grouped:
        common = {k: v[:1] for k, v in state.centres.items()}
        answers = ask(
            self.solve,
            ask.all_clients,
            shared=pick(common, 0),
            reduce="stack",
            started_from={"model": common},
        )
        models = answers.values["model"]
        start = pick(common, 0)
        k = self.how_many(update_directions(models, start), start, ask)
        if ask.is_robust and len(answers.ids) > k > 1:
            served = find_centres(models, answers.ids, start, k, ask, self.rate)
            return Grouped(served.centres, state.group.index_copy(0, served.ids, served.labels))
        labels = self.clustered(coordinates(flatten(models)), k, ask)
        centres = ask.group_mean(models, labels, answers.weight[:, 0], empty=repeated(start, k))
        return Grouped(centres, state.group.index_copy(0, answers.ids, labels))

    @client(report={"losses": Losses()}, rounds="start")
    def rate(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the loss under each centre."""
        _, losses = best_by_loss(task, unstack(centres), data.all)
        return Upload({}, {}, {"losses": losses.nan_to_num(torch.inf, torch.inf)}), private

    def how_many(self, points: Tensor, start: Params, ask: Ask) -> int:
        """k; clusters="auto" finds it, without clients that may be hostile."""
        if isinstance(self.clusters, int):
            return self.clusters
        if self.auto_by == HELD_OUT:
            return self.count_groups(start, ask).clusters
        points = points[inlier_indices(points, hostile_share(ask))]
        return how_many(self.clusters, points, ask, self.auto_by)

    def at_start(self) -> Self:
        return replace(self, local_steps=self.solve_steps, local_epochs=None, batch=None)

    def clustered(self, points: Tensor, k: int, ask: Ask) -> Tensor:
        """int64 [N]: the cluster of each model."""
        if self.cluster_by == "threshold":
            return threshold_clusters(points, k, ask.rng("threshold")).labels
        if self.cluster_by == "agglomerative":
            return agglomerative(points, k)
        result = kmeans(points, k, ask.rng("k-means"))
        ask.note("k_means_iterations", result.iterations)
        return result.labels

    def round(self, state: Grouped, ask: Ask) -> Grouped:
        return self.within(state, ask)
