"""What the suites share.

Small ragged federations, problems and runs to follow in NumPy, every method with variants.
"""

from __future__ import annotations

import importlib.util
from dataclasses import MISSING, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import coterie as ct
from coterie.checks import example_federation as federation
from coterie.checks import with_nan as spoilt  # noqa: F401
from coterie.core import randomness
from coterie.core.contract import Algorithm, Data
from coterie.core.task import Batch
from coterie.data.federation import Ragged
from coterie.methods.registry import methods
from coterie.runs.run import Run
from oracles import (
    Function,
    Model,
    Rows,
    assert_same_models,
    centres_of,
    cross_entropy,
    in_numpy,
    ready,
    squared,
)
from oracles import federation as from_rows

HERE = Path(__file__).parent


# ------------------------------------------------------------------------------ problems
class Problem(NamedTuple):
    """A federation, a model (a module, or what makes one), and the model's loss written by hand."""

    fed: ct.data.Federation
    model: Any
    f: Function

    @property
    def clients(self) -> list[Rows]:
        """Each client's training rows in float64, as training sees them."""
        return self._rows(self.fed.train)

    @property
    def tests(self) -> list[Rows]:
        return self._rows(self.fed.test)

    @property
    def sizes(self) -> list[int]:
        """How many training rows each client has."""
        return self.fed.train.sizes.tolist()

    def _rows(self, part: ct.data.Ragged) -> list[Rows]:
        pairs = [part.client(i) for i in range(self.fed.total)]
        return [
            (x.double().numpy(), y.numpy() if self.fed.classes else y.double().numpy())
            for x, y in pairs
        ]

    def best(self, models: list[Model], i: int) -> int:
        """Which of the models has the least loss on client i's training rows."""
        return int(np.argmin([self.f(w, *self.clients[i])[0] for w in models]))

    def test_loss(self, w: Model, i: int) -> float:
        """Of a model on client i's test rows."""
        return self.f(w, *self.tests[i])[0]

    def test_losses(self, models: list[Model]) -> list[float]:
        """Of each client's model on its test rows."""
        return [self.test_loss(w, i) for i, w in enumerate(models)]

    def ready(self, method: Algorithm, **options: Any) -> Run:
        """A run that has not begun."""
        return ready(method, self.fed, self.model, **options)

    def begun(self, method: Algorithm, **options: Any) -> Run:
        """A run after round 0."""
        run = self.ready(method, **options)
        next(run.rounds())
        return run

    def run(self, method: Algorithm, **options: Any) -> Run:
        """A run that has ended, and in which nobody was refused."""
        return finished(self.ready(method, **options))

    def permuted(self, method: Algorithm, **options: Any) -> tuple[Run, Run, list[int]]:
        """(a run of these seven clients, a run of the same in another order, that order)"""
        order = [4, 0, 6, 2, 5, 1, 3]
        other = self._replace(fed=self.fed.subset(order))
        return self.run(method, **options), other.run(method, **options), order

    def doubled(self, method: Algorithm, **options: Any) -> tuple[Run, Run]:
        """(a run of these clients, one in which each is there a second time under another name)"""
        parts, names = [self.fed.train.client(i) for i in range(self.fed.total)], self.fed.names
        twice = self._replace(
            fed=from_rows(parts * 2, names=[*names, *(f"{n} again" for n in names)])
        )
        return self.run(method, **options), twice.run(method, **options)


# not in the order of the alphabet, in which clients are asked
NAMES = ("maple", "cedar", "yew", "ash", "pine", "birch", "oak", "elm", "fir", "lime")


