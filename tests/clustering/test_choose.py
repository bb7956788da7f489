"""How many clusters there are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clustering import RULES, Bound, choose_clusters, log_rows_per_parameter
from coterie.clustering.choose import leading_components
from coterie.core.errors import CoterieError


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(
    k: int, seed: int, apart: float = 8.0, sizes: tuple[int, ...] = (), d: int = 30
) -> Tensor:
    """Groups of 10 points, or of these sizes, with spread 1 in each of d directions about corners
    `apart`·√2 away.
    """
    sizes = sizes or (10,) * k
    centres = apart * torch.eye(d)[:k]
    return torch.cat([c + torch.randn(n, d, generator=rng(seed)) for c, n in zip(centres, sizes)])


# each is a slow test with several seeds; one seed is looked at every time
SEEDS = pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(3), marks=pytest.mark.slow)], ids=["1", "3"]
)


@SEEDS
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [2, 6])
def test_clear_groups_are_counted(rule: str, k: int, seeds: range) -> None:
    """The bound weighs the cost against K alone, so its groups must be tighter."""
    apart = 30.0 if rule in ("bound", "careful") else 10.0
    size = 10 if len(seeds) > 1 else 6
    for s in seeds:
        assert choose_clusters(blobs(k, s, apart, (size,) * k), rng(s), rule).clusters == k


@SEEDS
@pytest.mark.parametrize("rule", ["gap", "stability", "careful"])
def test_shapeless_points_are_one_cluster(rule: str, seeds: range) -> None:
    n = 40 if len(seeds) > 1 else 24
    for s in seeds:
        points = torch.randn(n, 30, generator=rng(s))
        assert choose_clusters(points, rng(s), rule).clusters == 1


@pytest.mark.parametrize("n", [24, pytest.param(40, marks=pytest.mark.slow)])
def test_a_silhouette_that_is_nowhere_clear_means_one_cluster(n: int) -> None:
    """In most of five seeds; the largest silhouette of shapeless points lies near the limit."""
    chosen = [
        choose_clusters(torch.randn(n, 30, generator=rng(s)), rng(s), "silhouette").clusters
        for s in range(5)
    ]
    assert chosen.count(1) >= 4, chosen


@pytest.mark.slow
def test_the_gap_looks_at_points_without_structure_in_the_same_box() -> None:
    """Uniform in a box a hundred times as long as wide.

    Shapeless points in a cube would make every part of it look like structure.
    """
    box = torch.tensor([100.0, 1.0, 1.0])
    chosen = [
        choose_clusters(torch.rand(40, 3, generator=rng(s)) * box, rng(s), "gap").clusters
        for s in range(5)
    ]
    assert chosen.count(1) >= 4, chosen


@pytest.mark.parametrize("seeds", [(0, 1), pytest.param(range(8), marks=pytest.mark.slow)])
def test_a_larger_gap_within_its_error_does_not_count(seeds: Sequence[int]) -> None:
    """With seeds 1 and 4 some other gap is larger than that of one cluster."""
    choices = [choose_clusters(torch.randn(24, 3, generator=rng(s)), rng(s), "gap") for s in seeds]
    assert [c.clusters for c in choices] == [1] * len(seeds)
    assert any(max(c.curve) > c.curve[0] for c in choices)


@SEEDS
def test_unequal_groups(seeds: range) -> None:
    for s in seeds:
        points = blobs(3, s, 10.0, (24, 10, 6))
        assert choose_clusters(points, rng(s), "gap").clusters == 3


@pytest.mark.parametrize("rule", RULES)
def test_few_and_equal_points_are_one_cluster(rule: str) -> None:
    assert choose_clusters(torch.zeros(0, 3), rng(), rule).clusters == 1
    assert choose_clusters(torch.randn(3, 3, generator=rng()), rng(), rule).clusters == 1
    assert choose_clusters(torch.ones(12, 3), rng(), rule).clusters == 1


def test_the_bound_by_hand() -> None:
    """0, 0, 10, 10 with rows 1, 1, 1, 5: all are 5 from the mean, cost(1) = 25, cost(2) = 0; d = 2,
    m = 8.

    auto: (√1 − 1)/(√4 − 1) + 1 = 1 and √2 − 1. μ = 2: √(2/8·log 4e) + 50 and √(4/8·log 4e).
    """
    points, rows = torch.tensor([[0.0], [0.0], [10.0], [10.0]]), torch.tensor([1.0, 1.0, 1.0, 5.0])
    auto = choose_clusters(points, rng(), "bound", Bound(rows, 2))
    assert auto.clusters == 2 and auto.curve == pytest.approx([1.0, math.sqrt(2) - 1])
    log = math.log(4 * math.e)
    given = choose_clusters(points, rng(), "bound", Bound(rows, 2, mu=2.0))
    assert given.curve == pytest.approx([math.sqrt(log / 4) + 50, math.sqrt(log / 2)])
    dear = choose_clusters(points, rng(), "bound", Bound(rows, 2, mu=1e-4))
    assert dear.clusters == 1


def test_the_cost_of_the_bound_is_by_rows_and_its_centres_are_not() -> None:
    """0, 0, 0 and 4 with 1, 1, 1 and 5 rows: the centre is 1, the mean over clients, and the cost
    (3·1 + 5·9)/8.
    """
    points, rows = torch.tensor([[0.0], [0.0], [0.0], [4.0]]), torch.tensor([1.0, 1.0, 1.0, 5.0])
    curve = choose_clusters(points, rng(), "bound", Bound(rows, 1, mu=1.0)).curve
    assert curve[0] == pytest.approx(math.sqrt(math.log(8 * math.e) / 8) + 6.0)


def test_the_bound_looks_at_every_number_up_to_half_the_points() -> None:
    """26 groups among 60 points, 30 among 63: beyond the 20 that k-means is run for."""
    for n, k in ((60, 26), (63, 30)):
        centres = 30 * torch.randn(k, 40, generator=rng(1))
        points = centres[torch.arange(n) % k] + torch.randn(n, 40, generator=rng(2))
        choice = choose_clusters(points, rng(), "bound")
        assert choice.clusters == k
        assert len(choice.curve) == n // 2


def test_the_cost_is_that_of_wards_clusters_and_up_to_20_no_more_than_that() -> None:
    """Shapeless points, clients with 1 to 50 rows; scikit-learn merges anew for each K."""
    from sklearn.cluster import AgglomerativeClustering

    points = torch.randn(50, 6, generator=rng()).double()
    x = points.numpy()
    complexity = 6 / 1275 * math.log(math.e * 1275 / 6)

    def of_merges(k: int, share: np.ndarray) -> float:
        labels = AgglomerativeClustering(k).fit_predict(x)
        centres = np.stack([x[labels == j].mean(0) for j in range(k)])
        return (share * ((x - centres[labels]) ** 2).sum(1)).sum()

    rows = torch.arange(1.0, 51.0)
    curve = choose_clusters(points, rng(), "bound", Bound(rows, 6, mu=3.0)).curve
    for k in range(21, 26):
        cost = of_merges(k, (rows / rows.sum()).numpy())
        assert curve[k - 1] == pytest.approx(math.sqrt(k * complexity) + 3 * cost)

    even = Bound(torch.full((50,), 25.5), 6, mu=3.0)
    curve = choose_clusters(points, rng(), "bound", even).curve
    costs = [(curve[k - 1] - math.sqrt(k * complexity)) / 3 for k in range(1, 21)]
    by_merges = [of_merges(k, np.full(50, 1 / 50)) for k in range(1, 21)]
    assert all(a <= b * (1 + 1e-9) for a, b in zip(costs, by_merges))
    assert any(a < 0.99 * b for a, b in zip(costs, by_merges))


def test_rows_must_outnumber_parameters() -> None:
    assert log_rows_per_parameter(10, 27, 1.0) == pytest.approx(math.log(10 * math.e / 27))
    with pytest.raises(CoterieError, match="10 rows and the model 28 parameters"):
        log_rows_per_parameter(10, 28, 1.0)


def test_the_silhouette_in_numpy() -> None:
    x = leading_components(blobs(2, 0).double())
    curve = choose_clusters(blobs(2, 0), rng(), "silhouette").curve
    label = np.repeat([0, 1], 10)
    far = np.linalg.norm(x.numpy()[:, None] - x.numpy()[None], axis=-1)
    per_client = np.array(
        [far[i, (label == label[i]) & (np.arange(20) != i)].mean() for i in range(20)]
    )
    other = np.array([far[i, label != label[i]].mean() for i in range(20)])
    assert curve[1] == pytest.approx(((other - per_client) / np.maximum(per_client, other)).mean())


def test_leading_components_keep_distances_of_points_in_few_directions() -> None:
    x = (
        torch.randn(15, 4, generator=rng()).double()
        @ torch.randn(4, 200, generator=rng(1)).double()
    )
    assert torch.allclose(
        torch.cdist(leading_components(x), leading_components(x)), torch.cdist(x, x), atol=1e-8
    )


def test_the_same_seed_gives_the_same_curve() -> None:
    one, two = (choose_clusters(blobs(2, 0, sizes=(5, 5)), rng(5), "gap") for _ in range(2))
    assert one == two
