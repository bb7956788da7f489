"""The private states of simulated clients.

Kept of those that were asked, made anew for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coterie.core.contract import Data
from coterie.core.task import Task

Enroll = Callable[[Task, Data], Any]


class PrivateStates:
    """One table per leaf, with a row for each client that was asked: memory grows with those.

    `enroll` is pure: the state of a client that was never asked can be made whenever it is needed.
    """

    def __init__(self, clients: int, device: torch.device) -> None:
        self.device = device
        self.slots = torch.full((clients,), -1)  # the table row of each client; −1: none yet
        self.written = torch.zeros(clients, dtype=torch.bool)  # whether that row holds its state
        self.used = 0
        self.tables: Any = ()
        self.enroll: Enroll = lambda task, data: ()
        self.like: Any = ()  # one client's state, for its structure and shapes

    def remember_enroll(self, enroll: Enroll, task: Task, example: Data) -> None:
        """Remember how a client's first state is made."""
        self.enroll = enroll
        self.like = enroll(task, example)
        self.tables = tree_map(lambda v: v.new_zeros(0, *v.shape), self.like)

    @property
    def empty(self) -> bool:
        """Whether clients of this method keep nothing."""
        return not tree_leaves(self.like)

    # -- reading
    def one(self, client: int, data: Data, task: Task) -> Any:
        """One client's state; task and `data` serve the case that it was never asked."""
        slot = int(self.slots[client])
        if not self.written[client]:
            return self.enroll(task, data._replace(key=data.client_key))
        return tree_map(lambda table: table[slot].clone(), self.tables)

    def some(self, clients: Tensor, data: Data, task: Task) -> Any:
        """The states of some clients, leaves [n, ...]; `data` is theirs, padded."""
        if self.empty:
            return ()
        slots = self.slots[clients].to(self.device)
        asked = self.written[clients].to(self.device)
        if bool(asked.all()):
            return tree_map(lambda table: table[slots], self.tables)

        def enroll(own: Data) -> Any:
            return self.enroll(task, own)

        first = torch.func.vmap(enroll)(data._replace(key=data.client_key))
        if not bool(asked.any()):
            return tree_map(lambda v: v.contiguous(), first)

        def choose(table: Tensor, made: Tensor) -> Tensor:
            kept = table[slots.clamp(min=0)]
            return torch.where(asked.view(-1, *[1] * (made.dim() - 1)), kept, made)

        return tree_map(choose, self.tables, first)

    # -- writing
    def reserve(self, clients: Tensor) -> None:
        """Give each of these clients a row, so that `write` may be called from several threads."""
        if self.empty:
            return
        new = clients[self.slots[clients] < 0].sort().values
        self.slots[new] = self.used + torch.arange(len(new))
        self.used += len(new)
        capacity = len(tree_leaves(self.tables)[0])
        if self.used > capacity:
            extra = max(self.used, min(2 * capacity, len(self.slots))) - capacity
            self.tables = tree_map(
                lambda v: torch.cat([v, v.new_zeros(extra, *v.shape[1:])]), self.tables
            )

    def write(self, clients: Tensor, states: Any) -> None:
        """New states of these clients, leaves [n, ...]; a row must have been reserved for each."""
        slots = self.slots[clients].to(self.device)
        for table, rows in zip(tree_leaves(self.tables), tree_leaves(states), strict=True):
            table.index_copy_(0, slots, rows)
        self.written[clients] = True

    # -- checkpoints
    def snapshot(self) -> Any:
        """A nest of tensors that `restore` takes."""
        slots = torch.where(self.written, self.slots, -1)
        return {"slots": slots, "tables": tree_map(lambda v: v[: self.used], self.tables)}

    def restore(self, snapshot: Any) -> None:
        """Be where `snapshot` was taken."""
        self.slots = snapshot["slots"].clone()
        self.written = self.slots >= 0
        self.used = int(self.slots.max()) + 1
        self.tables = tree_map(lambda v: v.to(self.device), snapshot["tables"])
