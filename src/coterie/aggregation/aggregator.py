"""Aggregation of client updates.

An `Aggregator` turns the updates of one exchange into sums or stacks. Engines call it where the
updates are (in a worker thread, on a rank, on the server), so that no update outlives its chunk
when sums are enough:

    partials = [aggregator.add(positions, updates) for positions, updates in chunks]
    result = aggregator.finish(aggregator.merge(partials))

Each update passes the steps that `aggregation/pipeline.py` lists, then the reduction. Robust means
(`aggregation/robust.py`) need all updates at once, so they are computed in `finish`.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coterie.aggregation.clipping import Clipping, is_one_hot, weights_by_value
from coterie.aggregation.fixed_point import FixedPoint, Integers
from coterie.aggregation.robust import robust_means
from coterie.aggregation.steps import UpdateChunk, UpdateStep
from coterie.aggregation.validation import DeclarationChecks, Validation, matches_template
from coterie.core.contract import Upload
from coterie.core.errors import CoterieError
from coterie.core.params import Params, as_column, nbytes
from coterie.core.trees import tree_leaves, tree_map
from coterie.data.shards import pairwise_sum
from coterie.optim.low_rank import LowRankUpdate, sum_low_rank

MAX_BUFFER_IN_MEMORY = 1 << 30  # bytes; larger buffers are memory-mapped files
MISMATCH = "the names, shapes or dtypes of its update differ from the expected ones"


class PartialAggregate(NamedTuple):
    """The aggregate of some clients' updates. Partial aggregates of one exchange can be merged.

    Clients are identified by their position in the call. A finished aggregate is self-contained, so
    it can be sent to another process and added there with `Aggregator.absorb`. Before
    `finish`, `updates` and `norms` are None and their rows are in the aggregator's buffers.
    """

    totals: dict[str, Params]  # Σ weight · value, per value name; every leaf [K, ...]
    mass: dict[str, Tensor]  # Σ weight, [K]
    accepted: Tensor  # int64 [a], positions of accepted clients
    rejected: list[tuple[int, str]]  # position and reason
    absent: list[int]  # positions of clients without an upload: no reply in time, or a failure
    clipped: list[int]  # positions of accepted clients whose update was clipped
    updates: Upload | None  # leaves [a, ...] in the order of `accepted`; values only if stacked
    norms: dict[str, Tensor] | None  # [a] update norms, per value name
    bytes_up: int  # bytes received
    first_contacts: int  # clients that were sent the initial payload in this exchange
    integers: Integers | tuple[()] = ()  # under secure sums, instead of totals and mass

    def relabel(self, positions: Tensor) -> PartialAggregate:
        """Return this aggregate with position i replaced by `positions[i]` of a larger call."""
        return self._replace(
            accepted=positions[self.accepted],
            rejected=[(int(positions[i]), reason) for i, reason in self.rejected],
            absent=positions[self.absent].tolist(),
            clipped=positions[self.clipped].tolist(),
        )

    def reject(self, is_rejected: Tensor, reason: str) -> PartialAggregate:
        """Return this finished, stacked aggregate without some of its accepted clients.

        Args:
            is_rejected: bool [a], in the order of `accepted`.
            reason: Why they are rejected.
        """
        updates, norms = tree_map(
            lambda v: v[~is_rejected.to(v.device)], (self.updates, self.norms)
        )
        rejected = [(int(i), reason) for i in self.accepted[is_rejected]]
        return self._replace(
            accepted=self.accepted[~is_rejected],
            rejected=self.rejected + rejected,
            updates=updates,
            norms=norms,
        )


class RobustRule(NamedTuple):
    """A rule of `aggregation/robust.py` and the share of hostile clients that it must withstand."""

    rule: str
    share: float


PLAIN_MEAN = RobustRule("mean", 0.0)


class Aggregator:
    """Validates, clips and reduces the updates of one exchange.

    Results that are not summed are copied to buffers that are allocated once: small tensors that
    outlive their chunk would fragment the memory between large ones.

    Args:
        reduce: "sum" keeps weighted sums; "stack" keeps every update.
        template: One client's update with the expected names, shapes and dtypes, from a dry run.
        num_clients: Number of clients in the exchange.
        checks: What the client function declares about its uploads; not checked by default.
        clipping: Norm limits per value name; no limits by default.
        robust: How means are computed where sums are requested.
        fixed_point: Where only sums are known, how uploads become integers; nothing is kept of a
            client.
        extra: A step before `fixed_point`.
    """

    def __init__(
        self,
        reduce: Literal["sum", "stack"],
        template: Upload,
        num_clients: int,
        checks: DeclarationChecks | None = None,
        clipping: Clipping | None = None,
        robust: RobustRule = PLAIN_MEAN,
        fixed_point: FixedPoint | None = None,
        extra: UpdateStep | None = None,
    ) -> None:
        self.reduce = reduce
        self.template = template
        self.num_clients = num_clients
        self.clipping = clipping or Clipping()
        self.fixed_point = fixed_point
        self.steps: list[UpdateStep] = [Validation(checks), self.clipping]
        if extra is not None:
            self.steps.append(extra)
        if fixed_point is not None:
            self.steps.append(fixed_point)
        self.robust = robust
        self.keeps_values = reduce == "stack" or robust.rule != "mean"
        kept = self._select_kept(template)
        buffers: Upload = tree_map(lambda v: allocate_buffer(num_clients, v), kept)
        report = tree_map(lambda v: v.cpu(), buffers.report)  # the server reads reports
        self.buffers = buffers._replace(report=report)
        self.norms = {}
        if fixed_point is None:
            self.norms = {name: torch.zeros(num_clients) for name in template.values}
        self.update_bytes = nbytes(template if fixed_point is None else fixed_point.zeros())

    @property
    def accepts_low_rank(self) -> bool:
        """Whether a first layer may be a `LowRankUpdate`.

        Values must be summed, and W₀ (`clipping.started_from`) must be known. Integers are rounded
        for each client, whose update must be known then.
        """
        if self.fixed_point is not None:
            return False
        return not self.keeps_values and set(self.template.values) <= set(
            self.clipping.started_from
        )

    def add(self, positions: Tensor, updates: Upload) -> PartialAggregate:
        """Aggregate a chunk of updates.

        Args:
            positions: int64 [n], the clients' positions in the call.
            updates: Leaves of shape [n, ...], in the same order.

        Returns:
            The aggregate of the accepted updates, with the reason of each rejection.
        """
        if not matches_template(updates, self.template):  # sums would broadcast a wrong shape
            return self.reject([(int(i), MISMATCH) for i in positions], nbytes(updates))
        bytes_up = self.update_bytes * len(positions)
        chunk = UpdateChunk(positions, updates, self.clipping.update_norms(updates))
        for step in self.steps:
            chunk = step.client(chunk)
        if self.fixed_point is None:
            self._write(chunk.positions, self._select_kept(chunk.updates), chunk.norms)
        return self._reduce(chunk.updates)._replace(
            accepted=chunk.positions,
            rejected=sorted(chunk.rejected),
            clipped=list(chunk.clipped),
            bytes_up=bytes_up,
        )

    def add_buffered(self, buffered: PartialAggregate, positions: Tensor) -> PartialAggregate:
        """Aggregate stacked updates that were buffered until the norm limits were known."""
        assert buffered.updates is not None
        updates = buffered.updates
        buffered = buffered.relabel(positions)
        partial = self.add(buffered.accepted, updates)
        return partial._replace(
            rejected=buffered.rejected + partial.rejected,
            absent=buffered.absent,
            bytes_up=buffered.bytes_up,
            first_contacts=buffered.first_contacts,
        )

    def empty(self) -> PartialAggregate:
        """Return the aggregate of no updates."""
        template = self.template if self.fixed_point is None else self.fixed_point.template
        return self._reduce(tree_map(lambda v: v.new_zeros(0, *v.shape), template))

    def add_integers(self, positions: Tensor, sums: Integers, bytes_up: int) -> PartialAggregate:
        """Return the aggregate of clients of whom only the sum is known."""
        return self.empty()._replace(accepted=positions, integers=sums, bytes_up=bytes_up)

    def reject(self, rejected: list[tuple[int, str]], bytes_up: int = 0) -> PartialAggregate:
        """Return an empty aggregate that records these rejections: (position, reason)."""
        return self.empty()._replace(rejected=rejected, bytes_up=bytes_up)

    def record_absent(self, positions: list[int]) -> PartialAggregate:
        """Return an empty aggregate that records these clients as absent."""
        return self.empty()._replace(absent=positions)

    def merge(self, partials: Iterable[PartialAggregate]) -> PartialAggregate:
        """Merge partial aggregates of one process, in the given order."""
        merged: PartialAggregate | None = None
        for partial in partials:
            merged = partial if merged is None else _add(merged, partial)
        return self.empty() if merged is None else merged

    def merge_shards(self, partials: Sequence[PartialAggregate]) -> PartialAggregate:
        """Merge one aggregate per shard, in the order in which ranks add their sums."""
        return pairwise_sum(partials, _add)

    def finish(self, partial: PartialAggregate) -> PartialAggregate:
        """Complete the aggregate of all clients: robust means, updates and norms.

        Returns:
            The aggregate with `accepted` sorted and with `updates` and `norms` in this order.
        """
        order = partial.accepted.sort().values
        if self.fixed_point is not None:
            assert isinstance(partial.integers, Integers)
            totals, mass, updates = self.fixed_point.decode(partial.integers)
            return partial._replace(
                accepted=order, totals=totals, mass=mass, updates=updates, norms={}
            )
        buffers = self.buffers
        if self.reduce == "sum" and self.keeps_values:
            totals, mass = self._robust_sums(order)
            partial = partial._replace(totals=totals, mass=mass)
            buffers = buffers._replace(values={})
        if len(order) == self.num_clients:
            return partial._replace(accepted=order, updates=buffers, norms=self.norms)
        updates = tree_map(lambda v: v[order.to(v.device)], buffers)
        norms = {name: v[order] for name, v in self.norms.items()}
        return partial._replace(accepted=order, updates=updates, norms=norms)

    def absorb(self, finished: PartialAggregate) -> PartialAggregate:
        """Copy the updates of another aggregator's finished aggregate to the buffers."""
        assert finished.updates is not None and finished.norms is not None
        self._write(finished.accepted, finished.updates, finished.norms)
        return finished._replace(updates=None, norms=None)

    def _select_kept(self, updates: Upload) -> Upload:
        """The part of updates that is kept for each client."""
        if self.fixed_point is not None:
            return Upload({}, {}, {})
        return updates if self.keeps_values else updates._replace(values={})

    def _reduce(self, updates: Upload) -> PartialAggregate:
        """Return the sums of these updates as an aggregate that names no client yet."""
        totals: dict[str, Params] = {}
        mass: dict[str, Tensor] = {}
        integers: Integers | tuple[()] = ()
        if self.fixed_point is not None:
            integers = self.fixed_point.encode(updates)
        else:
            totals, mass = self._weighted_sums(updates)
        return PartialAggregate(
            totals=totals,
            mass=mass,
            accepted=torch.zeros(0, dtype=torch.long),
            rejected=[],
            absent=[],
            clipped=[],
            updates=None,
            norms=None,
            bytes_up=0,
            first_contacts=0,
            integers=integers,
        )

    def _weighted_sums(self, updates: Upload) -> tuple[dict[str, Params], dict[str, Tensor]]:
        """(totals, mass) of these updates; empty if values are kept."""
        if self.keeps_values:
            return {}, {}
        weights = weights_by_value(updates)
        totals: dict[str, Params] = {}
        for name, value in updates.values.items():
            totals[name] = {k: self._sum(name, k, weights[name], v) for k, v in value.items()}
        return totals, {name: weights[name].sum(0) for name in totals}

    def _sum(self, name: str, leaf: str, weight: Tensor, v: Tensor | LowRankUpdate) -> Tensor:
        if isinstance(v, LowRankUpdate):
            return sum_low_rank(weight, v, self.clipping.started_from[name][leaf])
        return weighted_sum(weight, v)

    def _robust_sums(self, accepted: Tensor) -> tuple[dict[str, Params], dict[str, Tensor]]:
        """Σ weight · value as if every client had sent the robust mean."""
        totals, mass = {}, {}
        for name, weight in weights_by_value(self.buffers).items():
            rows = accepted.to(weight.device)
            counted = torch.zeros_like(weight).index_copy(0, rows, weight[rows])
            mass[name] = counted.sum(0)
            means = robust_means(
                self.robust.rule, self.buffers.values[name], counted, self.robust.share
            )
            totals[name] = {k: v * as_column(mass[name].to(v), v) for k, v in means.items()}
        return totals, mass

    def _write(self, positions: Tensor, updates: Upload, norms: dict[str, Tensor]) -> None:
        """Copy updates and norms to these rows of the buffers."""
        buffers = tree_leaves((self.buffers, self.norms))
        for buffer, rows in zip(buffers, tree_leaves((updates, norms)), strict=True):
            buffer.index_copy_(0, positions.to(buffer.device), rows.to(buffer.device, buffer.dtype))


