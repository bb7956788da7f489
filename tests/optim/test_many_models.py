"""Losses of many clients at once are those of `vmap`; only common layers are written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from local_cases import X, Y, mlp, softmax, task_of
from torch import Tensor, nn
from torch.func import vmap

from coterie.core.layers import Linear, common_layers
from coterie.core.params import Params, stack
from coterie.core.task import Batch, Scale, Task
from coterie.optim import gradients as many_models
from coterie.optim.gradients import losses_from_first_outputs, training_losses_of_models

CLIENTS, ROWS = 3, 7


def deep() -> nn.Module:
    head = nn.Sequential(nn.ELU(), nn.Linear(6, 10, bias=False))
    return nn.Sequential(
        nn.Identity(), nn.Flatten(), nn.Linear(64, 9), nn.GELU(), nn.Linear(9, 6), head
    )


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5, bias=False), nn.ReLU(), nn.Linear(5, 10))


def only_a_layer() -> nn.Module:
    return nn.Linear(64, 10)


def ragged_batch(x: Tensor, y: Tensor) -> Batch:
    """Rows of all clients; some pad, and rows have weights."""
    draw = torch.Generator().manual_seed(3)
    mask = torch.ones(CLIENTS, ROWS, dtype=torch.float64)
    mask[1, 4:] = 0
    mask[2] = 0
    weight = torch.rand(CLIENTS, ROWS, generator=draw, dtype=torch.float64) + 0.5
    shape = (CLIENTS, ROWS)
    n = CLIENTS * ROWS
    return Batch(x[:n].unflatten(0, shape), y[:n].unflatten(0, shape), mask, weight)


def first_outputs(task: Task, params: Params, batch: Batch) -> Tensor:
    assert task.first is not None
    return batch.x.flatten(2) @ params[task.first.weight].mT


@pytest.mark.parametrize("factory", [softmax, mlp, deep, without_bias, only_a_layer])
def test_losses_and_gradients_are_those_of_vmap(
    factory: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = X.flatten(1) if factory is only_a_layer else X
    task = Task(factory, "classification", x[:2], 10, torch.float64)
    assert task.layers is not None
    params = stack([task.init(seed) for seed in range(CLIENTS)])
    batch = ragged_batch(x, Y)
    expected, jacobian = both(lambda p: vmap(task.loss)(p, batch), params)
    monkeypatch.setattr(many_models, "vmap", None)  # it is not used
    found, gradients = both(lambda p: training_losses_of_models(task, p, batch)[0], params)
    near(found, expected)
    for name, value in jacobian.items():
        near(gradients[name], value)
    z = first_outputs(task, params, batch)
    near(losses_from_first_outputs(task, z, params, batch), expected)
    assert float(expected[2]) == 0 and not gradients[next(iter(params))][2].any()


def test_regression_in_a_unit_of_its_own() -> None:
    unit = Scale(mean=3.0, deviation=2.5)
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Tanh(), nn.Linear(4, 1))
    task = Task(make, "regression", X[:2], None, torch.float64, scale=unit)
    params = stack([task.init(seed) for seed in range(CLIENTS)])
    batch = ragged_batch(X, Y.double())
    expected = vmap(task.loss)(params, batch)
    near(training_losses_of_models(task, params, batch)[0], expected)
    z = first_outputs(task, params, batch)
    near(losses_from_first_outputs(task, z, params, batch), expected)


def test_large_outputs_neither_overflow_nor_vanish() -> None:
    task = task_of(softmax)
    params = stack([{k: 1e4 * v for k, v in task.init(s).items()} for s in range(CLIENTS)])
    batch = ragged_batch(X, Y)
    near(training_losses_of_models(task, params, batch)[0], vmap(task.loss)(params, batch))


def test_the_layers_are_named_in_their_order() -> None:
    layers = common_layers(deep())
    assert layers is not None
    names = [layer if isinstance(layer, Linear) else type(layer) for layer in layers]
    first, second = Linear("2.weight", "2.bias"), Linear("4.weight", "4.bias")
    assert names == [first, nn.GELU, second, nn.ELU, Linear("5.1.weight", None)]


class Doubled(nn.Linear):
    """A layer that computes something else than its base."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def shares_a_layer() -> nn.Module:
    layer = nn.Linear(10, 10)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), layer, nn.ReLU(), layer)


def shares_a_weight() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Linear(10, 10), nn.Linear(10, 10))
    module[3].weight = module[2].weight
    return module


def has_a_hook() -> nn.Module:
    module = mlp()
    module[2].register_forward_hook(lambda layer, rows, out: 2 * out)
    return module


def is_frozen() -> nn.Module:
    module = mlp()
    module[3].bias.requires_grad_(False)
    return module


def is_a_class() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1))

    return Net()


@pytest.mark.parametrize(
    "factory",
    [
        shares_a_layer,
        shares_a_weight,
        has_a_hook,
        is_frozen,
        is_a_class,
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), Doubled(9, 10)),
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(64, 9), nn.ReLU(inplace=True), nn.Linear(9, 10)
        ),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.LayerNorm(9), nn.Linear(9, 10)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Softmax(1), nn.Linear(9, 10)),
    ],
)
def test_any_other_model_is_left_to_vmap(factory: Callable[[], nn.Module]) -> None:
    task = task_of(factory)
    assert task.layers is None
    params = stack([task.init(seed) for seed in range(CLIENTS)])
    batch = ragged_batch(X, Y)
    near(training_losses_of_models(task, params, batch)[0], vmap(task.loss)(params, batch))


def both(losses: Callable[[Params], Tensor], params: Params) -> tuple[Tensor, Params]:
    """The losses, and the gradient of their sum: each client's own."""
    values = [v.detach().requires_grad_() for v in params.values()]
    found = losses(dict(zip(params, values)))
    return found.detach(), dict(zip(params, torch.autograd.grad(found.sum(), values)))


def near(found: Tensor, expected: Tensor) -> None:
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
