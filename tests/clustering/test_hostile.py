"""What most points have in common, though some are hostile."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from coterie.clustering import choose_clusters, inlier_indices, largest_inlier
from coterie.clustering.hostile import num_candidates


def test_the_farthest_are_left_out():
    points = tensor([[0.0], [1.0], [90.0], [2.0], [-90.0], [3.0], [1.5], [2.5]])
    assert inlier_indices(points, 0.25).tolist() == [0, 1, 3, 5, 6, 7]
    assert inlier_indices(points, 0.0).tolist() == list(range(8))
    assert inlier_indices(points[:0], 0.25).tolist() == []


def test_far_points_that_are_all_alike_are_left_out():
    """However near they are to each other, they are far from most."""
    honest = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    points = torch.cat([torch.full((8, 5), 20.0), honest])
    assert int(inlier_indices(points, 0.25).min()) >= 8


def test_the_largest_without_the_share_of_largest():
    lengths = tensor([1.0, 4.0, 1e30, 3.0])
    assert float(largest_inlier(lengths, 0.25)) == 4.0
    assert float(largest_inlier(lengths, 0.0)) == float(lengths.max())


@pytest.mark.parametrize("rule", ["bound", "silhouette"])
def test_far_points_do_not_change_the_number_of_clusters(rule):
    generator = torch.Generator().manual_seed(0)
    groups = torch.randn(24, 6, generator=generator) + 30 * torch.eye(6)[[0, 1, 2]].repeat(8, 1)
    hostile = 1000 * torch.randn(6, 6, generator=generator)
    points = torch.cat([groups, hostile])
    assert choose_clusters(points, generator, rule).clusters != 3
    assert choose_clusters(points[inlier_indices(points, 0.25)], generator, rule).clusters == 3


def test_twice_as_many_centres_are_made_where_there_are_clients_enough():
    assert [num_candidates(4, 40), num_candidates(4, 5), num_candidates(4, 2)] == [8, 5, 4]
    assert num_candidates(1, 40) == 1
