"""What the tests of the methods share: losses, steps and averages written by hand in NumPy.

Nothing here calls a solver, an average or a choice of Coterie. Models are dicts of arrays, named as
torch names them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import torch

import coterie as ct
from coterie.checks import private_states as private_states
from coterie.core.task import Batch
from coterie.data import Federation
from coterie.runs.run import Run
from coterie.runs.start import prepare_run

Model = dict[str, np.ndarray]
Rows = tuple[np.ndarray, np.ndarray]
Function = Callable[[Model, np.ndarray, np.ndarray], tuple[float, Model]]


# ------------------------------------------------------------------------------ losses by hand
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


def decay(l2: float, w: Model) -> Model:
    """The gradient of (l2/2)‖w‖², from which biases are excepted."""
    return {k: 0 * v if k.endswith("bias") else l2 * v for k, v in w.items()}


def descend(
    f: Function,
    w: Model,
    batches: Iterable[Rows],
    lr: float,
    l2: float = 0.0,
    pull: float = 0.0,
    towards: Model | None = None,
) -> Model:
    """Gradient steps on f(w) + (l2/2)‖w‖² without biases + (pull/2)‖w − towards‖²."""
    towards = towards or w
    for x, y in batches:
        g = f(w, x, y)[1]
        d = decay(l2, w)
        w = {k: w[k] - lr * (g[k] + d[k] + pull * (w[k] - towards[k])) for k in w}
    return w


def mean(models: Sequence[Model], weights: Sequence[float] | None = None) -> Model:
    """Σ weight·model / Σ weight"""
    weights = [1.0] * len(models) if weights is None else weights
    return {k: sum(a * m[k] for a, m in zip(weights, models)) / sum(weights) for k in models[0]}


def vector(w: Model) -> np.ndarray:
    return np.concatenate([v.ravel() for v in w.values()])


def numbers(*w: float) -> list[Model]:
    """Models of one number each, without intercept."""
    return [{"weight": np.array([[x]])} for x in w]


def best_partition(points: Sequence[np.ndarray], k: int) -> list[int]:
    """k-means without k-means: of all partitions of a few points the one of least cost."""
    x = np.stack(points)

    def cost(labels: tuple[int, ...]) -> float:
        groups = [x[np.array(labels) == j] for j in range(k)]
        return sum(((g - g.mean(0)) ** 2).sum() for g in groups if len(g))

    return list(min(product(range(k), repeat=len(x)), key=cost))


# ------------------------------------------------------------------------------ comparisons
def same_groups(a: list[int], b: list[int]) -> bool:
    """The same partition, whatever its labels."""
    return len(set(zip(a, b))) == len(set(a)) == len(set(b))


def assert_same_models(
    a: Model | list[Model], b: Model | list[Model], tolerance: float = 1e-9
) -> None:
    """Assert that two models, or lists of models, have the same names and nearly equal values."""
    if isinstance(a, list):
        assert len(a) == len(b)
        for one_of_a, one_of_b in zip(a, b):
            assert_same_models(one_of_a, one_of_b, tolerance)
        return
    assert list(a) == list(b)
    for k in a:
        assert a[k].shape == b[k].shape
        np.testing.assert_allclose(a[k], b[k], rtol=tolerance, atol=tolerance)


def apart(a: Model, b: Model, least: float = 1e-6) -> bool:
    """Whether two models differ visibly."""
    return max(float(np.abs(a[k] - b[k]).max()) for k in a) > least


def all_apart(models: Iterable[Model]) -> bool:
    """Whether every two of the models differ visibly."""
    return all(apart(a, b) for a, b in combinations(models, 2))


# ------------------------------------------------------------------------------ torch and NumPy
def arrays(params: dict[str, torch.Tensor]) -> Model:
    return {k: v.detach().numpy().copy() for k, v in params.items()}


def one(stacked: dict[str, torch.Tensor], j: int = 0) -> Model:
    """Model j of stacked ones, as arrays; leaves of length 1 belong to all."""
    return {k: v[j if len(v) > 1 else 0].numpy().copy() for k, v in stacked.items()}


def unstacked(stacked: dict[str, torch.Tensor]) -> list[Model]:
    return [one(stacked, j) for j in range(max(map(len, stacked.values())))]


def flat(stacked: dict[str, torch.Tensor]) -> list[float]:
    """Models of one number each, as these numbers."""
    return stacked["weight"].flatten().tolist()


def give_private_states(run: Run, states: Any) -> None:
    """Let every client of a simulated run have this private state, a table per leaf."""
    everyone = torch.arange(len(run.roster))
    run.engine.private.reserve(everyone)
    run.engine.private.write(everyone, states)


def personal(run: Run) -> list[Model]:
    """Each client's own model: its private state, or what that calls `model`."""
    private = private_states(run)
    return unstacked(getattr(private, "model", private))


def centres_of(run: Run) -> list[Model]:
    """The model of each group."""
    return unstacked(run.state.centres)


def by_client(run: Run) -> list[float]:
    """The centre of each client's group, where centres are numbers."""
    return [flat(run.state.centres)[j] for j in run.state.group.tolist()]


def in_numpy(batches: Iterable[Batch]) -> list[Rows]:
    """The rows that count."""
    return [(b.x[b.mask > 0].numpy(), b.y[b.mask > 0].numpy()) for b in batches]


# ------------------------------------------------------------------------------ what a run needs
def federation(clients: Any, test: Any = None, **how: Any) -> Federation:
    """`from_memory` without its warning about clients of one row.

    Without `test` there are no test rows.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        share = {"test_share": 0.0} if test is None else {"test": test}
        return ct.data.from_memory(clients, **share, **how)


def ready(method: ct.Algorithm, fed: Federation, model: Any, **options: Any) -> Run:
    """A run on the loop engine in float64 that has not begun.

    Updates are not clipped: clients are few and ragged.
    """
    return prepare_run(
        method, fed, model, **{"engine": "loop", "dtype": "float64", "clip_factor": 0.0, **options}
    )
