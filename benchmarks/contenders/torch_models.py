"""The models of the problems in PyTorch, for every contender that has it, and for the driver."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contenders.problems import Arrays, Problem, Shape, weight_shapes


def build(shape: Shape) -> nn.Sequential:
    """A module whose parameters are in the order of `weight_shapes`."""
    layers: list[nn.Module] = []
    for size in weight_shapes(shape):
        if len(size) == 4:
            layers += [nn.Conv2d(size[1], size[0], 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
            continue
        if shape.channels and not any(isinstance(layer, nn.Flatten) for layer in layers):
            layers.append(nn.Flatten())
        layers += [nn.Linear(size[1], size[0]), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def load(module: nn.Module, model: Iterable[Tensor]) -> None:
    """Copy a model into the module."""
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), model, strict=True):
            parameter.copy_(value)


def arrays_of(module: nn.Module) -> Arrays:
    """The module's parameters as arrays."""
    return [parameter.detach().numpy().copy() for parameter in module.parameters()]


def tensors(model: Arrays) -> list[Tensor]:
    """A model's arrays as tensors."""
    return [torch.from_numpy(array) for array in model]


def loss_of(problem: Problem, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean loss of some rows."""
    if problem.is_regression:
        return F.mse_loss(module(x)[:, 0], y)
    return F.cross_entropy(module(x), y)
