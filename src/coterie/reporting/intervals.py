"""Confidence intervals of the differences between methods, for all pairs of methods together.

Methods with the same seed have the same test rows, so their scores are subtracted site by site. The
interval of a pair is a mean difference ± half width:

    half width² = max(c_sites² · variance over sites + c_seeds² · variance beyond chance,
                      c_seeds² · variance over seeds)

* The variance over sites is that of a mean weighted by test rows. It is moderated: mixed with the
  mean variance of all pairs, which counts as PRIOR_SITES more sites, because the variance of a
  single pair over a handful of sites is often much too small by chance. One noisy method must not
  hide the differences between the others, so this mean is limited to MOST_PRIOR times a pair's own.
* The variance over seeds is that of the differences over all test rows of a seed. One seed says
  nothing about it: intervals then cover other sites, not other seeds. The noise of test rows is in
  both variances, so it is subtracted from what is added to the variance over sites. With few seeds
  the remainder is often 0 by chance: by the sum alone, two equal methods with two seeds were called
  different in 13 % of comparisons. So the variance over seeds must allow a difference by itself,
  too. It is mixed with the mean of all pairs like that over sites, without a limit: two or three
  seeds of a single pair are nearly equal too often.
* The factors are simulated so that with equal methods none of the intervals of all pairs excludes 0
  in 95 % of comparisons (family-wise). The best method is chosen by its score, so pairs with the
  best alone would not be enough: the family is that of Tukey's range test. `benchmarks/verdicts.py`
  measures how often they err.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

CONFIDENCE = 0.95
MIN_SITES = 3  # fewer give no interval
PRIOR_SITES = 4  # weight of the mean variance of all pairs, in sites
MOST_PRIOR = 10  # limit of this mean variance, as a multiple of the pair's own
DRAWS = 4000  # simulated comparisons of equal methods
BATCH_NUMBERS = 2_000_000  # simulated scores in memory at a time
MOST_SIMULATED = 200  # sites in a simulation; more change its result by less than its noise


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

    def clip(self, most: float) -> ScoreDifference:
        """Return the difference with an interval that ends at `most` at the latest."""
        if self.high is None:
            return self
        return self._replace(high=max(min(self.high, most), self.value))


Pair = tuple[str, str]


def all_differences(methods: Mapping[str, BySeed]) -> dict[Pair, ScoreDifference]:
    """Return the differences between all pairs of methods, with simultaneous intervals.

    Args:
        methods: The scores of each method by seed.

    Returns:
        first − second by pair, in both orders; without pairs that have no site and seed in common.
    """
    paired = {}
    for one, other in combinations(methods, 2):
        gaps = paired_gaps(methods[one], methods[other])
        if gaps is not None:
            paired[one, other] = PairVariance.of(*gaps)
    differences = {}
    measured = [pair for pair in paired.values() if pair.sites >= MIN_SITES]
    for names, pair in paired.items():
        difference = ScoreDifference(pair.mean, None, None, pair.sites, pair.seeds)
        if pair.sites >= MIN_SITES:
            half = half_width(pair, measured, len(methods))
            difference = difference._replace(low=pair.mean - half, high=pair.mean + half)
        differences[names] = difference
        differences[names[::-1]] = difference.negate()
    return differences


def paired_gaps(one: BySeed, other: BySeed) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the differences one − other and the test rows of each site, both [seeds, sites].

    Rows are 0 where either method has no score. None if no site and seed has both.
    """
    seeds = sorted(one.keys() & other.keys())
    names = sorted({name for seed in seeds for name in one[seed].names})
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
    return gaps[:, measured], rows[:, measured]


