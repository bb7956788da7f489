"""What clients' answers come to: checked, screened, then summed or stacked.

A `Part` is what some clients' answers come to; parts merge. So an engine folds where its answers
are (a thread, a rank, the server), no upload outlives its chunk where sums are enough, and uploads
are judged in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from coterie.aggregation.checks import Checks
from coterie.aggregation.clipping import Screening, is_one_hot, weights
from coterie.aggregation.rules import robust_means
from coterie.aggregation.tables import empty_table
from coterie.core.contract import Upload
from coterie.core.params import Params, as_column, nbytes
from coterie.data.shards import halved
from coterie.optim.row_move import RowMove, sum_of_moves

NOT_FITTING = "its upload has other names, shapes or types than asked for"
NOT_FINITE = "its upload is not finite"


class Part(NamedTuple):
    """What some clients' answers come to. Clients are named by their position in the call.

    It says all there is to say, so it can be sent from another process and absorbed
    (`Fold.absorb`). Between the chunks of one process `rows` and `moved` are None: they stand in
    the fold's tables.
    """

    totals: dict[str, Params]  # Σ weight·value, where sums are asked for
    mass: dict[str, Tensor]  # Σ weight
    accepted: Tensor  # int64 [a]
    refused: list[tuple[int, str]]  # (position, reason)
    absent: list[int]  # positions of those who gave no answer in time
    screened: list[int]  # positions of accepted ones that moved too far and were shortened
    rows: Upload | None  # leaves [a, ...] in the order of `accepted`; values only where stacked
    moved: dict[str, Tensor] | None  # [a] how far each value moved
    bytes_up: int  # that really came
    welcomed: int  # clients that were sent the initial payload, on their first message

    def at(self, positions: Tensor) -> Part:
        """The same part, of clients that stand at these positions of a larger call."""
        return self._replace(
            accepted=positions[self.accepted],
            refused=[(int(positions[i]), reason) for i, reason in self.refused],
            absent=positions[self.absent].tolist(),
            screened=positions[self.screened].tolist(),
        )


class Robust(NamedTuple):
    """How means are made: a rule of aggregation/rules.py."""

    rule: str
    share: float  # of a centre's clients that may be hostile


PLAIN = Robust("mean", 0.0)


class Fold:
    """How the answers of one exchange are judged and folded.

    What is not summed is written to its row of a table that is made once: small results that
    outlive their chunk would pin the memory between the chunks' large ones.
    """

    def __init__(
        self,
        reduce: Literal["sum", "stack"],
        like: Upload,  # what one answer must look like, from a dry run
        asked: int,
        checks: Checks | None = None,
        screening: Screening | None = None,
        robust: Robust = PLAIN,  # how the means are made, where sums are asked for
    ) -> None:
        self.reduce = reduce
        self.robust = robust
        self.holds_values = reduce == "stack" or robust.rule != "mean"
        self.like = like
        self.asked = asked
        self.checks = checks
        self.screening = screening or Screening()
        kept = like if self.holds_values else like._replace(values={})
        tables: Upload = tree_map(lambda v: empty_table(asked, v), kept)
        report = tree_map(lambda v: v.cpu(), tables.report)  # reports are read by the server
        self.tables = tables._replace(report=report)
        self.moved = {n: torch.zeros(asked) for n in like.values}
        self.answer_bytes = nbytes(like)

    @property
    def takes_row_moves(self) -> bool:
        """Whether a first layer may come as a `RowMove`: it is only added up, and W₀ is known."""
        return not self.holds_values and set(self.like.values) <= set(self.screening.started_from)

    # -- judging
    def digest(self, at: Tensor, up: Upload) -> Part:
        """Judge and fold the answers `up` (leaves [len(at), ...]) of the clients at `at`."""
        if not fits(up, self.like):  # a wrong shape would be broadcast into the sum
            return self.refuse([(int(i), NOT_FITTING) for i in at], nbytes(up))
        bytes_up = self.answer_bytes * len(at)
        moved = self.screening.distances(up)
        reasons = self._faults(at, up, moved)
        if reasons:
            accepted = torch.ones(len(at), dtype=torch.bool)
            accepted[list(reasons)] = False
            refused = [(int(at[i]), reason) for i, reason in sorted(reasons.items())]
            # a refused answer must not even be multiplied by 0
            at, up, moved = tree_map(lambda v: v[accepted.to(v.device)], (at, up, moved))
        else:
            refused = []
        up, screened = self.screening.shorten(up, moved)
        self._write(at, up, moved)
        totals, mass = self._sums(up)
        part = self._part(totals, mass, at, refused=refused, bytes_up=bytes_up)
        return part._replace(screened=[int(at[i]) for i in sorted(screened)])

    def digest_held(self, held: Part, positions: Tensor) -> Part:
        """Judge and fold stacked answers that were held until the limits were known."""
        assert held.rows is not None
        rows = held.rows
        held = held.at(positions)
        part = self.digest(held.accepted, rows)
        return part._replace(
            refused=held.refused + part.refused,
            absent=held.absent,
            bytes_up=held.bytes_up,
            welcomed=held.welcomed,
        )

    def refuse(self, refused: list[tuple[int, str]], bytes_up: int = 0) -> Part:
        """What answers come to that are refused unread."""
        totals, mass = self._no_sums()
        none = torch.zeros(0, dtype=torch.long)
        return self._part(totals, mass, none, refused=refused, bytes_up=bytes_up)

    def missing(self, absent: list[int]) -> Part:
        """What no answer at all comes to: zeros, so that means keep what was there."""
        return self.refuse([])._replace(absent=absent)

    # -- merging
    def merge(self, parts: Iterable[Part]) -> Part:
        """Some chunks of one process as one, in the order given; rows stay in the tables."""
        merged: Part | None = None
        for part in parts:
            merged = part if merged is None else _plus(merged, part)
        return self.missing([]) if merged is None else merged

    def merge_shares(self, parts: Sequence[Part]) -> Part:
        """The parts of all shares as one; halves are added, as ranks add their sums."""
        return halved(parts, _plus)

    def complete(self, part: Part) -> Part:
        """The part with its rows, taken from the tables in the order of positions."""
        order = part.accepted.sort().values
        tables = self.tables
        if self.reduce == "sum" and self.holds_values:
            totals, mass = self._robust_sums(order)
            part = part._replace(totals=totals, mass=mass)
            tables = tables._replace(values={})
        if len(order) == self.asked:
            return part._replace(accepted=order, rows=tables, moved=self.moved)
        rows = tree_map(lambda v: v[order.to(v.device)], tables)
        moved = {n: v[order] for n, v in self.moved.items()}
        return part._replace(accepted=order, rows=rows, moved=moved)

    def absorb(self, part: Part) -> Part:
        """Take in a complete part from elsewhere: its rows are written to the tables."""
        assert part.rows is not None and part.moved is not None
        self._copy(part.accepted, part.rows, part.moved)
        return part._replace(rows=None, moved=None)

    # -- parts of the above
    def _part(
        self,
        totals: dict[str, Params],
        mass: dict[str, Tensor],
        accepted: Tensor,
        refused: list[tuple[int, str]],
        bytes_up: int,
    ) -> Part:
        return Part(
            totals=totals,
            mass=mass,
            accepted=accepted,
            refused=refused,
            absent=[],
            screened=[],
            rows=None,
            moved=None,
            bytes_up=bytes_up,
            welcomed=0,
        )

    def _sums(self, up: Upload) -> tuple[dict[str, Params], dict[str, Tensor]]:
        if self.holds_values:
            return {}, {}
        w = weights(up)
        totals: dict[str, Params] = {}
        for n, value in up.values.items():
            totals[n] = {k: self._sum(n, k, w[n], v) for k, v in value.items()}
        return totals, {n: w[n].sum(0) for n in totals}

    def _sum(self, name: str, leaf: str, w: Tensor, v: Tensor | RowMove) -> Tensor:
        if isinstance(v, RowMove):
            return sum_of_moves(w, v, self.screening.started_from[name][leaf])
        return weighted_sum(w, v)

    def _robust_sums(self, accepted: Tensor) -> tuple[dict[str, Params], dict[str, Tensor]]:
        """Σ weight·value as it would be if every client had sent the robust mean."""
        totals, mass = {}, {}
        for n, w in weights(self.tables).items():
            counted = torch.zeros_like(w).index_copy(0, accepted, w[accepted])
            mass[n] = counted.sum(0)
            means = robust_means(
                self.robust.rule, self.tables.values[n], counted, self.robust.share
            )
            totals[n] = {k: v * as_column(mass[n].to(v), v) for k, v in means.items()}
        return totals, mass

    def _no_sums(self) -> tuple[dict[str, Params], dict[str, Tensor]]:
        nobody = tree_map(lambda v: v.new_zeros(0, *v.shape), self.like)
        return self._sums(nobody)

    def _write(self, at: Tensor, up: Upload, moved: dict[str, Tensor]) -> None:
        kept = up if self.holds_values else up._replace(values={})
        self._copy(at, kept, moved)

    def _copy(self, at: Tensor, rows: Upload, moved: dict[str, Tensor]) -> None:
        tables = tree_leaves((self.tables, self.moved))
        for table, values in zip(tables, tree_leaves((rows, moved)), strict=True):
            table.index_copy_(0, at.to(table.device), values.to(table.device, table.dtype))

    def _faults(self, at: Tensor, up: Upload, moved: dict[str, Tensor]) -> dict[int, str]:
        """By row of `up`: why it is refused."""
        reasons: dict[int, str] = {}
        finite = is_finite(up, moved, len(at))
        if not bool(finite.all()):
            reasons = dict.fromkeys((~finite).nonzero()[:, 0].tolist(), NOT_FINITE)
        reasons = self.screening.too_far(moved) | reasons
        if self.checks is None:
            return reasons
        for at_fault, reason in self.checks.faults(at, up):
            if bool(at_fault.any()):
                rows = at_fault.nonzero()[:, 0].tolist()
                reasons = dict.fromkeys(rows, reason) | reasons
        return reasons


def _plus(a: Part, b: Part) -> Part:
    return Part(
        totals=tree_map(torch.add, a.totals, b.totals),
        mass=tree_map(torch.add, a.mass, b.mass),
        accepted=torch.cat([a.accepted, b.accepted]),
        refused=a.refused + b.refused,
        absent=a.absent + b.absent,
        screened=a.screened + b.screened,
        rows=None,
        moved=None,
        bytes_up=a.bytes_up + b.bytes_up,
        welcomed=a.welcomed + b.welcomed,
    )


def weighted_sum(w: Tensor, v: Tensor) -> Tensor:
    """Σ_i w_ik · v_i: [K, ...]"""
    if w.shape[1] > 1 and is_one_hot(w):  # adding each to its own sum takes a third of the time
        chosen = w.argmax(1).to(v.device)
        return v.new_zeros(w.shape[1], *v.shape[1:]).index_add_(0, chosen, v)
    return torch.einsum("ik,i...->k...", w.to(v.dtype), v)


def fits(up: Any, like: Any) -> bool:
    """Whether `up` is built as `like`, with leaves [clients, ...] of its shapes and types."""
    leaves, structure = tree_flatten(up, is_leaf=lambda v: isinstance(v, RowMove))
    like_leaves, like_structure = tree_flatten(like)
    return structure == like_structure and all(map(_leaf_fits, leaves, like_leaves))


def _leaf_fits(v: Tensor | RowMove, like: Tensor) -> bool:
    if isinstance(v, RowMove):
        return v.fits(like)
    return v.shape[1:] == like.shape and v.dtype == like.dtype


def is_finite(up: Upload, moved: dict[str, Tensor], clients: int) -> Tensor:
    """bool [clients]: whether values and weights are finite and no report is NaN.

    A reported loss may be infinite. How far a value moved is finite only if every number in it
    is, so one pass is enough.
    """
    ok = torch.ones(clients, dtype=torch.bool)
    for v in (*moved.values(), *tree_leaves(up.weight)):
        ok &= v[:, None].flatten(1).isfinite().all(1).cpu()
    for v in tree_leaves(up.report):
        ok &= ~v[:, None].flatten(1).isnan().any(1).cpu()
    return ok
