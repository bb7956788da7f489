"""clusters="auto": choose the number of clusters by the loss of cluster models on held-out rows.

Clusters among updates prove little: noise forms clusters, too, and real clusters may be too small
for models of their own. So the server tries several K. A fifth of each client's training rows is
held out, and for K = 1, 2, …

1. every client trains the common initial model on its other rows and reports a sketch of the
   update;
2. k-means divides the sketches into K clusters, whose models start as the means over their members;
3. every client trains the cluster model with the smallest loss on those other rows, as in IFCA, and
   reports the loss on the held-out rows; this repeats while the held-out loss decreases.

The server tries larger K while one of the two largest is the best, and further folds while the
choice is uncertain. It takes the smallest K that is not clearly worse than the best. Up to
`AT_ONCE` numbers share an exchange. The tried models share no layers, whatever the method's
settings.

A method that supports this has `clusters`, `weighs_rows` and `start_training()` and takes over the
three client functions:

    class MyMethod(Local, Algorithm):
        sketch_fold = held_out.sketch_fold
        average_fold = held_out.average_fold
        train_fold = held_out.train_fold
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering import inlier_indices, kmeans, sketch
from coterie.core.contract import Ask, Data, Direction, Losses, OneHot, SentWeight, Upload, client
from coterie.core.params import Params, argmin_finite, minus, one_hot, pick, repeated, unstack
from coterie.core.task import Task
from coterie.optim import descend

RULE = "held-out"
FOLDS = 5  # parts of a client's rows; one part at a time is held out
MIN_FOLDS = 2  # number of folds that are always tried
AT_ONCE = 4  # numbers of clusters per exchange
MAX_CLUSTERS = 20
MAX_ROUNDS = 20  # training rounds before the losses are compared
MIN_ROUNDS = 3
MIN_GAIN = 0.01  # train on while a round lowers the held-out loss by this fraction
SKETCH_SIZE = 256
TOLERANCE = 0.01  # accepted excess loss of a smaller K, as a fraction of the loss of K = 1
CERTAIN = (0.5, 2.0)  # the choice is certain if both these numbers of standard errors give it


class ClusterCount(NamedTuple):
    """The chosen number of clusters."""

    clusters: int
    may_be_singleton: Tensor  # int64, clients that gain enough from a cluster of their own


def chooses_by_held_out(method: Any) -> bool:
    """Whether the method's settings select this rule."""
    return bool(method.clusters == "auto" and getattr(method, "auto_by", RULE) == RULE)


def max_exchanges(method: Any) -> int:
    """The largest number of training exchanges in round 0."""
    return FOLDS * math.ceil(MAX_CLUSTERS / AT_ONCE) * MAX_ROUNDS


# ------------------------------------------------------------------------------ one client
@client(
    report={"sketch": Direction()},
    when=chooses_by_held_out,
    rounds="start",
    secure="replaced",
    max_calls=lambda method: FOLDS,
)
def sketch_fold(
    method: Any, task: Task, model: Params, per_client: Any, private: Any, data: Data,
    fold: int, seed: int,
) -> tuple[Upload, Any]:  # fmt: skip
    """Report a sketch of the direction of the update without the held-out rows."""
    update = minus(train_start(method, task, model, data, fold), model)
    direction = F.normalize(sketch(update, SKETCH_SIZE, seed), dim=-1, eps=1e-12)
    return Upload({}, {}, {"sketch": direction}), private


@client(
    weight=SentWeight(place=0, rows="weighs_rows"),
    when=chooses_by_held_out,
    rounds="start",
    secure="replaced",
    max_calls=max_exchanges,
)
def average_fold(
    method: Any, task: Task, model: Params, per_client: Any, private: Any, data: Data, fold: int
) -> tuple[Upload, Any]:
    """Upload the model that was sketched, weighted for the clusters found among the sketches."""
    (member,) = per_client
    w = train_start(method, task, model, data, fold)
    return Upload({"model": w}, member * client_weight(method, data), {}), private


