"""Claims of a paper, checked against our results.

Every claim says that a number lies in a range: the gap between two lines is at least 4 points, a
mean is within 1 of the paper's number. The number is measured once per seed, which gives a 95 %
confidence interval (Student's t), and the interval decides:

    ✓   the whole interval is in the claimed range
    ✗   the whole interval is outside
    ≈   undecided: the interval has values on both sides
    ①   one seed: there is no interval, whatever the number
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from coterie.reporting.text import capitalise
from reproduction.result_table import ResultTable
from reproduction.spec import Quantity

HOLDS = "✓"
FAILS = "✗"
UNDECIDED = "≈"
ONE_SEED = "①"
MARKS = {HOLDS: "holds", FAILS: "fails", UNDECIDED: "undecided", ONE_SEED: "one seed only"}
CONFIDENCE = 0.95
ABOVE_ZERO = math.nextafter(0.0, 1.0)  # the smallest gap that is an improvement


class ClaimVerdict(NamedTuple):
    """The mark of a claim and a sentence with the claim and what was measured."""

    mark: str
    sentence: str


class Claim(Protocol):
    """A statement about an experiment that its results confirm or contradict."""

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """Return a verdict for each column that the claim is about and whose cells were run."""
        ...


class Interval(NamedTuple):
    """The mean over seeds and its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    seeds: int

    @staticmethod
    def of(values: Iterable[float]) -> Interval:
        """Estimate the mean of one value per seed.

        If some values are infinite because a run diverged, the interval is the range of all values.
        """
        from scipy.stats import t

        each = np.array(list(values))
        mean, low, high = float(each.mean()), float(each.min()), float(each.max())
        if len(each) > 1 and np.isfinite(each).all():
            quantile = float(t.ppf(0.5 + CONFIDENCE / 2, len(each) - 1))
            half = quantile * float(each.std(ddof=1)) / len(each) ** 0.5
            low, high = mean - half, mean + half
        return Interval(mean, low, high, len(each))

    def mark(self, least: float = -math.inf, most: float = math.inf) -> str:
        """Return the mark of the claim that the mean lies between two bounds, both inclusive."""
        if self.seeds < 2:
            return ONE_SEED
        if least <= self.low and self.high <= most:
            return HOLDS
        if self.high < least or self.low > most:
            return FAILS
        return UNDECIDED

    def __str__(self) -> str:
        if self.seeds < 2:
            return f"{self.mean:.4g} (1 seed)"
        return (
            f"{self.mean:.4g} (95 % interval {self.low:.4g} to {self.high:.4g}, {self.seeds} seeds)"
        )


def printed_values(
    results: ResultTable, line: str, column: str, quantity: Quantity
) -> dict[int, float]:
    """Return a value per seed, in the unit that is printed; a diverged run has the worst value."""
    worst = -math.inf if quantity.higher_is_better else math.inf
    values = results.values(line, column, quantity.name)
    return {
        seed: value * quantity.factor if math.isfinite(value) else worst
        for seed, value in values.items()
    }


def paired_gap(one: Mapping[int, float], other: Mapping[int, float]) -> Interval | None:
    """Return the mean difference `one` − `other` over the seeds that both have; None without any.

    If both runs of a seed diverged, their difference counts as 0.
    """
    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return None
    return Interval.of(
        0.0 if one[seed] == other[seed] else one[seed] - other[seed] for seed in seeds
    )


@dataclass(frozen=True)
class Beats:
    """One line is better than another, paired by seed, in each column.

    Attributes:
        one: Label of the better line.
        other: Label of the other line.
        by: Smallest improvement, in the unit that is printed; 0: any improvement.
        quantity: Name of the quantity; "": the first one of the table.
        columns: Labels of the columns; (): all.
    """

    one: str
    other: str
    by: float = 0.0
    quantity: str = ""
    columns: tuple[str, ...] = ()

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """Return a verdict for each column that has both lines."""
        quantity = results.experiment.quantity(self.quantity)
        better, worse = self.one, self.other
        if not quantity.higher_is_better:
            better, worse = worse, better
        claim = f"{self.one} is better than {self.other}"
        if self.by:
            claim += f" by {self.by:g} or more"
        verdicts = []
        for column in self.columns or results.columns:
            gap = paired_gap(
                printed_values(results, better, column, quantity),
                printed_values(results, worse, column, quantity),
            )
            if gap is not None:
                where = f"{column}, {quantity.label}" if self.quantity else column
                mark = gap.mark(least=self.by or ABOVE_ZERO)
                verdicts.append(ClaimVerdict(mark, f"{where}: {claim}; measured {gap}."))
        return verdicts


@dataclass(frozen=True)
class Steadier:
    """The first quantity of one line has a smaller variance over seeds than that of another.

    The two-sided 95 % interval of the ratio of variances (F distribution) decides.
    """

    one: str
    other: str

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """Return a verdict for each column that has both lines with at least two seeds."""
        from scipy.stats import f

        quantity = results.experiment.quantity()
        verdicts = []
        for column in results.columns:
            one, other = (
                np.array(list(printed_values(results, line, column, quantity).values()))
                for line in (self.one, self.other)
            )
            if min(len(one), len(other)) < 2 or not np.isfinite([*one, *other]).all():
                continue
            with np.errstate(divide="ignore", invalid="ignore"):  # variances of 0
                ratio = one.var(ddof=1) / other.var(ddof=1)
            quantile = f.cdf(ratio, len(one) - 1, len(other) - 1)
            mark = UNDECIDED
            if quantile < (1 - CONFIDENCE) / 2:
                mark = HOLDS
            elif quantile > (1 + CONFIDENCE) / 2:
                mark = FAILS
            sentence = (
                f"{column}: {self.one} varies less over seeds than {self.other}; measured standard "
                f"deviations {one.std(ddof=1):.3g} and {other.std(ddof=1):.3g} ({len(one)} seeds)."
            )
            verdicts.append(ClaimVerdict(mark, sentence))
        return verdicts


