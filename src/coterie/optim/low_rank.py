"""Low-rank updates of a first layer: a combination of the client's samples, not written out.

Without momentum, and with no proximal term but one towards the start, the dual form
(`optim/dual.py`) ends at  W = W₀ − SᵀX,  where W₀ is the start, X [n, d] the client's samples and
S [n, h] are sums of their gradients over the steps. The sum of many clients' models needs no W:

    Σ_i c_i·W_i  =  (Σ_i c_i)·W₀ − [c_1·S_1; c_2·S_2; …]ᵀ[X_1; X_2; …]

is one large product, and the squared update norm is  ‖SᵀX‖² = Σ S∘(XXᵀS).  Written out, each W is
picked, written, compared with W₀ and summed: passes over d·h numbers per client, which take a
quarter of a round if clients have few samples.

The engine permits such updates (`Execution.low_rank`) where the aggregator only sums; then
`descend_from` may return a `LowRankUpdate` in place of a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.params import Params, as_column


class LowRankUpdate(NamedTuple):
    """The weights W₀ − coefficientsᵀ·rows. With many clients every leaf is [c, ...]."""

    coefficients: Tensor  # [n, h]; of stacked models [n, K, h]
    rows: Tensor  # [n, d]
    squared_norm: Tensor  # ‖coefficientsᵀ·rows‖²

    def matches(self, weights: Tensor) -> bool:
        """Whether this update of many clients is one of weights like these: [h, d] or [K, h, d]."""
        return (
            (*self.coefficients.shape[2:], self.rows.shape[2]) == weights.shape
            and self.coefficients.shape[:2] == self.rows.shape[:2]
            and self.coefficients.dtype == self.rows.dtype == weights.dtype
        )

    def rescale(self, clients: Tensor, factor: Tensor) -> LowRankUpdate:
        """Multiply the updates of some of many clients by a factor."""
        scaled = self.coefficients[clients] * as_column(
            factor.to(self.coefficients), self.coefficients
        )
        return self._replace(coefficients=self.coefficients.index_copy(0, clients, scaled))


def stack_models(models: Sequence[Params]) -> Params:
    """Stack models of one client that `descend_from` returned.

    Like `ct.params.stack`, but first layers may be low-rank updates of the client's samples.

    Args:
        models: Models with the same leaves [...].

    Returns:
        Leaves of shape [K, ...], for an upload.

    Example:
        >>> import torch, coterie as ct
        >>> ct.optim.stack_models([{"w": torch.zeros(3)}, {"w": torch.ones(3)}])["w"].shape
        torch.Size([2, 3])
    """
    stacked: dict[str, Any] = {}
    for name, leaf in models[0].items():
        leaves: list[Any] = [model[name] for model in models]
        if isinstance(leaf, LowRankUpdate):
            coefficients = torch.stack([update.coefficients for update in leaves], 1)
            squared_norm = sum(update.squared_norm for update in leaves)
            stacked[name] = LowRankUpdate(coefficients, leaf.rows, squared_norm)
        else:
            stacked[name] = torch.stack(leaves)
    return stacked


def sum_low_rank(weight: Tensor, update: LowRankUpdate, starts: Tensor) -> Tensor:
    """Σ_i w_ik·W_i, computed without any W_i.

    Args:
        weight: [c, K]. Each row has at most one number that is not 0: for the centre that the
            client started from.
        update: The updates of c clients.
        starts: The centres [K, h, d], or with more axes if every W_i has them.

    Returns:
        The weighted sums, like `starts`.

    Raises:
        ValueError: If a client has weights for several centres.
    """
    weight = weight.to(starts)
    if bool(((weight != 0).sum(1) > 1).any()):
        raise ValueError(
            "the result of descend_from() counts for one centre, but its weight names several"
        )
    total = as_column(weight.sum(0), starts) * starts
    for k, w in enumerate(weight.T):
        coefficients, rows = update.coefficients, update.rows
        clients = w.nonzero()[:, 0]
        if len(clients) < len(weight):  # else no copy is needed
            coefficients, rows, w = coefficients[clients], rows[clients], w[clients]
        if bool((w != 1).any()):
            coefficients = coefficients * as_column(w, coefficients)
        all_coefficients = coefficients.flatten(0, 1).flatten(1)
        total[k].flatten(0, -2).addmm_(all_coefficients.T, rows.flatten(0, 1), alpha=-1)
    return total
