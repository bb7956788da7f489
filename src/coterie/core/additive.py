"""An additive model: the sum of a curve for each column.

    f(x) = bias + Σ_j weight_j x_j + Σ_jm hinges_jm max(0, x_j − knots_jm)

Each curve is linear between knots. With hinges of 0 it is a linear model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

KNOTS = 5  # for each column


class Additive(nn.Module):
    """A piecewise-linear curve for each column; the model of generalised additive models.

    Args:
        columns: Number of columns.
        outputs: Number of outputs.

    Knots start at quantiles of a standard normal distribution, as columns of tables are
    standardised, and are parameters like all others.
    """

    def __init__(self, columns: int, outputs: int) -> None:
        super().__init__()
        levels = torch.arange(1, KNOTS + 1) / (KNOTS + 1)
        self.weight = nn.Parameter(torch.empty(outputs, columns))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.hinges = nn.Parameter(torch.zeros(outputs, columns, KNOTS))
        self.knots = nn.Parameter(torch.special.ndtri(levels).repeat(columns, 1))
        nn.init.normal_(self.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows [n, columns] to outputs [n, outputs]."""
        bent = (x[:, :, None] - self.knots).relu()
        curves = bent.flatten(1) @ self.hinges.flatten(1).T
        return x @ self.weight.T + curves + self.bias
