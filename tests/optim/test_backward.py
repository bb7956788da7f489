"""Gradients that are written out are those of autograd; other models are left to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from local_cases import X, Y, mlp, softmax
from test_many_models import (
    CLIENTS,
    both,
    deep,
    first_outputs,
    near,
    only_a_layer,
    ragged_batch,
    without_bias,
)
from torch import Tensor, nn
from torch.func import vmap

from coterie.core.params import Params, stack
from coterie.core.task import Batch, Scale, Task
from coterie.optim.gradients import (
    gradients_from_first_outputs,
    gradients_of_models,
    has_manual_backward,
)
from coterie.optim.plain import gradients


def three_layers() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 9),
        nn.Tanh(),
        nn.Linear(9, 7, bias=False),
        nn.Sigmoid(),
        nn.Linear(7, 10),
    )


def ends_in_an_activation() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh())


def two_activations_in_a_row() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Tanh(), nn.Sigmoid(), nn.Linear(9, 10))


def classifying(factory: Callable[[], nn.Module]) -> tuple[Task, Params, Batch]:
    x = X.flatten(1) if factory is only_a_layer else X
    task = Task(factory, "classification", x[:2], 10, torch.float64)
    return task, stack([task.init(seed) for seed in range(CLIENTS)]), ragged_batch(x, Y)


def predicting() -> tuple[Task, Params, Batch]:
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 1))
    unit = Scale(mean=3.0, deviation=2.5)
    task = Task(make, "regression", X[:2], None, torch.float64, scale=unit)
    return task, stack([task.init(seed) for seed in range(CLIENTS)]), ragged_batch(X, Y.double())


def check(task: Task, params: Params, batch: Batch) -> None:
    """Both gradients against those of autograd through `vmap`."""
    assert task.first is not None
    _, expected = both(lambda p: vmap(task.loss)(p, batch), params)
    before = {k: v.clone() for k, v in params.items()}
    found = gradients_of_models(task, params, batch)
    assert list(found) == list(params)
    for name, value in expected.items():
        near(found[name], value)
        assert torch.equal(params[name], before[name])

    z = first_outputs(task, params, batch)
    others = {k: v for k, v in params.items() if k != task.first.weight}
    of_outputs, of_others = gradients_from_first_outputs(task, z, others, batch)
    near(of_outputs.mT @ batch.x.flatten(2), expected[task.first.weight])  # ∇W = GᵀX
    assert list(of_others) == list(others)
    for name, value in of_others.items():
        near(value, expected[name])


@pytest.mark.parametrize(
    "factory",
    [softmax, mlp, without_bias, only_a_layer, three_layers, ends_in_an_activation],
)
def test_they_are_those_of_autograd(factory: Callable[[], nn.Module]) -> None:
    task, params, batch = classifying(factory)
    assert has_manual_backward(task)
    check(task, params, batch)


def test_regression_in_a_unit_of_its_own() -> None:
    task, params, batch = predicting()
    assert has_manual_backward(task)
    check(task, params, batch)


@pytest.mark.parametrize("factory", [deep, two_activations_in_a_row])
def test_any_other_model_is_left_to_autograd(factory: Callable[[], nn.Module]) -> None:
    task, params, batch = classifying(factory)
    assert not has_manual_backward(task)
    _, expected = both(lambda p: vmap(task.loss)(p, batch), params)
    for name, value in gradients(task, params, batch)[0].items():
        near(value, expected[name])


def test_a_client_of_padding_has_the_gradient_zero() -> None:
    task, params, batch = classifying(mlp)
    found = gradients_of_models(task, params, batch)
    assert not batch.mask[2].any()
    assert not any(bool(v[2].any()) for v in found.values())
    assert all(bool(v[0].any()) for v in found.values())


def test_steps_do_not_ask_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    task, params, batch = classifying(mlp)

    def refuse(*arguments: object, **options: object) -> Tensor:
        raise AssertionError("autograd was asked")

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    assert list(gradients(task, params, batch)[0]) == list(params)
