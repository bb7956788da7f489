"""Losses of samples: the one place that defines what training minimises.

A loss maps the outputs and targets of some samples to one value per sample. Every path uses the
same `RowLoss`: autograd, the written-out backward pass, the dual form, evaluation and the choice of
a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


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
