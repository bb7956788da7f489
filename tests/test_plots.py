"""Figures need only plain attributes of a run, and draw what these say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.reporting import plots


def run(name: str = "ifca", scores: tuple[float, ...] = (0.2, 0.6), **more: Any) -> SimpleNamespace:
    """A run of four clients in which every second round was evaluated."""
    history = [{"round": r} for r in range(2 * len(scores) - 1)]
    metric = more.pop("metric", "accuracy")
    for row, score in zip(history[::2], scores):
        row[metric] = score
    given = {"names": ("a", "b", "c", "d"), "clusters": None, **more}
    return SimpleNamespace(method=SimpleNamespace(name=name), history=history, **given)


def texts(axes: Any) -> list[str]:
    return [t.get_text() for t in axes.texts]


def test_a_curve_is_the_mean_of_the_runs_as_far_as_the_shortest_went() -> None:
    runs = [run(scores=(0.2, 0.6, 0.9)), run(scores=(0.4, 0.8))]
    axes = plots.curves(
        {"ifca": runs, "local": [run("local", (0.1, 0.3))]}, starts={"ifca": 1}
    ).axes[0]
    first, second = axes.lines
    np.testing.assert_allclose(first.get_xydata(), [[1, 0.3], [3, 0.7]])
    np.testing.assert_allclose(second.get_xydata(), [[0, 0.1], [2, 0.3]])
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (0.2, 0.8)
    assert sorted(texts(axes)) == ["ifca  0.700", "local  0.300"]
    assert axes.get_title(loc="left") == "test accuracy" and axes.get_yscale() == "linear"


def test_squared_errors_are_drawn_on_a_logarithmic_scale() -> None:
    axes = plots.curves({"local": [run("local", (100.0, 0.5), metric="mse")]}).axes[0]
    assert axes.get_yscale() == "log" and axes.get_title(loc="left") == "test MSE"
    assert texts(axes) == ["local  0.5"]


def test_names_of_lines_that_end_together_are_moved_apart() -> None:
    axes = plots.curves({name: [run(name, (0.1, 0.6))] for name in "abc"}).axes[0]
    heights = sorted(t.get_position()[1] for t in axes.texts)
    assert np.diff(heights).min() >= plots.GAP - 1e-9


CLUSTERS = np.array([[-1, -1, -1, -1], [1, -1, 0, 0], [1, 0, 1, 0]])


def test_names_are_moved_as_little_as_they_need_and_stay_within_the_axes() -> None:
    gap = plots.GAP
    moved = plots.moved_apart([0.2, 0.95, 0.96, 0.97])
    assert moved == pytest.approx([0.2, 1 - 2 * gap, 1 - gap, 1.0])
    assert plots.moved_apart([0.3, 0.3]) == pytest.approx([0.3 - gap / 2, 0.3 + gap / 2])
    assert plots.moved_apart([0.0, 0.0, 0.5]) == pytest.approx([0.0, gap, 0.5])
    assert plots.moved_apart([]) == []


def test_a_piece_of_each_line_leads_from_its_end_to_its_name() -> None:
    axes = plots.curves({name: [run(name, (0.1, 0.6))] for name in "abc"}).axes[0]
    for name in axes.texts:
        assert name.xy == (axes.lines[0].get_xdata()[-1], 0.6)
        assert name.arrowprops["color"] == name.get_color()


def test_groups_are_drawn_with_the_true_ones_by_which_clients_are_sorted() -> None:
    figure = plots.groups(run(clusters=CLUSTERS, truth=np.array([0, 1, 0, 1])))
    strip, axes = figure.axes
    assert strip.images[0].get_array().tolist() == [[0], [0], [1], [1]]
    # a, c, b, d; group 1 agrees with the true group 0
    assert axes.images[0].get_array().tolist() == [[-1, 0, 0], [-1, 1, 0], [-1, -1, 1], [-1, 1, 1]]
    assert (strip.get_title(loc="left"), axes.get_title(loc="left")) == ("true", "found")
    assert [t.get_text() for t in strip.get_yticklabels()] == ["group 1", "group 2"]
    assert axes.get_xlabel().endswith("grey: not yet asked")


@pytest.mark.parametrize("more", [{}, {"truth": None}], ids=["no attribute", "None"])
def test_groups_are_drawn_without_true_ones(more: dict) -> None:
    strip, axes = plots.groups(run(clusters=np.array([[0, 1, 0, -1]]), **more)).axes
    assert strip.images[0].get_array().tolist() == [[-1], [0], [0], [1]]
    assert strip.get_title(loc="left") == axes.get_title(loc="left") == ""
    assert [t.get_text() for t in strip.get_yticklabels()] == ["no group", "group 1", "group 2"]


def test_a_method_without_groups_is_refused() -> None:
    with pytest.raises(ct.CoterieError, match="local has no groups to draw"):
        plots.groups(run("local"))
