"""What a paper's table shows, as sentences that can be checked against ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from coterie.reporting.text import capitalise
from reproduction.result_table import ResultTable
from reproduction.spec import Quantity

HOLDS = "✓"
FAILS = "✗"
UNSURE = "≈"  # the difference may be chance
CONFIDENCE = 0.95


class ClaimVerdict(NamedTuple):
    """Whether a claim holds, and what was measured."""

    mark: str
    sentence: str


class Claim(Protocol):
    """A sentence that can be checked."""

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """A verdict for each column it speaks of; none where cells are missing."""
        ...


class Gap(NamedTuple):
    """One line's values less another's, over the seeds that both have."""

    mean: float
    low: float | None  # of the 95 % interval; None: one seed tells nothing
    high: float | None
    seeds: int

    @property
    def may_be_chance(self) -> bool:
        """Whether the interval holds 0, or is not known."""
        return self.low is None or self.high is None or self.low <= 0 <= self.high


def paired_gap(one: dict[int, float], other: dict[int, float]) -> Gap | None:
    """The gap between two lines, paired by seed; None where no seed has both."""
    from scipy.stats import t

    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return None
    gaps = np.array([one[seed] - other[seed] for seed in seeds])
    mean = float(gaps.mean())
    if len(seeds) < 2 or not np.isfinite(gaps).all():
        return Gap(mean, None, None, len(seeds))
    half = float(t.ppf(0.5 + CONFIDENCE / 2, len(seeds) - 1) * gaps.std(ddof=1) / len(seeds) ** 0.5)
    return Gap(mean, mean - half, mean + half, len(seeds))


@dataclass(frozen=True)
class Beats:
    """One line is better than another, by at least so much, in each of the columns."""

    one: str
    other: str
    by: float = 0.0  # in the quantity's printed unit
    quantity: str = ""  # none: the table's first
    columns: tuple[str, ...] = ()  # none: all

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """A verdict for each column that has both lines."""
        quantity = find_quantity(results, self.quantity)
        verdicts = []
        for column in self.columns or results.columns:
            gap = paired_gap(
                results.values(self.one, column, quantity.name),
                results.values(self.other, column, quantity.name),
            )
            if gap is not None:
                verdicts.append(self._judge_gap(gap, quantity, column))
        return verdicts

    def _judge_gap(self, gap: Gap, quantity: Quantity, column: str) -> ClaimVerdict:
        sign = 1 if quantity.higher_is_better else -1
        by = sign * gap.mean * quantity.factor
        mark = HOLDS
        if gap.may_be_chance and gap.seeds > 1:
            mark = UNSURE
        if not by >= self.by:
            mark = FAILS
        wanted = f"{self.one} is better than {self.other}"
        if self.by:
            wanted += f" by {self.by:g} or more"
        where = column
        if self.quantity:
            where = f"{column}, {quantity.label}"
        return ClaimVerdict(mark, f"{where}: {wanted}; by {by:.3g} here{interval(gap, quantity)}.")


@dataclass(frozen=True)
class Steadier:
    """One line's values differ less from seed to seed than another's, in each column."""

    one: str
    other: str

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """A verdict for each column that has both lines, with two seeds or more."""
        quantity = find_quantity(results, "")
        verdicts = []
        for column in results.columns:
            one, other = (
                np.array(list(results.values(line, column, quantity.name).values()))
                for line in (self.one, self.other)
            )
            if min(len(one), len(other)) > 1 and np.isfinite([*one, *other]).all():
                verdicts.append(self._judge_values(one, other, quantity, column))
        return verdicts

    def _judge_values(
        self, one: np.ndarray, other: np.ndarray, quantity: Quantity, column: str
    ) -> ClaimVerdict:
        from scipy.stats import f

        ratio = one.var(ddof=1) / other.var(ddof=1)
        mark = HOLDS
        if f.cdf(ratio, len(one) - 1, len(other) - 1) > 1 - CONFIDENCE:
            mark = UNSURE
        if not ratio < 1:
            mark = FAILS
        deviations = [v.std(ddof=1) * quantity.factor for v in (one, other)]
        wanted = f"{self.one} differs less from seed to seed than {self.other}"
        return ClaimVerdict(
            mark,
            f"{column}: {wanted}; deviations {deviations[0]:.3g} and {deviations[1]:.3g} here.",
        )


@dataclass(frozen=True)
class Near:
    """A line's mean lies within so much of a number."""

    line: str
    column: str
    value: float  # in the quantity's printed unit
    within: float
    quantity: str = ""

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """One verdict, where the line was run."""
        quantity = find_quantity(results, self.quantity)
        values = results.values(self.line, self.column, quantity.name)
        if not values:
            return []
        mean = float(np.mean(list(values.values()))) * quantity.factor
        mark = HOLDS if abs(mean - self.value) <= self.within else FAILS
        wanted = f"{self.line} is within {self.within:g} of {self.value:g}"
        return [ClaimVerdict(mark, f"{self.column}: {wanted}; {mean:.4g} here.")]


