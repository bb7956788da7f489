"""The contract between a method and the engines that run it: the file to read first.

A method says what ONE client does, as pure functions marked `@client`, and what the server does in
a round, as plain code that *asks* clients. Engines decide where the asking happens; a method never
knows which engine runs it.

    train(self, task, shared, per_client, private, data) -> (Upload, private)      on one client
    round(self, state, ask) -> state                                               on the server
        sums = ask(self.train, shared=state.centres)

Only named tensors cross between the two: dicts, tuples and NamedTuples of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar, overload

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie.core.client_data import Data as Data
from coterie.core.client_data import Drawn as Drawn
from coterie.core.client_data import Repeat as Repeat
from coterie.core.declarations import AnyWeight as AnyWeight
from coterie.core.declarations import Declaration as Declaration
from coterie.core.declarations import Direction as Direction
from coterie.core.declarations import Finite as Finite
from coterie.core.declarations import Fraction as Fraction
from coterie.core.declarations import Index as Index
from coterie.core.declarations import Losses as Losses
from coterie.core.declarations import MixtureShares as MixtureShares
from coterie.core.declarations import OneHot as OneHot
from coterie.core.declarations import Report as Report
from coterie.core.declarations import Rounds as Rounds
from coterie.core.declarations import RowCount as RowCount
from coterie.core.declarations import SentWeight as SentWeight
from coterie.core.declarations import UploadContext as UploadContext
from coterie.core.declarations import Weight as Weight
from coterie.core.errors import CoterieError
from coterie.core.params import Params, as_column
from coterie.core.settings import Local as Local
from coterie.core.settings import TunableDefault as TunableDefault
from coterie.core.settings import at_round as at_round
from coterie.core.settings import check_setting_names
from coterie.core.settings import check_settings as check_settings
from coterie.core.settings import setting as setting
from coterie.core.task import Task

F = TypeVar("F", bound=Callable[..., Any])
State = Any


# ------------------------------------------------------------------------------ what crosses
class Upload(NamedTuple):
    """What one client sends back."""

    values: dict[str, Params]  # what is averaged, by name: {"model": w_i, "momentum": u_i}
    weight: dict[str, Tensor] | Tensor  # [K] share of each centre; by name where they differ
    report: dict[str, Tensor]  # small results for the server: cluster, losses, mixture


class Rows(NamedTuple):
    """Row `index[i]` of `table` for client i, so that K models are never copied N times."""

    table: Any
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index


class Sums(NamedTuple):
    """All that the server sees where sums are enough."""

    totals: dict[str, Params]  # Σ_i weight_ik · value_i
    mass: dict[str, Tensor]  # Σ_i weight_ik
    report: dict[str, Tensor]  # one row per accepted client, in the order of `ids`
    ids: Tensor  # the accepted clients

    def mean(self, name: str, empty: Params) -> Params:
        """Weighted mean per centre; a centre that nobody chose keeps `empty`."""
        mass = self.mass[name]

        def one(total: Tensor, old: Tensor) -> Tensor:
            m = as_column(mass, total)
            return torch.where(m > 0, total / torch.where(m > 0, m, 1), old)

        return {k: one(v, empty[k]) for k, v in self.totals[name].items()}

    def plus(self, other: Sums) -> Sums:
        """Two exchanges of one round as one, without their reports."""
        totals = tree_map(torch.add, self.totals, other.totals)
        mass = tree_map(torch.add, self.mass, other.mass)
        return Sums(totals, mass, {}, torch.cat([self.ids, other.ids]))


class Stack(NamedTuple):
    """Every accepted upload, one row per client in the order of `ids`."""

    values: dict[str, Params]
    weight: Any
    report: dict[str, Tensor]
    ids: Tensor


# ------------------------------------------------------------------------------ asking
class Ask(Protocol):
    """One exchange with clients, whatever the engine."""

    round: int  # 0 is the start, 1 the first counted round
    all_clients: Tensor  # ids of all clients that may train, in the order of their names
    participants: Tensor  # ids of this round's clients, in the same order
    rejected: list[int]  # ids rejected so far in this round
    seed: int

    @property
    def is_robust(self) -> bool:
        """Whether means are to withstand hostile clients."""
        ...

    @property
    def hostile_share(self) -> float:
        """The share of the clients that may be hostile; 0 where means are plain."""
        ...

    @property
    def task(self) -> Task:
        """The model as a function, for starts that are drawn in round 0."""
        ...

    @overload
    def __call__(
        self,
        fn: Callable[..., Any],
        clients: Tensor | None = ...,
        shared: Any = ...,
        per_client: Any = ...,
        static: dict[str, Any] | None = ...,
        reduce: Literal["sum"] = ...,
        stream: str | None = ...,
        started_from: dict[str, Params] | None = ...,
    ) -> Sums: ...

    @overload
    def __call__(
        self,
        fn: Callable[..., Any],
        clients: Tensor | None = ...,
        shared: Any = ...,
        per_client: Any = ...,
        static: dict[str, Any] | None = ...,
        *,
        reduce: Literal["stack"],
        stream: str | None = ...,
        started_from: dict[str, Params] | None = ...,
    ) -> Stack: ...

    def __call__(
        self,
        fn: Callable[..., Any],
        clients: Tensor | None = None,
        shared: Any = (),
        per_client: Any = (),
        static: dict[str, Any] | None = None,
        reduce: Literal["sum", "stack"] = "sum",
        stream: str | None = None,
        started_from: dict[str, Params] | None = None,
    ) -> Sums | Stack:
        """Run `fn` on `clients` (default: this round's participants) and fold their uploads.

        shared: sent to every client.
        per_client: row i goes to client i; a nest of [N, ...] tensors and `Rows`.
        static: plain numbers and words, the same for every client.
        reduce: "sum" gives `Sums`, "stack" gives `Stack`.
        stream: exchanges of a round that name the same stream see the same randomness.
        started_from: by value name, the stacked centres that the clients started from. Clipping
            then measures how far a value moved from the mix of them that its weight names.
        """
        ...

    def group_mean(self, values: Params, labels: Tensor, weight: Tensor, empty: Params) -> Params:
        """Weighted mean of stacked uploads per label; a label that nobody has keeps `empty`.

        It is robust where the run asks for that, as the sums of an exchange are.
        """
        ...

    def rng(self, tag: str) -> torch.Generator:
        """A generator for the server's own draws; every call gives another."""
        ...

    def note(self, name: str, value: Any) -> None:
        """Record a value of this round for metrics and report."""
        ...


@overload
def client(fn: F) -> F: ...


@overload
def client(
    *,
    weight: Weight = ...,
    report: Mapping[str, Report] = ...,
    when: Callable[[Any], bool] = ...,
    rounds: Rounds = ...,
    max_calls: Callable[[Any], int] = ...,
    sample_size: Callable[[Any], int | None] = ...,
) -> Callable[[F], F]: ...


def client(fn: F | None = None, **declared: Any) -> Any:
    """Mark a method as one that runs on a client; only such methods can be asked for.

    declared: what it may send and when it may be asked for, as in `Declaration`. The server refuses
    uploads that do not fit, and a site refuses to run what the settings do not use.
    """

    def mark(fn: F) -> F:
        fn.declaration = Declaration(**declared)  # type: ignore[attr-defined]
        return fn

    return mark if fn is None else mark(fn)


# ------------------------------------------------------------------------------ a method
class Algorithm:
    """A method: a frozen dataclass of settings; the defaults suit one without private state.

    State, private state and uploads are NamedTuples and dicts of tensors, never changed in place.
    """

    name: ClassVar[str]  # as typed on the command line
    paper: ClassVar[str]  # who proposed it, for `coterie list`
    needs_all_clients: ClassVar[bool] = False  # every client takes part in every round
    is_decentralised: ClassVar[bool] = False  # its clients need no server: they may be peers

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """A method with these settings; a name that it does not have is refused in one sentence."""
        if settings:
            check_setting_names(cls, getattr(cls, "name", cls.__name__), settings)
        return super().__new__(cls)

    def check(self, task: Task, sizes: Tensor) -> None:
        """Refuse settings that make no sense for clients with these row counts, int64 [N]."""
        check_settings(self)
        clusters = getattr(self, "clusters", None)
        if isinstance(clusters, int) and not 1 <= clusters <= len(sizes):
            raise CoterieError(
                f"clusters is {clusters}: it must lie between 1 and the number of clients, "
                f"{len(sizes)}."
            )

    # -- on the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[State, Any]:
        """(state, initial payload) before any client is asked; clients get the latter once."""
        raise NotImplementedError(f"{type(self).__name__} needs start()")

    def begin(self, state: State, ask: Ask) -> State:
        """Round 0: a start that needs clients. It is not counted in `rounds`, its bytes are."""
        return state

    def round(self, state: State, ask: Ask) -> State:
        """The state after one more round."""
        raise NotImplementedError(f"{type(self).__name__} needs round()")

    def use(self, state: State) -> tuple[Any, Any]:
        """(shared, per_client): what a client needs to answer with its model."""
        return state, ()

    def centres(self, state: State) -> Params | None:
        """The stacked models of the groups, for export and assignment."""
        return None

    def groups(self, state: State) -> Tensor | None:
        """The group of each client, int64 [N], −1: not yet seen; or soft weights [N, K]."""
        return None

    # -- on a client
    def enroll(self, task: Task, initial_payload: Any, data: Data) -> Any:
        """The client's first private state: one structure and one shape for life, pure."""
        return ()

    def model(self, task: Task, shared: Any, per_client: Any, private: Any, data: Data) -> Params:
        """The model that this client would use."""
        raise NotImplementedError(f"{type(self).__name__} needs model() or predict()")

    def predict(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data, x: Tensor
    ) -> Tensor:
        """Outputs for rows x; for methods in which one model is not enough (a mixture)."""
        return task.outputs(self.model(task, shared, per_client, private, data), x)

    def join(self, task: Task, shared: Any, data: Data) -> tuple[Any, Any]:
        """(per_client, private) of a client that was never trained, from its labelled rows."""
        return (), ()
