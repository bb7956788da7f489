"""The contract between a method and the engines that run it: the file to read first.

A method defines what ONE client does, as pure functions marked `@client`, and what the server does
in a round, as plain code that *asks* clients. Engines decide where the client functions run; a
method never knows which engine runs it.

    train(self, task, shared, per_client, private, data) -> (Upload, private)      on one client
    round(self, state, ask) -> state                                               on the server
        sums = ask(self.train, shared=state.centres)

Only named tensors pass between the two: dicts, tuples and NamedTuples of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar, overload

import torch
from torch import Tensor

from coterie.core.client_data import Data as Data
from coterie.core.client_data import Drawn as Drawn
from coterie.core.client_data import PoissonBatches as PoissonBatches
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
from coterie.core.declarations import TargetCount as TargetCount
from coterie.core.declarations import UploadContext as UploadContext
from coterie.core.declarations import Weight as Weight
from coterie.core.errors import CoterieError
from coterie.core.params import Params, as_column
from coterie.core.schedules import schedule_factor
from coterie.core.settings import SOLVERS as SOLVERS
from coterie.core.settings import Local as Local
from coterie.core.settings import TunableDefault as TunableDefault
from coterie.core.settings import at_round as at_round
from coterie.core.settings import check_setting_names
from coterie.core.settings import check_settings as check_settings
from coterie.core.settings import setting as setting
from coterie.core.task import Task
from coterie.core.trees import tree_map

F = TypeVar("F", bound=Callable[..., Any])
State = Any
# Whom a model is for: all clients, one client, or a cluster that the method finds
Scope = Literal["global", "personal", "cluster"]


# ------------------------------------------------------------------------------ messages
class Upload(NamedTuple):
    """What one client sends to the server.

    Args:
        values: Values to aggregate, by name: {"model": w_i, "momentum": u_i}.
        weight: [K], the client's weight in each cluster; a dict by value name where they differ.
        report: Small results for the server: cluster, losses, mixture weights.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> w = {"weight": torch.zeros(2, 3)}
        >>> upload = ct.Upload({"model": w}, torch.tensor([0.0, 1.0]), {"cluster": torch.tensor(1)})
        >>> upload.weight
        tensor([0., 1.])
    """

    values: dict[str, Params]
    weight: dict[str, Tensor] | Tensor
    report: dict[str, Tensor]


class Rows(NamedTuple):
    """Sends row `index[i]` of `table` to the i-th selected client, without copying any row.

    So K models are not copied n times, once for each client.

    Args:
        table: A pytree of tensors [K, ...].
        index: int64 [n], in the order of the `clients` of the exchange.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> centres = {"weight": torch.zeros(2, 3)}
        >>> rows = ct.Rows(centres, torch.tensor([0, 1, 1]))  # per_client=rows sends three models
        >>> len(rows.index)
        3
    """

    table: Any
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index


class Sums(NamedTuple):
    """The aggregate of an exchange with reduce="sum", which is all that the method gets.

    Engines in one process add uploads where they are computed. Over a network the server decodes
    each upload singly before it is added, so the server's process sees single uploads.

    Args:
        totals: By value name, Σ_i weight_ik · value_i, every leaf [K, ...].
        mass: By value name, Σ_i weight_ik, [K].
        report: By name, one row per accepted client, in the order of `ids`; under secure sums one
            row, the sum over these clients.
        ids: int64 [a], the accepted clients.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> totals = {"model": {"w": torch.tensor([[6.0], [0.0]])}}
        >>> mass = {"model": torch.tensor([3.0, 0.0])}
        >>> sums = ct.contract.Sums(totals, mass, report={}, ids=torch.tensor([0, 2]))
        >>> sums.mean("model", empty={"w": torch.tensor([[1.0], [1.0]])})
        {'w': tensor([[2.],
                [1.]])}
    """

    totals: dict[str, Params]
    mass: dict[str, Tensor]
    report: dict[str, Tensor]
    ids: Tensor

    def mean(self, name: str, empty: Params) -> Params:
        """Weighted mean per cluster, every leaf [K, ...]; `empty` for clusters without clients."""
        mass = self.mass[name]

        def one(total: Tensor, old: Tensor) -> Tensor:
            m = as_column(mass, total)
            return torch.where(m > 0, total / torch.where(m > 0, m, 1), old)

        return {k: one(v, empty[k]) for k, v in self.totals[name].items()}

    def plus(self, other: Sums) -> Sums:
        """Add another exchange of the same round; reports are dropped."""
        totals = tree_map(torch.add, self.totals, other.totals)
        mass = tree_map(torch.add, self.mass, other.mass)
        return Sums(totals, mass, {}, torch.cat([self.ids, other.ids]))


class Stack(NamedTuple):
    """Every accepted upload of an exchange with reduce="stack", one row per client.

    Args:
        values: By value name, the uploads, every leaf [a, ...].
        weight: The uploads' weights, [a, K] or a dict of these.
        report: By name, the uploads' reports.
        ids: int64 [a], the accepted clients, in the order of the rows.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> models = {"model": {"w": torch.zeros(2, 3)}}
        >>> stack = ct.contract.Stack(models, torch.ones(2, 1), {}, ids=torch.tensor([0, 2]))
        >>> stack.values["model"]["w"].shape
        torch.Size([2, 3])
    """

    values: dict[str, Params]
    weight: Any
    report: dict[str, Tensor]
    ids: Tensor


# ------------------------------------------------------------------------------ asking
class Ask(Protocol):
    """Runs client functions in one round, whatever the engine.

    `ask(self.train, shared=model)` is one exchange: the function runs on the selected clients, and
    their uploads are validated and aggregated.

    Example:
        >>> import coterie as ct
        >>> class Logged(ct.FedAvg):
        ...     def round(self, model, ask):
        ...         ask.note("asked", len(ask.participants))
        ...         return super().round(model, ask)
        >>> fed = ct.data.linear(clients=4, samples=10, dim=2, clusters=2)
        >>> ct.run(Logged(lr=0.1), fed, rounds=1, participation=0.5).history[-1]["notes"]["asked"]
        2
    """

    round: int  # 0 in `begin`, 1 in the first counted round
    all_clients: Tensor  # ids of all clients that may train, in the order of their names
    participants: Tensor  # ids of this round's clients, in the same order
    rejected: list[int]  # ids rejected so far in this round
    seed: int

    @property
    def is_robust(self) -> bool:
        """Whether aggregation is robust against hostile clients."""
        ...

    @property
    def hostile_share(self) -> float:
        """The fraction of clients that may be hostile; 0 without robust aggregation."""
        ...

    @property
    def is_secure(self) -> bool:
        """Whether only sums over clients are known; see `Sums.report`."""
        ...

    @property
    def is_private(self) -> bool:
        """Whether sums are noised, each client has the weight 1, and reports do not leave."""
        ...

    @property
    def task(self) -> Task:
        """The model as a function, to draw initial models in round 0."""
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
        """Run a client function and aggregate the uploads.

        Args:
            fn: A method of the algorithm that is marked `@client`.
            clients: int64 [n], ids of clients; default: the participants of this round.
            shared: Tensors that every client gets.
            per_client: A pytree of [n, ...] tensors and `Rows`; the client `clients[i]` gets row i.
            static: Plain numbers and strings, the same for every client.
            reduce: "sum" returns `Sums`, "stack" returns `Stack`.
            stream: Exchanges of a round with the same stream use the same randomness.
            started_from: By value name, the stacked centres that clients started from. Clipping
                then measures the norm of the update from the mix of centres given by its weight.
        """
        ...

    def group_mean(self, values: Params, labels: Tensor, weight: Tensor, empty: Params) -> Params:
        """Weighted mean of stacked uploads per label, robust if the run's aggregation is.

        Args:
            values: Every leaf [N, ...].
            labels: int64 [N].
            weight: [N].
            empty: Every leaf [K, ...], the result for labels without uploads.
        """
        ...

    def rng(self, tag: str) -> torch.Generator:
        """A generator for the server's own draws; each call returns a new one."""
        ...

    def note(self, name: str, value: Any) -> None:
        """Record a value of this round in metrics.jsonl and the report."""
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
    sums: bool = ...,
    individual: bool = ...,
    secure: Literal["also", "replaced", "only"] = ...,
    sample_size: Callable[[Any], int | None] = ...,
    trainings: int | None = ...,
    choices: int = ...,
) -> Callable[[F], F]: ...


