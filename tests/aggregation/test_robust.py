"""Robust means: hand-solved cases, other implementations, breakdown, blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import trim_mean
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coterie.aggregation import robust
from coterie.aggregation.robust import RULES, robust_means
from coterie.core.errors import CoterieError
from coterie.core.params import Params

ROBUST = RULES[1:]


def one_centre(rule: str, x: list | np.ndarray | Tensor, weight: list | None, share: float):
    """The robust mean of rows x for a single centre, as an array."""
    x = torch.as_tensor(np.asarray(x), dtype=torch.float64)
    w = torch.ones(len(x)) if weight is None else torch.tensor(weight, dtype=torch.float64)
    return robust_means(rule, {"x": x}, w[:, None], share)["x"][0].numpy()


def random_case(seed: int, n: int, d: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Rows and integer weights from 1 to 4, not all the same."""
    rng = np.random.default_rng(seed)
    weight = rng.integers(1, 5, n)
    weight[:2] = 1, 4
    return rng.standard_normal((n, d)), weight


# ------------------------------------------------------------------------------ by hand
@pytest.mark.parametrize(
    ("values", "weight", "expected"),
    [
        ([3, 1, 100], None, 3),
        ([3, 1, 100, 5], None, 4),  # the mean of the middle two
        ([7], None, 7),
        ([1, 2, 3], [1.0, 1.0, 5.0], 3),
        ([3, 1, 2], [2.0, 1.0, 1.0], 2.5),  # as 1, 2, 3, 3
        ([1, 2, 3], [0.1, 0.2, 0.3], 2.5),  # 0.1 + 0.2 is not quite 0.3
        ([5, 1, 9], [1.0, 0.0, 1.0], 7),  # weight 0: not a member
    ],
)
def test_a_median_by_hand(values: list, weight: list | None, expected: float) -> None:
    assert one_centre("median", values, weight, 0.0) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("values", "weight", "share", "expected"),
    [
        ([9, 1, 2, 3, 1000], None, 0.2, (2 + 3 + 9) / 3),
        ([0, 1, 2, 30], None, 0.0, 33 / 4),
        ([0, 4, 8, 100], None, 0.125, (0.5 * 0 + 4 + 8 + 0.5 * 100) / 3),  # edges cut by half
        ([1, 2, 3], [1.0, 2.0, 1.0], 0.25, 2),
        ([1, 2, 4], [2.0, 1.0, 1.0], 0.25, 1.5),  # as 1, 1, 2, 4 without the first and last
        ([1, 2, 4], None, 0.499999, 2),
    ],
)
def test_a_trimmed_mean_by_hand(
    values: list, weight: list | None, share: float, expected: float
) -> None:
    assert one_centre("trimmed", values, weight, share) == pytest.approx(expected, abs=1e-12)


def test_a_geometric_median_by_hand() -> None:
    square = [[0, 0], [2, 0], [0, 2], [2, 2]]
    np.testing.assert_allclose(one_centre("geometric", square, None, 0.0), [1, 1], atol=1e-6)
    # the Fermat point of a triangle sees every two corners at 120 degrees
    corners = [[-1, 0], [1, 0], [0, 3]]
    expected = [0, 1 / 3**0.5]
    np.testing.assert_allclose(one_centre("geometric", corners, None, 0.0), expected, atol=1e-5)
    # with half of the mass a point is the geometric median itself
    heavy = one_centre("geometric", corners, [1.0, 1.0, 2.5], 0.0)
    np.testing.assert_allclose(heavy, [0, 3], atol=1e-5)
    same = one_centre("geometric", [[1, 5]] * 4, None, 0.0)
    np.testing.assert_array_equal(same, [1, 5])


@pytest.mark.parametrize(
    ("values", "weight", "share", "expected"),
    [
        ([0, 1, 2, 3, 100], None, 0.2, 1.5),
        ([0, 1, 2, 3, 100], [1.0, 1.0, 1.0, 3.0, 50.0], 0.2, 2),  # the chosen keep their weights
        ([0, 1, 100], None, 0.2, 0.5),  # of three at least one may be hostile
        ([0, 100], None, 0.49, 50),
        ([0, 1, 2], None, 0.4, 1),  # three of the same score share two places
        # scores 5, 2, 2, 5: the first and the fourth share the third place
        ([0, 1, 2, 3, 100], [2.0, 1.0, 1.0, 1.0, 1.0], 0.4, (1 + 2 + 3 / 2) / 3.5),
    ],
)
def test_krum_by_hand(values: list, weight: list | None, share: float, expected: float) -> None:
    assert one_centre("krum", values, weight, share) == pytest.approx(expected, abs=1e-12)


