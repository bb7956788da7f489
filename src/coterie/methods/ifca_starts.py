"""Where the centres of IFCA start.

updates     ours, the default: in round 0 every participant trains one common model and reports a
            sketch (256 numbers) of its update's direction; k-means++ groups the sketches, and the
            centres are the groups' mean models (option I: one step with each group's gradients).
            `start_steps` makes that training longer, which tells groups apart where rows are few.
random      the paper's: K separate random models.
balanced    random, redrawn until every cluster attracts clients, as the authors' CIFAR code does.
restarts    the paper's remedy: several random starts are tried for `trial` rounds each, and the one
            of least training loss is kept.
start_from  K given models: the folder that `coterie export` wrote of another run's groups.

Where means are robust, `updates` trusts no group of sketches, for hostile clients may be one: it
makes twice as many centres, every client reports its loss under each, and the K are kept that serve
the clients best (clustering/serving.py).

`clusters="auto"` tries numbers of groups on held-out rows (methods/held_out.py), or chooses K from
the sketches (clustering/choose.py); sketches then come after five times the usual local training
unless start_steps says otherwise. Then K is fixed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering import (
    hostile_share,
    inlier_indices,
    kmeans,
    kmeans_without_singletons,
    num_candidates,
    select_centres,
    sketch,
)
from coterie.clustering.losses import min_finite
from coterie.core.contract import Ask, Data, Direction, Finite, Index, Losses, Sums, Upload, client
from coterie.core.errors import CoterieError
from coterie.core.params import Params, minus, pick, repeated
from coterie.core.task import Batch, Task
from coterie.methods.given import given_centres
from coterie.methods.grouped import how_many
from coterie.methods.held_out import RULE as HELD_OUT
from coterie.methods.held_out import Count
from coterie.methods.ifca_traffic import Traffic

KINDS = ("updates", "random", "balanced")
TRIES = 50  # draws of init="balanced"


class Starts(Traffic):
    """Round 0 of IFCA. The settings are fields of `IFCA`."""

    clusters: int | str
    auto_by: str
    init: str
    start_from: str | None
    start_steps: int | None
    sketch_size: int
    restarts: int
    trial: int

    def estimate(self, task: Task, centres: Params, rows: Batch) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def ask_all(
        self, centres: Params, ask: Ask, clients: Tensor | None = None, stream: str = "train"
    ) -> Sums:
        raise NotImplementedError

    def averaged(self, centres: Params, sums: Sums, clients: int) -> Params:
        raise NotImplementedError

    @property
    def by_updates(self) -> bool:
        """Whether the centres start from the first updates."""
        return self.init == "updates" and self.restarts == 1 and self.start_from is None

    # ------------------------------------------------------------------ before any exchange
    def first_centres(self, task: Task, seed: int) -> Params:
        if self.clusters == "auto":
            return self.tied(repeated(task.init(seed), 1))
        k = int(self.clusters)
        one_start = self.init == "updates" and self.restarts == 1
        if one_start or self.start_from is not None:
            return self.tied(repeated(task.init(seed), k))
        return self.tied(task.inits(seed, k))

    def begun(self, centres: Params, group: Tensor, ask: Ask) -> tuple[Params, Tensor]:
        """(centres, the cluster of each client) after round 0."""
        if self.start_from is not None:
            k = int(self.clusters)
            return self.tied(given_centres(self.start_from, k, ask.task.init(ask.seed))), group
        if self.restarts > 1:
            return self.best_of_restarts(centres, group, ask)
        if self.init == "updates" and self.clusters != 1:
            return self.from_updates(centres, group, ask)
        if self.init == "balanced":
            return self.balanced(centres, ask), group
        return centres, group

    # ------------------------------------------------------------------ updates
    def from_updates(self, centres: Params, group: Tensor, ask: Ask) -> tuple[Params, Tensor]:
        """Cluster sketches of the first updates; then average the same updates per group.

        Both exchanges see the same randomness, so that what is averaged is what was clustered, and
        no model is kept.
        """
        common = pick(centres, 0)
        seed = int(torch.randint(2**62, (), generator=ask.rng("sketch")))
        static = {"seed": seed, **self.pair_of(ask)}
        sums = ask(self.first_update, shared=common, static=static, stream="start")
        sketches = sums.report["sketch"]
        k, may_be_singleton = self.how_many(common, sketches, ask)
        if ask.is_robust:
            made = num_candidates(k, len(sketches))
            labels = kmeans(sketches, made, ask.rng("k-means")).labels
        else:
            leave = torch.isin(sums.ids, may_be_singleton)
            labels, made = kmeans_without_singletons(sketches, k, ask.rng("k-means"), leave)
        if made < k:
            ask.note("clusters", made)
        ask.note("start_sizes", labels.bincount(minlength=made))
        group = group.index_copy(0, sums.ids, labels)
        centres = self.tied(repeated(common, made))
        sums = self.train_within(centres, sums.ids, group, ask, start=True)
        centres = self.averaged(centres, sums, len(group))
        if made <= k:
            return centres, group
        served = select_centres(centres, k, ask, self.rate)
        return self.tied(served.centres), group.index_copy(0, served.ids, served.labels)

    def how_many(self, common: Params, sketches: Tensor, ask: Ask) -> Count:
        """K; clusters="auto" finds it, without clients that may be hostile."""
        if self.clusters == "auto" and self.auto_by == HELD_OUT:
            return self.count_groups(common, ask)
        counted = sketches
        if self.clusters == "auto":
            counted = sketches[inlier_indices(sketches, hostile_share(ask))]
        k = how_many(self.clusters, counted, ask, self.auto_by)
        return Count(k, may_be_singleton=ask.all_clients)

    @client(
        report={"losses": Losses()},
        when=lambda method: method.by_updates,
        rounds="start",
    )
    def rate(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the loss under each centre."""
        _, losses = self.estimate(task, centres, data.all)
        return Upload({}, {}, {"losses": losses.nan_to_num(torch.inf, torch.inf)}), private

    @client(report={"sketch": Direction()}, when=lambda method: method.by_updates, rounds="start")
    def first_update(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data,
        pair: int, seed: int,
    ) -> tuple[Upload, Any]:  # fmt: skip
        """Report a sketch of the direction in which this client would move the common start."""
        value = self.local_update(task, model, data, pair, start=True)
        if self.average == "models":
            value = minus(value, model)
        direction = F.normalize(sketch(value, self.sketch_size, seed), dim=-1, eps=1e-12)
        return Upload({}, {}, {"sketch": direction}), private

    def fit_step_sizes(self, curvature: float, clients: int) -> Self:
        """As for any method; where the rows say how far a step may go, no longer start is needed.

        Sketches of longer training hold more of what is peculiar to a client's few rows.
        """
        method = super().fit_step_sizes(curvature, clients)
        is_given = self.start_steps is not None or self.local_epochs is not None
        if self.clusters == "auto" and self.can_start_longer and not is_given:
            return replace(method, start_steps=self.local_steps)  # type: ignore[call-arg]
        return method

    @property
    def can_start_longer(self) -> bool:
        """Whether `start_steps` says how long the training of round 0 is."""
        return self.by_updates and self.average == "models"

    def at_start(self) -> Self:
        """The method with the local training of round 0."""
        if self.start_steps is not None:
            return replace(self, local_steps=self.start_steps, local_epochs=None)
        if self.clusters != "auto":
            return self
        if self.local_epochs is not None:
            return replace(self, local_epochs=5 * self.local_epochs)
        return replace(self, local_steps=5 * self.local_steps)

    # ------------------------------------------------------------------ several random starts
    def best_of_restarts(self, centres: Params, group: Tensor, ask: Ask) -> tuple[Params, Tensor]:
        """The start of least training loss after `trial` rounds."""
        k = int(self.clusters)
        best = (centres, group)
        losses: list[float] = []
        for r in range(self.restarts):
            centres = self.tied(ask.task.inits(ask.seed, k, start=r * k))
            for n in range(self.trial):
                sums = self.ask_all(centres, ask, stream=f"trial {n}")
                centres = self.averaged(centres, sums, len(group))
            choices = ask(self.choose, shared=centres)
            losses_of_clients = choices.report["loss"].double()
            loss = float(losses_of_clients.mean())
            if ask.is_robust:  # one client could decide by a huge one
                loss = float(losses_of_clients.median())
            if loss < min(losses, default=torch.inf):
                best = (centres, group.index_copy(0, choices.ids, choices.report["cluster"]))
            losses.append(loss)
        ask.note("restart_losses", losses)
        return best

    def balanced(self, centres: Params, ask: Ask, tries: int = TRIES) -> Params:
        """Random centres of which each attracts 0.7/K of the clients (for K=2 the authors' 35 %).

        If no draw does, the one whose least share is largest.
        """
        k = int(self.clusters)
        best, largest = centres, -1.0
        for r in range(tries):
            centres = self.tied(ask.task.inits(ask.seed, k, start=r * k))
            picked = ask(self.choose, shared=centres).report["cluster"]
            least = float(picked.bincount(minlength=k).min()) / max(len(picked), 1)
            if least > largest:
                best, largest = centres, least
            if largest >= 0.7 / k:
                break
        ask.note("start_draws", r + 1)
        return best

    @client(
        report={"cluster": Index(), "loss": Finite("its loss under that", minimum=0)},
        when=lambda method: method.restarts > 1 or method.init == "balanced",
        rounds="start",
        max_calls=lambda method: max(method.restarts, TRIES),
    )
    def choose(
        self, task: Task, centres: Params, per_client: Any, private: Any, data: Data
    ) -> tuple[Upload, Any]:
        """Report the identity and its loss; NaN, which is refused, if no loss is finite."""
        j, losses = self.estimate(task, centres, data.all)
        return Upload({}, {}, {"cluster": j, "loss": min_finite(losses)}), private

    # ------------------------------------------------------------------ settings
    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.clusters == "auto" and not self.by_updates:
            raise CoterieError(
                "clusters='auto' is found from the first updates: leave init at 'updates', "
                "restarts at 1 and start_from."
            )
        if self.restarts > 1 and self.init == "balanced":
            raise CoterieError(
                "restarts tries random starts, and init='balanced' is another way: "
                "leave one of them."
            )
        if self.start_from is not None and (self.restarts > 1 or self.init != "updates"):
            raise CoterieError(
                "start_from gives the centres, and init and restarts find some: leave these."
            )
        if self.start_steps and not self.can_start_longer:
            raise CoterieError(
                "start_steps is for init='updates' with average='models' and restarts=1: leave it."
            )
