"""One-shot clustering (Ghosh, Chung, Yin, Ramchandran, IEEE Trans. Inf. Theory 2022), Algorithm
1.

    paper       here             shape
    θ̃_i         models           the solved models, stacked: every leaf [N, ...]
    S_j         state.group      int64 [N]
    k           clusters

Round 0 is lines 1 and 2: each client solves its own problem, and the server runs k-means on the
solutions. The counted rounds are line 3: federated averaging inside each cluster, with fixed
assignments.

Differences from the paper:
* All clients start from one common model, since independently trained networks differ by permuted
  hidden units (the paper's own warning); "to its own minimum" is a budget of steps.
* A client that missed round 0 joins the cluster with the smallest loss in its first round.
* Line 2 leaves the clustering open: `cluster_by` is k-means, which the paper names and uses, Ward's
  agglomerative clustering, or threshold clustering (clustering/threshold.py).
* `clusters="auto"` chooses k by held-out losses (methods/held_out.py), or from the directions of
  the updates (clustering/choose.py).
* With robust aggregation a cluster may consist of hostile clients: the server makes 2k clusters,
  every client reports its loss under the mean of each, and the k are kept that fit the clients best
  (clustering/hostile.py), whatever `cluster_by` is.
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
    inlier_indices,
    kmeans,
    threshold_clusters,
    update_directions,
)
from coterie.clustering.losses import best_by_loss
from coterie.core.contract import Ask, Data, Losses, Repeat, Upload, Weight, client, setting
from coterie.core.params import Params, flatten, pick, repeated, unstack
from coterie.core.task import Task
from coterie.methods import held_out
from coterie.methods.grouped import GroupedFedAvg, GroupedState, choose_number
from coterie.optim import descend
from coterie.optim.server import takes_server_step


@dataclass(frozen=True, kw_only=True)
class OneShot(GroupedFedAvg):
    """Cluster locally trained models once, then run FedAvg inside each cluster.

    Args:
        clusters: k, or "auto" to choose it in round 0.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.OneShot(clusters=2, solve_steps=20, lr=0.05), fed, rounds=1)
        >>> result.clusters[-1].shape
        (8,)
    """

    name: ClassVar[str] = "one-shot"
    paper: ClassVar[str] = "Ghosh et al. 2022"

    clusters: int | str = setting(
        "auto", "number of clusters k; auto: chosen in round 0", ge=1, literals=("auto",)
    )
    auto_by: str = setting(held_out.RULE, "rule of clusters=auto", choices=(held_out.RULE, *RULES))
    cluster_by: str = setting(
        "k-means", "how to cluster the models", choices=("k-means", "agglomerative", "threshold")
    )
    solve_steps: int = setting(100, "full-batch local steps before the clustering", ge=1)

    # ------------------------------------------------------------------ one client
    @client(weight=Weight(), rounds="start", individual=True)
    def solve(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Train the common model alone (line 1)."""
        w = descend(task, model, Repeat(data.all, self.solve_steps), self)
        return Upload({"model": w}, torch.ones_like(data.size)[None], {}), private

    @client(report={"losses": Losses()}, rounds="start")
    def rate(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the loss under each centre."""
        _, losses = best_by_loss(task, unstack(centres), data.all)
        return Upload({}, {}, {"losses": losses.nan_to_num(torch.inf, torch.inf)}), private

    sketch_fold = held_out.sketch_fold
    average_fold = held_out.average_fold
    train_fold = held_out.train_fold
    weighs_rows: ClassVar[bool] = True

    def start_training(self) -> Self:
        """The method with the local training of round 0, for `held_out`."""
        return replace(self, local_steps=self.solve_steps, local_epochs=None, batch=None)

    # ------------------------------------------------------------------ the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[GroupedState, Any]:
        k = 1 if self.clusters == "auto" else int(self.clusters)
        return GroupedState(repeated(task.init(seed), k), torch.full((clients,), -1)), ()

    def begin(self, state: GroupedState, ask: Ask) -> GroupedState:
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
        k = self.number_of_clusters(update_directions(models, start), start, ask)
        if ask.is_robust and len(answers.ids) > k > 1:
            selected = find_centres(models, answers.ids, start, k, ask, self.rate)
            group = state.group.index_copy(0, selected.ids, selected.labels)
            return GroupedState(selected.centres, group)
        labels = self.cluster(coordinates(flatten(models)), k, ask)  # S_1, …, S_k (line 2)
        centres = ask.group_mean(models, labels, answers.weight[:, 0], empty=repeated(start, k))
        return GroupedState(centres, state.group.index_copy(0, answers.ids, labels))

    def number_of_clusters(self, points: Tensor, start: Params, ask: Ask) -> int:
        """k; "auto" leaves out outliers where clients may be hostile."""
        if held_out.chooses_by_held_out(self):
            return held_out.count_clusters(self, start, ask).clusters
        if self.clusters == "auto":
            points = points[inlier_indices(points, ask.hostile_share)]
        return choose_number(self.clusters, points, ask, self.auto_by)

    def cluster(self, points: Tensor, k: int, ask: Ask) -> Tensor:
        """The cluster of each model, int64 [N]."""
        if self.cluster_by == "threshold":
            return threshold_clusters(points, k, ask.rng("threshold")).labels
        if self.cluster_by == "agglomerative":
            return agglomerative(points, k)
        result = kmeans(points, k, ask.rng("k-means"))
        ask.note("k_means_iterations", result.iterations)
        return result.labels

    @takes_server_step
    def round(self, state: GroupedState, ask: Ask) -> GroupedState:
        return self.train_clusters(state, ask)  # line 3


def agglomerative(points: Tensor, k: int) -> Tensor:
    """Ward's agglomerative clustering into k clusters, or fewer where there are fewer points.

    Args:
        points: float [N, d].
        k: Number of clusters.

    Returns:
        int64 [N], the cluster of each point.
    """
    from sklearn.cluster import AgglomerativeClustering

    if len(points) < 2:
        return torch.zeros(len(points), dtype=torch.long)
    tree = AgglomerativeClustering(min(k, len(points)), linkage="ward")
    return torch.from_numpy(tree.fit_predict(points.numpy())).long()