def lines(
    clients: int = 7,
    groups: int = 2,
    dim: int = 3,
    seed: int = 0,
    least: int = 2,
    noise: float = 0.1,
) -> Problem:
    """Linear regressions; client i is in group i mod groups and has least + i rows."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(groups, dim)) * 2
    data = {}
    for i in range(clients):
        x = rng.normal(size=(least + i, dim))
        data[NAMES[i]] = (x, x @ truth[i % groups] + noise * rng.normal(size=least + i))
    fed = from_rows(data, truth=[i % groups for i in range(clients)])
    return Problem(fed, lambda: nn.Linear(dim, 1), squared)


def classes(clients: int = 7, groups: int = 2, dim: int = 3, seed: int = 0) -> Problem:
    """Three classes, labelled by another linear rule in each group; client i has 3 + i rows."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(groups, 3, dim)) * 2
    data = {}
    for i in range(clients):
        x = rng.normal(size=(3 + i, dim))
        data[NAMES[i]] = (x, (x @ truth[i % groups].T).argmax(1))
    fed = from_rows(data, truth=[i % groups for i in range(clients)], labels=("a", "b", "c"))
    return Problem(fed, lambda: nn.Linear(dim, 3), cross_entropy)


PROBLEMS = {"linear": lines, "softmax": classes}


def measured(clients: int = 4, unseen: int = 0, seed: int = 3) -> Problem:
    """Linear regressions without groups, whose test rows are not their training rows."""
    rng = np.random.default_rng(seed)
    draw = lambda n: [(rng.normal(size=(n, 3)), rng.normal(size=n)) for _ in range(clients)]
    fed = from_rows(draw(4), test=draw(6), names=NAMES[:clients], unseen=unseen)
    return Problem(fed, lambda: nn.Linear(3, 1), squared)


Points = dict[str, list[tuple[float, float]]]  # each client's rows (x, y)


def points(
    train: Points, w: float | None = None, test: Points | None = None, unseen: int = 0
) -> Problem:
    """For rounds solved by hand.

    Outputs are x·w, with one number w: this one at first, or else random ones.
    """
    part = lambda clients: {
        name: tuple(np.array(rows, dtype=float).T) for name, rows in clients.items()
    }
    fed = from_rows(part(train), test=test and part(test), unseen=unseen)
    net = lambda: nn.Linear(1, 1, bias=False)
    if w is None:
        return Problem(fed, net, squared)
    module = net()
    nn.init.constant_(module.weight, w)
    return Problem(fed, module, squared)


def separated(
    clients: int = 6, groups: int = 3, dim: int = 5, rows: int = 8
) -> tuple[Problem, list[Model]]:
    """Clients around far centres, and starts near these: identities never change."""
    rng = np.random.default_rng(0)
    truth = 20 * np.eye(groups, dim)
    xs = [rng.normal(size=(rows, dim)) for _ in range(clients)]
    fed = from_rows([(x, x @ truth[i % groups]) for i, x in enumerate(xs)])
    return Problem(fed, lambda: nn.Linear(dim, 1, bias=False), squared), [
        {"weight": t[None] + 0.5} for t in truth
    ]


# ------------------------------------------------------------------------------ runs
def finished(run: Run) -> Run:
    """The run after its last round; nobody was refused."""
    for _ in run.rounds():
        pass
    assert not any(row["rejected"] for row in run.history)
    return run


def participants(run: Run) -> list[list[int]]:
    """Who took part in round 1, 2, …"""
    return [run.participants(r).tolist() for r in range(1, run.options.rounds + 1)]


def find_data(run: Run, r: int, i: int, stream: str = "train") -> Data:
    """Client i's rows, with its randomness in a stream of round r."""
    x, y = (
        v.double() if v.is_floating_point() else v for v in run.engine.federation.train.client(i)
    )
    return Data(
        Batch.of(x, y, torch.float64),
        randomness.keys(run.client_keys[i], r, stream),
        run.client_keys[i],
    )


def mini_batches(run: Run, r: int, i: int, stream: str = "train") -> list[Rows]:
    """The rows of client i's batches in a stream of round r, as the library orders them."""
    return in_numpy(find_data(run, r, i, stream).batches(run.method))


