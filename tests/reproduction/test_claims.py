"""Claims: the whole confidence interval decides, and one seed decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from made_experiment import MADE

from reproduction.claims import (
    FAILS,
    HOLDS,
    ONE_SEED,
    UNDECIDED,
    AtMost,
    Beats,
    Claim,
    ClaimVerdict,
    Interval,
    Near,
    ReachesSooner,
    Rises,
    Steadier,
    paired_gap,
)
from reproduction.result_table import ResultTable
from reproduction.spec import Measured

Curve = list[tuple[int, float]]
SLOW: Curve = [(0, 0.1), (5, 0.3), (10, 0.5)]


def judge(
    claim: Claim, values: Mapping[tuple[str, str], list[float]], tmp_path: Path
) -> list[ClaimVerdict]:
    """Judge a claim; `values` has, by line and column, one accuracy per seed (NaN: diverged)."""
    results = ResultTable.open(MADE, "full", tmp_path)
    for cell in MADE.cells("full"):
        given = values.get((cell.line.label, cell.column.label), [])
        if cell.seed < len(given):
            value = given[cell.seed]
            error = "training diverged" if math.isnan(value) else ""
            results.add(cell, Measured({} if error else {"accuracy": value}), 0.0, error)
    return claim.judge(results)


def judge_gaps(gaps: list[float], by: float, tmp_path: Path) -> str:
    """The mark of "first is better than second by `by` points", for gaps in points."""
    values = {("first", "a"): [0.5 + gap / 100 for gap in gaps], ("second", "a"): [0.5] * len(gaps)}
    (verdict,) = judge(Beats("first", "second", by=by), values, tmp_path)
    return verdict.mark


# ------------------------------------------------------------------------------ intervals
def test_gaps_are_paired_by_seed() -> None:
    gap = paired_gap({0: 1.0, 1: 2.0, 2: 4.0}, {0: 0.0, 1: 1.0, 2: 2.0, 3: 9.0})
    # the gaps are 1, 1, 2: mean 4/3, standard deviation √(1/3), t(0.975, 2) = 4.303
    assert gap is not None and gap.seeds == 3
    assert gap.mean == pytest.approx(4 / 3)
    assert gap.low == pytest.approx(4 / 3 - 4.302653 / 3, rel=1e-6)
    assert gap.high == pytest.approx(4 / 3 + 4.302653 / 3, rel=1e-6)
    assert paired_gap({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(
    ("low", "high", "mark"),
    [
        (4.0, 6.0, HOLDS),
        (3.9, 6.0, UNDECIDED),
        (5.0, 8.1, UNDECIDED),
        (1.0, 3.9, FAILS),
        (8.1, 9.0, FAILS),
        (1.0, 9.0, UNDECIDED),
    ],
)
def test_the_whole_interval_decides(low: float, high: float, mark: str) -> None:
    assert Interval((low + high) / 2, low, high, seeds=3).mark(least=4.0, most=8.0) == mark
    assert Interval((low + high) / 2, low, high, seeds=1).mark(least=4.0, most=8.0) == ONE_SEED


# ------------------------------------------------------------------------------ gaps
@pytest.mark.parametrize(
    ("gaps", "by", "mark"),
    [
        ([10.0, 11.0, 12.0], 4, HOLDS),  # interval 8.5 to 13.5
        ([4.5, 6.0, 7.5], 4, UNDECIDED),  # 2.3 to 9.7: above 0, but not above 4
        ([1.0, 1.1, 1.2], 4, FAILS),  # 0.9 to 1.3: above 0 and below 4
        ([3.0, 4.0, 4.5], 4, UNDECIDED),  # mean 3.8: below 4, but not surely
        ([1.0, 1.1, 1.2], 0, HOLDS),
        ([-1.0, 1.0, 2.0], 0, UNDECIDED),
        ([-2.0, 1.0, -1.0], 0, UNDECIDED),  # mean −0.7, and the interval contains 0
        ([-1.0, -1.1, -1.2], 0, FAILS),
        ([0.0, 0.0, 0.0], 0, FAILS),  # equal is not better
        ([50.0], 4, ONE_SEED),
        ([-50.0], 4, ONE_SEED),
    ],
)
def test_better_by_a_margin(gaps: list[float], by: float, mark: str, tmp_path: Path) -> None:
    assert judge_gaps(gaps, by, tmp_path) == mark


def test_a_diverged_run_is_the_worst(tmp_path: Path) -> None:
    diverged = float("nan")
    good, bad = [0.5, 0.6, 0.7], [diverged] * 3
    for first, second, mark in (
        (good, bad, HOLDS),
        (bad, good, FAILS),
        (bad, bad, FAILS),
        ([0.9, 0.9, diverged], good, UNDECIDED),
    ):
        values = {("first", "a"): first, ("second", "a"): second}
        (verdict,) = judge(Beats("first", "second"), values, tmp_path)
        assert verdict.mark == mark


# ------------------------------------------------------------------------------ means
@pytest.mark.parametrize(
    ("values", "near", "at_most"),
    [
        ([0.509, 0.510, 0.511], HOLDS, FAILS),  # interval 50.75 to 51.25
        ([0.50, 0.51, 0.52], UNDECIDED, UNDECIDED),  # 48.5 to 53.5
        ([0.39, 0.40, 0.41], FAILS, HOLDS),
        ([0.51], ONE_SEED, ONE_SEED),
    ],
)
def test_the_interval_of_a_mean_decides(
    values: list[float], near: str, at_most: str, tmp_path: Path
) -> None:
    given = {("first", "a"): values}
    (verdict,) = judge(Near("first", "a", 51, within=0.5), given, tmp_path)
    assert verdict.mark == near
    (verdict,) = judge(AtMost("first", {"a": 50.0, "b": 1.0}, "the bound"), given, tmp_path)
    assert verdict.mark == at_most


# ------------------------------------------------------------------------------ trends
@pytest.mark.parametrize(
    ("points", "mark"),
    [
        ([[0.1, 0.2, 0.1], [0.5, 0.6, 0.5]], HOLDS),
        ([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], UNDECIDED),  # constant
        ([[0.1, 0.2, 0.1], [0.5, 0.1, 0.2]], UNDECIDED),  # 0.13 on average, and less with one seed
        ([[0.1, 0.1, 0.1], [0.4, 0.2, 0.3], [0.3, 0.2, 0.3], [0.9, 0.8, 0.9]], UNDECIDED),  # a dip
        ([[0.1, 0.1, 0.1], [0.4, 0.4, 0.5], [0.2, 0.2, 0.3], [0.9, 0.8, 0.9]], FAILS),
        ([[0.5, 0.6, 0.5], [0.3, 0.7, 0.4]], UNDECIDED),  # lower on average, but not surely
        ([[0.5, 0.6, 0.5], [0.3, 0.4, 0.3]], FAILS),
        ([[0.1], [0.2]], ONE_SEED),
        ([[0.2], [0.1]], ONE_SEED),
    ],
)
def test_a_trend_holds_or_fails_only_if_it_is_certain(
    points: list[list[float]], mark: str, tmp_path: Path
) -> None:
    names = [("first", "a"), ("first", "b"), ("second", "a"), ("second", "b")]
    for falls, sign in ((False, 1), (True, -1)):
        given = {name: [sign * v for v in values] for name, values in zip(names, points)}
        (verdict,) = judge(Rises(tuple(names), falls=falls), given, tmp_path)
        assert verdict.mark == mark


@pytest.mark.parametrize(
    ("first", "second", "mark"),
    [
        # variances 0.0001 and 0.01: F = 0.01 with (2, 2) degrees of freedom has F/(1 + F) = 0.0099
        ([0.50, 0.51, 0.52], [0.4, 0.5, 0.6], HOLDS),
        # 0.0025 and 0.01: F = 0.25, and 0.25/1.25 = 0.2 may be chance
        ([0.45, 0.50, 0.55], [0.4, 0.5, 0.6], UNDECIDED),
        ([0.30, 0.50, 0.70], [0.4, 0.5, 0.6], UNDECIDED),  # the other way round, 0.8
        ([0.40, 0.50, 0.60], [0.50, 0.51, 0.52], FAILS),
        ([0.40, 0.50, 0.60], [0.5, 0.5, 0.5], FAILS),
        ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5], UNDECIDED),
    ],
)
def test_standard_deviations_are_compared_by_their_ratio(
    first: list[float], second: list[float], mark: str, tmp_path: Path
) -> None:
    given = {("first", "a"): first, ("second", "a"): second}
    (verdict,) = judge(Steadier("first", "second"), given, tmp_path)
    assert verdict.mark == mark
    if mark == HOLDS:
        assert verdict.sentence.endswith("standard deviations 1 and 10 (3 seeds).")


# ------------------------------------------------------------------------------ curves
def judge_curves(first: list[Curve], second: list[Curve], tmp_path: Path) -> list[ClaimVerdict]:
    """Judge "first reaches second in half of the rounds"; one curve per seed."""
    results = ResultTable.open(MADE, "full", tmp_path)
    given = {"first": first, "second": second}
    for cell in MADE.cells("full"):
        curves = given[cell.line.label]
        if cell.column.label == "a" and cell.seed < len(curves):
            results.add(cell, Measured({}, {"accuracy": curves[cell.seed]}), 0.0)
    return ReachesSooner("first", "second", share=0.5).judge(results)


@pytest.mark.parametrize(
    ("first", "mark", "measured"),
    [
        ([(0, 0.1), (5, 0.5), (10, 0.6)], HOLDS, "measured 5 ("),
        ([(0, 0.1), (6, 0.5), (10, 0.6)], FAILS, "measured 6 ("),
        ([(0, 0.1), (5, 0.4), (10, 0.4)], FAILS, "measured inf ("),
        ([(0, 0.1), (5, float("nan")), (10, 0.6)], FAILS, "measured 10 ("),
    ],
)
def test_a_line_reaches_another_within_half_its_rounds(
    first: Curve, mark: str, measured: str, tmp_path: Path
) -> None:
    (verdict,) = judge_curves([first] * 2, [SLOW] * 2, tmp_path)
    assert verdict.mark == mark and measured in verdict.sentence
    assert verdict.sentence.startswith(
        "a: first reaches the last accuracy of second in at most 5 of 10 rounds; "
    )
    (verdict,) = judge_curves([first], [SLOW], tmp_path)
    assert verdict.mark == ONE_SEED


def test_rounds_are_compared_seed_by_seed(tmp_path: Path) -> None:
    early, late = [(0, 0.1), (2, 0.5), (5, 0.5)], [(0, 0.1), (2, 0.4), (6, 0.6)]
    (verdict,) = judge_curves([early, late], [SLOW, SLOW], tmp_path)
    assert verdict.mark == UNDECIDED  # rounds 2 and 6
    assert judge_curves([SLOW], [], tmp_path) == []
