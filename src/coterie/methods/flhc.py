"""FL+HC: federated learning with hierarchical clustering (Briggs, Fan, Andras, IJCNN 2020),
Algorithm 1.

    paper       here             shape
    n           warm             rounds of FedAvg before the clustering
    w           centres          every leaf [K, ...]; [1, ...] before the clustering
    Δw          update           [N, d]
    P           metric, linkage, distance: where the tree is cut, which sets the number of clusters

Round `warm` + 1 clusters: every client trains, the server cuts a tree of their updates; then FedAvg
per cluster.

Ours, not the paper's: each cluster goes on from its members' mean model of that round, weighted by
rows; `group_start="before"` goes on from the model before it, as the paper does. The defaults do
not depend on the scale of the updates (cosine distance, average linkage). A client that missed the
clustering joins the cluster of least loss at its next turn; if nobody answers in that round, all
stay together.
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
from coterie.methods.grouped import Grouped, WithinGroups


@dataclass(frozen=True, kw_only=True)
class FLHC(WithinGroups):
    """FedAvg for some rounds; then a tree of the updates is cut into groups, and FedAvg in each."""

    name: ClassVar[str] = "flhc"
    paper: ClassVar[str] = "Briggs et al. 2020"

    warm: int = setting(5, "rounds n of FedAvg before the clustering", ge=0)
    distance: float = setting(0.8, "where the tree is cut: groups farther apart stay apart", ge=0)
    metric: str = setting(
        "cosine", "distance of two updates", choices=("cosine", "euclidean", "manhattan")
    )
    linkage: str = setting(
        "average", "distance of two groups", choices=("average", "complete", "single", "ward")
    )
    group_start: str = setting(
        "mean",
        "a group's first model: its members' mean, or the one before",
        choices=("mean", "before"),
    )

    def start(self, task: Task, clients: int, seed: int) -> tuple[Grouped, Any]:
        return Grouped(task.inits(seed, 1), torch.zeros(clients, dtype=torch.long)), ()

    def round(self, state: Grouped, ask: Ask) -> Grouped:
        if ask.round == self.warm + 1:
            return self.cluster(state, ask)
        return self.within(state, ask)

    def cluster(self, state: Grouped, ask: Ask) -> Grouped:
        """Groups of all clients, by their updates in this round."""
        answers = self.trained(state, ask.all_clients, ask)
        if not len(answers.ids):
            return state
        models = answers.values["model"]
        labels = self.labels(flatten(models) - flatten(state.centres))  # Δw_i = w_i − w
        k = int(labels.max()) + 1
        ask.note("sizes", labels.bincount(minlength=k))
        centres = repeated(pick(state.centres, 0), k)
        if self.group_start == "mean":
            centres = ask.group_mean(models, labels, answers.weight[:, 0], empty=centres)
        group = torch.full_like(state.group, -1).index_copy(0, answers.ids, labels)
        return Grouped(centres, group)

    def labels(self, update: Tensor) -> Tensor:
        """int64 [n], numbered in the order in which groups first appear."""
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
