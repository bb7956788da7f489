"""How sure the difference between two methods is: paired over sites and seeds.

Methods with the same seed have the same test rows, so that what is hard for one is hard for the
other: their scores are subtracted site by site. The interval comes from drawing the sites, and the
seeds, anew with replacement (bootstrap). Drawing from few sites makes intervals too narrow, so that
they are widened as a t-interval is; what counts is the effective number of sites, which is small
where a few have most of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

DRAWS = 2000
CONFIDENCE = 0.95
FEWEST_SITES = 3  # of fewer, nothing can be said about other sites
BATCH_NUMBERS = 4_000_000  # counts of sites that are drawn at a time


class SiteScores(NamedTuple):
    """The scores of one run by site."""

    names: tuple[str, ...]
    values: np.ndarray  # [sites]; NaN: not measured
    rows: np.ndarray  # [sites] test rows
    simplest: np.ndarray | None = None  # [sites] what a constant guess scores; NaN: unknown


BySeed = Mapping[int, SiteScores]  # the runs of one method


class Difference(NamedTuple):
    """By how much one method's score is above another's, over all test rows."""

    value: float
    low: float | None  # of the interval, as `high`; None: too few sites to tell
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
        """Whether there are enough sites to tell anything."""
        return self.low is not None

    def negated(self) -> Difference:
        """The same difference the other way round."""
        low, high = self.low, self.high
        if low is None or high is None:
            return self._replace(value=-self.value)
        return self._replace(value=-self.value, low=-high, high=-low)


def paired_difference(one: BySeed, other: BySeed) -> Difference | None:
    """Subtract the scores of another method; None where no site and seed has both.

    Sites are weighted by their test rows.
    """
    seeds = sorted(one.keys() & other.keys())
    names = sorted({name for seed in seeds for name in one[seed].names})
    if not names:
        return None
    difference = np.zeros((len(seeds), len(names)))
    rows = np.zeros((len(seeds), len(names)))
    for s, seed in enumerate(seeds):
        first, first_rows = in_order(one[seed], names)
        second, _ = in_order(other[seed], names)
        gap = first - second
        known = np.isfinite(gap)
        difference[s, known] = gap[known]
        rows[s, known] = first_rows[known]
    measured = rows.sum(0) > 0
    if not measured.any():
        return None
    return difference_of(difference[:, measured], rows[:, measured])


def in_order(scores: SiteScores, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The values and rows of these sites; NaN and 0 for sites that are not there."""
    position = {name: i for i, name in enumerate(scores.names)}
    values = np.full(len(names), np.nan)
    rows = np.zeros(len(names))
    for i, name in enumerate(names):
        if name in position:
            values[i] = scores.values[position[name]]
            rows[i] = scores.rows[position[name]]
    return values, rows


def difference_of(gaps: np.ndarray, rows: np.ndarray) -> Difference:
    """The mean gap with its interval; gaps and rows are [seeds, sites], rows 0: not measured."""
    seeds, sites = gaps.shape
    value = float((rows * gaps).sum() / rows.sum())
    if sites < FEWEST_SITES:
        return Difference(value, None, None, sites, seeds)
    drawn = np.concatenate(list(draw_differences(gaps, rows)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    factor = widening(rows.sum(0))
    return Difference(
        value,
        low=float(value + factor * min(low - value, 0.0)),
        high=float(value + factor * max(high - value, 0.0)),
        sites=sites,
        seeds=seeds,
    )


def draw_differences(gaps: np.ndarray, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Mean gaps over sites and seeds that are drawn with replacement, in batches of draws."""
    seeds, sites = gaps.shape
    rng = np.random.default_rng(0)
    of_seeds = seed_effects(gaps, rows)
    total_of_site = (rows * gaps).sum(0)
    rows_of_site = rows.sum(0)
    batch = max(1, BATCH_NUMBERS // sites)
    for start in range(0, DRAWS, batch):
        draws = min(batch, DRAWS - start)
        times_site = rng.multinomial(sites, np.full(sites, 1 / sites), draws)
        times_seed = rng.multinomial(seeds, np.full(seeds, 1 / seeds), draws)
        mean_gap = (times_site @ total_of_site) / (times_site @ rows_of_site)
        yield mean_gap + (times_seed @ of_seeds) / seeds


def seed_effects(gaps: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """How far each seed moves the gaps of all sites together [seeds].

    Seeds also differ because every seed splits each site's rows anew. That part of their spread is
    in the sites' draws already, and is taken off.
    """
    seeds, sites = gaps.shape
    if seeds == 1:
        return np.zeros(1)
    share = rows / np.maximum(rows.sum(1, keepdims=True), 1)
    of_seed = (share * gaps).sum(1)
    of_site = (rows * gaps).sum(0) / rows.sum(0)
    deviation = of_seed - of_seed.mean()
    leftover = gaps - of_site - deviation[:, None]
    by_chance = (share**2 * leftover**2).sum() / (seeds - 1) * sites / (sites - 1)
    spread = (deviation**2).sum() / (seeds - 1)
    if spread <= by_chance:
        return np.zeros(seeds)
    few_seeds = seeds / (seeds - 1)
    return deviation * np.sqrt((1 - by_chance / spread) * few_seeds)


def widening(rows: np.ndarray) -> float:
    """How much wider than the bootstrap's the interval of sites with these rows must be.

    The first factor is the t-quantile over the normal one, the second makes up for a variance
    that is measured around the sites' own mean.
    """
    from scipy.stats import norm, t

    effective = max(float(rows.sum() ** 2 / (rows**2).sum()), 2.0)
    upper = (1 + CONFIDENCE) / 2
    return float(
        t.ppf(upper, effective - 1) / norm.ppf(upper) * np.sqrt(effective / (effective - 1))
    )
