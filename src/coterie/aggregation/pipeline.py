"""The pipeline: what happens to an update between the client function and the mean, in order.

    step             file               what it does
    1 attack         attacks.py         replaces the updates of hostile clients; only in simulations
    2 validation     validation.py      rejects updates that are malformed, not finite or undeclared
    3 free riders    free_riders.py     rejects models that are sent back unchanged, again
    4 norm limits    clipping.py        clips long updates and rejects far longer ones
    5 privacy        private_sums.py    clips to a fixed norm, and adds noise to the sum; only under
                                        client-level differential privacy
    6 fixed point    fixed_point.py     turns updates into integers; only where sums are enough
    7 reduction      aggregator.py      adds the updates, or stacks them
    8 rule           robust.py          replaces the weighted mean by a robust one

Steps 2 and 4 to 7 take one update at a time and run wherever it is (`steps.py`). Steps 1 and 3,
and the estimate of a typical norm for step 4 (`norm_screening.py`), compare the updates of several
clients: each is a `Watch`, which says which clients it needs. The updates of these clients are
buffered on the server, the watches look at them together, and then they pass steps 2 to 7.

Under secure sums the server sees no single update: steps 1, 3, 4 and 8 do not exist, and steps 2
and 6 run on the clients, who mask the integers before they send them (`privacy/secure_sum.py`).
Under differential privacy the server may see updates, but uses only sums, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from coterie.aggregation.aggregator import PLAIN_MEAN, Aggregator, PartialAggregate, RobustRule
from coterie.aggregation.clipping import Clipping
from coterie.aggregation.exchange import Exchange
from coterie.aggregation.fixed_point import FixedPoint
from coterie.aggregation.free_riders import FreeRiderWatch
from coterie.aggregation.norm_screening import NormScreening
from coterie.aggregation.private_sums import PrivateRelease
from coterie.aggregation.validation import DeclarationChecks
from coterie.core.call import Call
from coterie.core.errors import CoterieError, Option

RunCall = Callable[[Call, Aggregator], PartialAggregate]  # `Engine.map`


class Watch(Protocol):
    """A step that compares the updates of several clients."""

    def needs(self, exchange: Exchange) -> Tensor:
        """Select the clients whose updates it has to see before they are added, bool [n]."""
        ...

    def together(
        self, exchange: Exchange, needed: Tensor, stacked: PartialAggregate
    ) -> PartialAggregate:
        """Reject or replace buffered updates.

        Args:
            exchange: The exchange with the buffered clients only.
            needed: bool [n], which of these clients this watch selected.
            stacked: The finished aggregate with their updates.
        """
        ...

    def after(self, exchange: Exchange, result: PartialAggregate) -> None:
        """Learn from the finished aggregate of the whole exchange."""
        ...


class SimulatedAttack(Watch, Protocol):
    """The step that a simulation adds: see `aggregation/attacks.py`."""

    @property
    def kind(self) -> str:
        """Its name."""
        ...

    @property
    def attackers(self) -> Tensor:
        """The hostile clients' ids, int64."""
        ...


@dataclass
class Pipeline:
    """The steps of a run. Without arguments only invalid updates are rejected."""

    screening: NormScreening = field(default_factory=NormScreening)
    robust: RobustRule = PLAIN_MEAN
    attack: SimulatedAttack | None = None
    min_clients: int | None = None  # the fewest clients in a sum; None: single updates are used
    private: PrivateRelease | None = None  # under client-level differential privacy
    free_riders: FreeRiderWatch = field(init=False)
    # clients that the log has named
    logged_rejected: set[int] = field(default_factory=set)
    logged_clipped: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.free_riders = FreeRiderWatch(self.screening)

    @property
    def watches(self) -> list[Watch]:
        """The steps that compare clients, in order."""
        always: list[Watch] = [self.free_riders, self.screening]
        return always if self.attack is None else [self.attack, *always]

    def collect(self, exchange: Exchange, run: RunCall) -> PartialAggregate:
        """Run the call and aggregate the updates of all its clients.

        Args:
            exchange: The exchange.
            run: Runs a call on the engine and gives its updates to an aggregator.

        Returns:
            The finished aggregate.
        """
        call = exchange.call
        if self.min_clients is not None:
            return self._collect_sums(exchange, run, self.min_clients)
        exchange = self.screening.with_limits(exchange)
        needs = [watch.needs(exchange) for watch in self.watches]
        is_buffered = torch.stack(needs).any(0)
        if bool(is_buffered.any()):
            result = self._collect_in_two_parts(exchange, needs, is_buffered, run)
        else:
            result = run(call, self._aggregator(exchange, call, exchange.reduce, self.robust))
        for watch in self.watches:
            watch.after(exchange, result)
        return result

    def _collect_sums(self, exchange: Exchange, run: RunCall, min_clients: int) -> PartialAggregate:
        """Collect only the sums over clients.

        Raises:
            CoterieError: If the sum has too few clients.
        """
        call, n = exchange.call, exchange.num_clients
        if self.private is None:
            private = None
            fixed_point = FixedPoint(exchange.template, exchange.declaration, n, min_clients)
        else:
            private = self.private.begin(exchange)
            fixed_point = private.fixed_point(min_clients)
        aggregator = Aggregator(
            exchange.reduce,
            exchange.template,
            n,
            checks=DeclarationChecks(call, exchange.roster),
            clipping=Clipping(exchange.started_from),
            fixed_point=fixed_point,
            extra=private,
        )
        if n >= min_clients:
            result = run(call, aggregator)
            if len(result.accepted) >= min_clients:
                return result if private is None else private.server(result)
            n = len(result.accepted)
        raise CoterieError(
            f"round {call.version.round}: {n} clients answered {call.name}(), and a secure sum has "
            f"at least {min_clients}",
            "wait for more clients, or raise {}",
            options=[Option("participation")],
        )

    def _collect_in_two_parts(
        self, exchange: Exchange, needs: list[Tensor], is_buffered: Tensor, run: RunCall
    ) -> PartialAggregate:
        """Buffer the updates that a watch needs, then add them and those of the other clients."""
        first = is_buffered.nonzero()[:, 0]  # positions in the call
        buffered = exchange.only(first)
        stacked = run(buffered.call, self._aggregator(exchange, buffered.call, "stack"))
        for watch, needed in zip(self.watches, needs):
            stacked = watch.together(buffered, needed[first], stacked)
        exchange = self.screening.with_limits(exchange)  # which may be known only now
        aggregator = self._aggregator(exchange, exchange.call, exchange.reduce, self.robust)
        partials = [aggregator.add_buffered(stacked, first)]
        if not bool(is_buffered.all()):
            later = (~is_buffered).nonzero()[:, 0]
            later_call = exchange.call.only(later)
            reduce = "stack" if aggregator.keeps_values else exchange.reduce
            finished = run(later_call, self._aggregator(exchange, later_call, reduce))
            partials.append(aggregator.absorb(finished.relabel(later)))
        return aggregator.finish(aggregator.merge(partials))

    def _aggregator(
        self,
        exchange: Exchange,
        call: Call,
        reduce: Literal["sum", "stack"],
        robust: RobustRule = PLAIN_MEAN,
    ) -> Aggregator:
        """The aggregator of some clients of the exchange."""
        return Aggregator(
            reduce,
            exchange.template,
            len(call.ids),
            checks=DeclarationChecks(call, exchange.roster),
            clipping=Clipping(exchange.started_from, exchange.limits),
            robust=robust,
        )
