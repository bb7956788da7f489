"""FL+HC: federated learning with hierarchical clustering (Briggs, Fan, Andras, IJCNN 2020),
Algorithm 1.

    paper       here                         shape n           warm                         rounds
    of FedAvg before the clustering w           centres                      every leaf [K, ...];
    [1, ...] before the clustering Δw          update                       [N, d] P
    metric, linkage, distance    where the tree is cut, which sets the number of clusters

In round `warm` + 1 every client trains, and the server cuts a tree of their updates; then FedAvg
runs inside each cluster.

Differences from the paper:
* Each cluster continues from its members' mean model of that round, weighted by rows;
  `group_start="before"` continues from the model before it, as the paper does.
* The default metric (cosine) and linkage (average) do not depend on the scale of the updates.
* A client that missed the clustering joins the cluster with the smallest loss in its next round. If
  no client answers in that round, there is one cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core.contract import Ask, setting
from coterie.core.errors import CoterieError
from coterie.core.params import flatten, pick, repeated
from coterie.core.task import Task
from coterie.methods.grouped import GroupedFedAvg, GroupedState
from coterie.optim.server import takes_server_step


@dataclass(frozen=True, kw_only=True)
class FLHC(GroupedFedAvg):
    """FedAvg for some rounds, then clusters from a tree of updates and FedAvg in each.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.FLHC(warm=1, distance=0.6), fed, rounds=1)
        >>> result.clusters[-1].shape
        (8,)
    """

    name: ClassVar[str] = "flhc"
    paper: ClassVar[str] = "Briggs et al. 2020"

    warm: int = setting(5, "rounds n of FedAvg before the clustering", ge=0)
    distance: float = setting(0.8, "distance between clusters at which the tree is cut", ge=0)
    metric: str = setting(
        "cosine", "distance between updates", choices=("cosine", "euclidean", "manhattan")
    )
    linkage: str = setting(
        "average", "distance between clusters", choices=("average", "complete", "single", "ward")
    )
    group_start: str = setting(
        "mean",
        "first model of a cluster: its members' mean, or the one before",
        choices=("mean", "before"),
    )

    def start(self, task: Task, clients: int, seed: int) -> tuple[GroupedState, Any]:
        return GroupedState(task.inits(seed, 1), torch.zeros(clients, dtype=torch.long)), ()

    @takes_server_step
    def round(self, state: GroupedState, ask: Ask) -> GroupedState:
        if ask.round == self.warm + 1:
            return self.cluster(state, ask)
        return self.train_clusters(state, ask)

    def cluster(self, state: GroupedState, ask: Ask) -> GroupedState:
        """Train all clients once and cluster them by their updates."""
        answers = ask(
            self.train,
            ask.all_clients,
            per_client=self.assigned_centres(state, ask.all_clients),
            reduce="stack",
            stream="train",
            started_from={"model": state.centres},
        )
        if not len(answers.ids):
            return state
        models = answers.values["model"]
        labels = self.cut_tree(flatten(models) - flatten(state.centres))  # Δw_i = w_i − w
        k = int(labels.max()) + 1
        ask.note("sizes", labels.bincount(minlength=k))
        centres = repeated(pick(state.centres, 0), k)
        if self.group_start == "mean":
            centres = ask.group_mean(models, labels, answers.weight[:, 0], empty=centres)
        group = torch.full_like(state.group, -1).index_copy(0, answers.ids, labels)
        return GroupedState(centres, group)

    def cut_tree(self, update: Tensor) -> Tensor:
        """The cluster of each update [n, d], int64 [n], numbered by first appearance."""
        from sklearn.cluster import AgglomerativeClustering

        if len(update) < 2:
            return torch.zeros(len(update), dtype=torch.long)
        tree = AgglomerativeClustering(
            n_clusters=None,
            metric=self.metric,
            linkage=self.linkage,
            distance_threshold=self.distance,
        )
        labels = tree.fit_predict(update.cpu().double().numpy()).tolist()
        number = {label: j for j, label in enumerate(dict.fromkeys(labels))}
        return torch.tensor([number[label] for label in labels])

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.linkage == "ward" and self.metric != "euclidean":
            raise CoterieError(
                f"linkage 'ward' needs metric='euclidean', and metric is {self.metric!r}."
            )
