"""Declarations: what a client function may send, checked by the server.

    @client(weight=OneHot(rows="weighted"), report={"cluster": Index(), "losses": Losses()})
    def train(self, task, centres, per_client, private, data): ...

Under secure sums (`--secure`) only sums over clients leave them. A report says what happens to it
then: it is summed, it is withheld (the method does without it), or the method cannot run.

The server trusts no client. It knows how many rows each has, how many centres it sent, and what it
sent to each client alone. A declaration says which weights and reports are possible, given these;
the server rejects any other upload, whatever the engine. Sites use the same declarations to decide
when a function may be called, and the docs to list what leaves a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

SLACK = 1e-3  # relative, for rounding in float32


class UploadContext(NamedTuple):
    """What the server knows about the clients whose uploads it checks."""

    rows: Tensor  # float64 [n], each client's number of rows in the split that was used
    centres: int  # number of centres sent to all clients; 0: none
    sent: Callable[[int], Tensor]  # place in `per_client` → what each client got [n, ...]
    method: Any  # the object whose function was called
    targets_per_row: int = 1  # tokens, pixels or labels of a row


# ------------------------------------------------------------------------------ weights
@dataclass(frozen=True, kw_only=True)
class Weight:
    """A client's weight [K] has the sum 1.

    Args:
        rows: Whether it is multiplied by the number of rows; or the name of the setting that says
            so.
    """

    rows: bool | str = False

    @property
    def description(self) -> str:
        """What is sent, for messages and docs."""
        return self._times_rows("1")

    def is_valid(self, weight: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's weight [n, K] is possible, bool [n]."""
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
    """The weight is one-hot: the client counts for one centre."""

    @property
    def description(self) -> str:
        """What is sent, for messages and docs."""
        return self._times_rows("the centre that it chose")

    def is_valid(self, weight: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's weight [n, K] is possible, bool [n]."""
        return super().is_valid(weight, context) & ((weight != 0).sum(1) == 1)


@dataclass(frozen=True, kw_only=True)
class SentWeight(Weight):
    """The weight equals the one that the server sent.

    Args:
        place: Where it is in `per_client`.
    """

    place: int

    @property
    def description(self) -> str:
        """What is sent, for messages and docs."""
        return self._times_rows("the weight that it was sent")

    def is_valid(self, weight: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's weight [n, K] is possible, bool [n]."""
        expected = context.sent(self.place).double() * self._unit(context)[:, None]
        if weight.shape[1] == 1:  # of layers that all centres share
            expected = expected.sum(1, keepdim=True)
        return close(weight.double(), expected).all(1)


@dataclass(frozen=True, kw_only=True)
class AnyWeight(Weight):
    """Without a declaration: the sum is at most the client's number of rows, or 1."""

    @property
    def description(self) -> str:
        """What is sent, for messages and docs."""
        return "at most its number of rows"

    def is_valid(self, weight: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's weight [n, K] is possible, bool [n]."""
        most = context.rows.clamp(min=1) * (1 + SLACK)
        return (weight >= 0).all(1) & (weight.double().sum(1) <= most)


# ------------------------------------------------------------------------------ reports
UnderSecure = Literal["refused", "summed", "withheld"]


@dataclass(frozen=True)
class Report:
    """A small result for the server: any numbers but NaN. Subclasses restrict it further.

    Args:
        description: What it is, for messages and docs.
        secure: What happens to it under secure sums: "summed" over clients, "withheld" by each
            client, or "refused" (the server needs the report of each client).
        private: What happens to a summed report under client-level differential privacy: "withheld"
            by each client, or "refused" (the method needs the sum).
    """

    description: str = "numbers"
    secure: UnderSecure = field(default="refused", kw_only=True)
    private: Literal["refused", "withheld"] = field(default="refused", kw_only=True)

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's report [n, ...] is possible, bool [n]."""
        return ~flat(v).isnan().any(1)


@dataclass(frozen=True)
class Finite(Report):
    """Finite numbers of at least `minimum`."""

    minimum: float = -torch.inf

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's report [n, ...] is possible, bool [n]."""
        v = flat(v)
        return (v.isfinite() & (v >= self.minimum)).all(1)


@dataclass(frozen=True)
class Losses(Report):
    """Losses, at least 0; infinite for a diverged model."""

    description: str = "its loss under each centre"

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's report [n, ...] is possible, bool [n]."""
        return (flat(v) >= 0).all(1)  # false for NaN


@dataclass(frozen=True)
class Index(Report):
    """The index of a centre that was sent to all clients, 0 to K − 1."""

    description: str = "which centre fits it best"

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's report [n, ...] is possible, bool [n]."""
        v = flat(v)
        return ((v >= 0) & (v < context.centres)).all(1)


@dataclass(frozen=True)
class MixtureShares(Report):
    """Mixture weights of the centres, each from 0 to 1, with sum 1.

    Args:
        floor: The name of the setting that is the lower bound of each weight. Weights are not
            normalised after clamping, so their sum may be larger by this much per centre.
    """

    description: str = "its share of each centre"
    floor: str | None = None

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's report [n, K] is possible, bool [n]."""
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
        """Whether each client's report [n, ...] is possible, bool [n]."""
        v = flat(v)
        return ((v >= 0) & (v <= 1)).all(1)


@dataclass(frozen=True)
class Direction(Report):
    """A vector of norm at most 1."""

    description: str = "a sketch of the direction of its update"

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's report [n, d] is possible, bool [n]."""
        return flat(v).double().norm(dim=1) <= 1 + SLACK


@dataclass(frozen=True)
class RowCount(Report):
    """Counts of rows whose sum is at most, or exactly, the client's number of rows."""

    description: str = "its number of rows"
    exact: bool = False

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's report [n, ...] is possible, bool [n]."""
        v = flat(v).double()
        total = v.sum(1)
        fits = close(total, context.rows) if self.exact else total <= context.rows * (1 + SLACK)
        return (v >= 0).all(1) & fits


@dataclass(frozen=True)
class TargetCount(Report):
    """Counts of tokens, pixels or labels, whose sum is at most that of the client's rows."""

    description: str = "its number of tokens"

    def is_valid(self, v: Tensor, context: UploadContext) -> Tensor:
        """Whether each client's report [n, ...] is possible, bool [n]."""
        v = flat(v).double()
        most = context.rows * context.targets_per_row * (1 + SLACK)
        return (v >= 0).all(1) & (v.sum(1) <= most)


def flat(v: Tensor) -> Tensor:
    """[n, ...] as [n, d]."""
    return v[:, None].flatten(1)  # reshape(0, -1) fails


def close(a: Tensor, b: Tensor) -> Tensor:
    """Whether numbers are equal up to rounding."""
    return (a - b).abs() <= SLACK * b.abs()


# ------------------------------------------------------------------------------ a function
Rounds = Literal["start", "later", "any"]


def always(method: Any) -> bool:
    """For functions that all settings use."""
    return True


def all_rows(method: Any) -> int | None:
    """For functions that may read all rows of their client."""
    return None


def once(method: Any) -> int:
    """For functions that are called once in a round."""
    return 1


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a client function may send, and when it may be called."""

    weight: Weight = field(default_factory=AnyWeight)
    report: Mapping[str, Report] = field(default_factory=dict)
    when: Callable[[Any], bool] = always  # given the method: do its settings use the function?
    rounds: Rounds = "any"  # "start": only round 0; "later": all other rounds
    max_calls: Callable[[Any], int] = once  # given the method: calls in one round
    sums: bool = False  # values are sums over rows: any norm is possible, so none is clipped
    individual: bool = False  # the server handles each client on its own, or stacks the uploads
    secure: Literal["also", "replaced", "only"] = "also"
    """Whether the function is called under secure sums, too; replaced by another; or only there."""
    sample_size: Callable[[Any], int | None] = all_rows
    """Given the method: how many rows the function reads at a time, if it reads them only with
    `data.sample`; None: any number. It changes no result, but engines then copy only drawn rows."""

    trainings: int | None = None
    """How many local trainings by `descend` it takes per call, its only use of rows besides
    `choices`; None: it uses rows in other ways, and cannot run with dp=rows."""
    choices: int = 0  # how often it chooses a cluster by `choose_privately` under dp=rows

    def report_of(self, name: str) -> Report:
        """The declaration of a report."""
        return self.report.get(name, Report())

    @property
    def obstacle(self) -> str | None:
        """What of this function the server must know of each client; None: sums are enough."""
        if self.individual:
            return "the uploads"
        if isinstance(self.weight, SentWeight):
            return "the weight"
        for name, report in self.report.items():
            if report.secure == "refused":
                return f"the report {name!r}"
        return None


def used_functions(owner: Any, *, secure: bool) -> Iterator[tuple[str, Declaration]]:
    """Yield the client functions that a method's settings use, with or without secure sums."""
    unused = "replaced" if secure else "only"
    for name in dir(type(owner)):
        declaration = getattr(getattr(type(owner), name), "declaration", None)
        if not isinstance(declaration, Declaration) or declaration.secure == unused:
            continue
        if declaration.when(owner):
            yield name, declaration


def private_rows_obstacle(method: Any, *, secure: bool = False) -> str | None:
    """Why a method cannot run under record-level differential privacy; None if it can."""
    for name, declaration in used_functions(method, secure=secure):
        if declaration.trainings is None:
            return (
                f"{method.name} cannot run with dp=rows, because {name}() uses rows in other ways "
                "than by training on them"
            )
    if method.choices_to_predict is None:
        return f"{method.name} cannot run with dp=rows, because model() trains on rows"
    return None


def row_releases_per_round(method: Any) -> tuple[int, int]:
    """The most (trainings, choices) of one client in one round."""
    trainings = choices = 0
    for _, declaration in used_functions(method, secure=False):
        calls = declaration.max_calls(method)
        trainings += calls * (declaration.trainings or 0)
        choices += calls * declaration.choices
    return trainings, choices


def describe_uploads(owner: Any, *, secure: bool) -> dict[str, dict[str, Any]]:
    """Describe what each used function sends, and whether it leaves individually or in sums."""
    how = "only in sums over clients" if secure else "individually"
    described = {}
    for name, declaration in used_functions(owner, secure=secure):
        reports = {}
        for report, kind in declaration.report.items():
            withheld = secure and kind.secure == "withheld"
            reports[report] = f"{kind.description}: {'does not leave' if withheld else how}"
        described[name] = {
            "rounds": declaration.rounds,
            "values": how,
            "weight": f"{declaration.weight.description}: {how}",
            "reports": reports,
        }
    return described


def secure_obstacle(method: Any) -> str | None:
    """Why a method cannot run under secure sums, in one sentence; None if it can."""
    for name, declaration in used_functions(method, secure=True):
        if declaration.obstacle is None:
            continue
        return (
            f"{method.name} cannot run under secure sums, because its server needs "
            f"{declaration.obstacle} of each client from {name}()"
        )
    return None


MAX_START_CALLS = 4  # each needs twice the noise of an exchange that is alone in its round


def private_obstacle(method: Any) -> str | None:
    """Why a method cannot run under client-level differential privacy; None if it can."""
    for name, declaration in used_functions(method, secure=True):
        what = None
        if declaration.obstacle is not None:
            what = f"its server needs {declaration.obstacle} of each client from {name}()"
        elif declaration.sums:
            what = f"the sums over rows that {name}() uploads have no bound"
        elif type(declaration.weight) not in (Weight, OneHot):
            what = f"the weight that {name}() uploads has no bound"
        else:
            for report, kind in declaration.report.items():
                if kind.secure == "summed" and kind.private == "refused":
                    what = f"its server needs the report {report!r} of {name}() without noise"
        if what is not None and declaration.rounds == "start" and hasattr(method, "init"):
            what += "; a start without clients, such as clusters=2 with init=random, can"
        if what is not None:
            return f"{method.name} cannot run under client-level differential privacy: {what}"
    calls, _ = calls_per_round(method)
    if calls > MAX_START_CALLS:
        return (
            f"the start of {method.name} takes {calls} exchanges in round 0, which would need "
            f"{calls**0.5:.0f} times the noise each; choose a start without, such as init=random"
        )
    return None


def calls_per_round(method: Any) -> tuple[int, int]:
    """The largest number of exchanges in round 0 and in a later round, where sums are enough."""
    calls = {"start": 0, "later": 0}
    for _, declaration in used_functions(method, secure=True):
        for rounds in calls:
            if declaration.rounds in (rounds, "any"):
                calls[rounds] += declaration.max_calls(method)
    return calls["start"], calls["later"]
