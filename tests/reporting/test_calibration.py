"""Calibration curves and confusion matrices from pooled counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.metrics.histogram import count_log_odds
from coterie.reporting.calibration import calibration, describe_calibration
from coterie.reporting.confusion import confusion, confusion_table


def counts_of(probability: list[float], came_true: list[int]) -> np.ndarray:
    p = torch.tensor(probability, dtype=torch.float64)
    mask = torch.ones_like(p)
    return count_log_odds((p / (1 - p)).log(), torch.tensor(came_true), mask).double().numpy()


def test_points_are_the_mean_probability_and_the_share_that_came_true():
    counts = counts_of([0.12, 0.12, 0.18, 0.95, 0.95], [0, 0, 1, 1, 1])
    result = calibration("m", counts, ["ill", "well"])
    low, high = result.points
    assert low.predicted == pytest.approx(0.14, abs=0.01) and low.observed == pytest.approx(1 / 3)
    assert (low.rows, high.rows, high.observed) == (3, 2, 1.0)
    assert result.error == pytest.approx((3 * (1 / 3 - 0.14) + 2 * 0.05) / 5, abs=0.01)
    assert describe_calibration(result).startswith("m: predicted and observed shares of well")
    assert calibration("m", counts, ["a", "b", "c"]).of == "the guess being right"
    assert calibration("m", 0 * counts, ["a", "b"]) is None


def test_right_probabilities_have_no_error():
    rng = np.random.default_rng(0)
    p = rng.random(50_000)
    counts = counts_of(p.tolist(), (rng.random(50_000) < p).astype(int).tolist())
    assert calibration("m", counts, ["a", "b"]).error < 0.01


def test_the_confusion_matrix_as_a_table():
    result = confusion("m", np.array([[8.0, 2.0], [0.0, 1200.0]]), ["ill", "well"])
    assert result.shares.tolist() == [[0.8, 0.2], [0.0, 1.0]]
    table = confusion_table(result)
    assert table.head == ["true class", "guessed ill", "guessed well"]
    assert table.rows == [["ill", "8", "2"], ["well", "0", "1,200"]]
