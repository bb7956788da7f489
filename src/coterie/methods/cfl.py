"""CFL: clustered federated learning by splitting (Sattler, Müller, Samek, IEEE TNNLS 2021),
Algorithm 2.

    paper       here             shape
    θ           centres          every leaf [K, ...]; K grows
    c           state.at.group   int64 [N]
    Δθ_i        update           [answers, d]
    ε1, ε2      eps1, eps2       as shares of the longest update of the first round
    γ_max       gamma
    α_cross     the largest cosine between two updates on different sides

FedAvg inside each cluster; a cluster whose mean update is shorter than ε1 while one of its clients'
is longer than ε2 is split in two, where √((1 − α_cross)/2) > γ_max. The bi-partition of least
α_cross is what single linkage on −cosine gives.

Ours, not the paper's:
* ε1 and ε2 are relative to the first round's longest update (relative to the current round's it
  would go on splitting as updates shrink); `relative=False` takes them as lengths, as in the paper.
* No split before round `wait`.
* Members of a split cluster that were absent from that round are asked at their next turn which
  half fits (least loss); else they would keep the parent's label for ever.
* Each half goes on from its own members' mean of the round, so that the halves differ.
* Where means are robust, the quarter of the updates that is farthest from the others neither sets
  the unit of ε1 and ε2 nor decides whether and how a cluster is split; it joins the nearer half.
* `linkage="complete"` is what released code does, with ε1 = 0.4, ε2 = 1.6 as lengths and no split
  before round 20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.clustering import hostile_share, inlier_indices, largest_inlier
from coterie.core.contract import Ask, setting
from coterie.core.params import Params, count, flatten, pick_rows
from coterie.core.task import Task
from coterie.methods.grouped import Grouped, WithinGroups


class Splits(NamedTuple):
    """The groups, and the unit of ε1 and ε2."""

    at: Grouped
    longest: Tensor  # [] update of the first round; 0 before


def bipartition(update: Tensor, linkage: str) -> tuple[Tensor, float]:
    """Two sides of n ≥ 2 updates: (bool [n], False for the first; the largest cosine across)."""
    from sklearn.cluster import AgglomerativeClustering

    unit = update / update.norm(dim=1, keepdim=True).clamp(min=1e-12)
    cosine = (unit @ unit.T).clamp(-1, 1)
    tree = AgglomerativeClustering(2, metric="precomputed", linkage=linkage)
    labels = tree.fit_predict((1 - cosine).numpy())
    side = torch.from_numpy(labels != labels[0])
    return side, float(cosine[side][:, ~side].max())


def joined(update: Tensor, asked: Tensor, side: Tensor) -> Tensor:
    """bool [n]: the side of every update; those not asked join the one whose mean is more alike."""
    first = update[asked[~side]].mean(0)
    second = update[asked[side]].mean(0)
    nearer = torch.cosine_similarity(update, second[None]) > torch.cosine_similarity(
        update, first[None]
    )
    return nearer.index_copy(0, asked, side)


def with_copies(centres: Params, k: int) -> Params:
    """The centres, and copies of the first one up to k."""
    new = k - count(centres)
    return {name: torch.cat([v, v[:1].expand(new, *v.shape[1:])]) for name, v in centres.items()}


@dataclass(frozen=True, kw_only=True)
class CFL(WithinGroups):
    """FedAvg that splits a group in two when it stands still while its members pull apart."""

    name: ClassVar[str] = "cfl"
    paper: ClassVar[str] = "Sattler et al. 2021"

    eps1: float = setting(0.2, "ε1: a group stands still if its mean update is shorter", gt=0)
    eps2: float = setting(0.3, "ε2: and its members pull apart if one's update is longer", ge=0)
    relative: bool = setting(True, "ε1 and ε2 are shares of the first round's longest update")
    gamma: float = setting(0.0, "γ_max: least √((1 − α_cross)/2) of a split", ge=0, lt=1)
    wait: int = setting(2, "no split before this round", ge=1)
    linkage: str = setting("single", "how the two halves are found", choices=("single", "complete"))

    def start(self, task: Task, clients: int, seed: int) -> tuple[Splits, Any]:
        together = Grouped(task.inits(seed, 1), torch.zeros(clients, dtype=torch.long))
        return Splits(together, torch.zeros((), dtype=torch.double)), ()

    def round(self, state: Splits, ask: Ask) -> Splits:
        at, ids = self.placed(state.at, ask)
        answers = self.trained(at, ids, ask)
        if not len(answers.ids):
            return state._replace(at=at)
        models = answers.values["model"]
        rows = answers.weight.sum(1)  # n_i
        label = at.group[answers.ids]
        update = (flatten(models) - flatten(pick_rows(at.centres, label))).cpu().double()  # Δθ_i
        hostile = hostile_share(ask)
        longest = state.longest
        if longest == 0:
            longest = largest_inlier(update.norm(dim=1), hostile)

        group = at.group
        k = count(at.centres)
        if ask.round >= self.wait:
            for c in label.unique().tolist():
                positions = (label == c).nonzero()[:, 0]  # in this answer, not ids of clients
                n = rows[positions].cpu().double()
                side = self.side(update[positions], n, longest, hostile)
                if side is None:
                    continue
                ask.note(f"split of {c}", [int((~side).sum()), int(side.sum())])
                label = label.index_fill(0, positions[side], k)
                group = torch.where(
                    group == c, -1, group
                )  # the absent are asked at their next turn
                k += 1
        group = group.index_copy(0, answers.ids, label)
        centres = ask.group_mean(models, label, rows, empty=with_copies(at.centres, k))
        return Splits(Grouped(centres, group), longest)

    def side(
        self, update: Tensor, rows: Tensor, longest: Tensor, hostile: float = 0.0
    ) -> Tensor | None:
        """Which half each member goes to; None if the group is not to be split.

        hostile: the share of the members that has no say, those farthest from the others.
        """
        asked = inlier_indices(update, hostile)
        if len(asked) < 2:
            return None
        unit = float(longest) if self.relative else 1.0
        mean = rows[asked] @ update[asked] / rows[asked].sum()
        stands_still = mean.norm() < self.eps1 * unit  # ‖Σ (n_i/n) Δθ_i‖ < ε1
        pulls_apart = update[asked].norm(dim=1).max() > self.eps2 * unit  # max ‖Δθ_i‖ > ε2
        if not (stands_still and pulls_apart):
            return None
        side, cross = bipartition(update[asked], self.linkage)
        if ((1 - cross) / 2) ** 0.5 > self.gamma:  # √((1 − α_cross)/2) > γ_max
            return joined(update, asked, side)
        return None

    def use(self, state: Splits) -> tuple[Any, Any]:  # type: ignore[override]
        return super().use(state.at)

    def centres(self, state: Splits) -> Params:  # type: ignore[override]
        return state.at.centres

    def groups(self, state: Splits) -> Tensor:  # type: ignore[override]
        return state.at.group
