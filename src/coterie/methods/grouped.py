"""FedAvg inside clusters that the server knows: the common part of CFL, FL+HC and one-shot."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.clustering import Bound, choose_clusters
from coterie.clustering.losses import best_by_loss, min_finite
from coterie.core.contract import (
    Algorithm,
    Ask,
    Data,
    Finite,
    Index,
    Local,
    Rows,
    SentWeight,
    Upload,
    client,
)
from coterie.core.params import Params, count, pick, unstack
from coterie.core.task import Task
from coterie.optim import descend
from coterie.optim.server import ServerOptimizer, ServerSlots


def choose_number(
    clusters: int | str, points: Tensor, ask: Ask, rule: str, bound: Bound | None = None
) -> int:
    """The number of clusters; "auto" chooses it from the points and notes it with its curve."""
    if isinstance(clusters, int):
        return clusters
    choice = choose_clusters(points, ask.rng("choose"), rule, bound)
    ask.note("curve", choice.curve)
    ask.note("clusters", choice.clusters)
    return choice.clusters


class GroupedState(NamedTuple):
    """Cluster models and assignments."""

    centres: Params  # every leaf [K, ...]; K may grow
    group: Tensor  # int64 [N], −1: not yet assigned
    slots: ServerSlots | tuple[()] = ()  # of the server optimizer, from the first round on


class GroupedFedAvg(ServerOptimizer, Local, Algorithm):
    """FedAvg inside each cluster.

    A client gets only the model of its cluster. One without a cluster first reports which model has
    the smallest loss on its rows. Subclasses define `start` and `round`, and find the clusters.
    """

    # ------------------------------------------------------------------ one client
    @client(weight=SentWeight(place=1, rows=True), rounds="later", individual=True)
    def train(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Train the model of the client's cluster; `per_client` is (model, one-hot cluster)."""
        centre, member = per_client
        w = descend(task, centre, data.batches(self), self)
        return Upload({"model": w}, member * data.size, {}), private

    @client(
        report={"group": Index(), "loss": Finite("its loss under that", minimum=0)}, rounds="later"
    )
    def place(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the cluster model with the smallest loss."""
        j, losses = best_by_loss(task, unstack(centres), data.all)
        return Upload({}, {}, {"group": j, "loss": min_finite(losses)}), private

    # ------------------------------------------------------------------ the server
    def assign_new(self, state: GroupedState, ask: Ask) -> tuple[GroupedState, Tensor]:
        """Assign participants without a cluster; return also the ids of those that have one."""
        new = ask.participants[state.group[ask.participants] < 0]
        if len(new):
            answers = ask(self.place, new, shared=state.centres)
            group = state.group.index_copy(0, answers.ids, answers.report["group"])
            state = state._replace(group=group)
        return state, ask.participants[state.group[ask.participants] >= 0]

    def train_clusters(self, state: GroupedState, ask: Ask) -> GroupedState:
        """One round of FedAvg in every cluster."""
        state, ids = self.assign_new(state, ask)
        sums = ask(
            self.train,
            ids,
            per_client=self.assigned_centres(state, ids),
            stream="train",
            started_from={"model": state.centres},
        )
        slots = state.slots or self.server_slots(state.centres)
        means = sums.mean("model", empty=state.centres)
        mass = dict.fromkeys(means, sums.mass["model"])
        centres, slots = self.server_step(ask.task, state.centres, means, slots, mass)
        return state._replace(centres=centres, slots=slots)

    def assigned_centres(self, state: GroupedState, ids: Tensor) -> Rows:
        """(cluster model, one-hot cluster) of every client, the `per_client` of `train`."""
        member = torch.eye(count(state.centres), dtype=next(iter(state.centres.values())).dtype)
        return Rows((state.centres, member), state.group[ids])

    # ------------------------------------------------------------------ evaluation
    def use(self, state: GroupedState) -> tuple[Any, Any]:
        return state.centres, state.group

    def model(self, task: Task, centres: Params, group: Tensor, private: Any, data: Data) -> Params:
        """The model of the client's cluster; without one, that of the smallest training loss."""
        j, _ = best_by_loss(task, unstack(centres), data.all)
        return pick(centres, torch.where(group < 0, j, group))

    def join(self, task: Task, centres: Params, data: Data) -> tuple[Tensor, Any]:
        return best_by_loss(task, unstack(centres), data.all)[0], ()

    def centres(self, state: GroupedState) -> Params:
        return state.centres

    def groups(self, state: GroupedState) -> Tensor:
        return state.group

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        self.check_server_optimizer()