@client(
    weight=OneHot(rows="weighs_rows"),
    report={"losses": Losses("its loss on held-out rows, times their number, for each K")},
    when=chooses_by_held_out,
    rounds="start",
    secure="replaced",
    max_calls=max_exchanges,
)
def train_fold(
    method: Any, task: Task, tried: tuple[dict[str, Params]], per_client: Any, private: Any,
    data: Data, fold: int,
) -> tuple[Upload, Any]:  # fmt: skip
    """For each K, train the best cluster model and report its loss on the held-out rows.

    Args:
        tried: The stacked models of K clusters under the key str(K).
    """
    known = data.without(fold, FOLDS)
    held_out = data.part(fold, FOLDS)
    values, weights, losses = {}, {}, []
    for k, centres in tried[0].items():
        fit = torch.stack([task.loss(centre, known.all) for centre in unstack(centres)])
        j = argmin_finite(fit)
        w = pick(centres, j)
        losses.append(task.loss(w, held_out) * held_out.mask.sum())
        values[k] = descend(task, w, known.batches(method), method)
        weights[k] = one_hot(j, len(fit), task.dtype) * client_weight(method, data)
    report = {"losses": torch.stack(losses).nan_to_num(torch.inf, torch.inf)}
    return Upload(values, weights, report), private


def train_start(method: Any, task: Task, model: Params, data: Data, fold: int) -> Params:
    """Train the common initial model on all rows but the held-out ones."""
    how = method.start_training()
    return descend(task, model, data.without(fold, FOLDS).batches(how), how)


def client_weight(method: Any, data: Data) -> Tensor:
    if method.weighs_rows:
        return data.size
    return torch.ones_like(data.size)


# ------------------------------------------------------------------------------ the server
def count_clusters(method: Any, model: Params, ask: Ask) -> ClusterCount:
    """Choose the number of clusters; note it and the curve of losses relative to K = 1.

    Args:
        method: A method with the client functions above.
        model: The common initial model.
        ask: Round 0.
    """
    trial = _Trial(method, model, ask)
    if trial.max_clusters < 2:
        ask.note("clusters", 1)
        return ClusterCount(1, trial.clients)
    by_client = trial.losses_beyond_best()
    for fold in range(1, FOLDS):
        if fold >= MIN_FOLDS and not _is_uncertain(by_client):
            break
        by_client = by_client + trial.losses(fold, range(1, by_client.shape[1] + 1))
    losses = drop_outliers(by_client, ask.hostile_share)
    k = smallest_good(losses)
    single_model_loss = losses[:, 0].sum().clamp(min=1e-300)
    ask.note("curve", (losses.sum(0) / single_model_loss).tolist())
    ask.note("clusters", k)
    gain = by_client[:, 0] - by_client[:, k - 1]  # NaN, which is not greater, without an answer
    return ClusterCount(k, trial.clients[gain > TOLERANCE * single_model_loss])


