"""clusters="auto": the number of groups whose models do best on rows that were held out.

Groups among uploads prove little: noise falls into groups, too, and groups that do differ may be
too small for models of their own. So the server tries. A fifth of every client's training rows is
held out, and for K = 1, 2, …

1. every client trains the common start on its other rows, and reports a sketch of its update;
2. k-means puts the sketches into K groups, whose models start as the means of their members';
3. every client takes the model that fits those other rows best, as in IFCA, trains it, and reports
   its loss on the rows that were held out; so on, as long as that helps.

The server goes on to larger K as long as one of the last two is best, and to another fifth as long
as the choice is in doubt. Of all K the least is chosen that is not clearly worse than the best.

Several K are tried in one exchange. The models are the groups' alone, whatever layers a method lets
them share.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.clustering import hostile_share, inlier_indices, kmeans, sketch
from coterie.core.contract import (
    Algorithm,
    Ask,
    Data,
    Direction,
    Local,
    Losses,
    OneHot,
    SentWeight,
    Upload,
    client,
)
from coterie.core.params import Params, argmin_finite, minus, one_hot, pick, repeated, unstack
from coterie.core.task import Task
from coterie.optim import descend

RULE = "held-out"
FOLDS = 5  # parts of a client's rows, of which one is held out at a time
FEWEST_FOLDS = 2  # that are tried, however clear the choice
AT_ONCE = 4  # numbers of groups that are tried in one exchange
MOST = 20  # groups that are tried
ROUNDS = 20  # of training, at the most, before a number of groups is judged
FEWEST_ROUNDS = 3
GAIN = 0.01  # training goes on while a round lowers the loss on held-out rows by this share
SKETCH = 256  # numbers in a sketch
WORSE = 0.01  # what K may lose, as a share of the loss of one model for all
SURE = (0.5, 2.0)  # standard errors that K may lose: if both give one choice, it is not in doubt


class Count(NamedTuple):
    """What came of a count."""

    clusters: int
    may_be_singleton: Tensor  # clients whose own gain pays for a group: a hundredth of all loss


def counts_by_held_out(method: Any) -> bool:
    """Whether a method's settings ask for this way to count."""
    return bool(method.clusters == "auto" and method.auto_by == RULE)


def most_trials(method: Any) -> int:
    """How often a client may be asked to try numbers of groups."""
    return FOLDS * math.ceil(MOST / AT_ONCE) * ROUNDS


