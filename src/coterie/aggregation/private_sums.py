"""Sums over clients under client-level differential privacy.

    symbol         here                shape
    θ_i − θ_k      the update          every leaf of the client's values
    s_i            the weight          [K], one-hot; the number of rows is left out
    C, c           bound, count_scale  the largest norm of an update; C / 5
    z              noise_multiplier    of one exchange
    σ              z · √(C² + c²)      standard deviation of the noise

A client contributes the vector [s_i ⊗ (θ_i − θ_k) ‖ c · s_i] to the sum. Its update is clipped to
the norm C over all values jointly, and every client has the weight 1. So adding or removing one
client, whatever its rows and its cluster, moves the sum by at most √(C² + c²), and noise N(0, σ²)
on each of the K·d + K numbers hides it. The cluster model becomes θ_k + Σ updates / count.

* With a single cluster no count is needed: the sum is divided by the expected number of clients,
  q · N, which is public (McMahan et al. 2018).
* A cluster whose noised count is below the standard deviation of that count keeps its model.
* Adaptive clipping (Andrew et al. 2021): each client adds c · (b_i − ½) with b_i = 1 if its norm is
  at most C. The noised share of such clients moves C towards the median norm.
* Reports do not leave.

Noise comes from the operating system. With a seed, for tests, a run is not private.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.aggregation.aggregator import PartialAggregate
from coterie.aggregation.canaries import Canaries
from coterie.aggregation.clipping import Clipping, weights_by_value
from coterie.aggregation.exchange import Exchange
from coterie.aggregation.fixed_point import SCALE, FixedPoint
from coterie.aggregation.steps import UpdateChunk
from coterie.core.contract import Declaration, Upload
from coterie.core.declarations import Fraction, OneHot
from coterie.core.errors import CoterieError
from coterie.core.params import Params, as_column

COUNT_SHARE = 0.2  # c / C: noise of an update grows by 2 %, that of a count is 5 · z clients
FIRST_CLIP = 1.0  # C of adaptive clipping in the first exchange
QUANTILE = 0.5  # γ: the share of norms below C that adaptive clipping aims at
CLIP_STEP = 0.2  # η: C changes by at most a factor of exp(η/2) in an exchange
ROUNDING = 1e-6  # relative, of norms in float32
BELOW = "below_clip"


class NoiseSource:
    """Random numbers from the operating system, or from a seed for tests.

    Args:
        seed: None: the operating system.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    def uniform(self, count: int, *purpose: object) -> np.ndarray:
        """Numbers in [0, 1), float64; purpose: with a seed, what they depend on."""
        size = 8 * count
        if self.seed is None:
            raw = os.urandom(size)
        else:
            key = hashlib.blake2b(repr((self.seed, *purpose)).encode(), digest_size=16).digest()
            raw = np.random.Generator(np.random.Philox(key=int.from_bytes(key))).bytes(size)
        return (np.frombuffer(raw, dtype="<u8") >> np.uint64(11)) * 2.0**-53

    def normal(self, count: int, *purpose: object) -> np.ndarray:
        """Standard normal numbers, float64, by the Box-Muller transform."""
        pairs = (count + 1) // 2
        u = self.uniform(2 * pairs, *purpose)
        radius = np.sqrt(-2 * np.log1p(-u[:pairs]))
        angle = 2 * math.pi * u[pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


@dataclass
class PrivateRelease:
    """What all private sums of a run have in common.

    Args:
        noise_multiplier: z of a whole round: each of its m exchanges has the multiplier z · √m.
        expected_clients: q · N.
        clip: C.
        is_adaptive: Whether C adapts.
        calls: The largest number of exchanges in round 0 and in any later round.
        noise: Where noise comes from.
        record: Called before each exchange with round, function and noise multiplier.
        canaries: In an audit, simulated clients with random updates.
    """

    noise_multiplier: float
    expected_clients: float
    clip: float
    is_adaptive: bool
    calls: tuple[int, int]
    noise: NoiseSource
    record: Callable[[int, str, float], None] = lambda round, function, z: None
    canaries: Canaries | None = None
    sampling_rate: float = 1.0  # q, for canaries

    def begin(self, exchange: Exchange) -> PrivateSums:
        """Record an exchange and return its step."""
        version = exchange.call.version
        most = self.calls[min(version.round, 1)]
        if version.exchange > most:
            raise CoterieError(
                f"round {version.round}: {exchange.call.name}() is exchange {version.exchange} of "
                f"the round, and its declarations (max_calls) allow {most}."
            )
        step = PrivateSums(exchange, self, self.noise_multiplier * math.sqrt(most))
        self.record(version.round, exchange.call.name, step.noise_multiplier)
        return step


class PrivateSums:
    """The step of one exchange that clips updates and adds noise to their sum."""

    def __init__(
        self, exchange: Exchange, release: PrivateRelease, noise_multiplier: float
    ) -> None:
        self.exchange = exchange
        self.release = release
        self.noise_multiplier = noise_multiplier
        self.bound = release.clip
        self.count_scale = COUNT_SHARE * self.bound
        self.clipping = Clipping(exchange.started_from)
        weights = weights_by_value(exchange.template)
        self.counted = [name for name, weight in weights.items() if len(weight) > 1]
        if self.counted and not isinstance(exchange.declaration.weight, OneHot):
            raise CoterieError(
                f"{exchange.call.name}() divides a client among clusters, and with differential "
                "privacy each client counts for one: use another method."
            )

    @property
    def sensitivity(self) -> float:
        """How far adding or removing one client can move the sum."""
        squares = self.bound**2 + len(self.counted) * self.count_scale**2
        if self.release.is_adaptive:
            squares += (self.count_scale / 2) ** 2
        return math.sqrt(squares)

    @property
    def deviation(self) -> float:
        """σ, the standard deviation of the noise."""
        return self.noise_multiplier * self.sensitivity

    def fixed_point(self, min_clients: int) -> FixedPoint:
        """How contributions become integers."""
        report: dict[str, Tensor] = {}
        declared = {}
        if self.release.is_adaptive:
            report = {BELOW: torch.zeros((), dtype=torch.float64)}
            declared = {BELOW: Fraction("whether its norm is below C", secure="summed")}
        declaration: Declaration = replace(self.exchange.declaration, report=declared)
        return FixedPoint(
            self.exchange.template._replace(report=report),
            declaration,
            self.exchange.num_clients,
            min_clients,
        )

    # -- on a client
    def client(self, chunk: UpdateChunk) -> UpdateChunk:
        """Turn updates into contributions: clipped, without starts, weights 1, no reports."""
        norms = torch.zeros(len(chunk.positions), dtype=torch.float64)
        for of_value in chunk.norms.values():
            norms += of_value.double() ** 2
        norms = norms.sqrt()
        numbers = sum(v[:1].numel() for p in chunk.updates.values.values() for v in p.values())
        # integers are rounded, which can lengthen an update by this much
        limit = self.bound * (1 - ROUNDING) - math.sqrt(numbers) / (2 * SCALE)
        factor = (limit / norms.clamp(min=1e-300)).clamp(max=1.0)
        values: dict[str, Params] = {}
        weights = weights_by_value(chunk.updates)
        for name, value in chunk.updates.values.items():
            starts = self.clipping.starting_points(name, value, weights[name])
            values[name] = {
                k: (v - starts[k]) * as_column(factor.to(v), v) for k, v in value.items()
            }
        ones = {name: w / w.sum(1, keepdim=True) for name, w in weights.items()}
        weight = ones if isinstance(chunk.updates.weight, dict) else next(iter(ones.values()))
        report = {}
        if self.release.is_adaptive:
            report = {BELOW: (norms <= self.bound).double() - 0.5}
        return chunk._replace(updates=Upload(values, weight, report))

    # -- on the server
    def server(self, result: PartialAggregate) -> PartialAggregate:
        """Add noise to the sums, and the starts to the updates; adapt C."""
        result = self._add_canaries(result)
        assert result.updates is not None
        totals: dict[str, Params] = {}
        mass: dict[str, Tensor] = {}
        for name, value in result.totals.items():
            mass[name] = self._noised_count(name, result.mass[name])
            noised = {k: self._noised(v, name, k) for k, v in value.items()}
            if name == self._canary_value and self.release.canaries is not None:
                count = mass[name].double().numpy()[:, None]
                steps = np.concatenate([v.double().flatten(1).numpy() for v in noised.values()], 1)
                self.release.canaries.follow(np.where(count > 0, steps, 0) / count.clip(min=1))
            totals[name] = self._add_starts(name, noised, mass[name])
        if self.release.is_adaptive:
            below = self._noised(result.updates.report[BELOW] * self.count_scale, BELOW)
            self._adapt(float(below) / self.count_scale)
        return result._replace(totals=totals, mass=mass, updates=Upload({}, {}, {}))

    @property
    def _canary_value(self) -> str:
        """The value that canaries send: the first that is not empty."""
        values = self.exchange.template.values
        return next((name for name, value in values.items() if value), "")

    def _add_canaries(self, result: PartialAggregate) -> PartialAggregate:
        """Add the sampled canaries' updates, each as long as clipping allows."""
        canaries, name = self.release.canaries, self._canary_value
        if canaries is None or not name:
            return result
        clusters, value = len(result.mass[name]), result.totals[name]
        chance = self.release.noise.uniform(canaries.count, self.exchange.call.version, "canaries")
        taken = chance < self.release.sampling_rate
        sizes = [v[0].numel() for v in value.values()]
        sums = self.bound * canaries.contribute(clusters, sum(sizes), taken)
        pieces = torch.from_numpy(sums).split(sizes, dim=1)
        added = {k: v + p.reshape(v.shape).to(v) for (k, v), p in zip(value.items(), pieces)}
        members = torch.from_numpy(canaries.members(clusters, taken)).to(result.mass[name])
        return result._replace(
            totals={**result.totals, name: added},
            mass={**result.mass, name: result.mass[name] + members},
        )

    def _noised(self, v: Tensor, *purpose: object) -> Tensor:
        version = self.exchange.call.version
        noise = self.release.noise.normal(v.numel(), *version, *purpose)
        noised = v.double().cpu() + self.deviation * torch.from_numpy(noise).reshape(v.shape)
        return noised.to(v)

    def _noised_count(self, name: str, count: Tensor) -> Tensor:
        """The clients of each cluster, [K]; 0 where they are too few to divide by."""
        if name not in self.counted:
            return torch.full_like(count, self.release.expected_clients)
        noised = self._noised(count * self.count_scale, name) / self.count_scale
        floor = max(1.0, self.deviation / self.count_scale)
        return torch.where(noised >= floor, noised, 0.0)

    def _add_starts(self, name: str, updates: Params, count: Tensor) -> Params:
        """Σ updates + count · θ_k, as methods expect it; 0 for clusters without a count."""
        starts = self.exchange.started_from.get(name, {})
        totals = {}
        for k, v in updates.items():
            n = as_column(count.to(v), v)
            total = v if k not in starts else v + n * starts[k]
            totals[k] = torch.where(n > 0, total, 0.0)
        return totals

    def _adapt(self, below: float) -> None:
        """C ← C · exp(−η · (b̃ − γ)), Andrew et al. 2021, equation 4 of Algorithm 1."""
        share = min(max(below / self.release.expected_clients + 0.5, 0.0), 1.0)
        self.release.clip *= math.exp(-CLIP_STEP * (share - QUANTILE))
