"""What the tests of the methods share: small ragged federations, and gradients and steps written by hand in NumPy.

Nothing here calls a solver, an average or a choice of Coterie. Models are dicts of arrays, named as torch names them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import coterie as ct
from coterie import randomness
from coterie.contract import Data
from coterie.data import Federation
from coterie.engine.rounds import Run
from coterie.result import prepare
from coterie.task import Batch

Model = dict[str, np.ndarray]
Rows = tuple[np.ndarray, np.ndarray]
Function = Callable[[Model, np.ndarray, np.ndarray], tuple[float, Model]]


# ---------------------------------------------------------------------------------------------- losses by hand
def squared(w: Model, x: np.ndarray, y: np.ndarray) -> tuple[float, Model]:
    """(loss, gradient) of mean (xᵀw + b − y)²."""
    error = x @ w["weight"][0] + (w["bias"][0] if "bias" in w else 0.0) - y
    gradient = {"weight": 2 * (error @ x)[None] / len(y), "bias": np.array([2 * error.mean()])}
    return float((error**2).mean()), {k: gradient[k] for k in w}


def cross_entropy(w: Model, x: np.ndarray, y: np.ndarray) -> tuple[float, Model]:
    """(loss, gradient) of softmax regression."""
    z = x @ w["weight"].T + w["bias"]
    e = np.exp(z - z.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    d = (p - np.eye(z.shape[1])[y]) / len(y)
    return float(-np.log(p[np.arange(len(y)), y]).mean()), {"weight": d.T @ x, "bias": d.sum(0)}


def descend(
    f: Function,
    w: Model,
    batches: Iterable[Rows],
    lr: float,
    l2: float = 0.0,
    pull: float = 0.0,
    towards: Model | None = None,
) -> Model:
    """Gradient steps on f(w) + (l2/2)‖w‖² + (pull/2)‖w − towards‖²."""
    towards = towards or w
    for x, y in batches:
        g = f(w, x, y)[1]
        w = {k: w[k] - lr * (g[k] + l2 * w[k] + pull * (w[k] - towards[k])) for k in w}
    return w


def mean(models: Sequence[Model], weights: Sequence[float] | None = None) -> Model:
    """Σ weight·model / Σ weight"""
    weights = [1.0] * len(models) if weights is None else weights
    return {k: sum(a * m[k] for a, m in zip(weights, models)) / sum(weights) for k in models[0]}


def vector(w: Model) -> np.ndarray:
    return np.concatenate([v.ravel() for v in w.values()])


def best_partition(points: Sequence[np.ndarray], k: int) -> list[int]:
    """k-means without k-means: of all partitions of a few points the one of least cost."""
    x = np.stack(points)

    def cost(labels: tuple[int, ...]) -> float:
        groups = [x[np.array(labels) == j] for j in range(k)]
        return sum(((g - g.mean(0)) ** 2).sum() for g in groups if len(g))

    return list(min(product(range(k), repeat=len(x)), key=cost))


def same_groups(a: list[int], b: list[int]) -> bool:
    """The same partition, whatever its labels."""
    return len(set(zip(a, b))) == len(set(a)) == len(set(b))


# ---------------------------------------------------------------------------------------------- federations
class Problem(NamedTuple):
    fed: Federation
    model: Callable[[], nn.Module]
    f: Function

    @property
    def clients(self) -> list[Rows]:
        return rows(self.fed)


def federation(clients: Any, test: Any = None, **how: Any) -> Federation:
    """`from_memory` without its warning about clients of one row; without `test` there are no test rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        share = {"test_share": 0.0} if test is None else {"test": test}
        return ct.data.from_memory(clients, **share, **how)


def rows(fed: Federation) -> list[Rows]:
    """Each client's training rows in float64, as training sees them."""
    pairs = [fed.train.client(i) for i in range(fed.total)]
    return [(x.double().numpy(), y.numpy() if fed.classes else y.double().numpy()) for x, y in pairs]


# not in the order of the alphabet, in which clients are asked
NAMES = ("maple", "cedar", "yew", "ash", "pine", "birch", "oak", "elm", "fir", "lime")