class HeldOut(Local, Algorithm):
    """Methods that can count groups by what their models do on held-out rows."""

    clusters: int | str
    auto_by: str

    @property
    def weighs_rows(self) -> bool:
        """Whether a client with more rows counts for more in its group's model."""
        return True

    def at_start(self) -> Self:
        """The method with the local training from which sketches are made."""
        return self

    # ------------------------------------------------------------------ the server
    def count_groups(self, model: Params, ask: Ask) -> Count:
        """The number of groups; it is noted, with the curve over K: the loss of K = 1 is 1."""
        trial = Trial(self, model, ask)
        if trial.most < 2:
            ask.note("clusters", 1)
            return Count(1, trial.clients)
        losses = trial.losses_up_to_the_best()
        for fold in range(1, FOLDS):
            if fold >= FEWEST_FOLDS and not is_in_doubt(losses):
                break
            losses = losses + trial.losses(fold, range(1, losses.shape[1] + 1))
        by_client = losses
        losses = believed(losses, hostile_share(ask))
        k = least_not_worse(losses)
        of_one = losses[:, 0].sum().clamp(min=1e-300)
        ask.note("curve", (losses.sum(0) / of_one).tolist())
        ask.note("clusters", k)
        gain = by_client[:, 0] - by_client[:, k - 1]  # NaN, which is not above, without an answer
        return Count(k, trial.clients[gain > WORSE * of_one])

    # ------------------------------------------------------------------ one client
    @client(
        report={"sketch": Direction()},
        when=counts_by_held_out,
        rounds="start",
        max_calls=lambda method: FOLDS,
    )
    def sketch_without(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data,
        fold: int, seed: int,
    ) -> tuple[Upload, Any]:  # fmt: skip
        """Report the direction in which this client would move the common start."""
        moved = minus(self.start_without(task, model, data, fold), model)
        direction = F.normalize(sketch(moved, SKETCH, seed), dim=-1, eps=1e-12)
        return Upload({}, {}, {"sketch": direction}), private

    @client(
        weight=SentWeight(place=0, rows="weighs_rows"),
        when=counts_by_held_out,
        rounds="start",
        max_calls=most_trials,
    )
    def average_without(
        self, task: Task, model: Params, per_client: Any, private: Any, data: Data, fold: int
    ) -> tuple[Upload, Any]:
        """Train the common start again, for the groups that the sketches were put into."""
        (member,) = per_client
        w = self.start_without(task, model, data, fold)
        return Upload({"model": w}, member * self.own_weight(data), {}), private

    @client(
        weight=OneHot(rows="weighs_rows"),
        report={"losses": Losses("its loss on held-out rows, times their number, for each K")},
        when=counts_by_held_out,
        rounds="start",
        max_calls=most_trials,
    )
    def train_without(
        self, task: Task, groups: tuple[dict[str, Params]], per_client: Any, private: Any,
        data: Data, fold: int,
    ) -> tuple[Upload, Any]:  # fmt: skip
        """For each K train the group's model that fits best; report how it does on other rows."""
        known = data.without(fold, FOLDS)
        held_out = data.part(fold, FOLDS)
        values, weights, losses = {}, {}, []
        for k, centres in groups[0].items():
            fit = torch.stack([task.loss(centre, known.all) for centre in unstack(centres)])
            j = argmin_finite(fit)
            w = pick(centres, j)
            losses.append(task.loss(w, held_out) * held_out.mask.sum())
            values[k] = descend(task, w, known.batches(self), self)
            weights[k] = one_hot(j, len(fit), task.dtype) * self.own_weight(data)
        return Upload(
            values, weights, {"losses": torch.stack(losses).nan_to_num(torch.inf, torch.inf)}
        ), private

    def start_without(self, task: Task, model: Params, data: Data, fold: int) -> Params:
        """The common start, trained on all rows but those that are held out."""
        how = self.at_start()
        return descend(task, model, data.without(fold, FOLDS).batches(how), how)

    def own_weight(self, data: Data) -> Tensor:
        """How much this client counts in its group's model."""
        if self.weighs_rows:
            return data.size
        return torch.ones_like(data.size)


