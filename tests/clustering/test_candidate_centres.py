"""The centres that serve clients best."""

from __future__ import annotations

import itertools

import torch
from torch import tensor

from coterie.clustering import select_by_losses


def test_by_hand():
    """Two groups of two clients; centre 2 is a poor copy of centre 0, and centre 3 suits nobody."""
    losses = tensor(
        [[0.1, 0.9, 0.2, 5.0], [0.1, 0.9, 0.2, 5.0], [0.9, 0.1, 0.8, 5.0], [0.9, 0.1, 0.8, 5.0]]
    )
    assert select_by_losses(losses, 2).tolist() == [0, 1]


def test_a_single_client_has_one_vote():
    """Ten clients want centre 0 or 1; one praises centre 2 without measure."""
    honest = [[0.1, 0.9, 9.0]] * 5 + [[0.9, 0.1, 9.0]] * 5
    losses = tensor([*honest, [1e30, 1e30, 0.0]])
    assert select_by_losses(losses, 2).tolist() == [0, 1]


def test_a_diverged_centre_is_never_best():
    assert select_by_losses(tensor([[torch.inf, 1.0], [torch.inf, 2.0]]), 1).tolist() == [1]


def test_it_is_the_best_of_all_choices():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        cost = torch.rand(12, 6, generator=generator)
        ranks = cost.argsort(1).argsort(1).double() / 5  # no ties

        def total(kept: tuple[int, ...]) -> float:
            return float(ranks[:, list(kept)].amin(1).sum())  # noqa: B023

        least = min(map(total, itertools.combinations(range(6), 3)))
        assert total(tuple(select_by_losses(cost, 3).tolist())) <= least * 1.1
