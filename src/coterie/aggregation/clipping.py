"""Update norms, and clipping of updates whose norm is too large.

The norm of an update is ‖value − start‖: how far the uploaded values are from the model that the
client started from.

Let c be the clipping factor, and the typical norm the largest third quartile of update norms in any
exchange of the same kind so far, where one exchange raises it at most c times (see
`aggregation/norm_screening.py`). An update with a norm above c times the typical norm is rescaled
to the typical norm, so it counts as much as any other client's. It is not rejected because it may
be honest: in some data one client is far from the others. Above c² times the typical norm it is
rejected, because no training that converges produces it.

The typical norm never decreases. Updates shrink during training, in some clusters earlier than in
others; relative to the last round alone, the clients that still learn would be outliers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.aggregation.steps import UpdateChunk
from coterie.core.contract import Upload
from coterie.core.params import Params, as_column
from coterie.optim.low_rank import LowRankUpdate

MIN_NORMS = 3  # needed for a typical norm: of two updates, one may be hostile
NUMBERS_AT_ONCE = 100_000  # 4 or 8 bytes each: they stay in a core's cache of about 1 MB


class NormLimit(NamedTuple):
    """The norm limit of one value."""

    typical: float
    factor: float

    @property
    def clip_above(self) -> float:
        """Updates with a larger norm are clipped."""
        return self.factor * self.typical

    @property
    def reject_above(self) -> float:
        """Updates with a larger norm are rejected."""
        return self.factor * self.clip_above


class Clipping:
    """The step that rejects and clips updates by their norms.

    Args:
        started_from: The stacked models that the server sent, per value name. Without an entry the
            update of a value is the value itself.
        limits: Norm limits per value name.
    """

    def __init__(
        self,
        started_from: dict[str, Params] | None = None,
        limits: dict[str, NormLimit] | None = None,
    ) -> None:
        # a centre with NaN must not reach the clients that did not choose it: 0 · NaN is NaN
        self.started_from = {
            name: {k: v.nan_to_num(0.0, 0.0, 0.0) for k, v in centres.items()}
            for name, centres in (started_from or {}).items()
        }
        self.limits = limits or {}

    def client(self, chunk: UpdateChunk) -> UpdateChunk:
        """Reject updates far above their limit, and clip those above it."""
        chunk = chunk.reject(self.find_outliers(chunk.norms))
        updates, rows = self.clip(chunk.updates, chunk.norms)
        clipped = tuple(int(chunk.positions[i]) for i in sorted(rows))
        return chunk._replace(updates=updates, clipped=chunk.clipped + clipped)

    def update_norms(self, updates: Upload) -> dict[str, Tensor]:
        """‖value − start‖ per value name, [n]; ‖value‖ where the start is not known."""
        norms = {}
        weights = weights_by_value(updates)
        for name, value in updates.values.items():
            squares = torch.zeros(len(weights[name]))
            for k, v in value.items():
                squares = squares + self._leaf_norms(name, k, v, weights[name]).cpu() ** 2
            norms[name] = squares.sqrt()
        return norms

    def find_outliers(self, norms: dict[str, Tensor]) -> dict[int, str]:
        """The updates to reject: the reason by row."""
        reasons = {}
        for name, limit in self.limits.items():
            for row in (norms[name] > limit.reject_above).nonzero()[:, 0].tolist():
                times = float(norms[name][row]) / limit.typical
                what = "update norm" if name in self.started_from else "norm"
                reasons[row] = f"the {what} of its {name} is {times:.3g} times the typical norm"
        return reasons

    def clip(self, updates: Upload, norms: dict[str, Tensor]) -> tuple[Upload, set[int]]:
        """Rescale updates above their limit to the typical norm.

        Returns:
            The updates, and the rows that were clipped.
        """
        clipped: set[int] = set()
        for name, limit in self.limits.items():
            rows = (norms[name] > limit.clip_above).nonzero()[:, 0]
            if not len(rows):
                continue
            factor = limit.typical / norms[name][rows]
            weight = weights_by_value(updates)[name][rows]
            value = {
                k: self._rescale(name, k, v, weight, rows, factor)
                for k, v in updates.values[name].items()
            }
            updates = updates._replace(values={**updates.values, name: value})
            clipped |= set(rows.tolist())
        return updates, clipped

    def starting_points(self, name: str, value: Params, weight: Tensor) -> Params:
        """The model that each client started from; zeros where it is not known."""
        starts = {}
        for k, v in value.items():
            start = self._start(name, k, weight)
            starts[k] = torch.zeros_like(v) if start is None else start
        return starts

    def _leaf_norms(
        self, name: str, leaf: str, v: Tensor | LowRankUpdate, weight: Tensor
    ) -> Tensor:
        """[n] update norms of one leaf, a few clients at a time so that they stay in the cache."""
        if isinstance(v, LowRankUpdate):
            return v.squared_norm.clamp(min=0).sqrt()
        if name not in self.started_from:
            return torch.linalg.vector_norm(v.flatten(1), dim=1)
        at_once = max(1, NUMBERS_AT_ONCE // max(v[:1].numel(), 1))
        norms = []
        for some, their_weight in zip(v.split(at_once), weight.split(at_once)):
            update = some - self._start(name, leaf, their_weight)
            norms.append(torch.linalg.vector_norm(update.flatten(1), dim=1))
        return torch.cat(norms)

    def _rescale(
        self,
        name: str,
        leaf: str,
        v: Tensor | LowRankUpdate,
        weight: Tensor,
        rows: Tensor,
        factor: Tensor,
    ) -> Any:
        """Multiply the updates in these rows of a leaf by a factor; weight: of these rows."""
        if isinstance(v, LowRankUpdate):
            return v.rescale(rows.to(v.coefficients.device), factor)
        rows = rows.to(v.device)
        start = self._start(name, leaf, weight)
        if start is None:
            start = torch.zeros_like(v[rows])
        clipped = start + (v[rows] - start) * as_column(factor.to(v), v)
        return v.index_copy(0, rows, clipped)

    def _start(self, name: str, leaf: str, weight: Tensor) -> Tensor | None:
        """What each client started from, [n or 1, ...]; None if that is not known.

        With several centres it is their mean under the upload's weights.
        """
        centres = self.started_from.get(name)
        if centres is None:
            return None
        stacked = centres[leaf]
        if len(stacked) == 1:
            return stacked
        if len(weight) == 1 and is_one_hot(weight):
            return stacked[int(weight.argmax())][None]  # a view
        share = (weight / weight.sum(-1, keepdim=True)).to(stacked.dtype)
        return torch.einsum("ik,k...->i...", share, stacked)


def third_quartile(norms: Tensor) -> float:
    """The third quartile, rounded down to one of the norms.

    Up to a quarter of the clients cannot raise it. The median would tolerate more of them, but it
    is almost 0 if half of the honest clients start at their optimum.
    """
    place = 3 * (len(norms) - 1) // 4
    return float(norms.kthvalue(place + 1).values)


def is_one_hot(weight: Tensor) -> bool:
    """Whether every row of weight [n, K] has a single 1 and otherwise zeros."""
    zeros = (weight == 0).sum(1)
    return bool((zeros == weight.shape[1] - 1).all()) and bool((weight.sum(1) == 1).all())


def weights_by_value(updates: Upload) -> dict[str, Tensor]:
    """The weight [n, K] of each value, by name."""
    if isinstance(updates.weight, dict):
        return updates.weight
    return dict.fromkeys(updates.values, updates.weight)
