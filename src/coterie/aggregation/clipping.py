"""How far uploads moved, and what becomes of those that moved too far.

A value that moved over `screen` times as far as is usual counts as a move of the usual length in
the same direction: as much as any other client's. It is not refused, for it may be honest: in some
data one client is far from the others. One that moved over `screen`² times as far is refused: no
training that works gives it.

What is usual is the largest third quartile of any exchange of the same kind so far. Moves get
shorter as training goes on, in one group of clients sooner than in another; measured by the last
round alone, those who still learn would stand out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.contract import Upload
from coterie.core.params import Params, as_column
from coterie.optim.row_move import RowMove

NUMBERS_AT_ONCE = 100_000  # a number is 4 or 8 bytes, and a core's cache about a million


class Limit(NamedTuple):
    """How far a value may move."""

    usual: float
    screen: float  # how many times farther it may go

    @property
    def most(self) -> float:
        """The longest move that counts as it is."""
        return self.screen * self.usual

    @property
    def refused(self) -> float:
        """The longest move that counts at all."""
        return self.screen * self.most


class Screening:
    """The screening of one exchange."""

    def __init__(
        self,
        started_from: dict[str, Params] | None = None,  # by value name: the stacked centres
        limits: dict[str, Limit] | None = None,  # by value name
    ) -> None:
        self.started_from = {n: _finite(p) for n, p in (started_from or {}).items()}
        self.limits = limits or {}

    def distances(self, up: Upload) -> dict[str, Tensor]:
        """By value name: [clients] ‖value − what was sent‖, else ‖value‖."""
        return {name: self._distance(name, up) for name in up.values}

    def too_far(self, moved: dict[str, Tensor]) -> dict[int, str]:
        """By row: why it is refused."""
        reasons = {}
        for name, limit in self.limits.items():
            for row in (moved[name] > limit.refused).nonzero()[:, 0].tolist():
                times = float(moved[name][row]) / limit.usual
                if name in self.started_from:
                    reasons[row] = f"its {name} moved {times:.3g} times as far as is usual"
                else:
                    reasons[row] = f"its {name} is {times:.3g} times as long as is usual"
        return reasons

    def shorten(self, up: Upload, moved: dict[str, Tensor]) -> tuple[Upload, set[int]]:
        """(the uploads, none of which moves too far; the rows that were shortened)"""
        rows: set[int] = set()
        for name, limit in self.limits.items():
            too_far = (moved[name] > limit.most).nonzero()[:, 0]
            if not len(too_far):
                continue
            factor = limit.usual / moved[name][too_far]
            values = {**up.values, name: self._shortened(name, up, too_far, factor)}
            up = up._replace(values=values)
            rows |= set(too_far.tolist())
        return up, rows

    def starts(self, name: str, value: Params, w: Tensor) -> Params:
        """What each client started from, by leaf; 0 if that is not known."""
        starts = {}
        for k, v in value.items():
            start = self._start(name, k, w)
            starts[k] = torch.zeros_like(v) if start is None else start
        return starts

    def _distance(self, name: str, up: Upload) -> Tensor:
        w = weights(up)[name]
        squares = torch.zeros(len(w))
        for k, v in up.values[name].items():
            squares = squares + self._lengths(name, k, v, w).cpu() ** 2
        return squares.sqrt()

    def _lengths(self, name: str, leaf: str, v: Tensor | RowMove, w: Tensor) -> Tensor:
        """[clients] ‖v − what was sent‖; ‖v‖ if that is not known.

        Some clients at a time, so that the differences stay in the cache.
        """
        if isinstance(v, RowMove):
            return v.square.clamp(min=0).sqrt()
        if name not in self.started_from:
            return torch.linalg.vector_norm(v.flatten(1), dim=1)
        at_once = max(1, NUMBERS_AT_ONCE // max(v[:1].numel(), 1))
        lengths = []
        for some, their_w in zip(v.split(at_once), w.split(at_once)):
            move = some - self._start(name, leaf, their_w)
            lengths.append(torch.linalg.vector_norm(move.flatten(1), dim=1))
        return torch.cat(lengths)

    def _shortened(self, name: str, up: Upload, rows: Tensor, factor: Tensor) -> Params:
        w = weights(up)[name][rows]
        return {k: self._short(name, k, v, w, rows, factor) for k, v in up.values[name].items()}

    def _short(
        self, name: str, leaf: str, v: Tensor | RowMove, w: Tensor, rows: Tensor, factor: Tensor
    ) -> Any:
        """One leaf, where the moves of some rows are multiplied by a factor; w: of these rows."""
        if isinstance(v, RowMove):
            return v.shortened(rows.to(v.sums.device), factor)
        rows = rows.to(v.device)
        start = self._start(name, leaf, w)
        if start is None:
            start = torch.zeros_like(v[rows])
        short = start + (v[rows] - start) * as_column(factor.to(v), v)
        return v.index_copy(0, rows, short)

    def _start(self, name: str, leaf: str, w: Tensor) -> Tensor | None:
        """What each client started from, [clients or 1, ...]; None if that is not known.

        Of several centres it is the mix of them that the upload's weight names.
        """
        centres = self.started_from.get(name)
        if centres is None:
            return None
        stacked = centres[leaf]
        if len(stacked) == 1:
            return stacked
        if len(w) == 1 and is_one_hot(w):
            return stacked[int(w.argmax())][None]  # nothing is copied
        share = (w / w.sum(-1, keepdim=True)).to(stacked.dtype)
        return torch.einsum("ik,k...->i...", share, stacked)


def is_one_hot(w: Tensor) -> bool:
    """Whether each row of w [clients, K] is 1 in one place and 0 in all others."""
    return bool(((w == 0).sum(1) == w.shape[1] - 1).all()) and bool((w.sum(1) == 1).all())


def weights(up: Upload) -> dict[str, Tensor]:
    """The weight of each value, by name."""
    if isinstance(up.weight, dict):
        return up.weight
    return dict.fromkeys(up.values, up.weight)


def _finite(centres: Params) -> Params:
    """The centres without NaN: 0·NaN must not reach those who did not choose such a centre."""
    return {k: v.nan_to_num(0.0, 0.0, 0.0) for k, v in centres.items()}