@dataclass(frozen=True)
class Near:
    """The mean of a line lies within a distance of a number, both in the unit that is printed."""

    line: str
    column: str
    value: float
    within: float
    quantity: str = ""

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """Return one verdict if the line was run."""
        quantity = results.experiment.quantity(self.quantity)
        values = printed_values(results, self.line, self.column, quantity)
        if not values:
            return []
        mean = Interval.of(values.values())
        mark = mean.mark(self.value - self.within, self.value + self.within)
        claim = f"{self.line} is within {self.within:g} of {self.value:g}"
        return [ClaimVerdict(mark, f"{self.column}: {claim}; measured {mean}.")]


@dataclass(frozen=True)
class AtMost:
    """The mean of a line is at most a bound, in each column.

    Attributes:
        line: Label of the line.
        bounds: By column, the bound in the unit that is printed.
        what: Name of the bound.
        quantity: Name of the quantity; "": the first one of the table.
    """

    line: str
    bounds: Mapping[str, float]
    what: str
    quantity: str = ""

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """Return a verdict for each column that was run."""
        quantity = results.experiment.quantity(self.quantity)
        verdicts = []
        for column, bound in self.bounds.items():
            values = printed_values(results, self.line, column, quantity)
            if values:
                mean = Interval.of(values.values())
                claim = f"{self.line} is at most {self.what} = {bound:.3g}"
                mark = mean.mark(most=bound)
                verdicts.append(ClaimVerdict(mark, f"{column}: {claim}; measured {mean}."))
        return verdicts


@dataclass(frozen=True)
class Rises:
    """The mean rises (or falls) from the first point to the last and on no step goes back.

    It holds if the interval of the whole change is above 0 and no step has a mean below 0. It fails
    if the interval of the whole change, or of one step, is below 0. Everything else is undecided,
    also if nothing changes.

    Attributes:
        points: Labels of (line, column), in order.
        falls: Whether the claim is that the mean falls.
        quantity: Name of the quantity; "": the first one of the table.
    """

    points: tuple[tuple[str, str], ...]
    falls: bool = False
    quantity: str = ""

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """Return one verdict over the points that were run."""
        quantity = results.experiment.quantity(self.quantity)
        values = {point: printed_values(results, *point, quantity) for point in self.points}
        values = {point: of for point, of in values.items() if of}
        if len(values) < 2:
            return []
        ascending = list(values.values())
        if self.falls:
            ascending.reverse()
        change = paired_gap(ascending[-1], ascending[0])
        if change is None:
            return []
        steps = [paired_gap(after, before) for before, after in pairwise(ascending)]
        mark = self._mark(change, [step for step in steps if step is not None])
        verb = "falls" if self.falls else "rises"
        first, *_, last = (", ".join(point) for point in values)
        means = ", ".join(f"{np.mean(list(of.values())):.4g}" for of in values.values())
        seeds = "1 seed" if change.seeds == 1 else f"{change.seeds} seeds"
        claim = f"{capitalise(quantity.label)} {verb} from {first} to {last}"
        return [ClaimVerdict(mark, f"{claim}; measured {means} ({seeds}).")]

    @staticmethod
    def _mark(change: Interval, steps: list[Interval]) -> str:
        if change.seeds < 2:
            return ONE_SEED
        if change.high < 0 or any(step.seeds > 1 and step.high < 0 for step in steps):
            return FAILS
        if change.low > 0 and all(step.mean >= 0 for step in steps):
            return HOLDS
        return UNDECIDED


@dataclass(frozen=True)
class ReachesSooner:
    """One line reaches the last value of another, paired by seed, in a fraction of its rounds.

    Attributes:
        one: Label of the faster line.
        other: Label of the other line.
        share: Fraction of the other's rounds.
        curve: Name of the curve, of which higher values are better.
    """

    one: str
    other: str
    share: float
    curve: str = "accuracy"

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """Return a verdict for each column that has both curves."""
        verdicts = []
        for column in results.columns:
            one, other = (
                {
                    cell.seed: cell.curves[self.curve]
                    for cell in results.of(line, column)
                    if self.curve in cell.curves
                }
                for line in (self.one, self.other)
            )
            seeds = sorted(one.keys() & other.keys())
            if seeds:
                reached = Interval.of(self._first_round(one[seed], other[seed]) for seed in seeds)
                rounds = max(round for round, _ in other[seeds[0]])
                claim = (
                    f"{self.one} reaches the last {self.curve} of {self.other} in at most "
                    f"{self.share * rounds:g} of {rounds} rounds"
                )
                mark = reached.mark(most=self.share * rounds)
                sentence = f"{column}: {claim}; measured {reached}."
                verdicts.append(ClaimVerdict(mark, sentence))
        return verdicts

    @staticmethod
    def _first_round(
        one: list[tuple[int, float | None]], other: list[tuple[int, float | None]]
    ) -> float:
        """Return the first round at which `one` is as high as `other` at its end; ∞: never."""
        target = other[-1][1]
        if target is None:  # the other diverged
            return 0.0
        return min(
            (r for r, value in one if value is not None and value >= target), default=math.inf
        )
