"""What methods share whose server knows the groups: FedAvg inside each group, and a place for those who missed it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.clustering import Bound, choose_clusters
from coterie.common.losses import least_finite, least_loss
from coterie.contract import Algorithm, Ask, Data, Local, Rows, Upload, client
from coterie.local import descend
from coterie.params import Params, count, pick, unstack
from coterie.task import Task


def how_many(
    clusters: int | str, points: Tensor, ask: Ask, rule: str, bound: Bound | None = None
) -> int:
    """K; clusters="auto" finds it among the points, and notes it with its curve."""
    if isinstance(clusters, int):
        return clusters
    choice = choose_clusters(points, ask.rng("choose"), rule, bound)
    ask.note("curve", choice.curve)
    ask.note("clusters", choice.clusters)
    return choice.clusters


class Grouped(NamedTuple):
    centres: Params  # every leaf [K, ...]; K may grow
    group: Tensor  # int64 [N], −1: not yet placed


class WithinGroups(Local, Algorithm):
    """Clients are sent only the centre of their group; a client without one is first asked which fits it best."""

    @client
    def train(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        centre, member = per_client
        w = descend(task, centre, data.batches(self), self)
        return Upload({"model": w}, member * data.size, {}), private

    @client
    def place(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        j, losses = least_loss(task, unstack(centres), data.all)
        return Upload({}, {}, {"group": j, "loss": least_finite(losses)}), private

    def placed(self, state: Grouped, ask: Ask) -> tuple[Grouped, Tensor]:
        """The state with every participant placed that could be, and those participants."""
        lost = ask.participants[state.group[ask.participants] < 0]
        if len(lost):
            got = ask(self.place, lost, shared=state.centres)
            state = state._replace(group=state.group.index_copy(0, got.ids, got.report["group"]))
        return state, ask.participants[state.group[ask.participants] >= 0]

    def within(self, state: Grouped, ask: Ask) -> Grouped:
        """One round of FedAvg in every group."""
        state, ids = self.placed(state, ask)
        member = torch.eye(count(state.centres), dtype=next(iter(state.centres.values())).dtype)
        per_client = Rows((state.centres, member), state.group[ids])
        sums = ask(
            self.train,
            ids,
            per_client=per_client,
            stream="train",
            started_from={"model": state.centres},
        )
        return state._replace(centres=sums.mean("model", empty=state.centres))

    def use(self, state: Grouped) -> tuple[Any, Any]:
        return state.centres, state.group

    def model(self, task: Task, centres: Params, group: Tensor, private: Any, data: Data) -> Params:
        """The group's centre; for a client without a group, the centre of least loss on its training data."""
        j, _ = least_loss(task, unstack(centres), data.all)
        return pick(centres, torch.where(group < 0, j, group))

    def join(self, task: Task, centres: Params, data: Data) -> tuple[Tensor, Any]:
        return least_loss(task, unstack(centres), data.all)[0], ()

    def centres(self, state: Grouped) -> Params:
        return state.centres

    def groups(self, state: Grouped) -> Tensor:
        return state.group