def local_rounds(run: Run, r: int, i: int) -> list[Rows]:
    """The batch of each of client i's local rounds in round r, where there are `outer`.

    All rows without `batch`.
    """
    m, data = run.method, find_data(run, r, i)
    return in_numpy(
        data.all if m.batch is None else data.sample(m.batch, turn) for turn in range(m.outer)
    )


def put(run: Run, **models: list[Model]) -> Run:
    """The run with these models in its state instead of its own: `centres`, `momentum`."""
    stack = lambda ms: {
        k: torch.stack([torch.tensor(m[k], dtype=torch.float64) for m in ms]) for k in ms[0]
    }
    run.state = run.state._replace(**{name: stack(ms) for name, ms in models.items()})
    return run


def same_rounds(run: Run, want: list[tuple[list[Model], list[int]]]) -> None:
    """Round by round, the run has these centres and these groups."""
    next(run.rounds())
    for centres, group in want:
        next(run.rounds())
        assert run.state.group.tolist() == group
        assert_same_models(centres_of(run), centres)
    assert not any(row["rejected"] for row in run.history)


# ------------------------------------------------------------------------------ every method
def brief(method: Algorithm) -> Algorithm:
    """The same method with few local steps.

    What is tested is that engines agree, not that models are good.
    """
    few = {
        "local_steps": 3,
        "solve_steps": 4,
        "join_steps": 4,
        "join_rounds": 2,
        "finetune": 2,
        "trial": 2,
        "outer": 2,
        "inner": 2,
        "max_steps": 2,
    }
    return replace(
        method, **{k: v for k, v in few.items() if isinstance(getattr(method, k, None), int)}
    )


def model_for(method: Algorithm) -> str:
    """A small model that the method can train on the digits of `federation`."""
    if isinstance(method, ct.FedBN):
        return "mlp_bn:12"
    return "softmax" if isinstance(method, ct.Mixed) else "mlp:12"


def rows_for(method: Algorithm, fed: ct.data.Federation) -> ct.data.Federation:
    """For a method that inverts matrices of columns: two classes by the means of four columns."""
    if not isinstance(method, ct.Mixed):
        return fed

    def coarse(rows: Ragged) -> Ragged:
        return rows._replace(x=rows.x.unflatten(1, (4, -1)).flatten(2).mean(2), y=rows.y % 2)

    return replace(fed, classes=2, train=coarse(fed.train), test=coarse(fed.test))


_cached_federation = cache(federation)


def small_federation(method: Algorithm, unseen: int = 0) -> ct.data.Federation:
    """Ten clients with rows for the method."""
    return rows_for(method, _cached_federation(unseen=unseen))


def variants() -> dict[str, Algorithm]:
    """Every method with its defaults, and once per entry of VARIANTS in its test file.

    Two clusters where the default is "auto", which is one more variant: to count clusters takes
    longer than all the rest of these small runs. `mixed` counts them in its rounds, and with a
    given number it ends after the first.
    """
    found: dict[str, Algorithm] = {}
    for name, cls in methods().items():
        defaults = {f.name: f.default for f in fields(cls)}
        counts = defaults.get("clusters") == "auto" and cls is not ct.Mixed
        needs = {"clusters": 2} if counts or defaults.get("clusters") is MISSING else {}
        found[name] = brief(cls(**needs))
        if counts:
            found[f"{name} clusters=auto"] = brief(cls())
        folder, stem = cls.__module__.split(".")[1:]
        path = HERE / folder / f"test_{stem}.py"
        if path.exists():
            spec = importlib.util.spec_from_file_location(f"variants_{stem}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            for v in getattr(module, "VARIANTS", {}).get(name, []):
                changed = {
                    f.name: getattr(v, f.name) for f in fields(v) if getattr(v, f.name) != f.default
                }
                found[f"{name} " + ", ".join(f"{k}={x}" for k, x in changed.items())] = brief(v)
    return found