class _Trial:
    """The exchanges of one choice. Only clients that answered are selected again."""

    def __init__(self, method: Any, model: Params, ask: Ask) -> None:
        self.method, self.model, self.ask = method, model, ask
        self.clients = ask.participants
        self.max_clusters = min(MAX_CLUSTERS, len(self.clients))
        self.sketches: dict[int, tuple[Tensor, Tensor]] = {}  # by fold: client ids, sketches
        self.rounds = MAX_ROUNDS  # lowered as soon as fewer are known to be enough
        self.seed = int(torch.randint(2**62, (), generator=ask.rng("held out")))

    def losses_beyond_best(self) -> Tensor:
        """Losses [clients, K] of fold 0, for K up to at least two beyond the best."""
        losses = self.losses(0, range(1, min(AT_ONCE, self.max_clusters) + 1))
        while losses.shape[1] < self.max_clusters:
            tried = losses.shape[1]
            answered = ~losses.isnan().any(1)
            best = 1 + int(losses[answered].sum(0).argmin())
            if best < tried - 1:
                break
            more = range(tried + 1, min(tried + AT_ONCE, self.max_clusters) + 1)
            losses = torch.cat([losses, self.losses(0, more)], 1)
        return losses

    def losses(self, fold: int, numbers: range) -> Tensor:
        """Total held-out loss of each client [clients, len(numbers)]; NaN without an answer."""
        if not len(numbers):
            return torch.full((len(self.clients), 0), math.nan, dtype=torch.float64)
        blocks = [numbers[i : i + AT_ONCE] for i in range(0, len(numbers), AT_ONCE)]
        return torch.cat([self._train(fold, block) for block in blocks], 1)

    def _train(self, fold: int, numbers: range) -> Tensor:
        tried = self._initial_models(fold, numbers)
        before = math.inf
        for r in range(self.rounds):
            # no `started_from`: uploads are clipped by their norm, not by the norm of the update.
            # Where most clusters are right from the start, clients that still change theirs have
            # long updates.
            sums = self.ask(
                self.method.train_fold,
                self.clients,
                shared=(tried,),
                static={"fold": fold},
                stream=f"held out {fold} {r}",
            )
            now = float(sums.report["losses"].double().sum())
            if r + 1 >= MIN_ROUNDS and not now < (1 - MIN_GAIN) * before:
                self.rounds = r + 1  # also for everything tried later
                break
            before = now
            tried = {k: sums.mean(k, empty=centres) for k, centres in tried.items()}
        table = torch.full((len(self.clients), len(numbers)), math.nan, dtype=torch.float64)
        table[torch.isin(self.clients, sums.ids)] = sums.report["losses"].double().cpu()
        return table

    def _initial_models(self, fold: int, numbers: range) -> dict[str, Params]:
        """The first models of K clusters, by str(K)."""
        ids, sketches = self._sketch(fold)
        labels = [kmeans(sketches, k, self.ask.rng(f"held out {fold} {k}")).labels for k in numbers]
        members = [F.one_hot(of_k, k) for of_k, k in zip(labels, numbers)]
        sums = self.ask(
            self.method.average_fold,
            ids,
            shared=self.model,
            per_client=(torch.cat(members, 1).to(self.ask.task.dtype),),
            static={"fold": fold},
            stream=f"held out {fold}",
            started_from={"model": repeated(self.model, 1)},
        )
        together = sums.mean("model", empty=repeated(self.model, sum(numbers)))
        pieces = {name: v.split(list(numbers)) for name, v in together.items()}
        return {str(k): {name: v[i] for name, v in pieces.items()} for i, k in enumerate(numbers)}

    def _sketch(self, fold: int) -> tuple[Tensor, Tensor]:
        """(client ids, sketches) without outliers where clients may be hostile; cached."""
        if fold not in self.sketches:
            sums = self.ask(
                self.method.sketch_fold,
                self.clients,
                shared=self.model,
                static={"fold": fold, "seed": self.seed},
                stream=f"held out {fold}",
            )
            kept = inlier_indices(sums.report["sketch"], self.ask.hostile_share)
            self.sketches[fold] = (sums.ids[kept], sums.report["sketch"][kept])
        return self.sketches[fold]


# ------------------------------------------------------------------------------ the choice
def drop_outliers(losses: Tensor, fraction: float) -> Tensor:
    """The rows of complete losses [clients, K] without the given fraction of outliers.

    Clients are compared by how their losses vary with K, not by the size of the losses.
    """
    losses = losses[~losses.isnan().any(1)]
    if not len(losses):
        return torch.zeros(1, 1, dtype=torch.float64)
    largest = losses.nan_to_num(posinf=0.0).amax(1, keepdim=True).clamp(min=1e-300)
    return losses[inlier_indices((losses / largest).nan_to_num(posinf=2.0), fraction)]


def _is_uncertain(losses: Tensor) -> bool:
    """Whether another tolerance would change the choice."""
    return len({smallest_good(drop_outliers(losses, 0.0), errors) for errors in CERTAIN}) > 1


def smallest_good(losses: Tensor, errors: float = 1.0) -> int:
    """The smallest K whose total loss is not clearly above the best.

    Args:
        losses: [clients, K], finite or infinite.
        errors: Accepted excess, in standard errors of the clients' differences; `TOLERANCE` times
            the loss of K = 1 is always accepted.
    """

    def gap_error(k: int, best: int) -> float:
        gaps = losses[:, k] - losses[:, best]
        return float(gaps.std()) * math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0

    return choose_smallest(losses.sum(0), gap_error, errors)


def choose_smallest(
    total: Tensor, gap_error: Callable[[int, int], float], errors: float = 1.0
) -> int:
    """The smallest K whose total loss is not clearly above the best.

    Args:
        total: [K], the total loss of each number of clusters.
        gap_error: The standard error of the difference of two of them, by their indices.
        errors: As in `smallest_good`.
    """
    best = int(argmin_finite(total).clamp(min=0))
    allowance = TOLERANCE * float(total[0])
    if not math.isfinite(allowance):
        allowance = 0.0
    for k in range(best):
        gap = float(total[k] - total[best])
        if gap <= max(errors * gap_error(k, best), allowance):
            return k + 1
    return best + 1
