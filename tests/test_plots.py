"""Matplotlib figures of histories and cluster assignments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coterie.reporting import plots


def history(*scores: float, metric: str = "accuracy") -> list[dict[str, float]]:
    """The history of a run in which every second round was evaluated."""
    rows: list[dict[str, float]] = [{"round": r} for r in range(2 * len(scores) - 1)]
    for row, score in zip(rows[::2], scores):
        row[metric] = score
    return rows


def texts(axes: Any) -> list[str]:
    return [t.get_text() for t in axes.texts]


def test_a_curve_is_the_mean_of_the_runs_as_far_as_the_shortest_went() -> None:
    runs = [history(0.2, 0.6, 0.9), history(0.4, 0.8)]
    axes = plots.plot_curves({"ifca": runs, "local": [history(0.1, 0.3)]}, starts={"ifca": 1}).axes[
        0
    ]
    first, second = axes.lines
    np.testing.assert_allclose(first.get_xydata(), [[1, 0.3], [3, 0.7]])
    np.testing.assert_allclose(second.get_xydata(), [[0, 0.1], [2, 0.3]])
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.2, 0.8)
    assert sorted(texts(axes)) == ["ifca  0.700", "local  0.300"]
    assert axes.get_title(loc="left") == "test accuracy" and axes.get_yscale() == "linear"


def test_squared_errors_are_drawn_on_a_logarithmic_scale() -> None:
    axes = plots.plot_curves({"local": [history(100.0, 0.5, metric="mse")]}).axes[0]
    assert axes.get_yscale() == "log" and axes.get_title(loc="left") == "test MSE"
    assert texts(axes) == ["local  0.5"]


def test_names_of_lines_that_end_together_are_spread_labels() -> None:
    axes = plots.plot_curves({name: [history(0.1, 0.6)] for name in "abc"}).axes[0]
    heights = sorted(t.get_position()[1] for t in axes.texts)
    assert np.diff(heights).min() >= plots.GAP - 1e-9


CLUSTERS = np.array([[-1, -1, -1, -1], [1, -1, 0, 0], [1, 0, 1, 0]])


def test_names_are_moved_as_little_as_they_need_and_stay_within_the_axes() -> None:
    gap = plots.GAP
    moved = plots.spread_labels([0.2, 0.95, 0.96, 0.97])
    assert moved == pytest.approx([0.2, 1 - 2 * gap, 1 - gap, 1.0])
    assert plots.spread_labels([0.3, 0.3]) == pytest.approx([0.3 - gap / 2, 0.3 + gap / 2])
    assert plots.spread_labels([0.0, 0.0, 0.5]) == pytest.approx([0.0, gap, 0.5])
    assert plots.spread_labels([]) == []


def test_a_piece_of_each_line_leads_from_its_end_to_its_name() -> None:
    axes = plots.plot_curves({name: [history(0.1, 0.6)] for name in "abc"}).axes[0]
    for name in axes.texts:
        assert name.xy == (axes.lines[0].get_xdata()[-1], 0.6)
        assert name.arrowprops["color"] == name.get_color()


def test_groups_are_drawn_with_the_true_ones_by_which_clients_are_sorted() -> None:
    figure = plots.plot_groups(CLUSTERS, "ifca", np.array([0, 1, 0, 1]))
    strip, axes = figure.axes
    assert strip.images[0].get_array().tolist() == [[0], [0], [1], [1]]
    # a, c, b, d; group 1 agrees with the true group 0
    assert axes.images[0].get_array().tolist() == [[-1, 0, 0], [-1, 1, 0], [-1, -1, 1], [-1, 1, 1]]
    assert (strip.get_title(loc="left"), axes.get_title(loc="left")) == ("true", "found")
    assert [t.get_text() for t in strip.get_yticklabels()] == ["group 1", "group 2"]
    assert axes.get_xlabel().endswith("grey: not assigned yet")


def test_groups_are_drawn_without_true_ones() -> None:
    strip, axes = plots.plot_groups(np.array([[0, 1, 0, -1]]), "ifca").axes
    assert strip.images[0].get_array().tolist() == [[-1], [0], [0], [1]]
    assert strip.get_title(loc="left") == axes.get_title(loc="left") == ""
    assert [t.get_text() for t in strip.get_yticklabels()] == ["no group", "group 1", "group 2"]
