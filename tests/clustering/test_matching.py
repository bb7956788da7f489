"""Groups of one round matched to the labels of the last."""

from __future__ import annotations

from itertools import permutations

import torch
from torch import tensor

from coterie.clustering import match_clusters, overlap_counts


def test_least_cost_by_hand() -> None:
    """Cost [centre, group]: group 0 would rather have centre 0, but 0 + 9 > 1 + 2."""
    assert match_clusters(tensor([[0.0, 2.0], [1.0, 9.0]])).tolist() == [1, 0]


def test_fewer_groups_than_centres() -> None:
    """Each group gets a centre of its own; the spare centre 1 gets none."""
    assert match_clusters(tensor([[5.0, 1.0], [6.0, 6.0], [2.0, 1.5]])).tolist() == [2, 0]
    assert match_clusters(torch.zeros(3, 0)).tolist() == []


def test_it_is_the_best_of_all_assignments() -> None:
    rng = torch.Generator().manual_seed(0)
    for k, g in ((4, 4), (5, 3), (4, 1)):
        cost = torch.randn(k, g, generator=rng)
        to = match_clusters(cost).tolist()
        total = lambda p, cost=cost: sum(float(cost[c, j]) for j, c in enumerate(p))
        assert len(set(to)) == g
        assert total(to) == min(map(total, permutations(range(k), g)))


def test_overlap_by_hand() -> None:
    """Before 2 2 0 −1 0, now 0 0 1 1 0."""
    counts = overlap_counts(tensor([2, 2, 0, -1, 0]), tensor([0, 0, 1, 1, 0]), 3, 2)
    assert counts.tolist() == [[1, 1], [0, 0], [2, 0]]


def test_relabelled_groups_get_their_labels_back() -> None:
    before, renamed = torch.arange(12) % 4, tensor([2, 0, 3, 1])
    now = renamed[before]
    assert torch.equal(match_clusters(-overlap_counts(before, now, 4, 4))[now], before)
