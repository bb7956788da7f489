"""Threshold clustering: moves by hand, every rule of τ in NumPy, errors beside the oracle's as
clusters part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, tensor

import coterie as ct
from coterie.clustering import Threshold, balls_per_point, threshold_clusters
from coterie.clustering import threshold as module


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(
    means: np.ndarray, sizes: list[int], seed: int, rho: float = 1.0
) -> tuple[Tensor, np.ndarray]:
    """Points with E‖x − Ex‖² = ρ² about the means, and their clusters."""
    g, truth = np.random.default_rng(seed), np.repeat(np.arange(len(sizes)), sizes)
    d = means.shape[1]
    return torch.tensor(means[truth] + rho / d**0.5 * g.normal(size=(len(truth), d))), truth


# ------------------------------------------------------------------------------ by hand
def test_moves_by_hand() -> None:
    """Points 0, 1, 10 and τ = 2.

    From 0: (0 + 1 + 0)/3 = 1/3, then (0 + 1 + 1/3)/3 = 4/9. From 1: 2/3, then 5/9.

    From 10: only itself. In the end ½, ½ and 10: the distance to the mean of those inside shrinks
    by 1 − 2/3 a move.
    """
    x = tensor([[0.0], [1.0], [10.0]])
    for rounds, want in ((1, [1 / 3, 2 / 3, 10]), (2, [4 / 9, 5 / 9, 10]), (50, [0.5, 0.5, 10])):
        balls = balls_per_point(x, 2, rng(), Threshold(2.0, rounds=rounds))
        np.testing.assert_allclose((balls.share @ x.double())[:, 0], want, atol=1e-6)
        assert balls.inside.tolist() == [[True, True, False]] * 2 + [[False, False, True]]
        assert balls.radius.tolist() == [2.0] * 3
    assert balls.rounds < 20  # |v − ½| = ½·3⁻ʳ: it no longer moves by 1e-6 τ after 13


def test_a_point_at_the_threshold_is_inside() -> None:
    balls = balls_per_point(tensor([[0.0], [2.0]]), 1, rng(), Threshold(2.0, rounds=1))
    np.testing.assert_allclose(balls.share, 0.5)


def test_nothing_moves_at_threshold_0() -> None:
    x = torch.randn(30, 100, generator=rng())
    balls = balls_per_point(x, 3, rng(), Threshold(0.0))
    assert torch.equal(balls.share, torch.eye(30, dtype=torch.float64)) and balls.rounds == 1


def test_one_cluster_is_the_mean() -> None:
    x = torch.randn(9, 4, generator=rng())
    for rule in ("half", "theory", torch.inf):
        balls = threshold_clusters(x, 1, rng(), Threshold(rule))
        np.testing.assert_allclose(balls.share, 1 / 9)
        assert balls.labels.tolist() == [0] * 9 and balls.inside.all()


def test_a_point_in_one_ball_belongs_to_it_and_else_to_the_nearest() -> None:
    """Centres 0 (from −1, 1) and 10 (from 9, 11); radii by hand: 4 is in the far ball alone, 5.5
    and 4.5 in none.
    """
    x = tensor([[-1.0], [1.0], [9.0], [11.0], [4.0]]).double()
    near_first = tensor([[0.5, 0.5, 0, 0, 0], [0, 0, 0.5, 0.5, 0]]).double()

    def labels(*radius: float, share: Tensor = near_first) -> list[int]:
        how = Threshold("half", rounds=1)
        start = module.StartStatistics(tensor([2.0, 2.0]), 1.0, 10.0)
        old, module._radius = module._radius, lambda *_: tensor(radius).double()
        try:
            return module._iterate(x, share, how, 2, rng(), start).labels.tolist()
        finally:
            module._radius = old

    assert labels(2.0, 2.0)[4] == 0  # in none: nearest
    assert (
        labels(2.0, 6.5)[4] == 1
    )  # v_2 = 10 − 6/5 = 8.8 after the move: in its ball alone, though 0 is nearer
    assert labels(6.5, 6.5)[4] == 0  # in both
    assert labels(6.5, 6.5, share=near_first.flip(0))[4] == 1  # in both, and not the first of them


# ------------------------------------------------------------------------------ in NumPy
def radius_of(
    rule: Any, q: float | None, k: int, v: list, c: int, x: np.ndarray, start: list, alone: bool
) -> float:
    """τ of centre c, each rule in its own words."""
    d = sorted(np.linalg.norm(p - v[c]) for p in x)
    others = [] if alone else [np.linalg.norm(v[c] - u) for j, u in enumerate(v) if j != c]
    if rule == "half":
        return min(others) / 2 if others else np.inf
    if rule == "quantile":
        return 0.99 * np.quantile(d, q or 1 / (2 * k))
    if rule == "k-means":
        cost = [np.var(d[:i]) * i + np.var(d[i:]) * (len(d) - i) for i in range(1, len(d))]
        i = int(np.argmin(cost)) + 1
        return (d[i - 1] + d[i]) / 2
    if rule == "gap":
        bound = min(others) if others else np.inf
        below = [e for e in d if e < bound]
        if len(below) < 2:
            return bound / 2
        steps = below + ([bound] if others else [])
        i = max(range(1, len(steps) - 1), key=lambda i: steps[i + 1] - steps[i])
        return (steps[i] + steps[i + 1]) / 2
    if rule == "theory":
        label = [int(np.argmin([np.linalg.norm(p - u) for u in start])) for p in x]
        rho2 = np.mean([np.sum((p - start[j]) ** 2) for p, j in zip(x, label)])
        delta = min(np.linalg.norm(a - b) for i, a in enumerate(start) for b in start[:i])
        return np.sqrt(2 * label.count(c) / len(x) * np.sqrt(rho2) * delta)
    return rule


def by_hand(
    x: np.ndarray, start: list, rounds: int, rule: Any, q: Any, k: int, alone: bool
) -> tuple[list, list]:
    v = list(start)
    for _ in range(rounds):
        how = {"x": x, "start": start, "alone": alone}
        tau = [radius_of(rule, q, k, v, c, **how) for c in range(len(v))]
        v = [
            np.mean([p if np.linalg.norm(p - u) <= t else u for p in x], axis=0)
            for u, t in zip(v, tau)
        ]
    return v, tau


@pytest.mark.parametrize("d", [3, 60])
@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize(
    "rule, q",
    [
        ("half", None),
        ("quantile", None),
        ("quantile", 0.4),
        ("k-means", None),
        ("gap", None),
        ("theory", None),
        (1.3, None),
    ],
)
def test_every_rule_in_numpy(rule: Any, q: float | None, rounds: int, d: int) -> None:
    """Three clusters of 8, 6 and 4 points in 3 or 60 dimensions, so near that the rules differ."""
    means = 2.2 * np.eye(3, d) + 50  # far from 0: distances must not suffer
    x, _ = blobs(means, [8, 6, 4], seed=1)
    balls = threshold_clusters(x, 3, rng(), Threshold(rule, q, rounds))
    start = threshold_clusters(x, 3, rng(), Threshold(0.0))
    # at τ = 0 nothing moves: the start, k-means' means
    v, tau = by_hand(x.numpy(), list((start.share @ x).numpy()), rounds, rule, q, 3, alone=False)
    np.testing.assert_allclose(balls.share @ x, v, atol=1e-6)
    np.testing.assert_allclose(balls.radius, tau, atol=1e-6)
    if rule != "half" and (rule, q) != ("quantile", None):
        return
    v, tau = by_hand(x.numpy(), list(x.numpy()), rounds, "quantile", 0.2, 3, alone=True)
    per_client = balls_per_point(x, 3, rng(), Threshold("quantile", 0.2, rounds))
    np.testing.assert_allclose(per_client.share @ x, v, atol=1e-6)


@pytest.mark.parametrize("rule", ["gap", "k-means"])
def test_rules_of_a_ball_alone(rule: str) -> None:
    x, _ = blobs(6 * np.eye(3, 5), [5, 4, 3], seed=0)
    v, tau = by_hand(x.numpy(), list(x.numpy()), 2, rule, None, 3, alone=True)
    balls = balls_per_point(x, 3, rng(), Threshold(rule, rounds=2))
    np.testing.assert_allclose(balls.share @ x, v, atol=1e-9)
    np.testing.assert_allclose(balls.radius, tau, atol=1e-9)


def test_gap_with_a_single_point_below_the_next_centre() -> None:
    """0 | (10, ±1): the second is √101 from 0, beyond the centre at 10, so half of 10; the others'
    gap is 1 to 10.
    """
    balls = threshold_clusters(
        tensor([[0.0, 0.0], [10.0, 1.0], [10.0, -1.0]]), 2, rng(), Threshold("gap")
    )
    j = int(balls.labels[0])
    assert float(balls.radius[j]) == pytest.approx(5)
    assert float(balls.radius[1 - j]) == pytest.approx(5.5)
    np.testing.assert_allclose(balls.share[1 - j], [0, 1 / 2, 1 / 2])


# ------------------------------------------------------------------------------ samples, edges
def test_a_sample_is_fresh_each_round_and_divides_by_its_size() -> None:
    """τ = ∞ and 2 of 8 points: one move ends at the mean of the two drawn, another move at another
    two's.
    """
    x = torch.randn(8, 3, generator=rng()).double()
    for rounds in (1, 2):
        balls = threshold_clusters(x, 1, rng(3), Threshold(torch.inf, rounds=rounds, sample=2))
        assert sorted(balls.share[0].tolist()) == [0.0] * 6 + [0.5] * 2
        assert balls.rounds == rounds
    first, again, other = (
        threshold_clusters(x, 1, rng(s), Threshold(torch.inf, rounds=r, sample=2)).share
        for s, r in ((3, 1), (3, 1), (3, 2))
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    of_all = threshold_clusters(x, 1, rng(), Threshold(torch.inf, sample=8))
    np.testing.assert_allclose(of_all.share, 1 / 8)


def test_a_ball_of_ones_own_has_a_sample_of_its_own() -> None:
    """τ = ∞ and 2 of 8 points: after one move each centre is the mean of its own two."""
    x = torch.randn(8, 3, generator=rng()).double()
    balls = balls_per_point(x, 1, rng(), Threshold(torch.inf, rounds=1, sample=2))
    for row in balls.share.tolist():
        assert sorted(row) == [0.0] * 6 + [0.5] * 2
    assert len(balls.share.unique(dim=0)) > 4


def test_no_points_few_points_equal_points() -> None:
    assert threshold_clusters(torch.zeros(0, 3), 2, rng()).labels.shape == (0,)
    assert sorted(threshold_clusters(tensor([[0.0], [5.0]]), 4, rng()).labels.tolist()) == [0, 1]
    balls = threshold_clusters(torch.ones(5, 2), 3, rng())
    np.testing.assert_allclose(balls.share.sum(1), 1)
    assert balls.share.isfinite().all()


def test_the_proofs_conditions_by_hand() -> None:
    """Pairs about 0 and 100, ρ = 1, Δ = 100, n = 2 of 4, δ = ¼: τ² = 2·½·100, and Δ > 2·58·1/¼ =
    464 fails.

    100 + 2 ≤ 10⁴/12 and 100 ≤ 10⁴/18 hold; for half the distance, τ² = 2,500, neither does.
    Rounds: log(1/100 + ½) / log(1 − 1/8).
    """
    x = tensor([[-1.0], [1.0], [99.0], [101.0]])
    by_theory = threshold_clusters(x, 2, rng(), Threshold("theory"))
    start = by_theory.start
    assert start.sizes.tolist() == [2, 2]
    assert (start.spread, start.separation) == pytest.approx((1, 100))
    assert by_theory.radii.flatten().tolist() == pytest.approx([10] * 2 * by_theory.rounds)
    assert list(start.conditions(by_theory.radius).values()) == [True, True, False]
    half = threshold_clusters(x, 2, rng())
    assert list(half.start.conditions(half.radius).values()) == [False, False, False]
    assert start.rounds() == pytest.approx(np.log(0.51) / np.log(7 / 8))


def test_the_radius_of_every_round_is_kept() -> None:
    """Points 0, 1, 10 from 0: "gap" is set anew as the centre moves, from 0 to 1/3, to 4/9."""
    x = tensor([[0.0], [1.0], [10.0]])
    balls = balls_per_point(x, 2, rng(), Threshold("gap", rounds=3))
    # from 0: between 1 and 10; from 1/3: between 2/3 and 29/3; from 4/9: between 5/9 and 86/9
    assert balls.radii[:, 0].tolist() == pytest.approx([5.5, 31 / 6, 91 / 18])
    assert torch.equal(balls.radius, balls.radii[2])


def test_a_ball_alone_refuses_rules_that_need_other_centres() -> None:
    for rule in ("half", "theory"):
        with pytest.raises(ct.CoterieError, match="other centres"):
            balls_per_point(torch.randn(4, 2), 2, rng(), Threshold(rule))


# ------------------------------------------------------------------------------ beside the oracle
SHAPES = {
    "equal": (np.eye(4, 10) / 2**0.5, [9, 9, 9, 9]),
    "unequal": (np.eye(4, 10) / 2**0.5, [15, 12, 6, 3]),
    "in a line": (np.outer(np.arange(4), np.eye(10)[0]), [9, 9, 9, 9]),
}


# a slow test with ten seeds; three seeds, all right, are looked at every time
SEEDS = pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(10), marks=pytest.mark.slow)], ids=["3", "10"]
)


@SEEDS
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", ["half", "gap", "theory"])
def test_errors_come_down_to_the_oracles(shape: str, rule: str, seeds: range) -> None:
    """Separations 5, 10, 30 ρ: the error of v is at most 1.5 times that of the true members' mean,
    in 9 of 10 seeds.

    The oracle's own mean is ρ²/n; labels are right in at least 9 of 10.
    """
    means, sizes = SHAPES[shape]
    for apart in (5, 10, 30):
        right, ratio = 0, []
        for seed in seeds:
            x, truth = blobs(apart * means, sizes, seed)
            balls = threshold_clusters(x, 4, rng(seed), Threshold(rule))
            v, label = (balls.share @ x).numpy(), balls.labels.numpy()
            right += len(set(zip(truth, label))) == len(set(label)) == 4
            error = np.mean([((v[j] - apart * means[t]) ** 2).sum() for j, t in zip(label, truth)])
            oracle = [
                ((x[truth == t].mean(0).numpy() - apart * means[t]) ** 2).sum() for t in truth
            ]
            ratio.append(error / np.mean(oracle))
        misses = len(seeds) // 10
        assert right >= len(seeds) - misses
        assert sorted(ratio)[len(seeds) - misses - 1] <= 1.5, (apart, ratio)


def test_from_a_data_point_one_move_is_not_enough() -> None:
    """A ball of one's own, τ = 3: n = 9 of N = 36, so a move keeps ¾ of the way to the members'
    mean.
    """
    means, sizes = SHAPES["equal"]
    error = {}
    for rounds in (1, 5, 50):
        each = []
        for seed in range(10):
            x, truth = blobs(10 * means, sizes, seed)
            v = (balls_per_point(x, 4, rng(), Threshold(3.0, rounds=rounds)).share @ x).numpy()
            each.append(((v - 10 * means[truth]) ** 2).sum(1).mean())
        error[rounds] = float(np.mean(each))
    assert error[50] == pytest.approx(1 / 9, rel=0.2)
    assert error[1] == pytest.approx(
        1 / 9 + 8 / 9 * 0.75**2, rel=0.2
    )  # ρ²/n + (1 − 1/n)ρ²·(1 − n/N)²
    assert error[5] == pytest.approx(1 / 9 + 8 / 9 * 0.75**10, rel=0.2)
