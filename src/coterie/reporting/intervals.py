"""Confidence intervals of the difference between two methods, paired over sites and seeds.

Methods with the same seed have the same test rows, so their scores are subtracted site by site. The
interval is a bootstrap over sites and seeds. With few sites a bootstrap interval is too narrow, so
it is widened like a t-interval, by the effective number of sites: this is small if a few sites have
most of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

DRAWS = 2000  # bootstrap resamples
CONFIDENCE = 0.95
MIN_SITES = 3  # fewer give no interval
BATCH_NUMBERS = 4_000_000  # site counts in memory at a time


class ScoresBySite(NamedTuple):
    """The scores of one run by site."""

    names: tuple[str, ...]
    values: np.ndarray  # [sites]; NaN: not measured
    rows: np.ndarray  # [sites] test rows
    constant: np.ndarray | None = None  # [sites] of a constant; NaN: it is perfect, do not judge


BySeed = Mapping[int, ScoresBySite]  # the runs of one method


class ScoreDifference(NamedTuple):
    """The difference between the scores of two methods over all test rows."""

    value: float
    low: float | None  # end of the interval, like `high`; None: too few sites
    high: float | None
    sites: int
    seeds: int

    @property
    def is_above(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low is not None and self.low > 0

    @property
    def is_below(self) -> bool:
        """Whether the whole interval lies below 0."""
        return self.high is not None and self.high < 0

    @property
    def has_interval(self) -> bool:
        """Whether there are enough sites for an interval."""
        return self.low is not None

    def negate(self) -> ScoreDifference:
        """Return the difference with both methods swapped."""
        low, high = self.low, self.high
        if low is None or high is None:
            return self._replace(value=-self.value)
        return self._replace(value=-self.value, low=-high, high=-low)


def paired_difference(one: BySeed, other: BySeed) -> ScoreDifference | None:
    """Return the difference between two methods, sites weighted by their test rows.

    Args:
        one: Scores of a method by seed.
        other: Scores of the other method by seed.

    Returns:
        one − other, or None if no site and seed has both.
    """
    seeds = sorted(one.keys() & other.keys())
    names = sorted({name for seed in seeds for name in one[seed].names})
    if not names:
        return None
    gaps = np.zeros((len(seeds), len(names)))
    rows = np.zeros((len(seeds), len(names)))
    for s, seed in enumerate(seeds):
        first, first_rows = align_sites(one[seed], names)
        second, _ = align_sites(other[seed], names)
        gap = first - second
        known = np.isfinite(gap)
        gaps[s, known] = gap[known]
        rows[s, known] = first_rows[known]
    measured = rows.sum(0) > 0
    if not measured.any():
        return None
    return bootstrap_difference(gaps[:, measured], rows[:, measured])


def align_sites(scores: ScoresBySite, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and rows of these sites; NaN and 0 for missing ones."""
    position = {name: i for i, name in enumerate(scores.names)}
    values = np.full(len(names), np.nan)
    rows = np.zeros(len(names))
    for i, name in enumerate(names):
        if name in position:
            values[i] = scores.values[position[name]]
            rows[i] = scores.rows[position[name]]
    return values, rows


def bootstrap_difference(gaps: np.ndarray, rows: np.ndarray) -> ScoreDifference:
    """Return the weighted mean of the gaps with its interval.

    Args:
        gaps: Differences between two methods, [seeds, sites].
        rows: Test rows, [seeds, sites]; 0: not measured.
    """
    seeds, sites = gaps.shape
    value = float((rows * gaps).sum() / rows.sum())
    if sites < MIN_SITES:
        return ScoreDifference(value, None, None, sites, seeds)
    rng = np.random.default_rng(0)
    shift_of_seed = seed_effects(gaps, rows)
    total_of_site = (rows * gaps).sum(0)
    rows_of_site = rows.sum(0)
    means = []  # of the gaps, over sites and seeds drawn with replacement
    batch = max(1, BATCH_NUMBERS // sites)
    for start in range(0, DRAWS, batch):
        draws = min(batch, DRAWS - start)
        times_site = rng.multinomial(sites, np.full(sites, 1 / sites), draws)
        times_seed = rng.multinomial(seeds, np.full(seeds, 1 / seeds), draws)
        mean_gap = (times_site @ total_of_site) / (times_site @ rows_of_site)
        means.append(mean_gap + (times_seed @ shift_of_seed) / seeds)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    factor = widening_factor(rows_of_site)
    return ScoreDifference(
        value,
        low=float(value + factor * min(low - value, 0.0)),
        high=float(value + factor * max(high - value, 0.0)),
        sites=sites,
        seeds=seeds,
    )


def seed_effects(gaps: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the effect of each seed on the gaps of all sites, [seeds].

    The effect is the deviation of the seed's mean gap, shrunk by the share of the variance between
    seeds that sites explain: deviation · √(1 − variance by chance / variance between seeds), with a
    correction for few seeds.

    Every seed also splits each site's rows differently. This part of the variance between seeds is
    the variance by chance; it is already in the resampling of sites.
    """
    seeds, sites = gaps.shape
    if seeds == 1:
        return np.zeros(1)
    share = rows / np.maximum(rows.sum(1, keepdims=True), 1)
    mean_of_seed = (share * gaps).sum(1)
    mean_of_site = (rows * gaps).sum(0) / rows.sum(0)
    deviation = mean_of_seed - mean_of_seed.mean()
    residual = gaps - mean_of_site - deviation[:, None]
    variance_by_chance = (share**2 * residual**2).sum() / (seeds - 1) * sites / (sites - 1)
    variance_of_seeds = (deviation**2).sum() / (seeds - 1)
    if variance_of_seeds <= variance_by_chance:
        return np.zeros(seeds)
    correction = seeds / (seeds - 1)
    return deviation * np.sqrt((1 - variance_by_chance / variance_of_seeds) * correction)


def widening_factor(rows: np.ndarray) -> float:
    """Return the factor by which to widen a bootstrap interval over sites with these rows.

    The first factor is the t quantile over the normal quantile, the second corrects the variance,
    which is measured around the mean of the same sites.
    """
    from scipy.stats import norm, t

    effective = max(float(rows.sum() ** 2 / (rows**2).sum()), 2.0)
    upper = (1 + CONFIDENCE) / 2
    return float(
        t.ppf(upper, effective - 1) / norm.ppf(upper) * np.sqrt(effective / (effective - 1))
    )
