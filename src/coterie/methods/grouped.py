"""Methods whose server knows the groups: FedAvg in each group, and a group for latecomers."""

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
    Stack,
    Upload,
    client,
)
from coterie.core.params import Params, count, pick, unstack
from coterie.core.task import Task
from coterie.optim import descend


def how_many(
    clusters: int | str, points: Tensor, ask: Ask, rule: str, bound: Bound | None = None
) -> int:
    """K; clusters="auto" chooses it from the points, and notes it with its curve."""
    if isinstance(clusters, int):
        return clusters
    choice = choose_clusters(points, ask.rng("choose"), rule, bound)
    ask.note("curve", choice.curve)
    ask.note("clusters", choice.clusters)
    return choice.clusters


class Grouped(NamedTuple):
    """The groups' models, and who is in which group."""

    centres: Params  # every leaf [K, ...]; K may grow
    group: Tensor  # int64 [N], −1: not yet placed


class WithinGroups(Local, Algorithm):
    """Clients are sent only the centre of their group; one without a group is placed first."""

    @client(weight=SentWeight(place=1, rows=True), rounds="later")
    def train(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        centre, member = per_client
        w = descend(task, centre, data.batches(self), self)
        return Upload({"model": w}, member * data.size, {}), private

    @client(
        report={"group": Index(), "loss": Finite("its loss under that", minimum=0)}, rounds="later"
    )
    def place(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        j, losses = best_by_loss(task, unstack(centres), data.all)
        return Upload({}, {}, {"group": j, "loss": min_finite(losses)}), private

    def placed(self, state: Grouped, ask: Ask) -> tuple[Grouped, Tensor]:
        """The state with every participant placed that answers, and the participants with a group.

        A client without a group goes to the one whose centre has the least loss on its rows.
        """
        lost = ask.participants[state.group[ask.participants] < 0]
        if len(lost):
            answers = ask(self.place, lost, shared=state.centres)
            group = state.group.index_copy(0, answers.ids, answers.report["group"])
            state = state._replace(group=group)
        return state, ask.participants[state.group[ask.participants] >= 0]

    def within(self, state: Grouped, ask: Ask) -> Grouped:
        """One round of FedAvg in every group."""
        state, ids = self.placed(state, ask)
        sums = ask(
            self.train,
            ids,
            per_client=self.centre_of_each(state, ids),
            stream="train",
            started_from={"model": state.centres},
        )
        return state._replace(centres=sums.mean("model", empty=state.centres))

    def trained(self, state: Grouped, ids: Tensor, ask: Ask) -> Stack:
        """The model of every client of `ids`, trained from the centre of its group."""
        return ask(
            self.train,
            ids,
            per_client=self.centre_of_each(state, ids),
            reduce="stack",
            stream="train",
            started_from={"model": state.centres},
        )

    def centre_of_each(self, state: Grouped, ids: Tensor) -> Rows:
        """(the centre of its group, which group that is as a one-hot row) for every client."""
        member = torch.eye(count(state.centres), dtype=next(iter(state.centres.values())).dtype)
        return Rows((state.centres, member), state.group[ids])

    def use(self, state: Grouped) -> tuple[Any, Any]:
        return state.centres, state.group

    def model(self, task: Task, centres: Params, group: Tensor, private: Any, data: Data) -> Params:
        """The group's centre; without a group, the centre of least loss on the training rows."""
        j, _ = best_by_loss(task, unstack(centres), data.all)
        return pick(centres, torch.where(group < 0, j, group))

    def join(self, task: Task, centres: Params, data: Data) -> tuple[Tensor, Any]:
        return best_by_loss(task, unstack(centres), data.all)[0], ()

    def centres(self, state: Grouped) -> Params:
        return state.centres

    def groups(self, state: Grouped) -> Tensor:
        return state.group
