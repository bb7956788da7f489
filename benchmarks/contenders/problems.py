"""The work that contenders are timed on: one round, and its data and first models from a seed.

This runs in the environment of each peer: it needs NumPy alone. Models are lists of arrays in the
layout and order of a PyTorch module's parameters; `torch_models.py` has the modules.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Arrays = list[np.ndarray]


class Shape(NamedTuple):
    """Of a model: the shape of a row, and the sizes of its dense layers, outputs included."""

    row: tuple[int, ...]
    layers: tuple[int, ...]
    channels: tuple[int, ...] = ()  # of 5×5 convolutions, each followed by a pooling of 2×2

    @property
    def is_regression(self) -> bool:
        return self.layers[-1] == 1


MODELS = {
    "linear d=10": Shape((10,), (1,)),
    "linear d=1000": Shape((1000,), (1,)),
    "softmax 784-10": Shape((784,), (10,)),
    "MLP 784-200-10": Shape((784,), (200, 10)),
    "MLP 784-128-10": Shape((784,), (128, 10)),
    "MLP 784-200-100-10": Shape((784,), (200, 100, 10)),
    "table 30-64-2": Shape((30,), (64, 2)),
    "CNN 32-64-512 on 28×28": Shape((1, 28, 28), (512, 10), channels=(32, 64)),
    "CNN 32-64-512 on 32×32": Shape((3, 32, 32), (512, 10), channels=(32, 64)),
}


@dataclass(frozen=True)
class Problem:
    """One round of a method on equal clients."""

    name: str
    method: str
    model: str
    clients: int
    rows: int
    lr: float
    steps: int | None = None  # full-batch steps
    batch: int | None = None  # or passes of mini-batches
    passes: int | None = None
    models: int = 1  # K
    in_words: str = ""  # the local steps of methods that count them in another way
    suits_flower: bool = False  # small enough for a simulation with a message per client

    @property
    def shape(self) -> Shape:
        return MODELS[self.model]

    @property
    def is_regression(self) -> bool:
        return self.shape.is_regression

    @property
    def title(self) -> str:
        """The work in words."""
        return f"{self.method}, {self.model}, {self.work}, {self.clients:,} × {self.rows} rows"

    @property
    def work(self) -> str:
        """The local steps in words."""
        if self.in_words:
            return self.in_words
        if self.batch is None:
            return f"{self.steps} full-batch steps"
        return f"batch {self.batch}, {self.passes} pass{'es' * (self.passes != 1)}"

    @property
    def local_steps(self) -> int:
        """How many steps a client takes in the round."""
        if self.batch is None:
            assert self.steps is not None
            return self.steps
        assert self.passes is not None
        return self.passes * -(-self.rows // self.batch)

    @property
    def visited_rows(self) -> int:
        """How many rows a client's steps have in all."""
        if self.batch is None:
            return self.local_steps * self.rows
        assert self.passes is not None
        return self.passes * self.rows


def fedavg(name: str, model: str, clients: int, rows: int, lr: float, **work: int) -> Problem:
    """A round of FedAvg."""
    return Problem(name, "FedAvg", model, clients, rows, lr, **work)


def minibatch(name: str, clients: int, rows: int, batch: int, passes: int) -> Problem:
    """A round of FedAvg on mini-batches with the MLP that most papers have."""
    return fedavg(name, "MLP 784-200-10", clients, rows, 0.05, batch=batch, passes=passes)


def ifca(name: str, clients: int, rows: int) -> Problem:
    """A round of IFCA with four MLPs."""
    return Problem(name, "IFCA", "MLP 784-200-10", clients, rows, 0.1, steps=10, models=4)


def envelope(name: str, method: str, models: int) -> Problem:
    """A round of a method that takes R outer steps of S inner ones."""
    words = "batch 20, R=10, S=5"
    return Problem(name, method, "MLP 784-128-10", 24, 200, 0.005, models=models, in_words=words)


