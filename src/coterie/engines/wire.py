"""The wire engine: every exchange is encoded to bytes for a site that owns its data and state.

It runs the network protocol in one process: `site.py` is the client side, `coordinator.py` the
server side, and `message.py` defines the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call
from coterie.core.errors import CoterieError, SiteRefusal
from coterie.core.task import Task
from coterie.core.trees import tree_map
from coterie.data.federation import Federation
from coterie.engines.clients import SimulatedClients
from coterie.engines.codec import BadBytes, encode, types_of
from coterie.engines.coordinator import SiteCoordinator, UploadOrRefusal
from coterie.engines.evaluate import Evaluation
from coterie.engines.message import Limits, Message
from coterie.engines.site import Site, SitePolicy
from coterie.privacy.row_budget import RowBudget

if TYPE_CHECKING:
    from coterie.engines.secure_exchange import SecureSite

# All evaluation functions: in a simulation, the reader of the report owns the data.
ALLOWED = frozenset(name for name, fn in vars(Evaluation).items() if hasattr(fn, "declaration"))


class Wire(SiteCoordinator):
    """The engine whose clients are sites that exchange bytes."""

    def __init__(
        self,
        task: Task,
        fed: Federation,
        root: Evaluation,
        min_rows_to_report: int = 1,
        secure_min: int | None = None,
        only_sums: bool = False,
        budgets: Sequence[RowBudget] | None = None,
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
            secure=secure_min is not None,
            only_sums=only_sums,
        )
        self.sites = []
        for i in range(fed.total):
            parts = {name: clients.rows(name, i) for name in clients.parts}
            budget = None if budgets is None else budgets[i]
            self.sites.append(Site(policy, parts, budget))
        # lets tests change a reply, or drop it (None)
        self.tamper: Callable[[int, bytes], bytes | None] = lambda i, reply: reply
        self.names = fed.roster.names
        self.secure_sites: dict[str, SecureSite] = {}
        if secure_min is not None:
            self.secure_sites = self._create_secure_sites(secure_min)
        # lets tests drop a reply at a stage of secure sums: (name, stage, reply)
        self.tamper_stage: Callable[[str, str, bytes], bytes | None] = lambda n, s, reply: reply

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Send every client of the call its message and aggregate the replies; see `Engine.map`."""
        if self.secure_sites:
            from coterie.engines.secure_exchange import collect_secure  # loads cryptography

            return collect_secure(self, call, aggregator, self.names, self._send_stage)
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

    def _create_secure_sites(self, min_clients: int) -> dict[str, SecureSite]:
        if not (find_spec("cryptography") and find_spec("Crypto")):
            raise CoterieError(
                "secure sums between sites need cryptography and pycryptodome",
                "pip install 'coterie[network]'",
            )
        from coterie.engines.secure_exchange import SecureSite
        from coterie.privacy.identity import make_identities

        identities = make_identities(self.names)
        clients = len(self.sites)
        return {
            name: SecureSite(
                site, identities[name], b"wire", clients=clients, min_clients=min_clients
            )
            for name, site in zip(self.names, self.sites)
        }

    def _send_stage(
        self, stage: str, messages: dict[str, Message] | dict[str, bytes]
    ) -> dict[str, UploadOrRefusal]:
        """Send each site a stage of a secure sum; see `SendStage`."""
        replies: dict[str, UploadOrRefusal] = {}
        for name, message in messages.items():
            site = self.secure_sites[name]
            try:
                if isinstance(message, Message):
                    reply = site.begin(message)
                else:
                    reply = site.answer(stage, message)
                replies[name] = self.tamper_stage(name, stage, reply)
            except (BadBytes, SiteRefusal) as e:
                replies[name] = e
        return replies

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
