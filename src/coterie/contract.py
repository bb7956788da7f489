"""The contract, the file to read first.

An algorithm says what ONE client does, as pure functions marked `@client`, and what the server does in a round, as
plain code that *asks* clients. Engines decide where the asking happens; nothing in an algorithm knows which.

    train(self, task, shared, own, private, data) -> (Upload, private)          one client
    round(self, state, ask) -> state         sums = ask(self.train, shared=state.centres)

What crosses is named tensors only: dicts, tuples and NamedTuples of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coterie.errors import CoterieError
from coterie.params import Params, argmin_finite, as_column
from coterie.randomness import scramble
from coterie.settings import setting as setting
from coterie.task import Batch, Task

F = TypeVar("F", bound=Callable[..., Any])
State = Any


# ---------------------------------------------------------------------------------------------- what crosses
class Upload(NamedTuple):
    """What one client sends back."""

    values: dict[str, Params]  # what is averaged, by name: {"model": w_i, "momentum": u_i}
    weight: dict[str, Tensor] | Tensor  # [K] how much of it each centre takes; by name where they differ
    report: dict[str, Tensor]  # small facts: cluster, losses, mixture


class Rows(NamedTuple):
    """Row `index[i]` of `table` for client i: K models picked for N clients are never copied N times."""

    table: Any
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index


class Sums(NamedTuple):
    """All the server sees where sums are enough."""

    totals: dict[str, Params]  # Σ_i weight_ik · value_i
    mass: dict[str, Tensor]  # Σ_i weight_ik
    report: dict[str, Tensor]  # rows in the order of `ids`
    ids: Tensor  # who was accepted

    def mean(self, name: str, empty: Params) -> Params:
        """Weighted mean per centre; a centre nobody chose keeps `empty`."""
        mass = self.mass[name]

        def one(total: Tensor, old: Tensor) -> Tensor:
            m = as_column(mass, total)
            return torch.where(m > 0, total / torch.where(m > 0, m, 1), old)

        return {k: one(v, empty[k]) for k, v in self.totals[name].items()}

    def plus(self, other: Sums) -> Sums:
        """Two exchanges of one round as one; reports stay with their own."""
        add = lambda a, b: tree_map(torch.add, a, b)
        return Sums(add(self.totals, other.totals), add(self.mass, other.mass), {}, torch.cat([self.ids, other.ids]))


class Stack(NamedTuple):
    """Each accepted upload, rows in the order of `ids`."""

    values: dict[str, Params]
    weight: Any
    report: dict[str, Tensor]
    ids: Tensor


class Ask(Protocol):
    """One exchange with clients, whatever the engine."""

    round: int  # 0 is the start, 1 the first counted round
    everyone: Tensor  # ids of all clients that may train, in the order of their names
    participants: Tensor  # this round's, in the same order
    refused: list[int]  # ids refused so far in this round
    seed: int

    @property
    def task(self) -> Task: ...  # the model as a function: for starts that are drawn in round 0

    def __call__(
        self,
        fn: Callable[..., Any],
        clients: Tensor | None = None,
        shared: Any = (),
        own: Any = (),
        static: dict[str, Any] | None = None,
        reduce: Literal["sum", "stack"] = "sum",
        stream: str | None = None,
        near: dict[str, Params] | None = None,
    ) -> Any:
        """Run `fn` on `clients` (default: this round's participants) and fold their uploads.

        shared: sent to all.  own: row i goes to client i (a nest of [N, ...] tensors and `Rows`).
        static: plain numbers and words.  reduce: "sum" gives `Sums`, "stack" gives `Stack`.
        stream: exchanges of a round that name the same stream see the same randomness.
        near: by value name, the stacked centres it started from; screening then looks at how far it moved from the one,
        or the mix of them, that the upload's weight names.
        """
        ...

    def rng(self, tag: str) -> torch.Generator: ...

    def note(self, name: str, value: Any) -> None:
        """A fact of this round for metrics and report."""
        ...


def client(fn: F) -> F:
    """Marks what runs on one client: only such methods can be asked for over a network."""
    fn.runs_on_client = True  # type: ignore[attr-defined]
    return fn


# ---------------------------------------------------------------------------------------------- one client's view
class Repeat(NamedTuple):
    """The same batch `times` times: what lets a local solver work in the dual form."""

    batch: Batch
    times: int


class Data(NamedTuple):
    """One client's own rows, with its randomness for this exchange."""

    all: Batch
    key: Tensor  # int64, from (seed, client, round, exchange or stream)
    home: Tensor  # int64, from (seed, client): for what is cut once and for all

    @property
    def size(self) -> Tensor:
        """n_i, as a number of the model's dtype."""
        return self.all.mask.sum()

    def weighted(self, weight: Tensor) -> Data:
        """The same rows, each row's loss times weight [n]."""
        return self._replace(all=self.all._replace(weight=weight))

    def shuffled(self, stream: int) -> Tensor:
        """Row numbers in random order, padding last; the same order whatever the padding."""
        rows = torch.arange(self.all.mask.shape[0], device=self.all.mask.device)
        order = scramble(scramble(self.key + stream) + rows)
        return torch.where(self.all.mask > 0, order, torch.iinfo(torch.int64).max).argsort()

    def take(self, rows: Tensor) -> Batch:
        return Batch(*(v[rows] for v in self.all))

    def sample(self, size: int, stream: int) -> Batch:
        """`size` rows drawn without replacement (all, where the client has fewer)."""
        return self.take(self.shuffled(stream)[:size])

    def part(self, p: int, of: int) -> Batch:
        """Part p of the rows cut into `of` disjoint random parts, the same cut for the whole run."""
        order = self._replace(key=self.home).shuffled(0)
        n = self.all.mask.sum().long()
        at = n * p // of + torch.arange(len(order) // of + 1, device=order.device)
        batch = self.take(order[at.clamp(max=len(order) - 1)])
        return batch._replace(mask=batch.mask * (at < n * (p + 1) // of))

    def batches(self, how: Local) -> Repeat | Iterator[Batch]:
        """The batches of one local training: full, or drawn anew each step, or passes over shuffled rows."""
        if how.batch is None:
            return Repeat(self.all, how.local_epochs or how.local_steps)
        if how.local_epochs is None:
            return (self.sample(how.batch, t) for t in range(how.local_steps))
        size = how.batch
        return (self.take(rows) for e in range(how.local_epochs) for rows in self.shuffled(e).split(size))


# ---------------------------------------------------------------------------------------------- hyper-parameters
@dataclass(frozen=True, kw_only=True)
class Local:
    """How a client trains: the one block of fields that all local trainers share."""

    lr: float = setting(0.1, "step size", above=0)
    local_steps: int = setting(10, "local steps per round", least=1)
    local_epochs: int | None = setting(None, "passes over the client's rows instead of steps", least=1)
    batch: int | None = setting(None, "rows per step; none: all the client's rows", least=1)
    decay: float = setting(1.0, "the step size is multiplied by this after every round", above=0, most=1)
    l2: float = setting(0.0, "weight decay, in the local steps only", least=0)
    clip: float | None = setting(None, "longest gradient; longer ones are scaled down", above=0)
    solver: str = setting("sgd", "the local optimiser", choices=("sgd", "heavy_ball", "adam"))
    momentum: float = setting(0.9, "of heavy_ball", least=0, below=1)


M = TypeVar("M")


def at_round(method: M, round: int) -> M:
    """The method as it is in a round: step sizes decayed (round 1 is the first), also in the methods it is made of."""
    changes: dict[str, Any] = {}
    for f in fields(method):  # type: ignore[arg-type]
        value = getattr(method, f.name)
        if is_dataclass(value):
            changes[f.name] = at_round(value, round)
    if isinstance(method, Local) and method.decay != 1 and round > 1:
        changes["lr"] = method.lr * method.decay ** (round - 1)
    return replace(method, **changes) if changes else method  # type: ignore[type-var]


def check_settings(method: Any) -> None:
    """Every field within its limits, or one sentence."""
    for f in fields(method):
        value, m = getattr(method, f.name), f.metadata
        if value is None or not m:
            continue
        who = f"{f.name} of {method.name}" if isinstance(method, Algorithm) else f.name
        if "choices" in m and value not in m["choices"]:
            raise CoterieError(f"{who} is {value!r}: it must be one of {', '.join(map(str, m['choices']))}.")
        words, number = m.get("words", ()), str(f.type) in ("int", "float", "int | None", "float | None")
        if isinstance(value, str) and (words or number) and value not in words:
            raise CoterieError(f"{who} is {value!r}: it must be {' or '.join(('a number', *words))}.")
        for word, sign, ok in (
            ("above", ">", lambda v, b: v > b),
            ("least", "≥", lambda v, b: v >= b),
            ("below", "<", lambda v, b: v < b),
            ("most", "≤", lambda v, b: v <= b),
        ):
            if word in m and not isinstance(value, str) and not ok(value, m[word]):
                raise CoterieError(f"{who} is {value}: it must be {sign} {m[word]}.")


# ---------------------------------------------------------------------------------------------- a method
class Algorithm:
    """What a method may say; the defaults suit a method without private state.

    A method is a frozen dataclass of hyper-parameters. State, private state and uploads are NamedTuples and dicts of
    tensors, never changed in place.
    """

    name: ClassVar[str]  # as typed on the command line
    paper: ClassVar[str]  # who proposed it, for `coterie list`
    needs_everyone: ClassVar[bool] = False  # every client takes part in every round

    def check(self, task: Task, sizes: Tensor) -> None:
        """Refuse settings that make no sense for clients of these sizes, int64 [N], in one sentence each."""
        check_settings(self)
        clusters, n = getattr(self, "clusters", None), len(sizes)
        if isinstance(clusters, int) and not 1 <= clusters <= n:
            raise CoterieError(f"clusters is {clusters}: it must lie between 1 and the number of clients, {n}.")

    # -- server
    def start(self, task: Task, clients: int, seed: int) -> tuple[State, Any]:
        """(state, welcome) before any client is asked; `welcome` is sent to each client once."""
        raise NotImplementedError(f"{type(self).__name__} needs start()")

    def begin(self, state: State, ask: Ask) -> State:
        """Round 0: a start that needs clients. Not counted in `rounds`; its bytes are."""
        return state

    def round(self, state: State, ask: Ask) -> State:
        raise NotImplementedError(f"{type(self).__name__} needs round()")

    def use(self, state: State) -> tuple[Any, Any]:
        """(shared, own): what a client needs to answer with its model."""
        return state, ()

    def centres(self, state: State) -> Params | None:
        """The stacked models of the groups, for export and assignment."""
        return None

    def groups(self, state: State) -> Tensor | None:
        """int64 [N], −1 = not yet seen; or soft weights [N, K]."""
        return None

    # -- client
    def enroll(self, task: Task, welcome: Any, data: Data) -> Any:
        """The client's private state: one structure and one shape for life."""
        return ()

    def model(self, task: Task, shared: Any, own: Any, private: Any, data: Data) -> Params:
        """The model this client would use."""
        raise NotImplementedError(f"{type(self).__name__} needs model() or predict()")

    def predict(self, task: Task, shared: Any, own: Any, private: Any, data: Data, x: Tensor) -> Tensor:
        """Outputs for rows x, where one model cannot say it (a mixture)."""
        return task.outputs(self.model(task, shared, own, private, data), x)

    def join(self, task: Task, shared: Any, data: Data) -> tuple[Any, Any]:
        """(own, private) of a client that was never trained, from its own support data."""
        return (), ()


def least_of(losses: Tensor) -> Tensor:
    """The least finite loss; NaN, which is refused, if none is finite."""
    finite = losses.isfinite()
    return torch.where(finite.any(-1), torch.where(finite, losses, torch.inf).amin(-1), torch.nan)


def least_loss(task: Task, centres: list[Params], batch: Batch) -> tuple[Tensor, Tensor]:
    """(index of the centre of least loss, all losses [K]).

    A loop over the centres keeps each forward pass one large product when vectorised; `vmap` over them does not.
    """
    losses = torch.stack([task.loss(c, batch) for c in centres])
    return argmin_finite(losses), losses
