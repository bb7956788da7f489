"""What a client function may send, declared beside it and checked by the server.

    @client(weight=OneHot(rows="weighted"), report={"cluster": Index(), "losses": Losses()})
    def train(self, task, centres, per_client, private, data): ...

The server believes no client. It knows how many rows each has, how many centres it sent, and what
it sent to each client alone. A declaration says which weights and reports are possible, given
these; any other upload is refused, whatever the engine. The same declarations tell a site when a
function may be asked for at all, and make the documents' table of what leaves a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

SLACK = 1e-3  # relative, for rounding in float32


class UploadContext(NamedTuple):
    """What the server knows of the clients that answered."""

    rows: Tensor  # float64 [n] how many rows each has, in the part that it was asked about
    centres: int  # how many centres were sent to all; 0: none
    sent: Callable[[int], Tensor]  # by place in `per_client`: what was sent to each alone [n, ...]
    method: Any  # the object whose function was asked for


# ------------------------------------------------------------------------------ weights
@dataclass(frozen=True, kw_only=True)
class Weight:
    """How much a client counts, [K]: 1 in all, shared among the centres.

    rows: whether that is multiplied by its number of rows; or the setting that says so.
    """

    rows: bool | str = False

    @property
    def description(self) -> str:
        """What is sent, in a few description."""
        return self._times_rows("1")

    def is_valid(self, weight: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose weight [n, K] is possible."""
        total = weight.double().sum(1)
        return (weight >= 0).all(1) & close(total, self._unit(context))

    def _unit(self, context: UploadContext) -> Tensor:
        by_rows = self.rows
        if isinstance(by_rows, str):
            by_rows = bool(getattr(context.method, by_rows))
        return context.rows if by_rows else torch.ones_like(context.rows)

    def _times_rows(self, unit: str) -> str:
        if isinstance(self.rows, str):
            return f"{unit}, times its number of rows if `{self.rows}`"
        if self.rows:
            return f"{unit}, times its number of rows"
        return unit


@dataclass(frozen=True, kw_only=True)
class OneHot(Weight):
    """All of it for one centre."""

    @property
    def description(self) -> str:
        """What is sent, in a few description."""
        return self._times_rows("the centre that it chose")

    def is_valid(self, weight: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose weight [n, K] is possible."""
        return super().is_valid(weight, context) & ((weight != 0).sum(1) == 1)


@dataclass(frozen=True, kw_only=True)
class SentWeight(Weight):
    """The weight that the server sent to the client, at this place of `per_client`."""

    place: int

    @property
    def description(self) -> str:
        """What is sent, in a few description."""
        return self._times_rows("the weight that it was sent")

    def is_valid(self, weight: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose weight [n, K] is possible."""
        expected = context.sent(self.place).double() * self._unit(context)[:, None]
        if weight.shape[1] == 1:  # of what all centres share
            expected = expected.sum(1, keepdim=True)
        return close(weight.double(), expected).all(1)


@dataclass(frozen=True, kw_only=True)
class AnyWeight(Weight):
    """Where nothing is declared: in all at most the client's number of rows, or 1."""

    @property
    def description(self) -> str:
        """What is sent, in a few description."""
        return "at most its number of rows"

    def is_valid(self, weight: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose weight [n, K] is possible."""
        most = context.rows.clamp(min=1) * (1 + SLACK)
        return (weight >= 0).all(1) & (weight.double().sum(1) <= most)


# ------------------------------------------------------------------------------ reports
@dataclass(frozen=True)
class Report:
    """A small result for the server: any numbers but NaN. The kinds below say more."""

    description: str = "numbers"

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose report [n, ...] is possible."""
        return ~flat(v).isnan().any(1)


@dataclass(frozen=True)
class Finite(Report):
    """Finite numbers of at least `minimum`."""

    minimum: float = -torch.inf

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose report [n, ...] is possible."""
        v = flat(v)
        return (v.isfinite() & (v >= self.minimum)).all(1)


@dataclass(frozen=True)
class Losses(Report):
    """Losses, 0 or more; infinite for a model that diverged."""

    description: str = "its loss under each centre"

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose report [n, ...] is possible."""
        return (flat(v) >= 0).all(1)  # false for NaN


@dataclass(frozen=True)
class Index(Report):
    """A centre among those that were sent to all, 0 to K − 1."""

    description: str = "which centre fits it best"

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose report [n, ...] is possible."""
        v = flat(v)
        return ((v >= 0) & (v < context.centres)).all(1)


@dataclass(frozen=True)
class MixtureShares(Report):
    """Mixture weights of the centres, each from 0 to 1, in all 1.

    floor: the name of the setting that raises each share to a least value; they are not divided by
        their sum again, so that it may be this much larger for each centre.
    """

    description: str = "its share of each centre"
    floor: str | None = None

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose report [n, K] is possible."""
        excess = 0.0
        if self.floor is not None:
            excess = float(getattr(context.method, self.floor)) * v.shape[1]
        total = v.double().sum(1)
        within = (v >= 0).all(1) & (v <= 1 + SLACK).all(1)
        return within & (total >= 1 - SLACK) & (total <= 1 + excess + SLACK)


@dataclass(frozen=True)
class Fraction(Report):
    """Numbers from 0 to 1."""

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose report [n, ...] is possible."""
        v = flat(v)
        return ((v >= 0) & (v <= 1)).all(1)


@dataclass(frozen=True)
class Direction(Report):
    """A vector whose length is at most 1."""

    description: str = "a sketch of the direction of its update"

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose report [n, d] is possible."""
        return flat(v).double().norm(dim=1) <= 1 + SLACK


@dataclass(frozen=True)
class RowCount(Report):
    """Counts of rows, in all at most as many as the client has; or exactly as many."""

    description: str = "its number of rows"
    exact: bool = False

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """bool [n]: whose report [n, ...] is possible."""
        v = flat(v).double()
        total = v.sum(1)
        fits = close(total, context.rows) if self.exact else total <= context.rows * (1 + SLACK)
        return (v >= 0).all(1) & fits


def flat(v: Tensor) -> Tensor:
    """[n, ...] as [n, d]."""
    return v.reshape(len(v), -1)


def close(a: Tensor, b: Tensor) -> Tensor:
    """Whether numbers are equal but for rounding."""
    return (a - b).abs() <= SLACK * b.abs()


# ------------------------------------------------------------------------------ a function
Rounds = Literal["start", "later", "any"]


def always(method: Any) -> bool:
    """A function that is asked for whatever the settings."""
    return True


def all_rows(method: Any) -> int | None:
    """A function that may look at all rows of its client."""
    return None


def once(method: Any) -> int:
    """A function that is asked for once in a round."""
    return 1


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What is known beforehand of a client function."""

    weight: Weight = field(default_factory=AnyWeight)
    report: Mapping[str, Report] = field(default_factory=dict)
    when: Callable[[Any], bool] = always  # of the method: whether its settings use the function
    rounds: Rounds = "any"  # "start": round 0 alone; "later": never in it
    max_calls: Callable[[Any], int] = once  # of the method: how often it is asked for in one round
    sample_size: Callable[[Any], int | None] = all_rows
    """Of the method: how many rows the function reads at a time, where it reads them with
    `data.sample` alone; None: any number. It changes no result: many clients are worked on at once,
    and rows that are not drawn are not copied."""

    def report_of(self, name: str) -> Report:
        """The kind of a report."""
        return self.report.get(name, Report())
