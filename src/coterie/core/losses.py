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
import torch.nn.functional as F
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


MEAN_SQUARED_ERROR = RowLoss(
    "mean_squared_error", lambda outputs, y: ((outputs - y) ** 2).flatten(1).mean(1)
)


def check_class_weights(
    weights: Sequence[float], classes: int | None, dtype: torch.dtype
) -> Tensor:
    """The weights of classes as a tensor.

    Raises:
        CoterieError: If there is not one positive weight per class.
    """
    given = [float(weight) for weight in weights]
    if len(given) != classes or not all(0 < weight < math.inf for weight in given):
        raise CoterieError(
            f"class_weights are {given}: give one positive number for each of the {classes} "
            "classes of a classification."
        )
    return torch.tensor(given, dtype=dtype)


def weighted_cross_entropy(of_class: Tensor) -> RowLoss:
    """Cross-entropy times the weight of the true class."""

    def values(outputs: Tensor, y: Tensor) -> Tensor:
        return _cross_entropies(outputs, y) * of_class.to(outputs.device)[y]

    def gradient(outputs: Tensor, y: Tensor) -> Tensor:
        return _cross_entropy_gradient(outputs, y) * of_class.to(outputs.device)[y][..., None]

    return RowLoss(f"cross_entropy {of_class.tolist()}", values, gradient)


def cross_entropies_of_positions(
    outputs: Tensor, y: Tensor, class_axis: int, ignore_index: int
) -> Tensor:
    """The cross-entropy of each token or pixel, like y; 0 where the label is `ignore_index`."""
    counts = y != ignore_index
    found = _cross_entropies(outputs.movedim(class_axis, -1), torch.where(counts, y, 0))
    return torch.where(counts, found, 0.0)


def position_cross_entropy(
    class_axis: int, ignore_index: int, of_class: Tensor | None = None
) -> RowLoss:
    """The mean cross-entropy over a row's tokens or pixels that are not ignored.

    Args:
        class_axis: Of outputs, whose other axes are those of the targets.
        ignore_index: The label of tokens and pixels that do not count.
        of_class: A weight for each class, by which each token's cross-entropy is multiplied.
    """

    def values(outputs: Tensor, y: Tensor) -> Tensor:
        found = cross_entropies_of_positions(outputs, y, class_axis, ignore_index)
        counts = y != ignore_index
        if of_class is not None:
            found = found * of_class.to(outputs.device)[torch.where(counts, y, 0)]
        return found.flatten(1).sum(1) / counts.flatten(1).sum(1).clamp(min=1)

    weights = None if of_class is None else of_class.tolist()
    return RowLoss(f"position_cross_entropy {class_axis} {ignore_index} {weights}", values)


def binary_cross_entropy(of_label: Tensor | None = None) -> RowLoss:
    """The mean binary cross-entropy over a row's labels, each times its label's weight."""

    def values(outputs: Tensor, y: Tensor) -> Tensor:
        found = F.binary_cross_entropy_with_logits(outputs, y, reduction="none")
        if of_label is not None:
            found = found * of_label.to(outputs.device)
        return found.flatten(1).mean(1)

    weights = None if of_label is None else of_label.tolist()
    return RowLoss(f"binary_cross_entropy {weights}", values)