def _add(a: PartialAggregate, b: PartialAggregate) -> PartialAggregate:
    return PartialAggregate(
        totals=tree_map(torch.add, a.totals, b.totals),
        mass=tree_map(torch.add, a.mass, b.mass),
        accepted=torch.cat([a.accepted, b.accepted]),
        rejected=a.rejected + b.rejected,
        absent=a.absent + b.absent,
        clipped=a.clipped + b.clipped,
        updates=None,
        norms=None,
        bytes_up=a.bytes_up + b.bytes_up,
        first_contacts=a.first_contacts + b.first_contacts,
        integers=tree_map(torch.add, a.integers, b.integers),
    )


def weighted_sum(weight: Tensor, values: Tensor) -> Tensor:
    """Σ_i w_ik · v_i.

    Args:
        weight: [n, K].
        values: [n, ...].

    Returns:
        [K, ...].
    """
    if weight.shape[1] > 1 and is_one_hot(weight):  # index_add_ takes a third of the time
        chosen = weight.argmax(1).to(values.device)
        return values.new_zeros(weight.shape[1], *values.shape[1:]).index_add_(0, chosen, values)
    return torch.einsum("ik,i...->k...", weight.to(values.dtype), values)


def allocate_buffer(rows: int, like: Tensor) -> Tensor:
    """Allocate an uninitialised [rows, ...] tensor with rows like `like`.

    Buffers of over `MAX_BUFFER_IN_MEMORY` bytes are memory-mapped to an unnamed temporary file.

    Raises:
        CoterieError: If the temporary directory has too little space.
    """
    size = rows * math.prod(like.shape) * like.element_size()
    if size <= MAX_BUFFER_IN_MEMORY or like.device.type != "cpu":
        return like.new_empty(rows, *like.shape)
    with tempfile.TemporaryFile(prefix="coterie-") as file:
        try:
            # allocate all blocks now: a write to a full disk would kill the process with SIGBUS
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            raise CoterieError(
                f"the updates of one exchange need {size / 1e9:.3g} GB in {tempfile.gettempdir()}, "
                "which has less free space",
                "set TMPDIR to a larger disk, or run without robust means",
            ) from e
        memory = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(memory, dtype=like.dtype).view(rows, *like.shape)