def test_krum_is_not_won_by_two_of_five_that_agree() -> None:
    """With one neighbour less, as in the paper, the two would have score 0."""
    assert one_centre("krum", [0, 1, 2.5, 1e6, 1e6], None, 0.4) == pytest.approx(3.5 / 3)


# ------------------------------------------------------------------------------ other sources
# ByzFL 0.0.11 gives for these eight rows, in NumPy float64:
BYZFL_ROWS = [
    [20.13, -5.13, 8.64],
    [0.1, -0.54, 0.36],
    [1.3, 0.95, -0.7],
    [-1.27, -0.62, 0.04],
    [-2.33, -0.22, -1.25],
    [9.0, 9.0, -9.0],
    [0.41, 1.04, -0.13],
    [1.37, -0.67, 0.35],
]
BYZFL = {
    "median": [0.855, -0.38, -0.045],  # Median()(rows)
    "trimmed": [0.795, -0.10750000000000004, -0.10999999999999999],  # TrMean(f=2)(rows)
    "krum": [-0.07, -0.01, -0.22166666666666668],  # MultiKrum(f=2)(rows)
    "mixing": [-0.06999999999999995, -0.010000000000000014, -0.22166666666666668],
    # TrMean(f=2)(NNM(f=2)(rows)); geometric: GeometricMedian(nu=1e-9, T=10000)(rows)
    "geometric": [0.6369995128807049, 0.21740399110394687, -0.15669363322051133],
}


@pytest.mark.parametrize("rule", ROBUST)
def test_byzfl_agrees(rule: str) -> None:
    tolerance = 1e-5 if rule == "geometric" else 1e-12
    np.testing.assert_allclose(one_centre(rule, BYZFL_ROWS, None, 2 / 8), BYZFL[rule], tolerance)


def lowest_cost(x: np.ndarray, weight: np.ndarray) -> float:
    """The weighted median of one coordinate: the middle of where Σ w |x − m| is least."""
    costs = (weight * np.abs(x[:, None] - x)).sum(1)
    best = x[costs <= costs.min() * (1 + 1e-12)]
    return (best.min() + best.max()) / 2


def krum_in_loops(x: np.ndarray, weight: np.ndarray, hostile: int) -> np.ndarray:
    n = len(x)
    scores = []
    for i in range(n):
        others = sorted(((x[i] - x[j]) ** 2).sum() for j in range(n) if j != i)
        scores.append(sum(others[: n - hostile - 1]))
    chosen = np.argsort(scores)[: n - hostile]
    return np.average(x[chosen], axis=0, weights=weight[chosen])


@pytest.mark.parametrize("seed", range(5))
def test_numpy_and_scipy_agree_on_weighted_means(seed: int) -> None:
    n = 9 + seed
    x, weight = random_case(seed, n)
    soft = np.random.default_rng(seed).random(n) + 0.1

    np.testing.assert_allclose(
        one_centre("mean", x, soft.tolist(), 0.2), np.average(x, axis=0, weights=soft), 1e-9
    )
    medians = [lowest_cost(column, soft) for column in x.T]
    np.testing.assert_allclose(one_centre("median", x, soft.tolist(), 0.2), medians, 1e-9)

    # a tenth of the mass is a whole number of rows if every row comes ten times
    repeated = np.repeat(x, 10 * weight, 0)
    np.testing.assert_allclose(
        one_centre("trimmed", x, weight.tolist(), 0.1), trim_mean(repeated, 0.1), 1e-9
    )

    def cost(z: np.ndarray) -> float:
        return float((soft * np.linalg.norm(x - z, axis=1)).sum())

    z = one_centre("geometric", x, soft.tolist(), 0.2)
    best = minimize(cost, x.mean(0), tol=1e-12)
    assert cost(z) <= best.fun * (1 + 1e-9)
    np.testing.assert_allclose(z, best.x, atol=2e-5)

    expected = krum_in_loops(x, soft, hostile=math.ceil(n / 4))
    np.testing.assert_allclose(one_centre("krum", x, soft.tolist(), 0.25), expected, 1e-9)


