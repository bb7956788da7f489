"""Figures of experiments, from results that are written here by hand."""

from __future__ import annotations

import numpy as np
import pytest
from made_experiment import MADE

from coterie.experiments.figures import against_columns, curves_of, ranking
from coterie.experiments.figures_of_groups import (
    NOT_KEPT,
    against_groups,
    groups_over_rounds,
    right_identities,
    weights_of_clients,
)
from coterie.experiments.outcome import Outcome
from coterie.experiments.spec import Measured


@pytest.fixture
def outcome(tmp_path):
    """Two lines, two columns, three seeds; line "second" is higher by 0.1, each seed by 0.01."""
    outcome = Outcome.open(MADE, "full", tmp_path)
    for cell in outcome.missing:
        value = 0.5 + 0.1 * (cell.line.label == "second") + 0.01 * cell.seed
        values = {"accuracy": value, "worst": value, "groups": 2.0 + cell.seed}
        curves = {"accuracy": [(0, 0.1), (5, value)], "ari": [(0, 0.0), (5, 1.0)]}
        extra = {}
        if cell.line.label == "first":
            extra = {"groups": [[0, 0, 1], [0, 1, 1]], "weights": [0.2, 0.7], "shares": [0.1, 0.9]}
        outcome.add(cell, Measured(values, curves, extra), 1.0)
    return outcome


def labels(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_curves_have_a_panel_for_each_column_and_only_the_lines_asked_for(outcome):
    figure = curves_of("accuracy", "Accuracy", lines=("second",))(outcome)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Accuracy, a", "Accuracy, b"]
    assert labels(figure) == ["second", "second"]
    (line,) = figure.axes[0].lines
    assert np.allclose(line.get_xydata(), [[0, 0.1], [5, 0.61]])


def test_curves_have_all_columns_where_those_asked_for_were_not_run(outcome):
    figure = curves_of("accuracy", "Accuracy", columns=("c",))(outcome)
    assert len(figure.axes) == 2


def test_a_quantity_against_columns_has_the_mean_of_the_seeds(outcome):
    drawn = []
    draw = against_columns("Accuracy", log=True, also=lambda axes, _: drawn.append(axes))
    figure = draw(outcome)
    (axes,) = figure.axes
    assert drawn == [axes] and axes.get_yscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b"]
    first, second = axes.lines
    assert np.allclose(first.get_ydata(), 51) and np.allclose(second.get_ydata(), 61)


def test_the_number_of_groups_that_was_chosen_is_marked(outcome):
    figure = against_groups({"first": 4}, "second", ("first",))(outcome)
    by_number, star, across = figure.axes[0].lines
    assert np.allclose(by_number.get_xydata(), [[4, 51]])
    assert star.get_marker() == "*" and np.allclose(star.get_xydata(), [[3, 61]])
    assert star.get_label() == "second, which chose 3" and across.get_label() == "first"


def test_right_identities_fall_back_to_the_ari_of_older_results(outcome):
    assert right_identities(outcome).axes[0].get_title(loc="left").startswith("Agreement")
    cell = next(iter(outcome.cells.values()))
    cell.curves["matched"] = [(0, 0.5), (5, 1.0)]
    assert right_identities(outcome).axes[0].get_title(loc="left").startswith("Share of clients")


def test_clients_and_rounds_of_a_colour_map(outcome):
    figure = groups_over_rounds("first", "b")(outcome)
    (image,) = figure.axes[1].images
    assert image.get_array().shape == (3, 2)  # clients down, rounds across


def test_weights_stand_over_the_planted_shares_or_are_said_to_be_missing(outcome):
    figure = weights_of_clients("a", ("first", "second"), "lower case")(outcome)
    (axes,) = figure.axes  # the second line has no weights
    planted, found = axes.lines
    assert planted.get_ydata().tolist() == [0.1, 0.9] and found.get_ydata().tolist() == [0.2, 0.7]
    empty = weights_of_clients("a", ("second",), "lower case")(outcome)
    assert [text.get_text() for text in empty.texts] == [NOT_KEPT]


def test_a_ranking_has_the_best_line_on_top(outcome):
    (axes,) = ranking("Accuracy", apart=("first",))(outcome).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["second", "first"]
    seeds, mean = axes.lines[:2]
    assert np.allclose(seeds.get_xdata(), [60, 61, 62]) and np.allclose(mean.get_xdata(), 61)
    bottom, top = axes.get_ylim()
    assert bottom > top  # the first place is above
