"""The interface of engines, which run client functions on clients."""

from __future__ import annotations

from typing import Any, Protocol

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call
from coterie.core.contract import Algorithm
from coterie.data.federation import Federation


class Engine(Protocol):
    """Runs clients: in a loop, vectorised, with encoded messages, on ranks or on real sites.

    An engine holds the clients' samples and private states, or reaches the sites that do. A private
    state is identified by its version: (0, "start", 0) after `enroll`, then the version of the last
    call whose update was accepted. Rejected, late and absent updates leave no trace.
    """

    @property
    def federation(self) -> Federation | None:
        """The clients' data, if they are in this process."""
        ...

    def enroll(self, method: Algorithm, initial_payload: Any) -> None:
        """Store how clients start; called once, before any `map`. No client is contacted.

        `method.enroll` is pure, so a client's first private state is made at its first call: the
        initial payload is part of its first message.
        """
        ...

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Run the call on its clients and aggregate their updates.

        Args:
            call: The exchange. With `keeps_private`, the private states of accepted clients are
                replaced by their new ones; all others stay.
            aggregator: Receives the updates, in any chunks.

        Returns:
            The finished aggregate, in which every client is accepted, rejected or absent.
        """
        ...

    def snapshot(self) -> Any:
        """A pytree of tensors for a checkpoint, for `restore` of the same engine."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Restore the engine from a snapshot; called after `enroll`."""
        ...
