"""What an engine is: the place where clients run."""

from __future__ import annotations

from typing import Any, Protocol

from coterie.aggregation.aggregator import Aggregator, PartialAggregate
from coterie.core.call import Call
from coterie.core.contract import Algorithm


class Engine(Protocol):
    """Where clients run: in a loop, vectorised, behind bytes, on real sites.

    An engine holds the clients' rows and private states, or reaches the sites that do. Nobody else
    does. A private state is known by its version: (0, "start", 0) after `enroll`, then the version
    of the last call whose answer was accepted. It counts only if that answer was accepted; refused,
    late and absent answers leave no trace.
    """

    def enroll(self, method: Algorithm, initial_payload: Any) -> None:
        """Remember how clients begin; called once, before any `map`. Nobody is contacted.

        `method.enroll` is pure, so a client's first private state is made when the client is first
        asked: the initial payload rides on its first message.
        """
        ...

    def map(self, call: Call, aggregator: Aggregator) -> PartialAggregate:
        """Run the call on its clients and fold their answers.

        Every client of the call ends as accepted, refused or absent. Where `call.keeps_private`,
        the new private states of the accepted ones count from now on, and nobody else's change.
        """
        ...

    def snapshot(self) -> Any:
        """A nest of tensors for a checkpoint, which only `restore` of the same engine reads."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Be where `snapshot` was taken; called after `enroll`."""
        ...
