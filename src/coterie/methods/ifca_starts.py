"""Initial centres of IFCA, found in round 0.

updates     Ours, the default: every participant trains one common model and reports a sketch (256
            numbers) of the direction of its update; k-means++ clusters the sketches, and the
            centres are the clusters' mean models (option I: one step with each cluster's
            gradients). `start_steps` makes this training longer, which separates clusters better
            where clients have few rows.
random      The paper's: K separate random models.
balanced    Random, drawn again until every cluster attracts clients, as the authors' CIFAR code
            does.
restarts    The paper's remedy: train several random starts for `trial` rounds each and keep the
            one with the smallest training loss.
start_from  The cluster models of another run, in a folder that `coterie export` wrote.

With robust aggregation a cluster of sketches may consist of hostile clients. So `updates` then
makes twice as many centres, every client reports its loss under each, and the K are kept that fit
the clients best (clustering/hostile.py).

`clusters="auto"` chooses K by held-out losses (methods/held_out.py) or from the sketches
(clustering/choose.py), after five times the local training unless `start_steps` is set or the
step sizes are fitted to the data (`IFCA.fit_step_sizes`). K then stays fixed.

The functions run on the server. `method` is the IFCA whose settings and client functions they use.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.clustering import (
    inlier_indices,
    kmeans,
    kmeans_without_singletons,
    num_candidates,
    select_centres,
)
from coterie.core.contract import Ask
from coterie.core.params import Params, pick, repeated
from coterie.core.task import Task
from coterie.methods.grouped import choose_number
from coterie.methods.held_out import ClusterCount, chooses_by_held_out, count_clusters
from coterie.methods.start_from import load_centres

INITS = ("updates", "random", "balanced")
MAX_DRAWS = 50  # of init="balanced"


def initial_centres(method: Any, task: Task, seed: int) -> Params:
    """Centres before any exchange: copies of one model, or K random models."""
    if method.clusters == "auto":
        return method.tie(repeated(task.init(seed), 1))
    if method.starts_from_updates or method.start_from is not None:
        return method.tie(repeated(task.init(seed), method.clusters))
    return method.tie(task.inits(seed, method.clusters))


def find_start(method: Any, centres: Params, group: Tensor, ask: Ask) -> tuple[Params, Tensor]:
    """Run round 0.

    Args:
        method: The IFCA that starts.
        centres: The result of `initial_centres`.
        group: int64 [N], −1 everywhere.
        ask: The exchanges of round 0.

    Returns:
        The centres and the cluster of each client, −1 where unknown.
    """
    if method.start_from is not None:
        return method.tie(load_centres(method.start_from, method.clusters, ask)), group
    if method.restarts > 1:
        return _best_of_restarts(method, centres, group, ask)
    if method.init == "updates" and method.clusters != 1:
        return _cluster_updates(method, centres, group, ask)
    if method.init == "balanced":
        return _draw_balanced(method, centres, ask), group
    return centres, group


def _cluster_updates(
    method: Any, centres: Params, group: Tensor, ask: Ask
) -> tuple[Params, Tensor]:
    """Cluster sketches of the first updates, then average the same updates per cluster.

    Both exchanges use the same randomness, so the averaged updates are those that were sketched,
    and the server stores no model.
    """
    common = pick(centres, 0)
    seed = int(torch.randint(2**62, (), generator=ask.rng("sketch")))
    static = {"seed": seed, **method.resampled_pair(ask)}
    sums = ask(method.first_update, shared=common, static=static, stream="start")
    sketches = sums.report["sketch"]
    k, may_be_singleton = _number_of_clusters(method, common, sketches, ask)
    if ask.is_robust:  # more centres than clusters, of which the best k are kept below
        num_centres = num_candidates(k, len(sketches))
        labels = kmeans(sketches, num_centres, ask.rng("k-means")).labels
    else:
        allowed = torch.isin(sums.ids, may_be_singleton)
        labels, num_centres = kmeans_without_singletons(sketches, k, ask.rng("k-means"), allowed)
    if num_centres < k:
        ask.note("clusters", num_centres)
    ask.note("start_sizes", labels.bincount(minlength=num_centres))
    group = group.index_copy(0, sums.ids, labels)
    centres = method.tie(repeated(common, num_centres))
    sums = method.train_assigned(centres, sums.ids, group, ask, start=True)
    centres = method.update_centres(centres, sums, len(group))
    if num_centres <= k:
        return centres, group
    selected = select_centres(centres, k, ask, method.rate)
    return method.tie(selected.centres), group.index_copy(0, selected.ids, selected.labels)


def _number_of_clusters(method: Any, common: Params, sketches: Tensor, ask: Ask) -> ClusterCount:
    """Return the given K, or choose it; and the clients that may form a cluster alone."""
    if chooses_by_held_out(method):
        return count_clusters(method, common, ask)
    if method.clusters == "auto":
        sketches = sketches[inlier_indices(sketches, ask.hostile_share)]
    k = choose_number(method.clusters, sketches, ask, method.auto_by)
    return ClusterCount(k, may_be_singleton=ask.all_clients)


def _best_of_restarts(
    method: Any, centres: Params, group: Tensor, ask: Ask
) -> tuple[Params, Tensor]:
    """The random start with the smallest training loss after `trial` rounds."""
    best = (centres, group)
    losses: list[float] = []
    for r in range(method.restarts):
        centres = method.tie(ask.task.inits(ask.seed, method.clusters, start=r * method.clusters))
        for n in range(method.trial):
            sums = method.train_all(centres, ask, stream=f"trial {n}")
            centres = method.update_centres(centres, sums, len(group))
        choices = ask(method.choose, shared=centres)
        client_losses = choices.report["loss"].double()
        loss = float(client_losses.mean())
        if ask.is_robust:  # one hostile client could decide by a huge loss
            loss = float(client_losses.median())
        if loss < min(losses, default=torch.inf):
            best = (centres, group.index_copy(0, choices.ids, choices.report["cluster"]))
        losses.append(loss)
    ask.note("restart_losses", losses)
    return best


def _draw_balanced(method: Any, centres: Params, ask: Ask) -> Params:
    """Random centres that each attract 0.7/K of the clients (the authors' 35 % for K = 2).

    If no draw does, the one whose smallest cluster is largest.
    """
    k = method.clusters
    best, largest = centres, -1.0
    for r in range(MAX_DRAWS):
        centres = method.tie(ask.task.inits(ask.seed, k, start=r * k))
        chosen = ask(method.choose, shared=centres).report["cluster"]
        smallest = float(chosen.bincount(minlength=k).min()) / max(len(chosen), 1)
        if smallest > largest:
            best, largest = centres, smallest
        if largest >= 0.7 / k:
            break
    ask.note("start_draws", r + 1)
    return best
