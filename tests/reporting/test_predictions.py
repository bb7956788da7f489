"""Calibration curves and confusion matrices from pooled counts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coterie.metrics.histogram import count_log_odds
from coterie.reporting.predictions import calibrate, collect_predictions, describe_calibration


def counts_of(probability: list[float], came_true: list[int]) -> np.ndarray:
    p = torch.tensor(probability, dtype=torch.float64)
    mask = torch.ones_like(p)
    return count_log_odds((p / (1 - p)).log(), torch.tensor(came_true), mask).double().numpy()


def test_points_are_the_mean_probability_and_the_share_that_came_true():
    counts = counts_of([0.12, 0.12, 0.18, 0.95, 0.95], [0, 0, 1, 1, 1])
    result = calibrate("m", counts, ["ill", "well"])
    low, high = result.points
    assert low.predicted == pytest.approx(0.14, abs=0.01) and low.observed == pytest.approx(1 / 3)
    assert (low.rows, high.rows, high.observed) == (3, 2, 1.0)
    assert result.error == pytest.approx((3 * (1 / 3 - 0.14) + 2 * 0.05) / 5, abs=0.01)
    assert describe_calibration(result).startswith("m: the predicted probability of well")
    assert calibrate("m", counts, ["a", "b", "c"]).of == "a correct prediction"
    assert calibrate("m", 0 * counts, ["a", "b"]) is None


def test_right_probabilities_have_no_error():
    rng = np.random.default_rng(0)
    p = rng.random(50_000)
    counts = counts_of(p.tolist(), (rng.random(50_000) < p).astype(int).tolist())
    assert calibrate("m", counts, ["a", "b"]).error < 0.01


def test_the_confusion_matrix_has_the_classes_of_the_data():
    counts = np.zeros((3, 3))  # the model has one output more than the data have classes
    counts[:2, :2] = [[8, 2], [0, 1200]]
    roster = SimpleNamespace(labels=("ill", "well"), classes=2)
    method = SimpleNamespace(name="m")
    trained = SimpleNamespace(pooled_counts={"confusion": counts}, roster=roster, method=method)
    result = collect_predictions(trained)
    assert result.confusion.classes == ["ill", "well"] and result.calibration is None
    assert result.confusion.counts.tolist() == [[8, 2], [0, 1200]]
    trained.roster.labels = None
    assert collect_predictions(trained).confusion.classes == ["0", "1"]
    trained.pooled_counts = {}
    assert collect_predictions(trained) is None
