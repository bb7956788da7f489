"""CFL: clustered federated learning by splitting (Sattler, Müller, Samek, IEEE TNNLS 2021),
Algorithm 2.

    paper       here               shape
    θ           centres            every leaf [K, ...]; K grows
    c           state.at.group     int64 [N]
    Δθ_i        update             [answers, d]
    ε1, ε2      eps1, eps2         relative to the longest update of the first round
    γ_max       gamma
    α_cross     cross              the largest cosine between two updates on different sides

FedAvg runs inside each cluster. A cluster is split in two if its mean update is shorter than ε1
while one of its clients' is longer than ε2, and √((1 − α_cross)/2) > γ_max. Single linkage on
−cosine gives the bipartition with the smallest α_cross.

Differences from the paper:
* ε1 and ε2 are relative to the first round's longest update (relative to the current round's,
  splitting would never end as updates shrink); `relative=False` takes them as norms, as in the
  paper.
* No split before round `wait`.
* Members of a split cluster that were absent in that round are assigned in their next round, to the
  half with the smaller loss. Otherwise they would keep the parent's label.
* Each half continues from its own members' mean of the round, so that the halves differ.
* With robust aggregation the quarter of the updates farthest from the others neither sets the unit
  of ε1 and ε2 nor decides whether and how a cluster is split; it joins the nearer half.
* `linkage="complete"` is what released code does, with ε1 = 0.4, ε2 = 1.6 as norms and no split
  before round 20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.clustering import inlier_indices, largest_inlier
from coterie.core.contract import Ask, setting
from coterie.core.params import Params, count, flatten, pick_rows
from coterie.core.task import Task
from coterie.methods.grouped import GroupedFedAvg, GroupedState


class CFLState(NamedTuple):
    """The clusters, and the unit of ε1 and ε2."""

    at: GroupedState
    longest: Tensor  # [], norm of the longest update of the first round; 0 before


@dataclass(frozen=True, kw_only=True)
class CFL(GroupedFedAvg):
    """FedAvg that splits a cluster once it converges while its members' updates disagree.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=8, samples=10, dim=2, clusters=2)
        >>> result = ct.run(ct.CFL(eps1=0.9, eps2=0.1), fed, rounds=1)
        >>> result.clusters[-1].shape
        (8,)
    """

    name: ClassVar[str] = "cfl"
    paper: ClassVar[str] = "Sattler et al. 2021"

    eps1: float = setting(0.2, "ε1: a cluster has converged if its mean update is shorter", gt=0)
    eps2: float = setting(0.3, "ε2: its members disagree if one update is longer", ge=0)
    relative: bool = setting(True, "ε1 and ε2 are relative to the first round's longest update")
    gamma: float = setting(0.0, "γ_max: √((1 − α_cross)/2) of a split must be larger", ge=0, lt=1)
    wait: int = setting(2, "no split before this round", ge=1)
    linkage: str = setting("single", "how the halves are found", choices=("single", "complete"))

    def start(self, task: Task, clients: int, seed: int) -> tuple[CFLState, Any]:
        together = GroupedState(task.inits(seed, 1), torch.zeros(clients, dtype=torch.long))
        return CFLState(together, torch.zeros((), dtype=torch.double)), ()

    def round(self, state: CFLState, ask: Ask) -> CFLState:
        at, ids = self.assign_new(state.at, ask)
        answers = ask(
            self.train,
            ids,
            per_client=self.assigned_centres(at, ids),
            reduce="stack",
            stream="train",
            started_from={"model": at.centres},
        )
        if not len(answers.ids):
            return state._replace(at=at)
        models = answers.values["model"]
        rows = answers.weight.sum(1)  # n_i
        label = at.group[answers.ids]
        update = (flatten(models) - flatten(pick_rows(at.centres, label))).cpu().double()  # Δθ_i
        longest = state.longest
        if longest == 0:
            longest = largest_inlier(update.norm(dim=1), ask.hostile_share)

        group = at.group
        k = count(at.centres)
        if ask.round >= self.wait:
            for c in label.unique().tolist():
                positions = (label == c).nonzero()[:, 0]  # in the answers, not client ids
                n = rows[positions].cpu().double()
                side = self.split(update[positions], n, longest, ask.hostile_share)
                if side is None:
                    continue
                ask.note(f"split of {c}", [int((~side).sum()), int(side.sum())])
                label = label.index_fill(0, positions[side], k)
                group = torch.where(group == c, -1, group)  # absent members are assigned later
                k += 1
        group = group.index_copy(0, answers.ids, label)
        centres = ask.group_mean(models, label, rows, empty=_append_copies(at.centres, k))
        return CFLState(GroupedState(centres, group), longest)

    def split(
        self, update: Tensor, rows: Tensor, longest: Tensor, hostile: float = 0.0
    ) -> Tensor | None:
        """Decide whether and how to split a cluster.

        Args:
            update: [n, d], the updates of its members.
            rows: [n], their numbers of rows.
            longest: The unit of ε1 and ε2.
            hostile: Fraction of the members that is ignored, those farthest from the others.

        Returns:
            bool [n], the half of each member; None to keep the cluster.
        """
        kept = inlier_indices(update, hostile)
        if len(kept) < 2:
            return None
        unit = float(longest) if self.relative else 1.0
        mean = rows[kept] @ update[kept] / rows[kept].sum()
        has_converged = mean.norm() < self.eps1 * unit  # ‖Σ (n_i/n) Δθ_i‖ < ε1
        disagrees = update[kept].norm(dim=1).max() > self.eps2 * unit  # max ‖Δθ_i‖ > ε2
        if not (has_converged and disagrees):
            return None
        side, cross = bipartition(update[kept], self.linkage)
        if ((1 - cross) / 2) ** 0.5 > self.gamma:  # √((1 − α_cross)/2) > γ_max
            return _assign_to_nearest_half(update, kept, side)
        return None

    def use(self, state: CFLState) -> tuple[Any, Any]:  # type: ignore[override]
        return super().use(state.at)

    def centres(self, state: CFLState) -> Params:  # type: ignore[override]
        return state.at.centres

    def groups(self, state: CFLState) -> Tensor:  # type: ignore[override]
        return state.at.group


def bipartition(update: Tensor, linkage: str) -> tuple[Tensor, float]:
    """Divide at least two updates into two sides.

    Args:
        update: [n, d].
        linkage: "single" minimises the largest cosine across the sides; "complete".

    Returns:
        bool [n], False for the side of the first update, and the largest cosine across.
    """
    from sklearn.cluster import AgglomerativeClustering

    unit = update / update.norm(dim=1, keepdim=True).clamp(min=1e-12)
    cosine = (unit @ unit.T).clamp(-1, 1)
    tree = AgglomerativeClustering(2, metric="precomputed", linkage=linkage)
    labels = tree.fit_predict((1 - cosine).numpy())
    side = torch.from_numpy(labels != labels[0])
    return side, float(cosine[side][:, ~side].max())


def _assign_to_nearest_half(update: Tensor, kept: Tensor, side: Tensor) -> Tensor:
    """The half of every update, bool [n]; `side` is that of the updates `kept`."""
    first = update[kept[~side]].mean(0)
    second = update[kept[side]].mean(0)
    similarity = torch.cosine_similarity
    nearer = similarity(update, second[None]) > similarity(update, first[None])
    return nearer.index_copy(0, kept, side)


def _append_copies(centres: Params, k: int) -> Params:
    """The centres, followed by copies of the first one up to k."""
    new = k - count(centres)
    return {name: torch.cat([v, v[:1].expand(new, *v.shape[1:])]) for name, v in centres.items()}