def client(fn: F | None = None, **declared: Any) -> Any:
    """Mark a method of an algorithm as a client function, which `ask` can run.

    Args:
        weight: What the upload's weight may be; default: at most the client's number of rows.
        report: By name, what reports may be; default: any numbers but NaN.
        when: Given the method, whether its settings use the function.
        rounds: "start" for round 0 only, "later" for all others, or "any".
        max_calls: Given the method, how often it is called in one round; default: 1.
        sums: Whether the values are sums over the client's rows. Their norms grow with the number
            of rows and are therefore not clipped.
        individual: Whether the server handles each client on its own: it stacks the uploads, or
            sends each client what depends on its reports. Such a function cannot run under secure
            sums.
        secure: Whether the function is called under secure sums, too; "replaced" by another
            function of the method; or "only" there.
        sample_size: Given the method, how many rows `data.sample` reads at a time, if the function
            reads rows only that way.
        trainings: How many local trainings by `ct.optim.descend` on `data.batches` it takes, if it
            uses rows in no other way but `choices`. Without it the function cannot run under
            record-level differential privacy (dp="rows").
        choices: How often it then chooses a cluster by `ct.clustering.choose_privately`.

    The server rejects uploads that do not fit, and a site refuses calls that do not fit.

    Example:
        >>> import torch
        >>> import coterie as ct
        >>> class Count(ct.Algorithm):
        ...     @ct.client(rounds="later")
        ...     def count(self, task, shared, per_client, private, data):
        ...         return ct.Upload({}, {}, {"rows": data.size}), private
        >>> Count.count.declaration.rounds
        'later'
    """

    def mark(fn: F) -> F:
        fn.declaration = Declaration(**declared)  # type: ignore[attr-defined]
        return fn

    return mark if fn is None else mark(fn)