@dataclass(frozen=True)
class AtMost:
    """A line's mean is no more than a bound, in each column."""

    line: str
    bounds: Mapping[str, float]  # by column, in the quantity's printed unit
    what: str  # how the bound is called
    quantity: str = ""

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """A verdict for each column that was run."""
        quantity = find_quantity(results, self.quantity)
        verdicts = []
        for column, bound in self.bounds.items():
            values = results.values(self.line, column, quantity.name)
            if values:
                mean = float(np.mean(list(values.values()))) * quantity.factor
                mark = HOLDS if mean <= bound else FAILS
                wanted = f"{self.line} is at most {self.what} = {bound:.3g}"
                verdicts.append(ClaimVerdict(mark, f"{column}: {wanted}; {mean:.3g} here."))
        return verdicts


@dataclass(frozen=True)
class Rises:
    """The mean rises (or falls) from each (line, column) to the next, or stays.

    A step the other way that may be chance leaves the claim unsure, and so does a rise from the
    first point to the last that may be, or is none. It fails where the last point lies below the
    first.
    """

    points: tuple[tuple[str, str], ...]
    falls: bool = False
    quantity: str = ""

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """One verdict over the points that were run."""
        quantity = find_quantity(results, self.quantity)
        shown = [point for point in self.points if results.values(*point, quantity.name)]
        if len(shown) < 2:
            return []
        values = [results.values(*point, quantity.name) for point in shown]
        verb = "falls" if self.falls else "rises"
        first, last = (", ".join(point) for point in (shown[0], shown[-1]))
        means = [quantity.factor * float(np.mean(list(of.values()))) for of in values]
        told = ", ".join(f"{mean:.4g}" for mean in means)
        what = capitalise(quantity.label) if self.quantity else "It"
        return [
            ClaimVerdict(self._mark(values), f"{what} {verb} from {first} to {last}; {told} here.")
        ]

    def _mark(self, values: list[dict[int, float]]) -> str:
        """✗: it goes the other way, or a step surely does; ≈: a step may, or all is chance."""
        sign = -1 if self.falls else 1
        whole = paired_gap(values[-1], values[0])
        if whole is None or sign * whole.mean < 0:
            return FAILS
        gaps = [paired_gap(after, before) for before, after in pairwise(values)]
        back = [gap for gap in gaps if gap is not None and sign * gap.mean < 0]
        if any(gap.seeds < 2 or not gap.may_be_chance for gap in back):
            return FAILS
        if back or not whole.mean or (whole.seeds > 1 and whole.may_be_chance):
            return UNSURE
        return HOLDS


@dataclass(frozen=True)
class ReachesSooner:
    """One line reaches another's last value within a share of the other's rounds.

    It is judged on the means over seeds of a curve, at the rounds in which both were measured.
    """

    one: str
    other: str
    share: float  # of the other's rounds
    curve: str = "accuracy"  # of which more is better

    def judge(self, results: ResultTable) -> list[ClaimVerdict]:
        """A verdict for each column that has both curves."""
        verdicts = []
        for column in results.columns:
            one = mean_curve(results, self.one, column, self.curve)
            other = mean_curve(results, self.other, column, self.curve)
            if one and other:
                verdicts.append(self._judge_curves(one, other, column))
        return verdicts

    def _judge_curves(
        self, one: dict[int, float], other: dict[int, float], column: str
    ) -> ClaimVerdict:
        rounds = max(other)
        allowed = self.share * rounds
        reached = [round for round, value in sorted(one.items()) if value >= other[rounds]]
        wanted = (
            f"{self.one} reaches the last {self.curve} of {self.other} in at most {allowed:g} of "
            f"{rounds} rounds"
        )
        if not reached:
            return ClaimVerdict(FAILS, f"{column}: {wanted}; never in {max(one)} rounds here.")
        mark = HOLDS if reached[0] <= allowed else FAILS
        return ClaimVerdict(mark, f"{column}: {wanted}; in {reached[0]} here.")


def mean_curve(results: ResultTable, line: str, column: str, name: str) -> dict[int, float]:
    """By round, the mean over seeds of a curve, at the rounds that all seeds have.

    A value that is not finite counts as minus infinity: it reaches nothing.
    """
    runs = [
        {round: -np.inf if value is None else value for round, value in cell.curves[name]}
        for cell in results.of(line, column)
        if name in cell.curves
    ]
    if not runs:
        return {}
    common = set.intersection(*(set(run) for run in runs))
    return {round: float(np.mean([run[round] for run in runs])) for round in common}


def find_quantity(results: ResultTable, name: str) -> Quantity:
    """The quantity of a name among those of the table; the first where none is named."""
    quantities = results.experiment.quantities
    if not name:
        return quantities[0]
    return next(quantity for quantity in quantities if quantity.name == name)


def interval(gap: Gap, quantity: Quantity) -> str:
    """The interval of a gap, in brackets."""
    if gap.low is None or gap.high is None:
        return f" ({gap.seeds} seed{'s' * (gap.seeds > 1)})"
    ends = sorted([gap.low * quantity.factor, gap.high * quantity.factor])
    if not quantity.higher_is_better:
        ends = [-ends[1], -ends[0]]
    return f" (95 % interval {ends[0]:.3g} to {ends[1]:.3g}, {gap.seeds} seeds)"
