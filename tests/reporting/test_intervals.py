"""Intervals of differences between methods: by hand, and how often they err."""

from __future__ import annotations

import numpy as np
import pytest
from made_up import sites_of

from coterie.reporting.intervals import bootstrap_difference, paired_difference, widening_factor


def test_sites_are_paired_by_name_and_weighted_by_their_rows():
    one = sites_of([1.0, 2.0, 3.0, np.nan], rows=[10, 30, 60, 5])
    other = sites_of([0.0, 2.0, 2.0, 0.0], rows=[10, 30, 60, 5])
    order = [2, 0, 1, 3]
    other[0] = other[0]._replace(
        names=tuple(other[0].names[i] for i in order),
        values=other[0].values[order],
        rows=other[0].rows[order],
    )
    difference = paired_difference(one, other)
    assert difference.value == pytest.approx((10 * 1 + 30 * 0 + 60 * 1) / 100)
    assert (difference.sites, difference.seeds) == (3, 1)
    back = paired_difference(other, one)
    assert back == difference.negate()


def test_only_seeds_that_both_methods_have_are_compared():
    three = sites_of([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [9.0, 9.0, 9.0])
    two = sites_of([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    difference = paired_difference(three, two)
    assert (difference.value, difference.seeds) == (1.5, 2)
    assert paired_difference(three, {}) is None


def test_few_sites_give_no_interval_and_equal_ones_that_of_student():
    assert not bootstrap_difference(np.ones((1, 2)), np.ones((1, 2))).has_interval
    # t with 3 degrees of freedom has 3.182 where the normal distribution has 1.960
    assert widening_factor(np.full(4, 7.0)) == pytest.approx(
        3.182 / 1.960 * (4 / 3) ** 0.5, rel=1e-3
    )
    assert widening_factor(np.array([1000.0, 1.0, 1.0])) > 7, "one site has all rows"


def test_an_interval_is_as_wide_as_that_of_student():
    gaps = np.random.default_rng(1).normal(size=(1, 40))
    difference = bootstrap_difference(gaps, np.ones((1, 40)))
    half = 2.023 * gaps.std(ddof=1) / 40**0.5
    assert difference.low == pytest.approx(gaps.mean() - half, abs=0.1 * half)
    assert difference.high == pytest.approx(gaps.mean() + half, abs=0.1 * half)


def test_what_a_seed_does_to_all_sites_widens_the_interval():
    noise = np.random.default_rng(0).normal(size=(3, 50)) / 10
    rows = np.ones((3, 50))
    calm = bootstrap_difference(0.1 + noise, rows)
    moved = bootstrap_difference(0.1 + noise + np.array([[-0.3], [0.0], [0.3]]), rows)
    assert calm.is_above and not moved.is_above


# ------------------------------------------------------------------------------ how often they err
def draw(rng, effect: float) -> tuple[np.ndarray, np.ndarray]:
    """Gaps of 4 to 60 sites whose sizes have heavy tails, with 1 to 3 seeds."""
    sites = rng.integers(4, 61)
    seeds = rng.integers(1, 4)
    rows = np.ceil(5 * (rng.pareto(1.5, sites) + 1))
    of_site = rng.exponential(0.1, sites) - 0.1
    of_rows = rng.standard_t(3, (seeds, sites)) / np.sqrt(rows)
    return effect + of_site + of_rows, np.tile(rows, (seeds, 1))


@pytest.mark.slow
def test_methods_that_do_not_differ_seldom_seem_to_and_those_that_do_nearly_always():
    rng = np.random.default_rng(0)
    beats = sum(bootstrap_difference(*draw(rng, 0.0)).is_above for _ in range(200))
    loses = sum(bootstrap_difference(*draw(rng, 0.0)).is_below for _ in range(200))
    assert beats <= 10 and loses <= 10
    clear = sum(bootstrap_difference(*draw(rng, 2.0)).is_above for _ in range(200))
    assert clear >= 190
