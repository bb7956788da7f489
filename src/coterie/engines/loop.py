"""The loop engine: one client after another, without padding. It defines correctness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call
from coterie.core.task import Task
from coterie.core.trees import tree_leaves, tree_map
from coterie.engines.clients import SimulatedClients


class Loop(SimulatedClients):
    """The engine that runs one client after another."""

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Run the call on its clients, in order; see `Engine.map`."""
        new = self.begin_call(call)
        everyone = torch.arange(len(call.ids))
        result = run_one_by_one(self, self.task, call, aggregator, everyone)
        return aggregator.finish(result)._replace(first_contacts=new)


def run_one_by_one(
    clients: SimulatedClients, task: Task, call: Call, aggregator: Aggregator, positions: Tensor
) -> PartialAggregate:
    """Run the clients at these positions of the call, one after another."""

    def run(position: Tensor) -> PartialAggregate:
        private, data = clients.inputs_of_client(call, int(position), task)
        arguments = call.arguments(position, task.device)
        upload, after = call.fn(task, *arguments, private, data, **call.static)
        partial = aggregator.add(position[None], add_axis(upload))
        if call.keeps_private and tree_leaves(after):
            # a rejected client keeps its state, which has to fill its reserved row
            state = after if len(partial.accepted) else private
            clients.private.write(call.ids[position][None], add_axis(state))
        return partial

    return aggregator.merge(run(position) for position in positions)


def add_axis(tree: Any) -> Any:
    """Reshape leaves [...] to [1, ...]."""
    return tree_map(lambda v: v[None], tree)
