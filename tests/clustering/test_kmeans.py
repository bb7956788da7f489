"""The k-means wrapper, exact coordinates, and means per label."""

from __future__ import annotations

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, tensor

from coterie.clustering import coordinates, group_mean, kmeans, kmeans_without_singletons


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(n: int = 60, k: int = 4, dim: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points about k far centres, and their true labels."""
    g = rng(seed)
    truth = torch.arange(n) % k
    return 20 * torch.randn(k, dim, generator=g)[truth] + torch.randn(n, dim, generator=g), truth


def test_planted_blobs_are_found() -> None:
    points, truth = blobs()
    result = kmeans(points, 4, rng())
    assert adjusted_rand_score(truth, result.labels) == 1.0
    assert result.labels.dtype == torch.int64 and result.centres.dtype == torch.float64
    x = points.double()
    for j in range(4):
        torch.testing.assert_close(result.centres[j], x[result.labels == j].mean(0))
    assert result.cost == pytest.approx(
        ((x - result.centres[result.labels]) ** 2).sum().item(), rel=1e-9
    )
    assert result.iterations >= 1


def test_it_is_the_best_of_several_starts() -> None:
    """Without structure single starts end in different places; the best of ten is never worse than
    half of them.
    """
    points = torch.randn(60, 3, generator=rng(2))
    single = [KMeans(8, n_init=1, random_state=s).fit(points.numpy()).inertia_ for s in range(20)]
    assert all(kmeans(points, 8, rng(s)).cost <= sorted(single)[9] for s in range(10))


def test_the_same_generator_gives_the_same_clusters() -> None:
    points = torch.randn(50, 3, generator=rng(1))
    first, again, other = (kmeans(points, 5, rng(s)) for s in (0, 0, 1))
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.labels, other.labels)


def test_given_centres_keep_their_order() -> None:
    points, truth = blobs()
    order = [2, 0, 3, 1]
    start = torch.stack([points[truth == j].mean(0) for j in order]) + 0.3
    result = kmeans(points, 4, rng(), init=start)
    assert [order[j] for j in result.labels.tolist()] == truth.tolist()


def test_given_centres_are_where_it_starts() -> None:
    """Points 0, 1, 9, 10 and centres at 0 and 1: Lloyd's alone moves on to {0} … {1, 9, 10}, then
    {0, 1}, {9, 10}.
    """
    result = kmeans(tensor([[0.0], [1.0], [9.0], [10.0]]), 2, rng(), init=tensor([[1.0], [0.0]]))
    assert result.labels.tolist() == [1, 1, 0, 0]
    assert sorted(result.centres.flatten().tolist()) == [0.5, 9.5]


def test_many_points_are_sampled_and_the_rest_join_the_nearest() -> None:
    points, truth = blobs(n=400)
    result = kmeans(points, 4, rng(), max_points=40)
    assert adjusted_rand_score(truth, result.labels) == 1.0
    assert torch.equal(result.labels, torch.cdist(points.double(), result.centres).argmin(1))
    of_all = kmeans(points, 4, rng())
    assert result.cost < 0.2 * of_all.cost  # it is the cost of the 40 that were clustered


def test_so_many_different_points_are_sampled() -> None:
    """Each point has a coordinate of its own, so that the mean shows which were drawn."""
    centre = kmeans(torch.eye(50), 1, rng(), max_points=20).centres[0]
    assert sorted(centre.tolist()) == pytest.approx([0.0] * 30 + [1 / 20] * 20)


def test_fewer_points_than_clusters() -> None:
    result = kmeans(tensor([[0.0], [5.0]]), 4, rng())
    assert sorted(result.labels.tolist()) == [0, 1]
    assert len(result.centres) == 2 and result.cost == 0


def test_no_points() -> None:
    result = kmeans(torch.zeros(0, 3), 4, rng())
    assert result.labels.shape == (0,) and result.labels.dtype == torch.int64
    assert result.cost == 0


# ------------------------------------------------------------------------------ coordinates
@pytest.mark.parametrize("n, d", [(6, 500), (6, 7), (6, 6), (6, 2)])
def test_coordinates_keep_every_distance(n: int, d: int) -> None:
    x = torch.randn(n, d, generator=rng()).double() + 50
    short = coordinates(x)
    assert short.shape == (n, min(n, d))
    torch.testing.assert_close(torch.cdist(short, short), torch.cdist(x, x), rtol=1e-9, atol=1e-6)


def test_coordinates_of_equal_points_are_equal() -> None:
    x = torch.ones(3, 10)
    assert torch.cdist(coordinates(x), coordinates(x)).abs().max() < 1e-6


# ------------------------------------------------------------------------------ means per label
def test_group_mean_by_hand() -> None:
    """Label 0: (1·1 + 3·5)/4 = 4. Label 1: nobody. Label 2: the third alone."""
    stacked = {
        "w": tensor([[1.0], [5.0], [7.0]]),
        "m": tensor([[[1.0, 0.0]], [[5.0, 4.0]], [[7.0, -2.0]]]),
    }
    empty = {"w": tensor([[-1.0], [-2.0], [-3.0]]), "m": torch.full((3, 1, 2), -9.0)}
    means = group_mean(stacked, tensor([0, 0, 2]), tensor([1.0, 3.0, 2.0]), empty)
    assert means["w"].tolist() == [[4.0], [-2.0], [7.0]]
    assert means["m"].tolist() == [[[4.0, 3.0]], [[-9.0, -9.0]], [[7.0, -2.0]]]
    assert empty["w"].tolist() == [[-1.0], [-2.0], [-3.0]]


# ------------------------------------------------------------------------------ from given centres
def test_fewer_points_than_given_centres() -> None:
    """Points 0, 1 and 9: two join the first centre, one the third; the other centres stay."""
    start = tensor([[0.0], [100.0], [8.0], [-50.0]])
    result = kmeans(tensor([[0.0], [1.0], [9.0]]), 4, rng(), init=start)
    assert result.labels.tolist() == [0, 0, 2]
    assert result.centres.flatten().tolist() == [0.5, 100.0, 9.0, -50.0]
    assert result.cost == 0.5 and result.iterations == 1


def test_a_given_centre_that_nobody_is_nearest_to_stays() -> None:
    """Six points about 0 and none about 20: nothing is split to fill the second."""
    points = torch.linspace(-1, 1, 6)[:, None]
    result = kmeans(points, 2, rng(), init=tensor([[0.5], [20.0]]))
    assert result.labels.tolist() == [0] * 6
    assert result.centres[1].item() == 20.0


def test_no_points_and_given_centres() -> None:
    result = kmeans(torch.zeros(0, 1), 2, rng(), init=tensor([[0.5], [20.0]]))
    assert result.labels.shape == (0,) and result.cost == 0
    assert result.centres.flatten().tolist() == [0.5, 20.0]


def test_iterations_are_counted_until_nothing_changes() -> None:
    """0 and 1, 9, 10; then 0, 1 and 9, 10."""
    assert (
        kmeans(
            tensor([[0.0], [1.0], [9.0], [10.0]]), 2, rng(), init=tensor([[1.0], [0.0]])
        ).iterations
        == 2
    )


def test_a_point_that_is_alone_needs_leave() -> None:
    """Three clusters: two clumps on a line, and a point far out, nearer to the second."""
    points = torch.tensor([[0.0], [1], [2], [10], [11], [12], [100]])
    leave = torch.zeros(7, dtype=torch.bool)

    def clusters(may_be_singleton: torch.Tensor, some: torch.Tensor = points) -> list[set[int]]:
        rng = torch.Generator().manual_seed(0)
        labels, k = kmeans_without_singletons(some, 3, rng, may_be_singleton)
        assert set(labels.tolist()) == set(range(k))
        members = [set((labels == j).nonzero()[:, 0].tolist()) for j in range(k)]
        return sorted(members, key=min)

    assert clusters(leave) == [{0, 1, 2}, {3, 4, 5, 6}]
    alone = leave.index_fill(0, torch.tensor(6), True)
    assert clusters(alone) == [{0, 1, 2}, {3, 4, 5}, {6}]
    assert clusters(leave[:3], points[[0, 3, 6]]) == [{0}, {1}, {2}], "few would remain"
