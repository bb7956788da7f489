"""Uploads as integers, whose sums are exact and can be masked.

A number v becomes round(v · 2²⁴) as a 64-bit integer, and integers are added modulo 2⁶⁴. Such sums
do not depend on their order, so every engine gets the same bits, and masks that cancel in the sum
leave no trace (`privacy/secure_sum.py`). A simulation leaves them out.

    value     Σ_i round(w_ik · θ_i · 2²⁴)          every leaf [K, ...]
    mass      Σ_i round(w_ik · 2²⁴)                [K]
    members   Σ_i [w_ik > 0]                       [K]
    report    Σ_i of the reports that are summed   [...]

Reports, and values that are sums over rows, can be large. They are two integers each: the whole
part, and the fraction times 2³².

A cluster with members, but fewer than `min_clients`, is hidden: the server learns how many they
are, and its sums are 0. Clients send these zeros themselves where masks are used.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.aggregation.clipping import weights_by_value
from coterie.aggregation.steps import UpdateChunk
from coterie.core.contract import Declaration, OneHot, Upload
from coterie.core.params import Params, as_column
from coterie.core.trees import tree_flatten, tree_leaves, tree_map, tree_unflatten

SCALE = 2.0**24
FRACTION = 2.0**32
RANGE = 2.0**62  # of the sum of all clients' integers, so that none is taken for a negative one
TOO_LARGE = "its upload contains numbers that are too large for secure sums"


class Integers(NamedTuple):
    """The sums over some clients as 64-bit integers."""

    values: dict[str, Params]  # every leaf [K, ...], or [2, K, ...] if wide
    mass: dict[str, Tensor]  # [K]
    members: dict[str, Tensor]  # [K]
    report: dict[str, Tensor]  # [2, ...]


class FixedPoint:
    """The last step under secure sums: uploads become integers.

    Args:
        template: One client's upload with the expected names, shapes and dtypes.
        declaration: Of the client function: which reports are summed.
        num_clients: The most clients whose uploads are added.
        min_clients: The fewest members of a cluster whose sums are revealed.
    """

    def __init__(
        self, template: Upload, declaration: Declaration, num_clients: int, min_clients: int
    ) -> None:
        self.template = template
        self.declaration = declaration
        self.num_clients = num_clients
        self.min_clients = min_clients
        self.summed = [
            name for name in template.report if declaration.report_of(name).secure == "summed"
        ]

    # -- on a client
    def client(self, chunk: UpdateChunk) -> UpdateChunk:
        """Reject uploads whose numbers do not fit."""
        limit = RANGE / max(self.num_clients, 1)
        is_large = torch.zeros(len(chunk.positions), dtype=torch.bool)
        scale = 1.0 if self.declaration.sums else SCALE
        for name, weight in weights_by_value(chunk.updates).items():
            heaviest = weight.abs().amax(1).cpu().double()
            is_large |= ~(heaviest * SCALE < limit)
            for leaf in chunk.updates.values[name].values():
                is_large |= ~(_largest(leaf) * heaviest * scale < limit)
        for name in self.summed:
            is_large |= ~(_largest(chunk.updates.report[name]) < limit)  # also if not finite
        return chunk.reject(dict.fromkeys(is_large.nonzero()[:, 0].tolist(), TOO_LARGE))

    def encode(self, updates: Upload) -> Integers:
        """The sums of these uploads, leaves [n, ...], as integers."""
        weights = weights_by_value(updates)
        values = {
            name: {k: self._weighted(weights[name], v) for k, v in value.items()}
            for name, value in updates.values.items()
        }
        return Integers(
            values=values,
            mass={name: _round(w.double() * SCALE).sum(0) for name, w in weights.items()},
            members={name: (w > 0).sum(0) for name, w in weights.items()},
            report={name: _split(updates.report[name].double()).sum(1) for name in self.summed},
        )

    def _weighted(self, weight: Tensor, v: Tensor) -> Tensor:
        """Σ_i w_ik · v_i, rounded for each client."""
        encode = _split if self.declaration.sums else _scale
        columns = weight.shape[1]
        if columns > 1 and isinstance(self.declaration.weight, OneHot):
            chosen = weight.argmax(1)
            heaviest = weight.gather(1, chosen[:, None])[:, 0].double()
            rows = encode(v.double() * as_column(heaviest, v))
            shape = (*rows.shape[: rows.dim() - v.dim()], columns, *v.shape[1:])
            return rows.new_zeros(shape).index_add_(rows.dim() - v.dim(), chosen, rows)
        of_clusters = [
            encode(v.double() * as_column(w.double(), v)).sum(-v.dim()) for w in weight.T
        ]
        return torch.stack(of_clusters, 1 if self.declaration.sums else 0)

    # -- on the server
    def hidden(self, members: dict[str, Tensor]) -> dict[str, Tensor]:
        """Which clusters have too few members to be revealed, bool [K], by value name."""
        return {name: (m > 0) & (m < self.min_clients) for name, m in members.items()}

    def hide(self, sums: Integers, hidden: dict[str, Tensor]) -> Integers:
        """The sums with zeros for hidden clusters."""

        def blank(name: str, v: Tensor, place: int = 0) -> Tensor:
            rows = hidden[name].nonzero()[:, 0].to(v.device)
            return v if not len(rows) else v.index_fill(place, rows, 0)

        place = int(self.declaration.sums)
        values = {
            name: {k: blank(name, v, place) for k, v in value.items()}
            for name, value in sums.values.items()
        }
        mass = {name: blank(name, v) for name, v in sums.mass.items()}
        return sums._replace(values=values, mass=mass)

    def decode(self, sums: Integers) -> tuple[dict[str, Params], dict[str, Tensor], Upload]:
        """(totals, mass, an upload with the summed reports as a single row)"""
        sums = self.hide(sums, self.hidden(sums.members))
        join = _join if self.declaration.sums else _unscale
        like = self.template
        totals = {
            name: {k: join(v).to(like.values[name][k].dtype) for k, v in value.items()}
            for name, value in sums.values.items()
        }
        weights = weights_by_value(like)
        mass = {name: _unscale(v).to(weights[name].dtype) for name, v in sums.mass.items()}
        report = {}
        for name, v in sums.report.items():
            number = _join(v)
            if not like.report[name].is_floating_point():
                number = number.round().long()
            report[name] = number[None].cpu()
        return totals, mass, Upload({}, {}, report)

    # -- as a vector, for masks
    def zeros(self) -> Integers:
        """The sums of no client."""
        return self.encode(tree_map(lambda v: v.new_zeros(0, *v.shape), self.template))

    def flatten(self, sums: Any) -> Tensor:
        """A pytree of integers as a vector."""
        leaves = [v.reshape(-1) for v in tree_leaves(sums)]
        return torch.cat(leaves) if leaves else torch.zeros(0, dtype=torch.long)

    def unflatten(self, vector: Tensor, like: Any) -> Any:
        """A vector as integers in the structure and shapes of `like`."""
        leaves, structure = tree_flatten(like)
        pieces = vector.split([math.prod(v.shape) for v in leaves])
        shaped = [piece.reshape(v.shape) for piece, v in zip(pieces, leaves)]
        return tree_unflatten(shaped, structure)


def _largest(v: Tensor) -> Tensor:
    """The largest absolute value of each client, float64 [n]."""
    if not v[:1].numel():
        return torch.zeros(len(v), dtype=torch.float64)
    return v[:, None].flatten(1).abs().amax(1).cpu().double()


def _round(v: Tensor) -> Tensor:
    return v.round().long()


def _scale(v: Tensor) -> Tensor:
    return _round(v * SCALE)


def _unscale(v: Tensor) -> Tensor:
    return v.double() / SCALE


def _split(v: Tensor) -> Tensor:
    """Whole part and fraction, int64 [2, ...]."""
    whole = v.floor()
    return torch.stack([whole.long(), _round((v - whole) * FRACTION)])


def _join(parts: Tensor) -> Tensor:
    whole, fraction = parts
    return whole.double() + fraction.double() / FRACTION
