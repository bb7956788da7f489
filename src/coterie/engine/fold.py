"""What clients' answers come to: screened, then summed or stacked.

A `Part` is what some clients' answers come to; parts merge. So an engine folds where its answers are (a thread, a
rank, the server), no upload outlives its chunk where sums are enough, and there is one place where uploads are judged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from coterie.contract import Upload
from coterie.params import Params


class Part(NamedTuple):
    """What some clients' answers come to."""

    totals: dict[str, Params]  # Σ weight·value, where sums are asked for
    mass: dict[str, Tensor]  # Σ weight
    positions: list[Tensor]  # who was accepted, by position in the call
    refused: list[tuple[int, str]]  # (position, why)

    @property
    def accepted(self) -> Tensor:
        return torch.cat(self.positions)


class Fold:
    """How the answers of one exchange are judged and folded.

    What is not summed is written to its row of a table that is made once: small results that outlive their chunk
    would pin the memory between the chunks' large ones.
    """

    def __init__(
        self,
        reduce: Literal["sum", "stack"],
        like: Upload,  # what one answer must look like, from a dry run
        asked: int,
        started_from: dict[str, Params]
        | None = None,  # what values are compared with, stacked per centre
        limits: dict[str, float] | None = None,  # by value name: the longest move accepted
    ) -> None:
        self.reduce, self.like, self.limits = reduce, like, limits or {}
        # a centre that is not finite must not make 0·NaN of those who did not choose it
        self.started_from = {
            n: {k: v.nan_to_num(0.0, 0.0, 0.0) for k, v in p.items()}
            for n, p in (started_from or {}).items()
        }
        table = lambda v: v.new_empty(asked, *v.shape)
        kept: Upload = tree_map(table, like if reduce == "stack" else like._replace(values={}))
        self.rows = kept._replace(
            report=tree_map(lambda v: v.cpu(), kept.report)
        )  # facts are for the server
        self.moved = {n: torch.zeros(asked) for n in like.values}  # how far each value moved

    def digest(self, at: Tensor, up: Upload) -> Part:
        """Judge and fold the answers `up` (leaves [len(at), ...]) of the clients at positions `at`."""
        if not fits(up, self.like):  # a wrong shape would be broadcast into the sum
            return self.nothing(
                [(int(i), "its upload has other names, shapes or types than asked for") for i in at]
            )
        moved = {n: self._moved(n, up).cpu() for n in up.values}
        finite = sound(up, moved, torch.ones(len(at), dtype=torch.bool))
        ok, refused = finite.clone(), []
        for n, limit in self.limits.items():
            ok &= ~(moved[n] > limit)
        if not bool(ok.all()):  # a refused answer must not even be multiplied by 0
            for i in (~ok).nonzero()[:, 0].tolist():
                refused.append(
                    (
                        int(at[i]),
                        "its upload is not finite" if not finite[i] else self._too_far(moved, i),
                    )
                )
            at, up, moved = tree_map(lambda v: v[ok.to(v.device)], (at, up, moved))
        kept = up if self.reduce == "stack" else up._replace(values={})
        write = lambda table, rows: table.index_copy_(
            0, at.to(table.device), rows.to(table.device, table.dtype)
        )
        tree_map(write, (self.rows, self.moved), (kept, moved))
        if self.reduce == "stack":
            return Part({}, {}, [at], refused)
        w = weights(up)
        totals = {n: {k: weighted_sum(w[n], v) for k, v in p.items()} for n, p in up.values.items()}
        return Part(totals, {n: w[n].sum(0) for n in totals}, [at], refused)

    def nothing(self, refused: list[tuple[int, str]] | None = None) -> Part:
        """What no answer at all comes to: zeros of the right shape, so that means keep what was there."""
        none = tree_map(lambda v: v.new_zeros(0, *v.shape), self.like)
        seat = torch.zeros(0, dtype=torch.long)
        return self.digest(seat, none)._replace(refused=refused or [])

    def all(self, parts: Iterable[Part]) -> Part:
        """The parts merged, in the order given."""
        found = functools.reduce(_merge, parts, None)
        return self.nothing() if found is None else found

    def _moved(self, name: str, up: Upload) -> Tensor:
        """[clients] ‖value − what was sent‖, the centres sent mixed as the upload's weight says; else ‖value‖."""
        centres, w = self.started_from.get(name), weights(up)[name]
        square: Tensor | float = 0.0
        for k, v in up.values[name].items():
            if centres is not None and len(centres[k]) == 1:
                v = v - centres[k]
            elif centres is not None:
                share = (w / w.sum(-1, keepdim=True)).to(v.dtype)
                v = torch.einsum("ik,k...->i...", share, centres[k]).sub_(v)
            square = square + torch.linalg.vector_norm(v.flatten(1), dim=1) ** 2
        return square.sqrt() if isinstance(square, Tensor) else w.new_zeros(len(w))

    def _too_far(self, moved: dict[str, Tensor], i: int) -> str:
        n = next(n for n, limit in self.limits.items() if moved[n][i] > limit)
        far = (
            f"moved by {float(moved[n][i]):.3g}"
            if n in self.started_from
            else f"is {float(moved[n][i]):.3g} long"
        )
        return f"its {n} {far}, more than the {self.limits[n]:.3g} allowed"


def _merge(a: Part | None, b: Part) -> Part:
    if a is None:
        return b
    add = lambda x, y: tree_map(torch.add, x, y)
    return Part(
        add(a.totals, b.totals),
        add(a.mass, b.mass),
        a.positions + b.positions,
        a.refused + b.refused,
    )


def weights(up: Upload) -> dict[str, Tensor]:
    return up.weight if isinstance(up.weight, dict) else dict.fromkeys(up.values, up.weight)


def weighted_sum(w: Tensor, v: Tensor) -> Tensor:
    """Σ_i w_ik · v_i: [K, ...]"""
    return torch.einsum("ik,i...->k...", w.to(v.dtype), v)


def fits(up: Any, like: Any) -> bool:
    """Same structure and names, and leaves [clients, ...] of the same shapes and types."""
    (a, s), (b, t) = tree_flatten(up), tree_flatten(like)
    return s == t and all(v.shape[1:] == m.shape and v.dtype == m.dtype for v, m in zip(a, b))


def sound(up: Upload, moved: dict[str, Tensor], ok: Tensor) -> Tensor:
    """[clients] `ok`, and values and weights finite, no fact NaN (a loss may be infinite).

    One pass: how far a value moved is finite only if every number in it is.
    """
    for v in (*moved.values(), *tree_leaves(up.weight)):
        ok = ok & v[:, None].flatten(1).isfinite().all(1).cpu()
    for v in tree_leaves(up.report):
        ok = ok & ~v[:, None].flatten(1).isnan().any(1).cpu()
    return ok
