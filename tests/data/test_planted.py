from collections import Counter

import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data import base, linear, rotated
from coterie.data.rotation import rotate


def rows(x: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(row) for row in x.flatten(1).tolist()]


@pytest.fixture(scope="module")
def digits():
    return base("digits")


def test_slices_of_a_group_are_disjoint_and_turned_exactly(digits) -> None:
    fed = rotated("digits", clients=10, samples=143)
    labels = dict(zip(rows(digits.x_train), digits.y_train.tolist()))
    all_rows = Counter(rows(digits.x_train))
    for group in range(4):
        dealt = []
        for i in range(group, 10, 4):
            x, y = fed.train.client(i)
            upright = rows(torch.rot90(x, -group, (-2, -1)))
            assert [labels[row] for row in upright] == y.tolist()
            dealt += upright
        assert Counter(dealt) <= all_rows
    assert fed.truth is not None and fed.truth.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert (fed.classes, fed.labels, fed.kind) == (10, tuple("0123456789"), "classification")


def test_each_group_shuffles_anew() -> None:
    fed = rotated("digits", clients=4, samples=100)
    assert not fed.train.client(0)[1].equal(fed.train.client(1)[1])


def test_test_rows_come_from_the_test_part(digits) -> None:
    fed = rotated("digits", clients=8, angles=(0, 180))
    assert set(fed.train.sizes.tolist()) == {1437 // 4} and set(fed.test.sizes.tolist()) == {
        360 // 4
    }
    train, test = set(rows(digits.x_train)), set(rows(digits.x_test))
    upright = rows(torch.cat([fed.test.client(i)[0].rot90(2 * i, (-2, -1)) for i in range(8)]))
    assert set(upright) == test
    assert not (set(upright) - (train & test)) & train


def test_seeds_and_unseen() -> None:
    one, same, other = (rotated(clients=8, samples=20, seed=seed, unseen=2) for seed in (1, 1, 2))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert (len(one), one.total) == (6, 8)


def test_other_angles_interpolate_in_the_same_direction(digits) -> None:
    x = digits.x_train[:50]
    assert torch.allclose(rotate(x, 90.001), x.rot90(1, (-2, -1)), atol=1e-3)
    assert torch.allclose(rotate(x, -90.001), x.rot90(-1, (-2, -1)), atol=1e-3)
    assert rotate(x, 450).equal(x.rot90(1, (-2, -1)))
    colour = torch.rand(2, 3, 9, 9)
    assert torch.allclose(rotate(colour, 30)[:, 1], rotate(colour[:, 1], 30))
    right, down = torch.arange(41) - 20.0, torch.arange(41)[:, None] - 20.0
    spot = torch.exp(-((right - 10) ** 2 + down**2) / 8)[None]
    turned = rotate(spot, 30)[0] / spot.sum()
    assert (turned * right).sum().item() == pytest.approx(10 * 3**0.5 / 2, abs=0.01)
    assert (turned * down).sum().item() == pytest.approx(-5, abs=0.01)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"clients": 40, "samples": 144}, ["samples=144", "at most 143", "1437"]),
        ({"clients": 40, "test_samples": 37}, ["test_samples=37", "at most 36"]),
        ({"clients": 40, "samples": 0}, ["samples=0", "at least 1"]),
        ({"clients": 2000}, ["test_samples=1", "at most 0", "fewer clients"]),
        ({"clients": 3}, ["clients=3", "4 groups"]),
        ({"angles": (0, 360)}, ["angles", "all different"]),
        ({"angles": ()}, ["angles"]),
        ({"clients": 4, "unseen": 4}, ["unseen=4"]),
        ({"base": "digit"}, ["'digit'", "'digits'"]),
    ],
)
def test_rotated_errors(options, words) -> None:
    with pytest.raises(CoterieError) as error:
        rotated(**options)
    assert all(word in str(error.value) for word in words), error.value


def test_no_test_rows_where_none_are_asked_for() -> None:
    assert rotated(clients=2000, test_samples=0).test.sizes.sum() == 0


@pytest.mark.usefixtures("real_data")
def test_ifca_sizes_on_mnist() -> None:
    fed = rotated("mnist", clients=1200, angles=(0, 180), samples=20, test_samples=5)
    assert fed.train.x.shape == (24000, 28, 28) and fed.test.x.shape == (6000, 28, 28)


def least_squares(fed, i: int) -> torch.Tensor:
    x, y = fed.train.client(i)
    return torch.linalg.lstsq(x.double(), y.double()[:, None]).solution[:, 0]


@pytest.mark.parametrize(
    "variant, options",
    [
        ("threshold", {"samples": 30}),
        ("ifca", {"dim": 20, "noise": 0, "clusters": 3, "clients": 7}),
    ],
)
def test_least_squares_finds_the_planted_parameters(variant, options) -> None:
    fed = linear(variant, **options)
    assert fed.planted is not None and fed.truth is not None and fed.kind == "regression"
    for i in range(fed.total):
        assert torch.allclose(least_squares(fed, i), fed.planted[fed.truth[i]].double(), atol=1e-3)
        x, y = fed.test.client(i)
        assert torch.allclose(x @ fed.planted[fed.truth[i]], y, atol=1e-2)
    assert fed.truth.tolist() == [i % len(fed.planted) for i in range(fed.total)]


