"""One client after another, unpadded: the definition of correctness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call
from coterie.core.task import Task
from coterie.engines.simulated import SimulatedClients


def one_by_one(
    clients: SimulatedClients, task: Task, call: Call, aggregator: Aggregator, positions: Tensor
) -> PartialAggregate:
    """The clients at these positions of the call, each on its own."""

    def answer(at: Tensor) -> PartialAggregate:
        private, data = clients.client(call, int(at), task)
        arguments = call.arguments(at, task.device)
        up, after = call.fn(task, *arguments, private, data, **call.static)
        part = aggregator.add(at[None], as_one_row(up))
        if call.keeps_private and tree_leaves(after):
            state = after if len(part.accepted) else private
            clients.private.write(call.ids[at][None], as_one_row(state))
        return part

    return aggregator.merge(answer(at) for at in positions)


def as_one_row(tree: Any) -> Any:
    """Leaves [...] as [1, ...]."""
    return tree_map(lambda v: v[None], tree)


class Loop(SimulatedClients):
    """The engine that runs one client after another."""

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Run the call on its clients, in order."""
        new = self.begin_call(call)
        part = one_by_one(self, self.task, call, aggregator, torch.arange(len(call.ids)))
        return aggregator.finish(part)._replace(first_contacts=new)