def lines(clients: int = 7, groups: int = 2, dim: int = 3, seed: int = 0, bias: bool = True) -> Problem:
    """Linear regressions; client i is in group i mod groups and has 2 + i rows."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(groups, dim)) * 2
    data = {}
    for i in range(clients):
        x = rng.normal(size=(2 + i, dim))
        data[NAMES[i]] = (x, x @ truth[i % groups] + 0.1 * rng.normal(size=2 + i))
    fed = federation(data, truth=[i % groups for i in range(clients)])
    return Problem(fed, lambda: nn.Linear(dim, 1, bias=bias), squared)


def classes(clients: int = 7, groups: int = 2, dim: int = 3, seed: int = 0) -> Problem:
    """Three classes, labelled by another linear rule in each group; client i has 3 + i rows."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(groups, 3, dim)) * 2
    data = {}
    for i in range(clients):
        x = rng.normal(size=(3 + i, dim))
        data[NAMES[i]] = (x, (x @ truth[i % groups].T).argmax(1))
    fed = federation(data, truth=[i % groups for i in range(clients)], labels=("a", "b", "c"))
    return Problem(fed, lambda: nn.Linear(dim, 3), cross_entropy)


PROBLEMS = {"linear": lines, "softmax": classes}


# ---------------------------------------------------------------------------------------------- runs
def ready(method: ct.Algorithm, fed: Federation, model: Any, **options: Any) -> Run:
    """A run on the loop engine in float64 that has not begun. No screening of far moves: clients are few and ragged."""
    return prepare(method, fed, model, **{"engine": "loop", "dtype": "float64", "screen": 0.0, **options})


def finished(run: Run) -> Run:
    for _ in run.rounds():
        pass
    assert not any(row["refused"] for row in run.history)
    return run


def participants(run: Run) -> list[list[int]]:
    """Who took part in round 1, 2, …"""
    return [run.participants(r).tolist() for r in range(1, run.options.rounds + 1)]


def arrays(params: dict[str, torch.Tensor]) -> Model:
    return {k: v.detach().numpy().copy() for k, v in params.items()}


def tensors(model: Model) -> dict[str, torch.Tensor]:
    return {k: torch.tensor(v, dtype=torch.float64) for k, v in model.items()}


def one(stacked: dict[str, torch.Tensor], j: int = 0) -> Model:
    """Model j of stacked ones, as arrays; leaves of length 1 belong to all."""
    return {k: v[j if len(v) > 1 else 0].numpy().copy() for k, v in stacked.items()}


def near(a: Model, b: Model, tolerance: float = 1e-9) -> None:
    """Same names, and every leaf the same but for rounding."""
    assert list(a) == list(b)
    for k in a:
        assert a[k].shape == b[k].shape
        np.testing.assert_allclose(a[k], b[k], rtol=tolerance, atol=tolerance)


def apart(a: Model, b: Model, least: float = 1e-6) -> bool:
    """Whether two models differ visibly."""
    return max(float(np.abs(a[k] - b[k]).max()) for k in a) > least


# ---------------------------------------------------------------------------------------------- hand-solved cases
def line(w: float) -> nn.Module:
    """One number w, without intercept: the model's output is x·w."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, w)
    return module


def doubled(fed: Federation) -> Federation:
    """Every client a second time, under another name."""
    parts = [fed.train.client(i) for i in range(fed.total)]
    return federation(parts * 2, names=[*fed.names, *(f"{n} again" for n in fed.names)], labels=fed.labels)


def mini_batches(run: Run, r: int, i: int) -> list[Rows]:
    """The rows of client i's batches in the first exchange of round r, as the library orders them."""
    x, y = (v.double() if v.is_floating_point() else v for v in run.fed.train.client(i))
    key = randomness.keys(run.homes[i], r, "train")
    data = Data(Batch.of(x, y, torch.float64), key, run.homes[i])
    return [(b.x.numpy(), b.y.numpy()) for b in data.batches(run.method)]


def measured(clients: int = 4, unseen: int = 0, seed: int = 3) -> Federation:
    """Linear regressions without groups, whose test rows are not their training rows."""
    rng = np.random.default_rng(seed)
    draw = lambda n: [(rng.normal(size=(n, 3)), rng.normal(size=n)) for _ in range(clients)]
    return federation(draw(4), test=draw(6), names=NAMES[:clients], unseen=unseen)


def loss_on_test(w: Model, fed: Federation, i: int) -> float:
    """The mean squared error on client i's test rows."""
    x, y = fed.test.client(i)
    return squared(w, x.double().numpy(), y.double().numpy())[0]
