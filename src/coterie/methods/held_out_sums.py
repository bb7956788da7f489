"""clusters="auto" under secure sums: the choice of `held_out.py`, from sums over clients alone.

A client remembers its sketch and its held-out losses l_i(K) of each fold. The clusters of sketches
are found from sums (`sketch_sums.py`). The decision needs the total loss of each K and the standard
deviation over clients of the gap between two of them, which follow from Σ l_i and Σ l_i l_iᵀ.

A method that supports this takes over the client functions of `held_out.py` and these:

    class MyMethod(Local, Algorithm):
        assign_sketch = sketch_sums.assign_sketch
        sum_sketches = held_out_sums.sum_sketches
        average_own_fold = held_out_sums.average_own_fold
        train_own_fold = held_out_sums.train_own_fold
        sum_losses = held_out_sums.sum_losses
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from coterie.core.contract import Ask, Data, Losses, OneHot, Upload, Weight, client
from coterie.core.params import Params, one_hot, repeated
from coterie.core.task import Task
from coterie.methods.held_out import (
    AT_ONCE,
    CERTAIN,
    FOLDS,
    MAX_CLUSTERS,
    MAX_ROUNDS,
    MIN_FOLDS,
    MIN_GAIN,
    MIN_ROUNDS,
    choose_smallest,
    chooses_by_held_out,
    client_weight,
    max_exchanges,
    sketch_fold,
    train_fold,
    train_start,
)
from coterie.methods.sketch_sums import (
    SecureClientState,
    Space,
    cluster_sketches,
    nearest_centre,
    principal_space,
    remember_sketch,
)

MAX_LOSS = 1e9  # of a diverged model; infinity cannot be summed


# ------------------------------------------------------------------------------ one client
@client(
    weight=Weight(),
    when=chooses_by_held_out,
    rounds="start",
    secure="only",
    max_calls=lambda method: FOLDS,
)
def sum_sketches(
    method: Any, task: Task, model: Params, per_client: Any, private: SecureClientState,
    data: Data, fold: int, seed: int,
) -> tuple[Upload, SecureClientState]:  # fmt: skip
    """Remember a sketch of the update without the held-out rows; upload its moments."""
    upload, _ = sketch_fold(method, task, model, per_client, (), data, fold, seed)
    return remember_sketch(upload.report["sketch"], private)


@client(
    weight=OneHot(rows="weighs_rows"),
    when=chooses_by_held_out,
    rounds="start",
    secure="only",
    max_calls=max_exchanges,
)
def average_own_fold(
    method: Any, task: Task, shared: Any, per_client: Any, private: SecureClientState,
    data: Data, fold: int,
) -> tuple[Upload, SecureClientState]:  # fmt: skip
    """For each K, upload the sketched model for the nearest cluster of sketches."""
    model, mean, basis, found = shared
    w = train_start(method, task, model, data, fold)
    values, weights = {}, {}
    for k, centres in found.items():
        nearest = nearest_centre(private.sketch, mean, basis, centres)
        values[k] = w
        weights[k] = one_hot(nearest, int(k), task.dtype) * client_weight(method, data)
    return Upload(values, weights, {}), private


@client(
    weight=OneHot(rows="weighs_rows"),
    report={"losses": Losses("its loss on held-out rows for each K", secure="summed")},
    when=chooses_by_held_out,
    rounds="start",
    secure="only",
    max_calls=max_exchanges,
)
def train_own_fold(
    method: Any, task: Task, tried: Any, per_client: Any, private: SecureClientState, data: Data,
    fold: int,
) -> tuple[Upload, SecureClientState]:  # fmt: skip
    """As `held_out.train_fold`; the client remembers its losses."""
    upload, _ = train_fold(method, task, tried, per_client, (), data, fold)
    losses = upload.report["losses"].double().clamp(max=MAX_LOSS)
    of_fold = list(private.losses[fold])
    for k, loss in zip(tried[0], losses):
        of_fold[int(k) - 1] = loss
    table = [*private.losses[:fold], torch.stack(of_fold), *private.losses[fold + 1 :]]
    upload = upload._replace(report={"losses": losses})
    return upload, private._replace(losses=torch.stack(table))


@client(
    weight=Weight(),
    when=chooses_by_held_out,
    rounds="start",
    secure="only",
    sums=True,
    max_calls=lambda method: FOLDS + MAX_CLUSTERS,
)
def sum_losses(
    method: Any, task: Task, shared: Any, per_client: Any, private: SecureClientState, data: Data,
    folds: int, most: int,
) -> tuple[Upload, SecureClientState]:  # fmt: skip
    """Upload l = the losses of K ≤ most over the first folds, and l lᵀ; zeros if it lacks one."""
    of_folds = private.losses[:folds, :most]
    is_known = (of_folds >= 0).all()
    losses = torch.where(is_known, of_folds.sum(0), 0.0)
    values = {
        "count": is_known.double()[None],
        "first": losses,
        "second": losses[:, None] * losses,
    }
    return Upload({"losses": values}, torch.ones_like(losses[:1]), {}), private


# ------------------------------------------------------------------------------ the server
def count_clusters_from_sums(method: Any, model: Params, ask: Ask) -> int:
    """Choose the number of clusters; note it and the curve of losses relative to K = 1."""
    trial = _SummedTrial(method, model, ask)
    if trial.max_clusters < 2:
        ask.note("clusters", 1)
        return 1
    tried = trial.try_beyond_best()
    folds = 1
    losses = trial.losses(folds, tried)
    while folds < FOLDS and (folds < MIN_FOLDS or losses.is_uncertain()):
        trial.train(folds, range(1, tried + 1))
        folds += 1
        losses = trial.losses(folds, tried)
    k = losses.smallest_good()
    ask.note("curve", (losses.first / losses.first[0].clamp(min=1e-300)).tolist())
    ask.note("clusters", k)
    return k


class SummedLosses:
    """The clients' losses as Σ l_i and Σ l_i l_iᵀ."""

    def __init__(self, count: float, first: Tensor, second: Tensor) -> None:
        self.count, self.first, self.second = count, first, second

    def smallest_good(self, errors: float = 1.0) -> int:
        """See `held_out.smallest_good`."""
        return choose_smallest(self.first, self._gap_error, errors)

    def is_uncertain(self) -> bool:
        """Whether another tolerance would change the choice."""
        return len({self.smallest_good(errors) for errors in CERTAIN}) > 1

    def _gap_error(self, k: int, best: int) -> float:
        """The standard error of Σ_i (l_ik − l_i,best)."""
        if self.count < 2:
            return 0.0
        m = self.second
        gap = float(self.first[k] - self.first[best])
        squares = float(m[k, k] - 2 * m[k, best] + m[best, best])
        variance = max(0.0, squares - gap**2 / self.count) / (self.count - 1)
        return math.sqrt(variance * self.count)


