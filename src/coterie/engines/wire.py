"""The wire engine: every exchange is encoded to bytes for a site that owns its data and state.

It runs the network protocol in one process: `site.py` is the client side, `coordinator.py` the
server side, and `message.py` defines the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call
from coterie.core.errors import SiteRefusal
from coterie.core.task import Task
from coterie.core.trees import tree_map
from coterie.data.federation import Federation
from coterie.engines.clients import SimulatedClients
from coterie.engines.codec import BadBytes, encode, types_of
from coterie.engines.coordinator import SiteCoordinator, UploadOrRefusal
from coterie.engines.evaluate import Evaluation
from coterie.engines.message import Limits, Message
from coterie.engines.site import Site, SitePolicy

# All evaluation functions: in a simulation, the reader of the report owns the data.
ALLOWED = frozenset(name for name, fn in vars(Evaluation).items() if hasattr(fn, "declaration"))


class Wire(SiteCoordinator):
    """The engine whose clients are sites that exchange bytes."""

    def __init__(
        self, task: Task, fed: Federation, root: Evaluation, min_rows_to_report: int = 1
    ) -> None:
        super().__init__(fed.total, types_of(root.method))
        self.task = task
        self.federation: Federation | None = fed
        clients = SimulatedClients(task, fed)
        policy = SitePolicy(
            root=root,
            task=task,
            types=self.types,
            limits=simulation_limits(fed.total),
            min_rows_to_report=min_rows_to_report,
            allowed=ALLOWED,
        )
        self.sites = []
        for i in range(fed.total):
            parts = {name: clients.rows(name, i) for name in clients.parts}
            self.sites.append(Site(policy, parts))
        # lets tests change a reply, or drop it (None)
        self.tamper: Callable[[int, bytes], bytes | None] = lambda i, reply: reply

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Send every client of the call its message and aggregate the replies; see `Engine.map`."""
        shared = encode(call.shared, self.types)
        positions = torch.arange(len(call.ids))
        part = aggregator.merge(self._exchange(at, call, aggregator, shared) for at in positions)
        return aggregator.finish(part)

    def _exchange(
        self, at: Tensor, call: Call, aggregator: Aggregator, shared: bytes
    ) -> PartialAggregate:
        message = self.message(at, call, shared)
        return self.add_reply(
            at, call, aggregator, message, self._reply(int(call.ids[at]), message)
        )

    def _reply(self, i: int, message: Message) -> UploadOrRefusal:
        """The site's reply; None if there is none."""
        try:
            return self.tamper(i, self.sites[i].answer(message))
        except (BadBytes, SiteRefusal) as e:
            return e

    # -- checkpoints
    def snapshot(self) -> Any:
        """The accepted versions and the sites' states; network sites keep these themselves."""
        versions = self.snapshot_versions()
        contacted = versions["contacted"].tolist()
        states = tuple(self.sites[i].versions[self.accepted[i]] for i in contacted)
        return {**versions, "states": states}

    def restore(self, snapshot: Any) -> None:
        """Restore the engine from a snapshot."""
        self.restore_versions(snapshot)
        for site in self.sites:
            site.reset()
        for i, state in zip(snapshot["contacted"].tolist(), snapshot["states"], strict=True):
            state = tree_map(lambda v: v.clone(), state)
            self.sites[i].versions = {self.accepted[i]: state}


def simulation_limits(clients: int) -> Limits:
    """Limits for sites in the server's process: none on bytes, time and repeats."""
    return Limits(
        centres=max(Limits().centres, clients),
        message_bytes=2**40,
        repeats=2**40,
        seconds=None,
    )
