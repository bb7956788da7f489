"""IFCA under secure sums: the server learns how many clients chose each cluster, and not which.

A client remembers its own cluster (`SecureClientState.group`) and reports only numbers that are
summed: whether it changed cluster, and 1 for the cluster it chose. With `patience`, settled clients
get all centres, since the server does not know theirs, and train the one that they remember. The
start `init="updates"` finds clusters among the first updates from sums (`sketch_sums.py`); with
`clusters="auto"` K, too (`held_out_sums.py`). The starts that try random centres need the choices
of each client and cannot run.

The client functions are methods of IFCA; `method` is the IFCA that they belong to.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering import sketch
from coterie.clustering.losses import Choice
from coterie.core.contract import Ask, Data, Fraction, OneHot, Sums, Upload, Weight, client
from coterie.core.params import Params, count, minus, one_hot, pick, repeated
from coterie.core.task import Task
from coterie.methods.held_out import chooses_by_held_out
from coterie.methods.held_out_sums import count_clusters_from_sums
from coterie.methods.sketch_sums import (
    SecureClientState,
    cluster_sketches,
    initial_client_state,
    nearest_centre,
    principal_space,
    remember_sketch,
)
from coterie.methods.start_from import load_centres
from coterie.optim import descend_from

CHOICE = {
    "changed": Fraction("1 if it changed its centre", secure="summed", private="withheld"),
    "members": Fraction("1 for the centre that it chose", secure="summed", private="withheld"),
}


def initial_payload(method: Any, task: Task, inner: Any) -> SecureClientState:
    """What each client gets once: the initial state that it remembers."""
    return initial_client_state(inner, torch.tensor(-1), task, method.sketch_size)


# ------------------------------------------------------------------------------ one client
def count_once(cluster: Tensor, clusters: int) -> Tensor:
    """1 for the client's cluster, else 0, int64 [K]."""
    return (cluster == torch.arange(clusters, device=cluster.device)).long()


def choose_own(
    method: Any,
    task: Task,
    centres: Params,
    private: SecureClientState,
    data: Data,
    *,
    pair: int,
    settled: bool,
) -> tuple[Choice, dict[str, Tensor], SecureClientState]:
    """The client's choice, its summed reports, and its new state.

    Args:
        settled: Whether a client keeps the cluster that it remembers.
    """
    choice = method.choose_cluster(task, centres, method.choice_batch(data, pair))
    if settled:
        chosen = torch.where(private.group >= 0, private.group, choice.centre)
        choice = Choice(chosen, choice.losses, None)
    report = {
        "changed": (choice.centre != private.group).long(),
        "members": count_once(choice.centre, count(centres)),
    }
    return choice, report, private._replace(group=choice.centre)


@client(
    weight=OneHot(rows="weighted"),
    report=CHOICE,
    when=lambda method: method.calls_train,
    rounds="later",
    secure="only",
)
def train_own(
    method: Any, task: Task, centres: Params, per_client: Any, private: SecureClientState,
    data: Data, pair: int, settled: bool,
) -> tuple[Upload, SecureClientState]:  # fmt: skip
    """Train the centre with the smallest loss, and remember it."""
    choice, report, private = choose_own(
        method, task, centres, private, data, pair=pair, settled=settled
    )
    if method.average == "gradients":
        value = method.local_update(task, pick(centres, choice.centre), data, pair)
    else:
        outputs = None if settled else method.start_outputs(choice)
        value = descend_from(
            task, centres, choice.centre, method.training_batches(data, pair), method,
            outputs=outputs,
        )  # fmt: skip
    s = one_hot(choice.centre, count(centres), task.dtype)
    return method.make_upload(value, s, data, report), private


@client(
    weight=Weight(),
    when=lambda method: method.starts_from_updates,
    rounds="start",
    secure="only",
)
def sum_first_updates(
    method: Any, task: Task, model: Params, per_client: Any, private: SecureClientState,
    data: Data, pair: int, seed: int,
) -> tuple[Upload, SecureClientState]:  # fmt: skip
    """Remember a sketch of the direction of the first update; upload its moments."""
    value = method.local_update(task, model, data, pair, start=True)
    if method.average == "models":
        value = minus(value, model)
    direction = F.normalize(sketch(value, method.sketch_size, seed), dim=-1, eps=1e-12)
    return remember_sketch(direction, private)


@client(
    weight=OneHot(rows="weighted"),
    report={"members": CHOICE["members"]},
    when=lambda method: method.starts_from_updates,
    rounds="start",
    secure="only",
)
def average_own(
    method: Any, task: Task, shared: Any, per_client: Any, private: SecureClientState,
    data: Data, pair: int,
) -> tuple[Upload, SecureClientState]:  # fmt: skip
    """Upload the first update for the nearest cluster of sketches, and remember that cluster."""
    model, mean, basis, centres = shared
    nearest = nearest_centre(private.sketch, mean, basis, centres)
    value = method.local_update(task, model, data, pair, start=True)
    s = one_hot(nearest, len(centres), task.dtype)
    report = {"members": count_once(nearest, len(centres))}
    return method.make_upload(value, s, data, report), private._replace(group=nearest)


# ------------------------------------------------------------------------------ the server
def find_start_from_sums(method: Any, centres: Params, clients: int, ask: Ask) -> Params:
    """Run round 0 and return the centres."""
    if method.start_from is not None:
        return method.tie(load_centres(method.start_from, method.clusters, ask))
    if not method.starts_from_updates or method.clusters == 1:
        return centres
    common = pick(centres, 0)
    k = method.clusters
    if chooses_by_held_out(method):
        k = count_clusters_from_sums(method, common, ask)
    if k == 1:
        return method.tie(repeated(common, 1))
    seed = int(torch.randint(2**62, (), generator=ask.rng("sketch")))
    pair = method.resampled_pair(ask)
    sums = ask(
        method.sum_first_updates, shared=common, static={"seed": seed, **pair}, stream="start"
    )
    space = principal_space(sums, k - 1)
    found = cluster_sketches(method, space, [k], sums.ids, ask)[k]
    sums = ask(
        method.average_own,
        sums.ids,
        shared=(common, space.mean, space.basis, found),
        static=pair,
        stream="start",
    )
    ask.note("start_sizes", sums.report["members"][0])
    ask.note("sizes", sums.report["members"][0])
    centres = method.tie(repeated(common, k))
    return method.update_centres(centres, sums, clients)


def is_settled(method: Any, rounds_unchanged: Tensor, ask: Ask) -> bool:
    """Whether clients keep the cluster that they remember in this round."""
    if method.patience is None or ask.round % method.recheck == 0:
        return False
    return int(rounds_unchanged) >= method.patience


def note_choices(sums: Sums, rounds_unchanged: Tensor, ask: Ask) -> Tensor:
    """Note cluster sizes and changes of a round; return the rounds without a change."""
    if ask.is_private:  # each client has the weight 1, and its reports do not leave
        ask.note("sizes", next(iter(sums.mass.values())))
        return rounds_unchanged
    changed = int(sums.report["changed"].sum())
    ask.note("sizes", sums.report["members"][0])
    ask.note("changed", changed / len(sums.ids))
    return torch.zeros_like(rounds_unchanged) if changed else rounds_unchanged + 1
