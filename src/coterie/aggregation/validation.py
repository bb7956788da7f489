"""Validation of uploads: structure, finite numbers, and what the client function declares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from coterie.aggregation.steps import UpdateChunk
from coterie.core.call import Call
from coterie.core.contract import Declaration, Rows, Upload, UploadContext
from coterie.core.params import count
from coterie.core.trees import tree_flatten, tree_leaves
from coterie.data.roster import Roster
from coterie.optim.low_rank import LowRankUpdate

NOT_FINITE = "its update contains NaN or infinity"


class Validation:
    """The step that rejects updates that are not finite or violate their declaration.

    Args:
        checks: What the client function declares about its uploads; None: not checked.
    """

    def __init__(self, checks: DeclarationChecks | None) -> None:
        self.checks = checks

    def client(self, chunk: UpdateChunk) -> UpdateChunk:
        """Reject updates; the first check that fails gives the reason."""
        finite = finite_updates(chunk.updates, chunk.norms, len(chunk.positions))
        chunk = chunk.reject(dict.fromkeys((~finite).nonzero()[:, 0].tolist(), NOT_FINITE))
        if self.checks is None:
            return chunk
        reasons: dict[int, str] = {}
        for is_invalid, reason in self.checks.find_violations(chunk.positions, chunk.updates):
            reasons = dict.fromkeys(is_invalid.nonzero()[:, 0].tolist(), reason) | reasons
        return chunk.reject(reasons)


def matches_template(updates: Any, template: Any) -> bool:
    """Whether `updates` has the structure of `template` with leaves [n, ...] of its shapes."""
    leaves, structure = tree_flatten(updates, is_leaf=lambda v: isinstance(v, LowRankUpdate))
    expected, expected_structure = tree_flatten(template)
    return structure == expected_structure and all(map(_leaf_matches, leaves, expected))


def _leaf_matches(v: Tensor | LowRankUpdate, expected: Tensor) -> bool:
    if isinstance(v, LowRankUpdate):
        return v.matches(expected)
    return v.shape[1:] == expected.shape and v.dtype == expected.dtype


def finite_updates(updates: Upload, norms: dict[str, Tensor], num_clients: int) -> Tensor:
    """Find updates with finite values and weights and without NaN in a report.

    A reported loss may be infinite. A norm is finite only if every number of its value is, so the
    values themselves need no second pass.

    Returns:
        bool [n].
    """
    ok = torch.ones(num_clients, dtype=torch.bool)
    for v in (*norms.values(), *tree_leaves(updates.weight)):
        ok &= v[:, None].flatten(1).isfinite().all(1).cpu()
    for v in tree_leaves(updates.report):
        ok &= ~v[:, None].flatten(1).isnan().any(1).cpu()
    return ok


class DeclarationChecks:
    """Checks uploads against the declaration of the call's client function."""

    def __init__(self, call: Call, roster: Roster) -> None:
        self.call = call
        self.declaration: Declaration = call.fn.declaration  # type: ignore[attr-defined]
        part = call.split or "train"
        self.row_counts = getattr(roster.rows, part)[call.ids].double()
        self.centres = count_centres(call.shared)
        self.targets_per_row = math.prod(roster.target_shape)

    def find_violations(self, positions: Tensor, updates: Upload) -> Iterator[tuple[Tensor, str]]:
        """Yield (bool [n], reason) for each weight and report: which clients violate it."""
        context = UploadContext(
            rows=self.row_counts[positions],
            centres=self.centres,
            sent=lambda place: _sent_values(self.call.per_client, place, positions),
            method=self.call.fn.__self__,  # type: ignore[attr-defined]
            targets_per_row=self.targets_per_row,
        )
        weights = updates.weight.values() if isinstance(updates.weight, dict) else [updates.weight]
        for weight in weights:
            is_valid = self.declaration.weight.is_valid(weight.cpu(), context)
            yield ~is_valid, f"its weight is not {self.declaration.weight.description}"
        for name, values in updates.report.items():
            kind = self.declaration.report_of(name)
            reason = f"its report {name!r} cannot be {kind.description}"
            yield ~kind.is_valid(values.cpu(), context), reason


def count_centres(shared: Any) -> int:
    """The number of stacked models in `shared` or in its first element; 0 without a stack."""
    if isinstance(shared, tuple):
        return count_centres(shared[0]) if shared else 0
    if not isinstance(shared, dict) or not shared:
        return 0
    is_stack = all(isinstance(v, Tensor) and v.dim() for v in shared.values())
    return count(shared) if is_stack else 0


def _sent_values(per_client: Any, place: int, positions: Tensor) -> Tensor:
    """What the server sent to these clients as element `place` of `per_client`."""
    if isinstance(per_client, Rows):
        rows: Tensor = per_client.table[place][per_client.index[positions]]
        return rows.cpu()
    sent: Tensor = per_client[place][positions]
    return sent.cpu()