def align_sites(scores: ScoresBySite, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and rows of these sites; NaN and 0 for missing ones."""
    if list(scores.names) == names:
        return scores.values, scores.rows
    position = {name: i for i, name in enumerate(scores.names)}
    values = np.full(len(names), np.nan)
    rows = np.zeros(len(names))
    for i, name in enumerate(names):
        if name in position:
            values[i] = scores.values[position[name]]
            rows[i] = scores.rows[position[name]]
    return values, rows


class PairVariance(NamedTuple):
    """The mean difference of a pair, and the variance of this mean."""

    mean: float
    of_sites: float  # variance of the mean over sites
    of_seeds: float  # that over seeds; 0 for one seed
    by_chance: float  # the part of it that is noise of test rows, which `of_sites` contains, too
    weights: np.ndarray  # [sites], share of the test rows
    seeds: int

    @property
    def sites(self) -> int:
        return len(self.weights)

    @classmethod
    def of(cls, gaps: np.ndarray, rows: np.ndarray) -> PairVariance:
        """Estimate from differences and test rows, [seeds, sites]; rows 0: not measured."""
        seeds, sites = gaps.shape
        weights = rows.sum(0) / rows.sum()
        gap_of_site = (rows * gaps).sum(0) / rows.sum(0)
        mean = float(weights @ gap_of_site)
        if sites == 1:
            return cls(mean, 0.0, 0.0, 0.0, weights, seeds)
        effective = 1 / (weights**2).sum()
        unbiased = effective / (effective - 1)
        of_sites = float((weights**2) @ (gap_of_site - mean) ** 2) * unbiased
        if seeds == 1:
            return cls(mean, of_sites, 0.0, 0.0, weights, seeds)
        share = rows / np.maximum(rows.sum(1, keepdims=True), 1)
        gap_of_seed = (share * gaps).sum(1)
        shift = gap_of_seed - gap_of_seed.mean()
        of_seeds = float((shift**2).sum()) / (seeds - 1) / seeds
        residual = np.where(rows > 0, gaps - gap_of_site - shift[:, None], 0.0)
        noise = float((share**2 * residual**2).sum()) * unbiased / (seeds - 1) / seeds
        return cls(mean, of_sites, of_seeds, noise, weights, seeds)


def half_width(pair: PairVariance, family: list[PairVariance], methods: int) -> float:
    """Return the half width of a pair's interval.

    Args:
        pair: The pair.
        family: All pairs.
        methods: The number of methods.
    """
    mean_of_sites = float(np.mean([other.of_sites for other in family]))
    variance = moderate(pair.of_sites, min(mean_of_sites, MOST_PRIOR * pair.of_sites), pair.sites)
    total = critical_value(methods, pair.weights) ** 2 * variance
    if pair.seeds > 1:
        several = [other for other in family if other.seeds == pair.seeds]
        of_seeds = float(np.mean([other.of_seeds for other in several]))
        by_chance = float(np.mean([other.by_chance for other in several]))
        variance = moderate(pair.of_seeds, of_seeds, pair.seeds)
        beyond = variance - moderate(pair.by_chance, by_chance, pair.seeds)
        seeds = np.full(pair.seeds, 1 / pair.seeds)
        factor = critical_value(methods, seeds, most_prior=np.inf)
        total = max(total + factor**2 * max(beyond, 0.0), factor**2 * variance)
    return float(np.sqrt(total))


def moderate(own: Any, common: Any, units: int) -> Any:
    """Mix a pair's variance over some sites or seeds with the mean variance of all pairs."""
    return ((units - 1) * own + PRIOR_SITES * common) / (units - 1 + PRIOR_SITES)


def critical_value(methods: int, weights: np.ndarray, most_prior: float = MOST_PRIOR) -> float:
    """Return the factor of the standard error that holds for all pairs of equal methods.

    It is the 95 % quantile of the largest |mean difference| / standard error over all pairs, where
    the methods' scores at the sites are independent and normal. Of methods with equal variances the
    pairs are least alike, so that other methods need no larger factor.

    Args:
        methods: The number of methods, at least 2.
        weights: The weights of the sites or seeds, at least 2.
        most_prior: Limit of the mean variance of all pairs, as a multiple of a pair's own.
    """
    if len(weights) > MOST_SIMULATED:
        places = np.linspace(0, len(weights) - 1, MOST_SIMULATED).round().astype(int)
        weights = np.sort(weights)[places]
    rounded = np.round(np.sort(weights) / weights.sum(), 6)
    return simulate_critical_value(methods, tuple(rounded.tolist()), most_prior)


@lru_cache(maxsize=256)
def simulate_critical_value(methods: int, weights: tuple[float, ...], most_prior: float) -> float:
    """Simulate `critical_value`."""
    rng = np.random.default_rng(0)
    weight = np.array(weights)[:, None] / sum(weights)
    sites = len(weights)
    effective = 1 / (weight**2).sum()
    one, other = np.triu_indices(methods, 1)
    largest = []
    batch = max(1, BATCH_NUMBERS // (sites * methods))
    for start in range(0, DRAWS, batch):
        scores = rng.standard_normal((min(batch, DRAWS - start), sites, methods))
        mean = (weight * scores).sum(1)  # [draws, methods]
        scaled = weight * (scores - mean[:, None])
        covariance = scaled.transpose(0, 2, 1) @ scaled * effective / (effective - 1)
        own = np.diagonal(covariance, axis1=1, axis2=2)
        variance = own[:, one] + own[:, other] - 2 * covariance[:, one, other]  # [draws, pairs]
        common = np.minimum(variance.mean(1, keepdims=True), most_prior * variance)
        variance = moderate(variance, common, sites)
        largest.append(np.abs(mean[:, one] - mean[:, other]) / np.sqrt(variance))
    return float(np.quantile(np.concatenate(largest).max(1), CONFIDENCE))