def test_krum_tells_near_clients_apart_also_if_others_are_far_away() -> None:
    x, _ = random_case(0, 12)
    x[:3] += 1e12
    expected = krum_in_loops(x, np.ones(12), hostile=4)
    np.testing.assert_allclose(one_centre("krum", x, None, 4 / 12), expected, 1e-9)


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed", "geometric"])
def test_an_integer_weight_is_as_many_equal_clients(rule: str) -> None:
    """Krum counts clients, so it is left out."""
    x, weight = random_case(0, 11)
    weighted = one_centre(rule, x, weight.tolist(), 0.2)
    repeated = one_centre(rule, np.repeat(x, weight, 0), None, 0.2)
    np.testing.assert_allclose(weighted, repeated, 1e-5, 1e-5)


# ------------------------------------------------------------------------------ what they promise
@pytest.mark.parametrize("size", [1e6, 1e15])
@pytest.mark.parametrize(("n", "hostile"), [(40, 8), (10, 2), (5, 2), (41, 20), (100, 29)])
@pytest.mark.parametrize("rule", ROBUST)
def test_a_minority_does_not_carry_a_mean_out_of_the_honest_range(
    rule: str, n: int, hostile: int, size: float
) -> None:
    honest = np.random.default_rng(1).standard_normal((n - hostile, 7))
    x = np.concatenate([np.full((hostile, 7), size), honest])
    z = one_centre(rule, x, None, hostile / n)
    assert one_centre("mean", x, None, 0).max() > size / 10
    if rule == "geometric":  # it promises a distance, by a factor that grows towards one half
        middle = honest.mean(0)
        factor = 2 * (1 - hostile / n) / (1 - 2 * hostile / n)
        assert np.linalg.norm(z - middle) <= factor * np.linalg.norm(honest - middle, axis=1).max()
    else:
        assert (honest.min(0) - 1e-9 <= z).all() and (z <= honest.max(0) + 1e-9).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("huge", [1e18, -1e18])
def test_nothing_of_a_huge_value_is_left_by_rounding(huge: float, dtype: torch.dtype) -> None:
    """In float32, 0.3 / (0.1 + 0.2 + 0.3 + 0.4) is a little more than 0.3."""
    x = torch.tensor([0, 1, huge, 2], dtype=torch.float64)
    for weight in ([0.1, 0.2, 0.3, 0.4], [0.4, 0.2, 0.3, 0.1]):
        w = torch.tensor(weight, dtype=dtype)[:, None]
        for rule in ("median", "trimmed"):
            assert 0 <= robust_means(rule, {"x": x}, w, 0.3)["x"] <= 2


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_clients_does_not_matter(rule: str) -> None:
    x, weight = random_case(3, 12)
    order = np.random.default_rng(0).permutation(12)
    for w in (np.ones(12), weight):
        before = one_centre(rule, x, w.tolist(), 0.25)
        after = one_centre(rule, x[order], w[order].tolist(), 0.25)
        np.testing.assert_allclose(after, before, 1e-9, 1e-9)


# ------------------------------------------------------------------------------ centres and leaves
def table_of(n: int, dtype: torch.dtype = torch.float64) -> Params:
    rng = torch.Generator().manual_seed(n)
    shapes = {"w": (n, 4, 3), "b": (n, 3), "scale": (n,)}
    return {k: torch.randn(s, generator=rng, dtype=dtype) for k, s in shapes.items()}


@pytest.mark.parametrize("kind", ["one-hot", "sizes", "soft"])
@pytest.mark.parametrize("rule", RULES)
def test_each_centre_is_as_if_it_were_alone(rule: str, kind: str) -> None:
    n, k = 20, 4
    rng = torch.Generator().manual_seed(0)
    weight = torch.eye(k)[torch.randint(k - 1, (n,), generator=rng)]  # the last has no members
    if kind == "sizes":
        weight *= torch.randint(5, 50, (n, 1), generator=rng)
    if kind == "soft":
        weight[:, : k - 1] = torch.rand(n, k - 1, generator=rng) + 0.01
    values = table_of(n)
    means = robust_means(rule, values, weight, 0.25)
    for j in range(k - 1):
        members = weight[:, j] > 0
        only = {name: v[members] for name, v in values.items()}
        alone = robust_means(rule, only, weight[members, j : j + 1], 0.25)
        for name, v in alone.items():
            torch.testing.assert_close(means[name][j], v[0], rtol=1e-12, atol=1e-12)
    assert all((v[k - 1] == 0).all() for v in means.values())


