"""Claims about curves, on curves that are written down here."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_experiment import MADE

from coterie.experiments.claims import FAILS, HOLDS, ReachesSooner
from coterie.experiments.outcome import Outcome
from coterie.experiments.spec import Measured

Curve = list[tuple[int, float]]
SLOW: Curve = [(0, 0.1), (5, 0.3), (10, 0.5)]


def judged(first: list[Curve], second: list[Curve], tmp_path: Path) -> list[tuple[str, str]]:
    """The verdicts on "first reaches second in half of the rounds"; one curve for each seed."""
    outcome = Outcome.open(MADE, "full", tmp_path)
    given = {"first": first, "second": second}
    for cell in MADE.cells("full"):
        curves = given[cell.line.label]
        if cell.column.label == "a" and cell.seed < len(curves):
            outcome.add(cell, Measured({}, {"accuracy": curves[cell.seed]}), 0.0)
    return [tuple(v) for v in ReachesSooner("first", "second", share=0.5).judge(outcome)]


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
