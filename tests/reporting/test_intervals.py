"""Intervals of differences between methods: by hand, and how often they err."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up import sites_of

from coterie.reporting.intervals import (
    MOST_SIMULATED,
    PairVariance,
    all_differences,
    critical_value,
    half_width,
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_sites_are_paired_by_name_and_weighted_by_their_rows():
    one = sites_of([1.0, 2.0, 3.0, np.nan], rows=[10, 30, 60, 5])
    other = sites_of([0.0, 2.0, 2.0, 0.0], rows=[10, 30, 60, 5])
    order = [2, 0, 1, 3]
    other[0] = other[0]._replace(
        names=tuple(other[0].names[i] for i in order),
        values=other[0].values[order],
        rows=other[0].rows[order],
    )
    differences = all_differences({"one": one, "other": other})
    difference = differences["one", "other"]
    assert difference.value == pytest.approx((10 * 1 + 30 * 0 + 60 * 1) / 100)
    assert (difference.sites, difference.seeds) == (3, 1)
    assert differences["other", "one"] == difference.negate()


def test_only_seeds_that_both_methods_have_are_compared():
    three = sites_of([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [9.0, 9.0, 9.0])
    two = sites_of([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    difference = all_differences({"three": three, "two": two})["three", "two"]
    assert (difference.value, difference.seeds) == (1.5, 2)
    assert all_differences({"three": three, "none": {}}) == {}


def test_two_sites_give_no_interval():
    two = all_differences({"m": sites_of([1.0, 1.0]), "n": sites_of([0.0, 0.1])})
    assert not two["m", "n"].has_interval


def test_the_interval_of_two_methods_is_that_of_student():
    """One pair of methods on equal sites: mean ± t · s / √n; t has 39 degrees of freedom."""
    gaps = np.random.default_rng(1).normal(size=40)
    both = {"m": sites_of(gaps.tolist()), "n": sites_of([0.0] * 40)}
    difference = all_differences(both)["m", "n"]
    half = 2.023 * gaps.std(ddof=1) / 40**0.5
    assert difference.low == pytest.approx(gaps.mean() - half, abs=0.04 * half)
    assert difference.high == pytest.approx(gaps.mean() + half, abs=0.04 * half)


def test_many_methods_need_the_factor_of_tukeys_range_test():
    """With many sites, the studentised range q(10, ∞) = 4.474, divided by √2."""
    assert critical_value(10, np.full(150, 1 / 150)) == pytest.approx(4.474 / 2**0.5, rel=0.03)
    few = critical_value(2, np.full(5, 0.2))
    assert few == pytest.approx(2.776, rel=0.04), "t with four degrees of freedom"
    uneven = critical_value(2, np.array([0.9, 0.02, 0.02, 0.02, 0.02, 0.02]))
    assert uneven > 1.5 * critical_value(2, np.full(6, 1 / 6)), "one site has nearly all rows"


def test_more_sites_than_are_simulated_give_the_same_factor():
    weights = np.linspace(1, 3, 20 * MOST_SIMULATED)
    assert critical_value(3, weights) == critical_value(3, weights[::-1])
    assert critical_value(2, np.ones(10_000)) == pytest.approx(1.97, abs=0.06)


def test_the_variance_of_a_pair_by_hand():
    """Gaps 1, 2, 3 on equal rows: mean 2, s² = 1, variance of the mean 1 / 3; one seed adds 0."""
    pair = PairVariance.of(np.array([[1.0, 2.0, 3.0]]), np.ones((1, 3)))
    assert (pair.mean, pair.of_seeds) == (2.0, 0.0)
    assert pair.of_sites == pytest.approx(1 / 3)
    # three seeds that shift all sites by −1, 0 and 1: variance 1 between seeds, of the mean 1 / 3
    shifts = np.array([[-1.0], [0.0], [1.0]])
    pair = PairVariance.of(np.array([[1.0, 2.0, 3.0]]) + shifts, np.ones((3, 3)))
    assert pair.of_seeds == pytest.approx(1 / 3) and pair.by_chance == pytest.approx(0)
    assert pair.of_sites == pytest.approx(1 / 3)


def test_what_a_seed_does_to_all_sites_widens_the_interval():
    noise = np.random.default_rng(0).normal(size=(3, 50)) / 10
    nothing = sites_of(*[[0.0] * 50] * 3)
    calm = {"m": sites_of(*(0.1 + noise).tolist()), "n": nothing}
    shifted = 0.1 + noise + np.array([[-0.3], [0.0], [0.3]])
    assert all_differences(calm)["m", "n"].is_above
    assert not all_differences({**calm, "m": sites_of(*shifted.tolist())})["m", "n"].is_above


def test_a_small_variance_by_chance_is_moderated_but_never_beyond_its_tenfold():
    sites = np.full(5, 0.2)
    calm = PairVariance(1.0, 0.01, 0.0, 0.0, sites, 1)
    usual = calm._replace(of_sites=0.05)
    wild = calm._replace(of_sites=99.0)
    factor = critical_value(3, sites)
    mean = (0.01 + 0.05) / 2
    assert half_width(calm, [calm, usual], 3) == pytest.approx(
        factor * ((4 * 0.01 + 4 * mean) / 8) ** 0.5
    )
    assert half_width(calm, [calm, wild], 3) == pytest.approx(
        factor * ((4 * 0.01 + 4 * 0.1) / 8) ** 0.5
    )


def test_the_wider_interval_counts_that_of_the_sum_or_that_over_seeds():
    sites, seeds = np.full(5, 0.2), np.full(3, 1 / 3)
    pair = PairVariance(1.0, 0.01, 0.0005, 0.0004, sites, 3)
    over_sites, over_seeds = critical_value(2, sites), critical_value(2, seeds, np.inf)
    assert over_seeds == pytest.approx(4.303, rel=0.05), "t with two degrees of freedom"
    total = over_sites**2 * 0.01 + over_seeds**2 * 0.0001
    assert half_width(pair, [pair], 2) == pytest.approx(total**0.5)
    # all that seeds vary is noise of test rows, but it is much
    noisy = pair._replace(of_seeds=0.04, by_chance=0.05)
    assert half_width(noisy, [noisy], 2) == pytest.approx(over_seeds * 0.2)
    # the variances of another pair count, too, as much as four further seeds
    other = pair._replace(of_seeds=0.16, by_chance=0.05)
    both = half_width(noisy, [noisy, other], 3)
    factor = critical_value(3, seeds, np.inf)
    assert both == pytest.approx(
        max(
            factor**2 * (2 * 0.04 + 4 * 0.1) / 6,
            critical_value(3, sites) ** 2 * 0.01 + factor**2 * ((0.08 + 0.4) / 6 - 0.05),
        )
        ** 0.5
    )


def test_an_interval_does_not_reach_beyond_its_limit():
    pair = {"m": sites_of([1.0, 9.0, 1.0]), "n": sites_of([0.0, 0.0, 0.0])}
    difference = all_differences(pair)["m", "n"]
    assert difference.high > 5 and difference.clip(5).high == 5
    assert difference.clip(5)._replace(high=difference.high) == difference


# ------------------------------------------------------------------------------ how often they err
@pytest.mark.slow
@pytest.mark.parametrize(
    "methods, sites, seeds, effect",
    [
        (2, 5, 1, 0),
        (2, 15, 2, 0.6),
        (2, 100, 2, 0.2),
        (5, 15, 3, 0),
        (10, 15, 3, 0),
        (10, 40, 1, 0),
    ],
)
def test_equal_methods_seldom_seem_different_and_worse_ones_nearly_always(
    methods, sites, seeds, effect, monkeypatch
):
    """At most 6 %, plus three standard errors of 200 comparisons: 11 %. With t-intervals of single
    pairs it is 22 % for five methods and half of all comparisons for ten.
    """
    monkeypatch.syspath_prepend(BENCHMARKS)
    from verdicts import draw_rows, draw_scores, names_worse

    rng = np.random.default_rng(0)
    rows = draw_rows(rng, sites)
    equal = [draw_scores(rng, methods, rows, seeds, effect) for _ in range(200)]
    assert np.mean([bool(names_worse(scores)) for scores in equal]) <= 0.11
    if effect:
        return  # two seeds that differ this much cannot find anything
    planted = [draw_scores(rng, methods, rows, seeds, worse_by=6.0) for _ in range(50)]
    assert np.mean([f"m{methods - 1}" in names_worse(scores) for scores in planted]) >= 0.9
