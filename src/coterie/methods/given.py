"""FedAvg inside groups that are given: regions, types of hospital (no paper; the usual first step).

    symbol      here             shape
    w_g         centres          every leaf [G, ...]
    g(k)        state.group      int64 [N], the group of client k
    n_k         Upload.weight    [G], n_k at g(k), otherwise 0
    η           lr

One round is that of FedAvg (McMahan et al. 2017, Algorithm 1) inside each group:
w_g = Σ_{k: g(k) = g} n_k w_k / Σ_{k: g(k) = g} n_k. Without groups it is FedAvg.

Differences from the paper: none in a group. A new client, whose group is unknown, gets the model
with the smallest loss on its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.core.contract import Ask, setting
from coterie.core.errors import CoterieError, Option
from coterie.core.params import repeated
from coterie.core.task import Task
from coterie.methods.grouped import GroupedFedAvg, GroupedState
from coterie.optim.server import takes_server_step


@dataclass(frozen=True, kw_only=True)
class Given(GroupedFedAvg):
    """FedAvg inside each of the groups that you give.

    Args:
        given: The group of each training client, in the order of the clients; default: the groups
            of the data (`groups=` of `ct.data.folder`), or else one group of all.

    Example:
        >>> import coterie as ct
        >>> fed = ct.data.linear(clients=4, samples=10, dim=2, clusters=2)
        >>> given = ct.Given(given=("north", "south", "north", "south"), lr=0.05)
        >>> ct.run(given, fed, rounds=1).clusters[-1].tolist()
        [0, 1, 0, 1]
    """

    name: ClassVar[str] = "given"
    paper: ClassVar[str] = "FedAvg in given groups"

    given: tuple[str, ...] = setting((), "the group of each client, in the order of the clients")

    def check(self, task: Task, sizes: Tensor) -> None:
        super().check(task, sizes)
        if self.given and len(self.given) != len(sizes):
            raise CoterieError(
                f"given names {len(self.given)} groups for {len(sizes)} training clients",
                "name one group per client, or give {}",
                options=[Option("groups", "COLUMN")],
            )

    def start(self, task: Task, clients: int, seed: int) -> tuple[GroupedState, Any]:
        names = sorted(set(self.given)) or ["all"]
        places = [names.index(name) for name in self.given] or [0] * clients
        return GroupedState(repeated(task.init(seed), len(names)), torch.tensor(places)), ()

    @takes_server_step
    def round(self, state: GroupedState, ask: Ask) -> GroupedState:
        return self.train_clusters(state, ask)
