"""The loss is defined once: every path of training and evaluation uses the same function."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import coterie as ct
from cases import federation
from coterie.core.losses import CROSS_ENTROPY, SQUARED_ERROR, RowLoss
from coterie.core.task import Batch, Task


@pytest.mark.parametrize("loss", [CROSS_ENTROPY, SQUARED_ERROR], ids=lambda loss: loss.name)
def test_the_written_out_gradient_is_autograds(loss):
    g = torch.Generator().manual_seed(0)
    shape = (3, 5, 4) if loss is CROSS_ENTROPY else (3, 5)
    outputs = torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)
    y = torch.randint(0, 4, (3, 5), generator=g)
    if loss is SQUARED_ERROR:
        y = y.double()
    values = loss.values(outputs, y)
    assert values.shape == (3, 5)
    if loss is CROSS_ENTROPY:
        expected = F.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")
        torch.testing.assert_close(values.flatten(), expected)
    (found,) = torch.autograd.grad(values.sum(), outputs)
    torch.testing.assert_close(loss.gradient(outputs.detach(), y), found)


def focal(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(outputs, y, reduction="none")
    return (1 - (-losses).exp()) ** 2 * losses


MODELS = {
    "written-out backward, dual form": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)
    ),
    "autograd, dual form": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10)
    ),
    "autograd": lambda: nn.Sequential(
        nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 10)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_form_of_local_steps_follows_the_tasks_loss(name):
    x, y = federation(2).train.client(1)
    task = Task(MODELS[name], "classification", x, 10, torch.float64)
    task.row_loss = RowLoss("focal", focal)
    module = MODELS[name]().double()
    w = {k: v.detach().clone() for k, v in module.named_parameters()}
    data = ct.Data(Batch.of(x, y, torch.float64), torch.tensor(0), torch.tensor(0))
    how = ct.Local(lr=0.3, local_steps=5)
    trained = ct.optim.descend(task, w, data.batches(how), how)

    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    for _ in range(5):
        optimizer.zero_grad()
        focal(module(x), y).mean().backward()
        optimizer.step()
    torch.testing.assert_close(trained, dict(module.named_parameters()), rtol=1e-9, atol=1e-9)
    assert task.loss(trained, data.all) == pytest.approx(focal(module(x), y).mean().item())
