"""FedJAX's FedAvg, and its HypCluster for IFCA, one client at a time in compiled steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

jax.tree_map = jax.tree.map  # FedJAX calls it by a name that JAX no longer has

import fedjax  # noqa: E402
from fedjax.algorithms import fed_avg, hyp_cluster  # noqa: E402

from contenders.answering import read_request, serve  # noqa: E402
from contenders.problems import Arrays, Problem, Shape, first_models, rows_of  # noqa: E402

Params = list[jax.Array]


# ------------------------------------------------------------------------------ the models
def outputs(shape: Shape, params: Params, x: jax.Array) -> jax.Array:
    """The model's outputs; images have their channels last, as XLA likes them on processors."""
    pairs = list(zip(params[::2], params[1::2]))
    for weight, bias in pairs[: len(shape.channels)]:
        x = jax.lax.conv_general_dilated(
            x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + bias)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    for weight, bias in pairs[len(shape.channels) :]:
        x = x @ weight + bias
        if weight is not pairs[-1][0]:
            x = jax.nn.relu(x)
    return x


def losses(problem: Problem, params: Params, batch: Any) -> jax.Array:
    """The loss of each row."""
    out = outputs(problem.shape, params, batch["x"])
    if problem.is_regression:
        return (out[:, 0] - batch["y"]) ** 2
    return -jnp.take_along_axis(jax.nn.log_softmax(out), batch["y"][:, None], 1)[:, 0]


def from_torch(shape: Shape, model: Arrays) -> Params:
    """Weights with inputs first, and channels last."""
    params = []
    for i, array in enumerate(model):
        if array.ndim == 4:
            array = array.transpose(2, 3, 1, 0)
        elif array.ndim == 2 and is_after_convolutions(shape, i):
            images = array.reshape(len(array), shape.channels[-1], *pooled(shape))
            array = images.transpose(2, 3, 1, 0).reshape(-1, len(array))
        elif array.ndim == 2:
            array = array.T
        params.append(jnp.asarray(array))
    return params


def to_torch(shape: Shape, params: Params) -> Arrays:
    """The other way."""
    model = []
    for i, value in enumerate(params):
        array = np.asarray(value)
        if array.ndim == 4:
            array = array.transpose(3, 2, 0, 1)
        elif array.ndim == 2 and is_after_convolutions(shape, i):
            images = array.reshape(*pooled(shape), shape.channels[-1], -1)
            array = images.transpose(3, 2, 0, 1).reshape(array.shape[1], -1)
        elif array.ndim == 2:
            array = array.T
        model.append(np.ascontiguousarray(array))
    return model


def is_after_convolutions(shape: Shape, i: int) -> bool:
    """Whether parameter i is the weight of the layer that takes the last images."""
    return bool(shape.channels) and i == 2 * len(shape.channels)


def pooled(shape: Shape) -> tuple[int, int]:
    """Height and width of the last images."""
    size = shape.row[-1] // 2 ** len(shape.channels)
    return size, size


# ------------------------------------------------------------------------------ the algorithms
class FedJax:
    packages = ("fedjax", "jax", "numpy")

    def __init__(self, problem: Problem, threads: int) -> None:
        self.problem = problem
        x, y = rows_of(problem)
        if problem.shape.channels:
            x = np.ascontiguousarray(np.moveaxis(x, 2, -1))
        self.datasets = [fedjax.ClientDataset({"x": a, "y": b}) for a, b in zip(x, y)]
        self.batches = fedjax.ShuffleRepeatBatchHParams(
            batch_size=problem.batch or problem.rows,
            num_epochs=problem.steps if problem.batch is None else problem.passes,
            drop_remainder=False,
            skip_shuffle=problem.batch is None,
        )
        starts = [from_torch(problem.shape, model) for model in first_models(problem)]
        self.algorithm = self.algorithm_of(problem)
        if problem.method == "IFCA":
            self.start = self.algorithm.init(starts)
        else:
            self.start = self.algorithm.init(starts[0])
        self.rounds = 0

    def algorithm_of(self, problem: Problem) -> Any:
        def per_row(params: Params, batch: Any, rng: Any) -> jax.Array:
            return losses(problem, params, batch)

        def gradient(params: Params, batch: Any, rng: Any) -> Params:
            return jax.grad(lambda p: losses(problem, p, batch).mean())(params)

        client = fedjax.optimizers.sgd(problem.lr)
        server = fedjax.optimizers.sgd(1.0)
        if problem.method == "IFCA":
            whole = fedjax.PaddedBatchHParams(batch_size=problem.rows)
            return hyp_cluster.hyp_cluster(per_row, client, server, whole, self.batches)
        return fed_avg.federated_averaging(gradient, client, server, self.batches)

    def prepare(self, threads: int) -> Callable[[], Any]:
        self.rounds += 1
        keys = jax.random.split(jax.random.PRNGKey(self.rounds), self.problem.clients)
        clients = [(b"%06d" % i, data, keys[i]) for i, data in enumerate(self.datasets)]
        return lambda: jax.block_until_ready(self.round(clients))

    def round(self, clients: Any) -> list[Params]:
        state, _ = self.algorithm.apply(self.start, clients)
        if self.problem.method == "IFCA":
            return state.cluster_params
        return [state.params]

    def models(self, result: list[Params]) -> list[Arrays]:
        return [to_torch(self.problem.shape, params) for params in result]

    def counts(self) -> dict[str, Any]:
        sizes = [
            len(batch["y"])
            for data in self.datasets
            for batch in data.shuffle_repeat_batch(self.batches)
        ]
        return {"steps": len(sizes), "rows": sum(sizes)}


if __name__ == "__main__":
    request = read_request()
    if request.threads == 1:  # XLA makes a thread for each core that it may use
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    serve(request, FedJax)
