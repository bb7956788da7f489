"""Clients with a single column."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.reporting.client_sums import ClientSums, sum_clients


def client(values: Sequence[float], y: Sequence[float] | None = None) -> tuple[Tensor, Tensor]:
    """One client whose single column holds these values; labels are 0 unless given."""
    x = torch.as_tensor(values, dtype=torch.float64)[:, None]
    if y is None:
        return x, torch.zeros(len(x))
    return x, torch.as_tensor(y, dtype=torch.float64)


def side(*clients: tuple[Tensor, Tensor]) -> ClientSums:
    """The sums of clients with a target."""
    return sum_clients(clients, None)
