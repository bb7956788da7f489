"""What the tests of local training share: rows of digits, two small models, comparisons."""

from __future__ import annotations

from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import nn

from coterie.core.params import Params
from coterie.core.task import Batch, Task
from oracles import arrays, assert_same_models

DIGITS_X, DIGITS_Y = load_digits(return_X_y=True)
X = torch.tensor(DIGITS_X / 16 - 0.3).view(-1, 8, 8)  # real pixels, of both signs
Y = torch.tensor(DIGITS_Y)


def digits(n: int, start: int = 0) -> Batch:
    return Batch.of(X[start : start + n], Y[start : start + n], torch.float64)


def task_of(factory: Callable[[], nn.Module]) -> Task:
    return Task(factory, "classification", X[:2], 10, torch.float64)


def softmax() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


def equal(a: Params, b: Params) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def model_near(a: Params, b: Params, tolerance: float = 1e-9) -> None:
    assert_same_models(arrays(a), arrays(b), tolerance)


def padded(batch: Batch, by: int) -> Batch:
    """The batch with `by` more rows, of the largest values there are, that count for nothing."""
    x = torch.cat([batch.x, 9 + torch.zeros(by, *batch.x.shape[1:], dtype=batch.x.dtype)])
    y = torch.cat([batch.y, batch.y[:1].expand(by)])
    mask = torch.cat([batch.mask, torch.zeros(by, dtype=torch.float64)])
    weight = torch.cat([batch.weight, torch.ones(by, dtype=torch.float64)])
    return Batch(x, y, mask, weight)


NOTHING = digits(6)._replace(mask=torch.zeros(6, dtype=torch.float64))
