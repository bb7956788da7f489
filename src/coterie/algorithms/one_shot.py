"""One-shot clustering (Ghosh, Chung, Yin, Ramchandran, IEEE Trans. Inf. Theory 2022), Algorithm 1.

    paper       here             shape
    θ̃_i         the solved models, stacked: every leaf [N, ...]
    S_j         state.group      int64 [N]
    k           clusters

Round 0 is lines 1 and 2: each client solves its own problem, the server runs k-means on the solutions. The counted
rounds are line 3: federated averaging inside each cluster, identities fixed.

Ours, not the paper's: all clients start from one common model, since networks trained apart differ by permuted hidden
units (the paper's own warning); "to its own minimum" is a budget of steps; a client that missed round 0 joins the
cluster of least loss at its first turn. `clusters="auto"` chooses k from the directions in which the models moved
(clustering/choose.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from coterie.clustering import RULES, coordinates, group_mean, kmeans
from coterie.common.grouped import Grouped, WithinGroups, how_many
from coterie.contract import Ask, Data, Repeat, Upload, client, setting
from coterie.local import descend
from coterie.params import Params, flatten, pick, repeated
from coterie.task import Task


@dataclass(frozen=True, kw_only=True)
class OneShot(WithinGroups):
    """Clients train alone, k-means groups their models once, then FedAvg inside each group."""

    name: ClassVar[str] = "one-shot"
    paper: ClassVar[str] = "Ghosh et al. 2022"

    clusters: int | str = setting(
        ..., "number of clusters k; auto: found in round 0", least=1, words=("auto",)
    )
    auto_by: str = setting("careful", "how clusters=auto is found", choices=RULES)
    solve_steps: int = setting(
        100, "full-batch steps each client takes before the clustering", least=1
    )

    def start(self, task: Task, clients: int, seed: int) -> tuple[Grouped, Any]:
        k = 1 if self.clusters == "auto" else int(self.clusters)
        return Grouped(repeated(task.init(seed), k), torch.full((clients,), -1)), ()

    @client
    def solve(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        w = descend(task, model, Repeat(data.all, self.solve_steps), self)
        return Upload({"model": w}, torch.ones_like(data.size)[None], {}), private

    def begin(self, state: Grouped, ask: Ask) -> Grouped:
        got = ask(self.solve, ask.everyone, shared=pick(state.centres, 0), reduce="stack")
        models = flatten(got.values["model"])
        moves = models - flatten(state.centres)[:1]
        directions = moves / moves.norm(dim=1, keepdim=True).clamp(min=1e-12)
        k = how_many(self.clusters, coordinates(directions), ask, self.auto_by)
        found = kmeans(coordinates(models), k, ask.rng("k-means"))
        ask.note("k_means_iterations", found.iterations)
        centres = group_mean(
            got.values["model"],
            found.labels,
            got.weight[:, 0],
            empty=repeated(pick(state.centres, 0), k),
        )
        return Grouped(centres, state.group.index_copy(0, got.ids, found.labels))

    def round(self, state: Grouped, ask: Ask) -> Grouped:
        return self.within(state, ask)
