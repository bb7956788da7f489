"""Claims about curves and about rises, on numbers that are written down here."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_experiment import MADE

from reproduction.claims import FAILS, HOLDS, UNSURE, ReachesSooner, Rises, Steadier
from reproduction.result_table import ResultTable
from reproduction.spec import Measured

Curve = list[tuple[int, float]]
SLOW: Curve = [(0, 0.1), (5, 0.3), (10, 0.5)]


def judged(first: list[Curve], second: list[Curve], tmp_path: Path) -> list[tuple[str, str]]:
    """The verdicts on "first reaches second in half of the rounds"; one curve for each seed."""
    results = ResultTable.open(MADE, "full", tmp_path)
    given = {"first": first, "second": second}
    for cell in MADE.cells("full"):
        curves = given[cell.line.label]
        if cell.column.label == "a" and cell.seed < len(curves):
            results.add(cell, Measured({}, {"accuracy": curves[cell.seed]}), 0.0)
    return [tuple(v) for v in ReachesSooner("first", "second", share=0.5).judge(results)]


@pytest.mark.parametrize(
    ("first", "mark", "said"),
    [
        ([(0, 0.1), (5, 0.5), (10, 0.6)], HOLDS, "in at most 5 of 10 rounds; in 5 here."),
        ([(0, 0.1), (6, 0.5), (10, 0.6)], FAILS, "in at most 5 of 10 rounds; in 6 here."),
        ([(0, 0.1), (5, 0.4), (10, 0.4)], FAILS, "never in 10 rounds here."),
        ([(0, 0.1), (5, float("nan")), (10, 0.6)], FAILS, "in 10 here."),
    ],
)
def test_a_line_reaches_another_within_half_its_rounds(
    first: Curve, mark: str, said: str, tmp_path: Path
) -> None:
    [(found, sentence)] = judged([first], [SLOW], tmp_path)
    assert found == mark
    assert sentence.startswith("a: first reaches the last accuracy of second")
    assert sentence.endswith(said)


def test_curves_are_means_over_seeds(tmp_path: Path) -> None:
    # the means are 0.45 and 0.55: one seed alone reaches 0.5 in round 2
    early = [(0, 0.1), (2, 0.5), (5, 0.5)]
    late = [(0, 0.1), (2, 0.4), (5, 0.6)]
    [(mark, sentence)] = judged([early, late], [SLOW], tmp_path)
    assert (mark, sentence.endswith("in 5 here.")) == (HOLDS, True)


def test_a_claim_about_curves_says_nothing_where_one_is_missing(tmp_path: Path) -> None:
    assert judged([SLOW], [], tmp_path) == []


def rises(points: list[list[float]], tmp_path: Path, falls: bool = False) -> str:
    """The mark of "it rises" over up to four points; a value for each seed."""
    names = [("first", "a"), ("first", "b"), ("second", "a"), ("second", "b")]
    given = dict(zip(names, points))
    results = ResultTable.open(MADE, "full", tmp_path)
    for cell in MADE.cells("full"):
        values = given.get((cell.line.label, cell.column.label), [])
        if cell.seed < len(values):
            results.add(cell, Measured({"accuracy": values[cell.seed]}), 0.0)
    (verdict,) = Rises(tuple(names), falls=falls).judge(results)
    return verdict.mark


@pytest.mark.parametrize(
    ("points", "mark"),
    [
        ([[0.1, 0.2, 0.1], [0.5, 0.6, 0.5]], HOLDS),
        ([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], UNSURE),  # it stays
        ([[0.1, 0.2, 0.1], [0.5, 0.1, 0.2]], UNSURE),  # 0.13 on average, and less with one seed
        ([[0.1, 0.1, 0.1], [0.4, 0.2, 0.3], [0.3, 0.2, 0.3], [0.9, 0.8, 0.9]], UNSURE),  # a dip
        ([[0.1, 0.1, 0.1], [0.4, 0.4, 0.5], [0.2, 0.2, 0.3], [0.9, 0.8, 0.9]], FAILS),
        ([[0.5, 0.6, 0.5], [0.3, 0.7, 0.4]], FAILS),  # it ends lower, though that may be chance
        ([[0.1], [0.2]], HOLDS),  # one seed: there is nothing to test
        ([[0.2], [0.1]], FAILS),
    ],
)
def test_a_rise_or_a_step_back_that_may_be_chance_is_unsure(
    points: list[list[float]], mark: str, tmp_path: Path
) -> None:
    assert rises(points, tmp_path) == mark
    negative = [[-value for value in values] for values in points]
    assert rises(negative, tmp_path, falls=True) == mark


@pytest.mark.parametrize(
    ("first", "second", "mark"),
    [
        # variances 0.0001 and 0.01: F = 0.01 with (2, 2) degrees of freedom has F/(1 + F) = 0.0099
        ([0.50, 0.51, 0.52], [0.4, 0.5, 0.6], HOLDS),
        # 0.0025 and 0.01: F = 0.25, and 0.25/1.25 = 0.2 may be chance
        ([0.45, 0.50, 0.55], [0.4, 0.5, 0.6], UNSURE),
        ([0.30, 0.50, 0.70], [0.4, 0.5, 0.6], FAILS),
    ],
)
def test_deviations_are_compared_by_their_ratio(
    first: list[float], second: list[float], mark: str, tmp_path: Path
) -> None:
    results = ResultTable.open(MADE, "full", tmp_path)
    given = {"first": first, "second": second}
    for cell in MADE.cells("full"):
        if cell.column.label == "a":
            results.add(cell, Measured({"accuracy": given[cell.line.label][cell.seed]}), 0.0)
    (verdict,) = Steadier("first", "second").judge(results)
    assert verdict.mark == mark
    deviation = {HOLDS: "1", UNSURE: "5", FAILS: "20"}[mark]
    assert verdict.sentence.endswith(f"deviations {deviation} and 10 here.")