class _SummedTrial:
    """The exchanges of one choice."""

    def __init__(self, method: Any, model: Params, ask: Ask) -> None:
        self.method, self.model, self.ask = method, model, ask
        self.clients = ask.participants
        self.max_clusters = min(MAX_CLUSTERS, len(self.clients))
        self.spaces: dict[int, tuple[Tensor, Space]] = {}  # by fold, with the clients' ids
        self.rounds = MAX_ROUNDS  # lowered as soon as fewer are known to be enough
        self.seed = int(torch.randint(2**62, (), generator=ask.rng("held out")))

    def losses(self, folds: int, most: int) -> SummedLosses:
        """The losses of K = 1 to `most` over the first folds."""
        static = {"folds": folds, "most": most}
        sums = self.ask(self.method.sum_losses, self.clients, static=static)
        totals = {name: v[0] for name, v in sums.totals["losses"].items()}
        return SummedLosses(float(totals["count"]), totals["first"], totals["second"])

    def try_beyond_best(self) -> int:
        """Train fold 0 for K up to at least two beyond the best; return the largest K."""
        tried = min(AT_ONCE, self.max_clusters)
        self.train(0, range(1, tried + 1))
        while tried < self.max_clusters:
            best = 1 + int(self.losses(1, tried).first.argmin())
            if best < tried - 1:
                break
            more = min(tried + AT_ONCE, self.max_clusters)
            self.train(0, range(tried + 1, more + 1))
            tried = more
        return tried

    def train(self, fold: int, numbers: range) -> None:
        """Train models for each K, until the clients remember their last losses."""
        for at in range(0, len(numbers), AT_ONCE):
            self._train(fold, numbers[at : at + AT_ONCE])

    def _train(self, fold: int, numbers: range) -> None:
        tried = self._initial_models(fold, numbers)
        before = math.inf
        for r in range(self.rounds):
            sums = self.ask(
                self.method.train_own_fold,
                self.clients,
                shared=(tried,),
                static={"fold": fold},
                stream=f"held out {fold} {r}",
            )
            now = float(sums.report["losses"].sum())
            if r + 1 >= MIN_ROUNDS and not now < (1 - MIN_GAIN) * before:
                self.rounds = r + 1  # also for everything tried later
                break
            before = now
            tried = {k: sums.mean(k, empty=centres) for k, centres in tried.items()}

    def _initial_models(self, fold: int, numbers: range) -> dict[str, Params]:
        """The first models of K clusters, by str(K)."""
        ids, space = self._space(fold)
        several = [k for k in numbers if k > 1]
        found = cluster_sketches(self.method, space, several, ids, self.ask)
        centres = {str(k): found.get(k, space.spread.new_zeros(1, 0)) for k in numbers}
        sums = self.ask(
            self.method.average_own_fold,
            ids,
            shared=(self.model, space.mean, space.basis, centres),
            static={"fold": fold},
            stream=f"held out {fold}",
        )
        return {str(k): sums.mean(str(k), empty=repeated(self.model, k)) for k in numbers}

    def _space(self, fold: int) -> tuple[Tensor, Space]:
        """The clients that sketched a fold, and the directions of their sketches; cached."""
        if fold not in self.spaces:
            sums = self.ask(
                self.method.sum_sketches,
                self.clients,
                shared=self.model,
                static={"fold": fold, "seed": self.seed},
                stream=f"held out {fold}",
            )
            self.spaces[fold] = (sums.ids, principal_space(sums, self.max_clusters - 1))
        return self.spaces[fold]