def test_settings_of_the_papers() -> None:
    ifca = linear("ifca", test_samples=1)
    soft, threshold = linear("fedsoft"), linear("threshold")
    assert ifca.train.x.shape == (10000, 1000) and set(ifca.planted.unique().tolist()) == {0, 1}
    assert soft.total == 100 and soft.train.x.shape[1] == 10
    assert 100 <= soft.train.sizes.min() < 110 and 190 < soft.train.sizes.max() <= 200
    assert threshold.total == 36 and set(threshold.planted.unique().tolist()) == {0, 100}
    assert threshold.planted.shape == (4, 10) and set(threshold.train.sizes.tolist()) == {9}
    residual = ifca.train.client(1)[1] - ifca.train.client(1)[0] @ ifca.planted[1]
    assert residual.std().item() == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize(
    "variant, rows, dim", [("threshold", 9, 10), ("threshold-figure2", 10, 20)]
)
def test_a_client_of_threshold_clustering_needs_its_group(variant, rows, dim) -> None:
    """Fewer rows than dimensions leave θ open for one client; those of nine clients settle it."""
    fed = linear(variant)
    assert set(fed.train.sizes.tolist()) == {rows} and fed.planted.shape == (4, dim)
    assert torch.linalg.matrix_rank(fed.train.client(0)[0]) == rows < dim
    group = fed.subset([i for i in range(36) if i % 4 == 1]).train
    assert len(group.y) == 9 * rows
    theta = torch.linalg.lstsq(group.x.double(), group.y.double()[:, None]).solution[:, 0]
    assert torch.allclose(theta, fed.planted[1].double(), atol=1e-3)


def test_two_scalings() -> None:
    assert set(linear("ifca", dim=50, scale=0.25).planted.unique().tolist()) == {0, 0.25}
    assert torch.allclose(
        linear("ifca", dim=50, scale=0.5, scaling="norm").planted.norm(dim=1), torch.tensor(0.5)
    )


def test_scale_of_fedsoft_is_a_variance() -> None:
    assert linear(
        "fedsoft", dim=20000, samples=1, clients=2, scale=10
    ).planted.var().item() == pytest.approx(10, rel=0.1)


def test_planted_parameters_differ() -> None:
    for seed in range(20):
        assert len(linear("threshold", dim=2, seed=seed).planted.unique(dim=0)) == 4
        assert (
            len(linear("ifca", dim=2, clusters=3, scaling="norm", seed=seed).planted.unique(dim=0))
            == 3
        )


def own_share(fed, i: int) -> float:
    """The share of client i's rows that fit the first θ better than the second."""
    x, y = fed.train.client(i)
    errors = (x @ fed.planted.T - y[:, None]).abs()
    return (errors[:, 0] < errors[:, 1]).float().mean().item()


@pytest.mark.parametrize(
    "mixture, first",
    [
        ("10:90", [0.1, 0.9, 0.1, 0.9]),
        ("30:70", [0.3, 0.7, 0.3, 0.7]),
        ("linear", [0.125, 0.375, 0.625, 0.875]),
    ],
)
def test_mixtures(mixture, first) -> None:
    fed = linear("fedsoft", clients=4, samples=200, noise=0, mixture=mixture)
    assert torch.allclose(fed.truth, torch.tensor([[a, 1 - a] for a in first]))
    for i, share in enumerate(first):
        assert own_share(fed, i) == pytest.approx(share, abs=0.006)
    early = fed.subset([3])
    half = early.train.y[:100] - early.train.x[:100] @ fed.planted[0]
    assert 0 < (half.abs() < 1e-3).float().mean() < 1, "sources stand in random order"


def test_random_mixture_of_many() -> None:
    fed = linear("fedsoft", clusters=8)
    assert fed.truth.shape == (100, 8) and torch.allclose(fed.truth.sum(1), torch.ones(100))
    assert fed.truth.min() >= 0 and 0.1 < fed.truth.mean() < 0.15
    fed = linear("fedsoft", unseen=10, mixture="random")
    assert len(fed) == 90 and own_share(
        linear("fedsoft", noise=0, unseen=10, mixture="random"), 95
    ) == pytest.approx(
        linear("fedsoft", noise=0, unseen=10, mixture="random").truth[95, 0].item(), abs=0.01
    )


@pytest.mark.parametrize(
    "options, words",
    [
        ({"variant": "fedsof"}, ["'fedsof'", "'fedsoft'"]),
        ({"variant": "threshold", "dim": 1}, ["dim=1", "only 2", "4 clusters"]),
        ({"variant": "ifca", "dim": 1, "scaling": "norm"}, ["dim=1", "only 1"]),
        ({"clients": 1}, ["clients=1", "at least 2"]),
        ({"clients": 0}, ["clients=0"]),
        ({"noise": -1.0}, ["noise=-1"]),
        ({"noise": float("nan")}, ["noise=nan"]),
        ({"scale": 0.0}, ["scale=0"]),
        ({"samples": 0}, ["samples=0"]),
        ({"test_samples": -1}, ["test_samples=-1"]),
        ({"scaling": "nrm"}, ["'nrm'", "'norm'"]),
        ({"variant": "fedsoft", "mixture": "10-90"}, ["'10-90'", "10:90"]),
        ({"variant": "fedsoft", "mixture": "10:90", "clusters": 3}, ["2 clusters", "random"]),
    ],
)
def test_linear_errors(options, words) -> None:
    with pytest.raises(CoterieError) as error:
        linear(**options)
    assert all(word in str(error.value) for word in words), error.value
