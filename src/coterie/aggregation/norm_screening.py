"""Norm screening: learns the typical update norms of a run, from which norm limits follow.

The limits and what happens to longer updates: see `aggregation/clipping.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.aggregation.aggregator import PartialAggregate
from coterie.aggregation.clipping import MIN_NORMS, NormLimit, third_quartile
from coterie.aggregation.exchange import Exchange
from coterie.core import randomness
from coterie.core.call import Call

CALIBRATION_CLIENTS = 32  # updates buffered until a typical norm can be estimated


@dataclass
class NormScreening:
    """Remembers the typical norm of each kind of value, and derives norm limits."""

    clip_factor: float | None = None  # clip updates above this multiple of the typical norm
    typical_norms: dict[str, float] = field(default_factory=dict)  # by `value_key`

    def with_limits(self, exchange: Exchange) -> Exchange:
        """The exchange with the limits of all values that have a typical norm."""
        if not self.clip_factor or exchange.declaration.sums:
            return exchange
        limits = {}
        for name in exchange.values:
            typical = self.typical_norms.get(value_key(exchange.call, name))
            if typical:
                limits[name] = NormLimit(typical, self.clip_factor)
        return replace(exchange, limits=limits)

    def needs(self, exchange: Exchange) -> Tensor:
        """Select the clients whose updates calibrate the typical norm; none if it is known.

        They are drawn at random, so that hostile clients cannot be first by their names.
        """
        call = exchange.call
        n = len(call.ids)
        is_known = all(value_key(call, name) in self.typical_norms for name in exchange.values)
        if is_known or not self.clip_factor or exchange.declaration.sums:
            return torch.zeros(n, dtype=torch.bool)
        if n <= CALIBRATION_CLIENTS:
            return torch.ones(n, dtype=torch.bool)
        # the name of the stream determines the random numbers: do not change it
        keys = randomness.keys(call.client_keys, call.version.round, "first to ask")
        drawn = randomness.uniform(keys).argsort()[:CALIBRATION_CLIENTS]
        return torch.zeros(n, dtype=torch.bool).index_fill(0, drawn, True)

    def together(
        self, exchange: Exchange, needed: Tensor, stacked: PartialAggregate
    ) -> PartialAggregate:
        """Estimate the typical norms from the calibrating clients."""
        if bool(needed.any()):
            self._record_norms(exchange.call, stacked, needed[stacked.accepted])
        return stacked

    def after(self, exchange: Exchange, result: PartialAggregate) -> None:
        """Update the typical norms from all clients of the exchange."""
        everyone = torch.ones(len(result.accepted), dtype=torch.bool)
        self._record_norms(exchange.call, result, everyone)

    def _record_norms(self, call: Call, result: PartialAggregate, selected: Tensor) -> None:
        """Set each typical norm to the largest third quartile of any exchange so far.

        One exchange raises a typical norm at most to `clip_factor` times its former value.
        """
        for name, norms in (result.norms or {}).items():
            used = norms[selected]
            if len(used) < MIN_NORMS:
                continue
            key = value_key(call, name)
            now = third_quartile(used)
            before = self.typical_norms.get(key, 0.0)
            if before and self.clip_factor:  # bound the growth per exchange
                now = min(now, self.clip_factor * before)
            self.typical_norms[key] = max(before, now)


def value_key(call: Call, value: str) -> str:
    """Identifies values whose update norms are comparable."""
    static = sorted(call.static.items()) or ""
    return f"{call.path}.{call.name}.{value}{static}"