PROBLEMS = (
    fedavg("linear10", "linear d=10", 1000, 100, 0.05, steps=10),
    fedavg("linear1000", "linear d=1000", 400, 100, 0.0005, steps=10),
    fedavg("softmax", "softmax 784-10", 600, 50, 0.1, steps=10),
    fedavg("full50", "MLP 784-200-10", 240, 50, 0.1, steps=10),
    fedavg("full200", "MLP 784-200-10", 100, 200, 0.1, steps=10),
    minibatch("batch10", clients=120, rows=100, batch=10, passes=1),
    minibatch("batch10x5", clients=40, rows=100, batch=10, passes=5),
    minibatch("batch20", clients=120, rows=200, batch=20, passes=1),
    minibatch("batch20x5", clients=60, rows=200, batch=20, passes=5),
    minibatch("batch50", clients=120, rows=200, batch=50, passes=1),
    minibatch("batch50x5", clients=60, rows=200, batch=50, passes=5),
    fedavg("deeper", "MLP 784-200-100-10", 80, 200, 0.05, batch=20, passes=1),
    fedavg("table100", "table 30-64-2", 100, 200, 0.05, batch=20, passes=5, suits_flower=True),
    fedavg("table1000", "table 30-64-2", 1000, 100, 0.05, batch=20, passes=1),
    fedavg("cnn28", "CNN 32-64-512 on 28×28", 16, 100, 0.05, batch=20, passes=1),
    fedavg("cnn32", "CNN 32-64-512 on 32×32", 12, 100, 0.05, batch=20, passes=1),
    dataclasses.replace(minibatch("small20", 20, 200, 20, 1), suits_flower=True),
    fedavg("smalltable", "table 30-64-2", 20, 200, 0.05, batch=20, passes=5, suits_flower=True),
    ifca("ifca200", clients=120, rows=200),
    ifca("ifca50", clients=240, rows=50),
    Problem("fedsoft", "FedSoft", "linear d=10", 20, 100, 0.005, batch=10, passes=10, models=2),
    envelope("pfedme", "pFedMe", models=1),
    envelope("cgpfl", "CGPFL", models=4),
)


def find(name: str, small: bool) -> Problem:
    """The problem of that name; small: with a tenth of its clients, to try whether all runs."""
    problem = {p.name: p for p in PROBLEMS}[name]
    if not small:
        return problem
    return dataclasses.replace(problem, clients=max(8, problem.clients // 10))


# ------------------------------------------------------------------------------ data and models
def rows_of(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The rows x [clients, rows, ...] and labels y [clients, rows] of all clients.

    There are as many kinds of client as models: with one model, all clients are alike.
    """
    random = np.random.default_rng(1)
    shape = problem.shape
    size = (problem.clients, problem.rows)
    group = np.arange(problem.clients) % problem.models
    if shape.is_regression:
        x = random.standard_normal((*size, *shape.row), dtype=np.float32)
        slopes = random.standard_normal((problem.models, *shape.row), dtype=np.float32)
        noise = random.standard_normal(size, dtype=np.float32)
        y = np.einsum("ind,id->in", x, slopes[group]) + 0.1 * noise
        return x, y.astype(np.float32)
    classes = shape.layers[-1]
    prototypes = random.random((classes, *shape.row), dtype=np.float32)
    y = random.integers(classes, size=size)
    x = random.random((*size, *shape.row), dtype=np.float32)
    x *= 0.5
    x += prototypes[y]
    x /= 1.5
    return x, (y + group[:, None]) % classes


def first_models(problem: Problem) -> list[Arrays]:
    """K models to start from, drawn as PyTorch draws the layers that it makes."""
    random = np.random.default_rng(2)
    models = []
    for _ in range(problem.models):
        model: Arrays = []
        for weight in weight_shapes(problem.shape):
            reach = 1 / np.sqrt(np.prod(weight[1:]))
            model.append(random.uniform(-reach, reach, weight).astype(np.float32))
            model.append(random.uniform(-reach, reach, weight[:1]).astype(np.float32))
        models.append(model)
    return models


def weight_shapes(shape: Shape) -> list[tuple[int, ...]]:
    """The shapes of the weights, outputs first, as PyTorch has them."""
    shapes: list[tuple[int, ...]] = []
    inputs = shape.row[0]
    for outputs in shape.channels:
        shapes.append((outputs, inputs, 5, 5))
        inputs = outputs
    if shape.channels:
        pixels = shape.row[-1] // 2 ** len(shape.channels)
        inputs *= pixels * pixels
    for outputs in shape.layers:
        shapes.append((outputs, inputs))
        inputs = outputs
    return shapes


def fingerprint(problem: Problem) -> str:
    """A hash of data and first models, by which contenders are seen to have the same."""
    digest = hashlib.sha256()
    for array in (*rows_of(problem), *(v for model in first_models(problem) for v in model)):
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()[:16]
