"""The layer that the dual form may take: found where it is safe, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, tensor

import coterie as ct
from coterie.core.task import Batch, Task
from coterie.optim import sgd

ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def task_of(model: Any, x: Tensor = ROWS) -> Task:
    return Task(model, "classification", x, 3, torch.float64)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


class Raw(nn.Module):
    """A bare parameter: no layer whose reset_parameters could be called again."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


class Flattens(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.last, self.front = nn.Linear(5, 3), nn.Linear(6, 5, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.front(x.flatten(1)))


@pytest.mark.parametrize(
    "model, x, first",
    [
        (lambda: nn.Linear(6, 3), ROWS, ("", "weight", "bias")),
        (mlp, ROWS, ("0", "0.weight", "0.bias")),
        (
            lambda: nn.Sequential(nn.Flatten(), mlp()),
            ROWS.view(4, 2, 3),
            ("1.0", "1.0.weight", "1.0.bias"),
        ),
        (Flattens, ROWS.view(4, 2, 3), ("front", "front.weight", "front.bias")),
        (lambda: Flattens(bias=False), ROWS, ("front", "front.weight", None)),
    ],
)
def test_the_first_layer_is_found(
    model: Callable[[], nn.Module], x: Tensor, first: tuple[str | None, ...]
) -> None:
    assert task_of(model, x).first == first


class Twice(nn.Module):
    """The first layer is applied once more further on."""

    def __init__(self) -> None:
        super().__init__()
        self.square, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.square(torch.relu(self.square(x))))


class Tied(nn.Module):
    """Two layers, one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.b(torch.relu(self.a(x))))


class Borrowed(nn.Module):
    """The first layer's weight is used once more, without the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.last = nn.Linear(6, 5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.linear(torch.relu(self.a(x)), self.a.weight.T))


class TiedBehind(nn.Module):
    """Two later layers are one; the first stands alone."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.b(torch.relu(self.a(torch.relu(self.front(x))))))


class Doubled(nn.Module):
    """The first layer is applied twice, both times to the rows themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * torch.sigmoid(self.a(x))


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x - 0.5)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.words(x).mean(1))


def relu_first() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Linear(6, 3))


def normed() -> nn.Module:
    return torch.nn.utils.weight_norm(nn.Linear(6, 3))  # its weight is made of two other parameters


NOT_USABLE = {
    "applied twice": (Twice, ROWS),
    "tied": (Tied, ROWS),
    "borrowed": (Borrowed, ROWS),
    "shifted": (Shifted, ROWS),
    "raw parameter": (Raw, ROWS),
    "relu before it": (relu_first, ROWS),
    "clamp before it": (lambda: nn.Sequential(nn.Hardtanh(-3, 3), nn.Linear(6, 3)), ROWS),
    "norm before it": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), ROWS),
    "weight norm": (normed, ROWS),
    "conv first": (
        lambda: nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(6, 3)),
        ROWS.view(4, 1, 2, 3),
    ),
    "per token": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Flatten(), nn.Linear(6, 3)),
        ROWS.view(4, 2, 3),
    ),
    "int tokens": (Tokens, torch.arange(24).view(4, 6) % 9),
}


@pytest.mark.parametrize("which", NOT_USABLE)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_models_without_a_usable_first_layer(which: str) -> None:
    assert task_of(*NOT_USABLE[which]).first is None


@pytest.mark.parametrize("model", [Twice, Tied, Borrowed, TiedBehind, Doubled, relu_first, normed])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_steps_on_models_with_odd_first_layers_are_those_of_torch(
    model: Callable[[], nn.Module],
) -> None:
    x, y = ROWS.double(), tensor([0, 1, 2, 0])
    task = task_of(model)
    start = task.init(0)
    new = sgd(task, start, ct.Repeat(Batch.of(x, y, torch.float64), 20), ct.Local(lr=0.1))
    module = model().double()
    with torch.no_grad():
        for k, v in module.named_parameters():
            v.copy_(start[k])
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(20):
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
    for k, v in module.named_parameters():
        torch.testing.assert_close(new[k], v.detach())