def test_a_geometric_median_does_not_wait_for_that_of_another_centre() -> None:
    x, _ = random_case(4, 12, d=2)
    weight = torch.ones(12, 2, dtype=torch.float64)
    weight[0, 1] = 6  # which takes more passes than equal weights
    values = {"x": torch.from_numpy(x)}
    both = robust_means("geometric", values, weight, 0.2)["x"]
    for k in range(2):
        alone = robust_means("geometric", values, weight[:, k : k + 1], 0.2)["x"]
        torch.testing.assert_close(both[k], alone[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_shapes_and_types_are_those_of_the_values(rule: str, dtype: torch.dtype) -> None:
    means = robust_means(rule, table_of(6, dtype), torch.ones(6, 2), 0.2)
    assert {n: v.shape for n, v in means.items()} == {"w": (2, 4, 3), "b": (2, 3), "scale": (2,)}
    assert all(v.dtype == dtype for v in means.values())
    nobody = robust_means(rule, table_of(0, dtype), torch.ones(0, 2), 0.2)
    assert all(v.shape[0] == 2 and not v.any() for v in nobody.values())


def test_distances_are_over_all_leaves_together() -> None:
    """Client 0 is far off in one leaf only; by leaves it would be chosen in the other."""
    values = {"a": torch.tensor([50.0, 0, 1, 2, 3]), "b": torch.tensor([1.0, 0, 1, 2, 9])}
    means = robust_means("krum", values, torch.ones(5, 1), 0.2)
    assert means["a"] == 1.5 and means["b"] == 3


# ------------------------------------------------------------------------------ blocks and memory
@pytest.mark.parametrize("rule", RULES)
def test_the_size_of_a_block_changes_nothing(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = table_of(15, torch.float32)
    weight = torch.rand(15, 2, generator=torch.Generator().manual_seed(1))
    whole = robust_means(rule, values, weight, 0.2)
    for read, width in ((1, 1), (75, 30), (100, 75)):
        monkeypatch.setattr(robust, "READ_NUMBERS", read)
        monkeypatch.setattr(robust, "BLOCK_NUMBERS", width)
        torch.testing.assert_close(robust_means(rule, values, weight, 0.2), whole)


class LargestResult(TorchDispatchMode):
    """Notes the largest tensor that torch makes, other than views and the means themselves."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = {v.untyped_storage().data_ptr() for v in tree_leaves(args) if isinstance(v, Tensor)}
        for v in tree_leaves(made):
            is_new = isinstance(v, Tensor) and v.untyped_storage().data_ptr() not in given
            if is_new and func is not torch.ops.aten.new_zeros.default:
                self.largest = max(self.largest, v.numel())
        return made


@pytest.mark.parametrize("rule", RULES)
def test_a_table_on_disk_is_read_in_blocks(
    rule: str, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    n, numbers = 20, 20_000
    monkeypatch.setattr(robust, "READ_NUMBERS", 4000)
    monkeypatch.setattr(robust, "BLOCK_NUMBERS", 2000)
    table = torch.from_file(str(tmp_path / "table"), shared=True, size=n * numbers).view(n, numbers)
    table.copy_(torch.randn(n, numbers, generator=torch.Generator().manual_seed(0)))
    before = table.clone()
    weight = torch.zeros(n, 2)
    weight[:12, 0] = torch.arange(1, 13)
    weight[12:, 1] = 1
    with LargestResult() as seen:
        robust_means(rule, {"w": table}, weight, 0.25)
    assert 1000 < seen.largest <= 4000
    assert torch.equal(table, before)


# ------------------------------------------------------------------------------ refused
def test_what_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values, weight = table_of(6), torch.ones(6, 1)
    with pytest.raises(CoterieError, match="did you mean 'median'"):
        robust_means("medain", values, weight, 0.2)
    for share in (-0.1, 0.5, float("nan")):
        with pytest.raises(CoterieError, match="from 0 to below 0.5"):
            robust_means("trimmed", values, weight, share)
    monkeypatch.setattr(robust, "MAX_COMPARED", 5)
    with pytest.raises(CoterieError, match="use another rule"):
        robust_means("krum", values, weight, 0.2)