# ------------------------------------------------------------------------------ a method
class Algorithm:
    """Base class of methods: a frozen dataclass of settings.

    The defaults of the functions below are for methods without private state. State, private state
    and uploads are NamedTuples and dicts of tensors, and never changed in place.

    Example:
        >>> from dataclasses import dataclass
        >>> import coterie as ct
        >>> from coterie.core.params import pick
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Mean(ct.Local, ct.Algorithm):
        ...     name = "mean"
        ...     def start(self, task, clients, seed):
        ...         return task.inits(seed, 1), ()
        ...     @ct.client
        ...     def train(self, task, model, per_client, private, data):
        ...         w = ct.optim.descend(task, pick(model, 0), data.batches(self), self)
        ...         return ct.Upload({"model": w}, data.size[None], {}), private
        ...     def round(self, model, ask):
        ...         return ask(self.train, shared=model).mean("model", empty=model)
        ...     def model(self, task, shared, per_client, private, data):
        ...         return pick(shared, 0)
        >>> fed = ct.data.rotated("digits", clients=4, samples=20)
        >>> len(ct.run(Mean(lr=0.5), fed, rounds=1).history)
        2
    """

    name: ClassVar[str]  # on the command line
    paper: ClassVar[str]  # authors and year, for `coterie list`
    scope: ClassVar[Scope] = "cluster"
    summary: ClassVar[str] = ""  # its models as a phrase for the report; needed without clusters
    needs_all_clients: ClassVar[bool] = False  # all clients participate in every round
    is_decentralised: ClassVar[bool] = False  # runs without a server, between peers
    # under dp=rows: private choices that `model` makes; None: it uses rows in other ways
    choices_to_predict: ClassVar[int | None] = 0

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Check the names of settings, with a suggestion for unknown ones."""
        if settings:
            check_setting_names(cls, getattr(cls, "name", cls.__name__), settings)
        return super().__new__(cls)

    def check(self, task: Task, sizes: Tensor) -> None:
        """Raise a `CoterieError` for settings that do not fit the clients' row counts [N]."""
        check_settings(self)
        clusters = getattr(self, "clusters", None)
        if isinstance(clusters, int) and not 1 <= clusters <= len(sizes):
            raise CoterieError(
                f"clusters is {clusters}: it must lie between 1 and the number of clients, "
                f"{len(sizes)}."
            )
        if isinstance(self, Local):
            schedule_factor(self.schedule, 1)
            if task.norm_values == 1:
                _check_rows_of_batches(self, sizes)

    def default_model(self, name: str) -> str:
        """The model if the user names none; `name` is the default for such data."""
        return name

    # -- on the server
    def start(self, task: Task, clients: int, seed: int) -> tuple[State, Any]:
        """Create the server's state, and the payload that each client gets once (see `enroll`)."""
        raise NotImplementedError(f"{type(self).__name__} needs start()")

    def start_secure(self, task: Task, clients: int, seed: int) -> tuple[State, Any]:
        """`start` under secure sums, where clients may have to remember more."""
        return self.start(task, clients, seed)

    def begin(self, state: State, ask: Ask) -> State:
        """Round 0, for starts that need clients; not counted in `rounds`, but its bytes are."""
        return state

    def round(self, state: State, ask: Ask) -> State:
        """Run one round and return the new state."""
        raise NotImplementedError(f"{type(self).__name__} needs round()")

    def finished(self, state: State) -> bool:
        """Whether further rounds would change nothing, so that the run ends before `rounds`."""
        return False

    def use(self, state: State) -> tuple[Any, Any]:
        """The arguments (shared, per_client) of `model` and `predict`."""
        return state, ()

    def centres(self, state: State) -> Params | None:
        """The stacked cluster models, for export and assignment; None without clusters."""
        return None

    def standard_errors(
        self, task: Task, state: State, x: Tensor, reference: Tensor
    ) -> Tensor | None:
        """Standard errors of the cluster models' outputs for rows x, less those for `reference`.

        Args:
            task: The model as a function.
            state: The server's state.
            x: [n, ...].
            reference: [1, ...].

        Returns:
            [K, n], in the label's unit or log odds; None for methods without them.
        """
        return None

    def groups(self, state: State) -> Tensor | None:
        """The cluster of each client, int64 [N], −1 if unknown; or mixture weights [N, K]."""
        return None

    # -- on a client
    def enroll(self, task: Task, initial_payload: Any, data: Data) -> Any:
        """The client's first private state (pure); its structure and shapes never change."""
        return ()

    def model(self, task: Task, shared: Any, per_client: Any, private: Any, data: Data) -> Params:
        """The model that this client predicts with."""
        raise NotImplementedError(f"{type(self).__name__} needs model() or predict()")

    def predict(
        self, task: Task, shared: Any, per_client: Any, private: Any, data: Data, x: Tensor
    ) -> Tensor:
        """Outputs for rows x [n, ...]; methods without a single model (a mixture) override it."""
        return task.outputs(self.model(task, shared, per_client, private, data), x)

    def predict_interval(
        self,
        task: Task,
        shared: Any,
        per_client: Any,
        private: Any,
        data: Data,
        x: Tensor,
        level: float,
    ) -> Tensor:
        """The interval that holds a number with this probability, [n, 2], for rows x [n, ...]."""
        raise NotImplementedError(f"{type(self).__name__} needs predict_interval()")

    def join(self, task: Task, shared: Any, data: Data) -> tuple[Any, Any]:
        """(per_client, private) of a new client, from its labelled rows."""
        return (), ()


def _check_rows_of_batches(how: Local, sizes: Tensor) -> None:
    """Raise a `CoterieError` if a batch would have one row, which has no variance."""
    rest = sizes
    if how.batch is not None and how.local_epochs is not None:
        rest = torch.where(sizes % how.batch > 0, sizes % how.batch, how.batch)
    elif how.batch is not None:
        rest = sizes.clamp(max=how.batch)
    alone = int((rest == 1).sum())
    if alone:
        raise CoterieError(
            f"{alone} clients would train on a batch of one row, and the model's batch norm needs "
            "two: use another batch size, drop clients of one row, or use nn.GroupNorm."
        )
