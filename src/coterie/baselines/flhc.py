"""FL+HC: federated learning with hierarchical clustering (Briggs, Fan, Andras, IJCNN 2020), Algorithm 1.

    paper       here             shape
    n           warm             rounds of FedAvg before the clustering
    w           centres          every leaf [K, ...]; [1, ...] before the clustering
    Δw          update           [N, d]
    P           metric, linkage, distance: where the tree is cut, which sets the number of clusters

Round `warm` + 1 clusters: every client trains, the server cuts a tree of their updates; then FedAvg per cluster.

Ours, not the paper's: each cluster goes on from its members' mean model of that round, weighted by rows, not from the
model before it. The defaults do not depend on the scale of the updates (cosine distance, average linkage). A client
that missed the clustering joins the cluster of least loss at its next turn; if nobody answers in that round, all stay
together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.clustering import group_mean
from coterie.common.grouped import Grouped, WithinGroups
from coterie.contract import Ask, Rows, setting
from coterie.errors import CoterieError
from coterie.params import flatten, pick, repeated
from coterie.task import Task


@dataclass(frozen=True, kw_only=True)
class FLHC(WithinGroups):
    """FedAvg for some rounds, then a tree of the clients' updates is cut into groups, then FedAvg in each."""

    name: ClassVar[str] = "flhc"
    paper: ClassVar[str] = "Briggs et al. 2020"

    warm: int = setting(5, "rounds n of FedAvg before the clustering", least=0)
    distance: float = setting(
        0.8, "where the tree is cut: groups farther apart stay apart", least=0
    )
    metric: str = setting(
        "cosine", "distance of two updates", choices=("cosine", "euclidean", "manhattan")
    )
    linkage: str = setting(
        "average", "distance of two groups", choices=("average", "complete", "single", "ward")
    )

    def start(self, task: Task, clients: int, seed: int) -> tuple[Grouped, Any]:
        return Grouped(task.inits(seed, 1), torch.zeros(clients, dtype=torch.long)), ()

    def round(self, state: Grouped, ask: Ask) -> Grouped:
        return self.cluster(state, ask) if ask.round == self.warm + 1 else self.within(state, ask)

    def cluster(self, state: Grouped, ask: Ask) -> Grouped:
        member = torch.ones(1, 1, dtype=next(iter(state.centres.values())).dtype)
        per_client = Rows((state.centres, member), state.group[ask.everyone])
        started_from = {"model": state.centres}
        got = ask(
            self.train,
            ask.everyone,
            per_client=per_client,
            reduce="stack",
            stream="train",
            started_from=started_from,
        )
        if not len(got.ids):
            return state
        models = got.values["model"]
        labels = self.labels(flatten(models) - flatten(state.centres))  # Δw_i = w_i − w
        k = int(labels.max()) + 1
        ask.note("sizes", labels.bincount(minlength=k))
        centres = group_mean(
            models, labels, got.weight[:, 0], empty=repeated(pick(state.centres, 0), k)
        )
        return Grouped(centres, torch.full_like(state.group, -1).index_copy(0, got.ids, labels))

    def labels(self, update: Tensor) -> Tensor:
        """int64 [n], numbered in the order in which groups first appear."""
        from sklearn.cluster import AgglomerativeClustering

        if len(update) < 2:
            return torch.zeros(len(update), dtype=torch.long)
        how = {"metric": self.metric, "linkage": self.linkage, "distance_threshold": self.distance}
        found = (
            AgglomerativeClustering(None, **how).fit_predict(update.cpu().double().numpy()).tolist()
        )
        order = {label: j for j, label in enumerate(dict.fromkeys(found))}
        return torch.tensor([order[label] for label in found])

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.linkage == "ward" and self.metric != "euclidean":
            raise CoterieError(
                f"linkage 'ward' needs metric='euclidean', and metric is {self.metric!r}."
            )
