"""Losses of samples: the one place that defines what training minimises.

A loss maps the outputs and targets of some samples to one value per sample. Every path uses the
same `RowLoss`: autograd, the written-out backward pass, the dual form, evaluation and the choice of
a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import CoterieError


@dataclass(frozen=True)
class RowLoss:
    """The loss of each sample.

    Args:
        name: For messages and the model's fingerprint.
        values: Maps outputs [n, ...] and targets [n, ...] to losses [n].
        gradient: ∂values/∂outputs, written out; None: autograd. Losses with a written-out gradient
            also take outputs with further leading axes, such as [clients, n, ...].
    """

    name: str
    values: Callable[[Any, Any], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor] | None = None


# ------------------------------------------------------------------------------ built in
def _cross_entropies(outputs: Tensor, y: Tensor) -> Tensor:
    # written out: for few classes torch's takes four times as long
    return outputs.logsumexp(-1) - outputs.gather(-1, y[..., None])[..., 0]


def _cross_entropy_gradient(outputs: Tensor, y: Tensor) -> Tensor:
    g = outputs.softmax(-1)  # minus the one-hot label
    return g.scatter_add_(-1, y[..., None], g.new_full((), -1).expand(*y.shape, 1))


CROSS_ENTROPY = RowLoss("cross_entropy", _cross_entropies, _cross_entropy_gradient)
SQUARED_ERROR = RowLoss(
    "squared_error",
    lambda outputs, y: (outputs - y) ** 2,
    lambda outputs, y: 2 * (outputs - y),
)


def weighted_cross_entropy(
    weights: Sequence[float], classes: int | None, dtype: torch.dtype
) -> RowLoss:
    """Cross-entropy times the weight of the true class.

    Raises:
        CoterieError: If there is not one positive weight per class.
    """
    given = [float(weight) for weight in weights]
    if len(given) != classes or not all(0 < weight < math.inf for weight in given):
        raise CoterieError(
            f"class_weights are {given}: give one positive number for each of the {classes} "
            "classes of a classification."
        )
    of_class = torch.tensor(given, dtype=dtype)

    def values(outputs: Tensor, y: Tensor) -> Tensor:
        return _cross_entropies(outputs, y) * of_class.to(outputs.device)[y]

    def gradient(outputs: Tensor, y: Tensor) -> Tensor:
        return _cross_entropy_gradient(outputs, y) * of_class.to(outputs.device)[y][..., None]

    return RowLoss(f"cross_entropy {given}", values, gradient)