class Trial:
    """The exchanges of one count; the clients that answer are asked again."""

    def __init__(self, method: HeldOut, model: Params, ask: Ask) -> None:
        self.method, self.model, self.ask = method, model, ask
        self.clients = ask.participants
        self.sketches: dict[int, tuple[Tensor, Tensor]] = {}  # by fold: clients, sketches
        self.rounds = ROUNDS  # of training; fewer, once it is known that fewer do
        self.seed = int(torch.randint(2**62, (), generator=ask.rng("held out")))

    @property
    def most(self) -> int:
        """The largest number of groups to try."""
        return min(MOST, len(self.clients))

    def losses_up_to_the_best(self) -> Tensor:
        """Losses [clients, K] with the first fifth held out, up to a K beyond the best."""
        losses = self.losses(0, range(1, min(AT_ONCE, self.most) + 1))
        while losses.shape[1] < self.most:
            tried = losses.shape[1]
            best = 1 + int(totals(losses).argmin())
            if best < tried - 1:
                break
            more = range(tried + 1, min(tried + AT_ONCE, self.most) + 1)
            losses = torch.cat([losses, self.losses(0, more)], 1)
        return losses

    def losses(self, fold: int, numbers: range) -> Tensor:
        """[clients, len(numbers)] each client's loss on its held-out rows, in all.

        NaN for a client that did not answer.
        """
        if not len(numbers):
            return torch.full((len(self.clients), 0), math.nan, dtype=torch.float64)
        blocks = [numbers[i : i + AT_ONCE] for i in range(0, len(numbers), AT_ONCE)]
        return torch.cat([self._losses(fold, block) for block in blocks], 1)

    def _losses(self, fold: int, numbers: range) -> Tensor:
        groups = self._groups(fold, numbers)
        before = math.inf
        for r in range(self.rounds):
            # screened by the models' lengths, not by how far they moved: where most groups are
            # right from the start, those who still look for theirs move far
            sums = self.ask(
                self.method.train_without,
                self.clients,
                shared=(groups,),
                static={"fold": fold},
                stream=f"held out {fold} {r}",
            )
            now = float(sums.report["losses"].double().sum())
            if r + 1 >= FEWEST_ROUNDS and not now < (1 - GAIN) * before:
                self.rounds = r + 1  # for all that are tried later, too
                break
            before = now
            groups = {k: sums.mean(k, empty=centres) for k, centres in groups.items()}
        table = torch.full((len(self.clients), len(numbers)), math.nan, dtype=torch.float64)
        table[torch.isin(self.clients, sums.ids)] = sums.report["losses"].double().cpu()
        return table

    def _groups(self, fold: int, numbers: range) -> dict[str, Params]:
        """For each K the models of K groups, by which the first training starts."""
        ids, sketches = self._sketches(fold)
        labels = [kmeans(sketches, k, self.ask.rng(f"held out {fold} {k}")).labels for k in numbers]
        members = [F.one_hot(of_k, k) for of_k, k in zip(labels, numbers)]
        sums = self.ask(
            self.method.average_without,
            ids,
            shared=self.model,
            per_client=(torch.cat(members, 1).to(self.ask.task.dtype),),
            static={"fold": fold},
            stream=f"held out {fold}",
            started_from={"model": repeated(self.model, 1)},
        )
        together = sums.mean("model", empty=repeated(self.model, sum(numbers)))
        groups = {}
        at = 0
        for k in numbers:
            groups[str(k)] = {name: v[at : at + k] for name, v in together.items()}
            at += k
        return groups

    def _sketches(self, fold: int) -> tuple[Tensor, Tensor]:
        """(clients, their sketches), without those that may be hostile; asked for once."""
        if fold not in self.sketches:
            sums = self.ask(
                self.method.sketch_without,
                self.clients,
                shared=self.model,
                static={"fold": fold, "seed": self.seed},
                stream=f"held out {fold}",
            )
            kept = inlier_indices(sums.report["sketch"], hostile_share(self.ask))
            self.sketches[fold] = (sums.ids[kept], sums.report["sketch"][kept])
        return self.sketches[fold]


# ------------------------------------------------------------------------------ the choice
def totals(losses: Tensor) -> Tensor:
    """[K] the loss of all clients that answered, from losses [clients, K]."""
    answered = ~losses.isnan().any(1)
    return losses[answered].sum(0)


def believed(losses: Tensor, share: float) -> Tensor:
    """The losses of clients that answered, without the share whose losses are least like others'.

    What is compared is how a client's losses differ over K, not how large they are.
    """
    losses = losses[~losses.isnan().any(1)]
    if not len(losses):
        return torch.zeros(1, 1, dtype=torch.float64)
    largest = losses.nan_to_num(posinf=0.0).amax(1, keepdim=True).clamp(min=1e-300)
    return losses[inlier_indices((losses / largest).nan_to_num(posinf=2.0), share)]


def is_in_doubt(losses: Tensor) -> bool:
    """Whether a little more or less patience with a smaller K would change the choice."""
    choices = {least_not_worse(believed(losses, 0.0), errors) for errors in SURE}
    return len(choices) > 1


def least_not_worse(losses: Tensor, errors: float = 1.0) -> int:
    """The least K whose loss is not clearly above the best one's, from losses [clients, K].

    Clearly is over one standard error of the clients' differences, or a hundredth of the loss of
    one model for all.
    errors: how many standard errors instead of one.
    """
    in_all = losses.sum(0)
    best = int(argmin_finite(in_all).clamp(min=0))
    allowance = WORSE * float(in_all[0])
    if not math.isfinite(allowance):
        allowance = 0.0
    for k in range(best):
        gaps = losses[:, k] - losses[:, best]
        error = float(gaps.std()) * math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        if float(gaps.sum()) <= max(errors * error, allowance):
            return k + 1
    return best + 1
